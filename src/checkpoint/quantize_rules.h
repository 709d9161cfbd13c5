// Which linears become NVFP4, and which of them share one global scale: the same for `nibble
// quantize` and for quantization while loading.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"

namespace nibble::checkpoint {

class Recipe {
 public:
  // extra_excludes: patterns (checkpoint/name_pattern.h) of modules to keep besides the usual ones.
  // with_head: the output head is quantized too.
  static Result<Recipe> make(const std::vector<std::string>& extra_excludes,
                             bool with_head = false);

  // Why a linear stays in full precision; "" when it is quantized.
  std::string reason_to_keep(const LinearInfo& info, const ModelConfig& config) const;
  // Fails when one of the extra patterns matches no linear: a name that was misspelt.
  Result<void> require_matches(const std::vector<LinearInfo>& linears) const;

 private:
  struct Exclusion {
    NamePattern pattern;
    std::string reason;
    std::string asked;  // as the user wrote it; empty: one of the usual ones
  };
  std::vector<Exclusion> exclusions_;
};

// Global scales (amax / 2688, or with room for four-over-six) that a checkpoint may have. Weights
// lie below 1e4 in magnitude, so a multiplier above this is a divisor that a converter put under
// the wrong name; divisors below its inverse likewise. No trained weight is so small that a
// multiplier is below the other: nothing but zeros may have that.
inline constexpr float kMaxGlobalScale = 64.0f;
inline constexpr float kMinGlobalScale = 1e-20f;

// The number behind "layers." in a name; -1 without one.
int64_t layer_index(std::string_view name);

// Linears that read the same input and run as one matrix share their global scale: q, k, v; gate,
// up; w1, w3 of an expert; the down-projections of latent attention; the in-projections of linear
// attention. Members of one group have equal keys; a linear outside every group is its own key.
std::string scale_group(std::string_view module);

}  // namespace nibble::checkpoint
