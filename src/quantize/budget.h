// Which matrices of a mixed checkpoint get eight bits, when the user says how many bits a weight
// may have on average: those that lose most for their size.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"

namespace nibble::quantize {

inline constexpr double kNvfp4Bits = 4.5;  // codes and block scales
inline constexpr double kFp8Bits = 8;

struct BudgetItem {
  int64_t weights = 0;
  // Loss relative to what the matrix puts out, in NVFP4: e^T H e / tr(W H W^T) with calibration,
  // else ||e||^2 / ||W||^2. Comparable between matrices of any size.
  double loss = 0;
  bool fixed = false;  // its form is decided; it counts with `bits`
  double bits = kNvfp4Bits;
};

// bits must be from 4.5 to 8.
Result<void> check_budget(double bits);

// For each item whether it becomes FP8. Greedily by loss a bit; the mean over all weights stays
// within `bits`, unless the fixed ones alone are above.
std::vector<bool> spend_budget(const std::vector<BudgetItem>& items, double bits);

}  // namespace nibble::quantize
