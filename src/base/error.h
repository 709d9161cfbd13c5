// Errors that are not our bugs.
//
// Result<T>    expected failures: a bad request, a bad checkpoint, no capable kernel, a full queue.
// SystemError  the environment failed (system calls, CUDA, NCCL): an exception, caught in main and
//              in the engine thread's loop only.
// CHECK        our own bugs, base/check.h.
//
// Messages are lower case without a period; they say what was expected, what was found and, where
// known, what to do. `where` names the tensor, field or JSON path.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <tl/expected.hpp>

namespace nibble {

enum class ErrorCode : uint8_t {
  InvalidArgument,  // 400: the request or the checkpoint is wrong
  WrongState,       // 400: right request, wrong moment
  NotFound,         // 404
  TooLarge,         // 413
  Overloaded,       // 503: try again later
  Cancelled,        // 499: the client went away
  Unsupported,      // 501: understood, but nothing here can do it
  Internal,         // 500
};

std::string_view to_string(ErrorCode code);

struct Error {
  ErrorCode code = ErrorCode::Internal;
  std::string message;
  std::string where;  // tensor name, field or JSON path; may be empty

  // "where: message", or the message alone.
  std::string text() const;
};

template <typename T>
using Result = tl::expected<T, Error>;

inline tl::unexpected<Error> fail(ErrorCode code, std::string message, std::string where = {}) {
  return tl::unexpected<Error>(Error{code, std::move(message), std::move(where)});
}
inline tl::unexpected<Error> invalid(std::string message, std::string where = {}) {
  return fail(ErrorCode::InvalidArgument, std::move(message), std::move(where));
}
inline tl::unexpected<Error> unsupported(std::string message, std::string where = {}) {
  return fail(ErrorCode::Unsupported, std::move(message), std::move(where));
}

class SystemError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws SystemError with "what: strerror(error_number)".
[[noreturn]] void throw_system_error(const std::string& what, int error_number);

namespace detail {
template <typename T>
T&& take_value(Result<T>& result) {
  return std::move(*result);
}
inline void take_value(Result<void>& /*result*/) {}
}  // namespace detail

}  // namespace nibble

// TRY(expr): the value of a Result, or an early return of its error. A GCC/Clang statement
// expression, so it nests in expressions: auto config = TRY(read_config(path));
#define TRY(expr) NIBBLE_TRY_COUNTED(expr, __COUNTER__)
#define NIBBLE_TRY_COUNTED(expr, id) NIBBLE_TRY_NAMED(expr, id)
#define NIBBLE_TRY_NAMED(expr, id) NIBBLE_TRY_AS(expr, nibble_try_##id)
#define NIBBLE_TRY_AS(expr, result)                                        \
  __extension__({                                                          \
    auto result = (expr);                                                  \
    if (!result) [[unlikely]] {                                            \
      return ::tl::unexpected<::nibble::Error>(std::move(result).error()); \
    }                                                                      \
    ::nibble::detail::take_value(result);                                  \
  })
