// From a checkpoint's linear to the host tensors that pack() reads: finding, checking the values,
// views. Shared by dense linears and experts, first load and reload.
#pragma once

#include <cstddef>
#include <functional>
#include <set>
#include <span>
#include <string>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "ops/gemm.h"
#include "quant/quant_mode.h"

namespace nibble::model {

// One checkpoint matrix.
struct PartSpec {
  std::string module;         // "model.layers.0.self_attn.q_proj"
  int64_t n = 0;              // output rows
  std::string expected_from;  // config keys behind n and k, for messages
  // The head of a model with tied embeddings: used where `module` is not stored. The embedding is
  // a plain matrix that no scheme applies to.
  std::string tied_to = {};
};

// How the checkpoint stores a part; errors name the tensor.
Result<checkpoint::LinearInfo> find_part(const checkpoint::Checkpoint& source,
                                         const PartSpec& part,
                                         int64_t k);

// Adds the names of all its tensors.
void add_names(const checkpoint::LinearInfo& info, std::set<std::string, std::less<>>& names);

// A part must be stored in the form that it was declared with: kernels and slots depend on it.
Result<void> check_format(QuantMode::Weight weight, const checkpoint::LinearInfo& info);

Result<void> require_finite(DType dtype, std::span<const std::byte> data, const std::string& name);

// Parts of a fused linear share their input: `part` must scale it as `first` does.
Result<void> require_same_input_scaling(const checkpoint::Checkpoint& source,
                                        const checkpoint::LinearInfo& first,
                                        const checkpoint::LinearInfo& part);

// Reads a part; every value and scale must be finite.
Result<checkpoint::LinearData> read_part(const checkpoint::Checkpoint& source,
                                         const PartSpec& part,
                                         const checkpoint::LinearInfo& info);

// The same for a matrix that comes by other ways.
Result<checkpoint::LinearData> read_part_without_matrix(const checkpoint::Checkpoint& source,
                                                        const PartSpec& part,
                                                        const checkpoint::LinearInfo& info);

// Points into `data` and `input_scale`. pack() only reads, but Tensor has no const form.
LinearPart view_of(const checkpoint::LinearInfo& info,
                   checkpoint::LinearData& data,
                   float& input_scale);

}  // namespace nibble::model
