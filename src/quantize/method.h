// How weights become codes and scales: the recipes of `nibble quantize --recipe`, from the fastest
// to the best. docs/quantize.md says when to use which.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/error.h"

namespace nibble::quantize {

enum class Method : uint8_t {
  Max,          // block maximum at 6: the bits of ModelOpt's max calibration
  FourOverSix,  // block maximum at 6 or at 4, whichever has the smaller squared error
  Sweep,        // every near scale, columns weighted by mean x^2
  Gptq,         // GPTQ with weighted scales, then coordinate descent
  Full,         // and channel scales folded into norms, and v_proj by attention heads
};

// What a matrix is stored in.
enum class Precision : uint8_t {
  Nvfp4,  // 4.5 bits a weight
  Fp8,    // E4M3 with one scale a matrix
};
std::string_view to_string(Precision precision);           // "nvfp4"
Result<Precision> parse_precision(std::string_view text);  // errors list the names

std::string_view to_string(Method method);           // "four-over-six"
Result<Method> parse_method(std::string_view text);  // errors list the names

constexpr bool needs_calibration(Method method) { return method >= Method::Sweep; }
// Sums of squares of the inputs are enough, no products of columns.
constexpr bool needs_hessian(Method method) { return method >= Method::Gptq; }

}  // namespace nibble::quantize
