// Weights as E4M3 with one scale a matrix, for those of a mixed checkpoint that get eight bits.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "quantize/encode.h"

namespace nibble::quantize {

// In the files of finished steps the FP8 form of a tensor has this behind its name, so that both
// forms of a matrix can wait for a budget's decision.
inline constexpr std::string_view kFp8Suffix = "#fp8";

struct Fp8Matrix {
  std::vector<uint8_t> codes;  // [n, k] e4m3
  float scale = 1.0f;
  double relative_error = 0;  // Frobenius
  double max_error = 0;
};

// amax / 448; 1 where that is 0.
float fp8_scale(float amax);

Fp8Matrix encode_fp8(const SourceWeight& weight, float scale, ThreadPool& pool);

}  // namespace nibble::quantize
