// CHECK family: our own invariants, on in release builds. Never for data from a client or a file
// (that is Result<T>, base/error.h). Compiles in .cu files: no fmt, no iostream.
//
//   CHECK(k % 16 == 0, "k must be a multiple of 16, got ", k);
//
// A failed check prints the condition, the message, file and line, then aborts.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>

namespace nibble {
namespace detail {

[[noreturn]] void check_failed(const char* condition,
                               const char* file,
                               int line,
                               const std::string& message);

inline std::string to_check_text(std::string_view text) { return std::string(text); }
inline std::string to_check_text(const char* text) { return text; }
inline std::string to_check_text(const std::string& text) { return text; }
inline std::string to_check_text(bool value) { return value ? "true" : "false"; }
template <typename T>
  requires(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>)
std::string to_check_text(T value) {
  return std::to_string(value);
}
template <typename T>
  requires std::is_enum_v<T>
std::string to_check_text(T value) {
  return std::to_string(static_cast<long long>(value));
}

template <typename... Parts>
std::string concat_check_text(const Parts&... parts) {
  std::string text;
  ((text += to_check_text(parts)), ...);
  return text;
}

}  // namespace detail
}  // namespace nibble

#define CHECK(condition, ...)                                                                \
  do {                                                                                       \
    if (!(condition)) [[unlikely]] {                                                         \
      ::nibble::detail::check_failed(                                                        \
          #condition, __FILE__, __LINE__, ::nibble::detail::concat_check_text(__VA_ARGS__)); \
    }                                                                                        \
  } while (false)

#ifdef NIBBLE_DCHECK
#define DCHECK(condition, ...) CHECK(condition __VA_OPT__(, ) __VA_ARGS__)
#else
#define DCHECK(condition, ...)      \
  do {                              \
    if (false) {                    \
      static_cast<void>(condition); \
    }                               \
  } while (false)
#endif
