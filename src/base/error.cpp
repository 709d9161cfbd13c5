#include "base/error.h"

#include <cstring>

namespace nibble {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::InvalidArgument:
      return "invalid_argument";
    case ErrorCode::WrongState:
      return "wrong_state";
    case ErrorCode::NotFound:
      return "not_found";
    case ErrorCode::TooLarge:
      return "too_large";
    case ErrorCode::Overloaded:
      return "overloaded";
    case ErrorCode::Cancelled:
      return "cancelled";
    case ErrorCode::Unsupported:
      return "unsupported";
    case ErrorCode::Internal:
      return "internal";
  }
  return "unknown";
}

std::string Error::text() const { return where.empty() ? message : where + ": " + message; }

void throw_system_error(const std::string& what, int error_number) {
  throw SystemError(what + ": " + std::strerror(error_number));
}

}  // namespace nibble
