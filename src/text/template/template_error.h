// How template code fails inside this folder: an exception, because an expression can fail at any
// depth. ChatTemplate turns it into a Result; it never leaves the folder. Also the limits that keep
// a template from a checkpoint from using up the server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "base/error.h"

namespace nibble::text::jinja {

class TemplateError : public std::runtime_error {
 public:
  explicit TemplateError(const std::string& message,
                         ErrorCode error_code = ErrorCode::InvalidArgument)
      : std::runtime_error(message), code(error_code) {}
  ErrorCode code;
};

constexpr size_t kMaxSourceBytes = size_t{1} << 20;
constexpr uint32_t kMaxValueDepth = 500;       // containers inside containers
constexpr uint32_t kMaxExpressionDepth = 300;  // of the parse tree
constexpr uint32_t kMaxCallDepth = 500;        // of evaluation, macros included
constexpr uint64_t kMaxSteps = 10'000'000;     // expressions and statements of one rendering
constexpr uint64_t kMaxRange = 100'000;        // jinja2's sandbox has the same
// Bytes that one rendering may make: a base and a multiple of what it is given.
constexpr uint64_t kBaseBytes = uint64_t{64} << 20;
constexpr uint64_t kValueBytes = 64;  // what a small value costs beside its content
constexpr uint64_t kBytesPerInputByte = 256;

// The work one rendering may do.
class Budget {
 public:
  explicit Budget(uint64_t input_bytes)
      : bytes_left_(kBaseBytes + input_bytes * kBytesPerInputByte) {}
  void step(uint64_t count = 1) {
    if (count > steps_left_) {
      throw TemplateError("the template does too much work", ErrorCode::TooLarge);
    }
    steps_left_ -= count;
  }
  // Before making so many bytes.
  void take_bytes(uint64_t count) {
    if (count > bytes_left_) {
      throw TemplateError("the template makes too much text", ErrorCode::TooLarge);
    }
    bytes_left_ -= count;
    step(count / 64);
  }

 private:
  uint64_t steps_left_ = kMaxSteps;
  uint64_t bytes_left_;
};

}  // namespace nibble::text::jinja
