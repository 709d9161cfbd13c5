// What the quantizer will write, decided from headers alone: which linears are encoded together,
// which tensors are copied, and into which shard each goes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/quantize_rules.h"
#include "quantize/method.h"

namespace nibble::quantize {

using checkpoint::layer_index;
using checkpoint::Recipe;
using checkpoint::scale_group;

// One step of the work: a group of linears with one global scale, or one tensor that stays.
struct Unit {
  std::vector<checkpoint::LinearInfo> linears;  // empty: copy `tensor`
  // What is made of them; both: a budget decides in the end.
  bool nvfp4 = true;
  bool fp8 = false;
  std::string tensor;
  std::optional<checkpoint::LinearInfo> convert;  // `tensor` is 8-bit at the source: write bf16
  std::vector<checkpoint::SafetensorsWriter::Entry> entries;  // what it writes, in order
  uint64_t source_bytes = 0;
  uint64_t output_bytes = 0;
};

struct Plan {
  std::vector<std::vector<Unit>> shards;
  std::vector<std::pair<std::string, std::string>> kept;  // linear that stays, reason
  uint64_t source_bytes = 0;
  uint64_t output_bytes = 0;
  int64_t num_quantized = 0;
};

struct PlanOptions {
  uint64_t max_shard_bytes = 0;
  // Patterns (checkpoint/name_pattern.h) of modules that become FP8; the whole form_group() of
  // one that matches goes with it.
  std::vector<std::string> fp8 = {};
  bool candidates = false;             // every other group is made in both forms
  std::optional<Precision> head = {};  // the output head is quantized too; recipe: made with_head
};

// Fails when nothing would be quantized or the source is quantized to 4 bits already.
Result<Plan> make_plan(const checkpoint::Checkpoint& source,
                       const Recipe& recipe,
                       const PlanOptions& options);

// What must have one form: a unit's group, but for the routed experts of a layer, which run as one
// product, all of them ("model.layers.0.mlp.experts.").
std::string form_group(const Unit& unit);

// Sizes, totals and shards once more, after `nvfp4` and `fp8` of units have changed.
void lay_out_again(uint64_t max_shard_bytes, Plan& plan);

}  // namespace nibble::quantize
