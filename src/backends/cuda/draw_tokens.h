// Greedy and seeded sampling on the device, and the inputs of the step that goes on from it; see
// SmallOps::draw_tokens and place_inputs.
#pragma once

#include "ops/kernels.h"

namespace nibble::cuda {

int64_t draw_workspace_bytes(int64_t rows);
void draw_tokens(const Tensor& logits,
                 const Tensor& requests,
                 const Tensor& workspace,
                 const Tensor& results,
                 const Tensor& shown,
                 const Tensor& candidates,
                 Stream stream);
void place_inputs(const StepInputs& inputs, Stream stream);

}  // namespace nibble::cuda
