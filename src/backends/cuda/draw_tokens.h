// Greedy and seeded sampling on the device; see SmallOps::draw_tokens.
#pragma once

#include "ops/kernels.h"

namespace nibble::cuda {

int64_t draw_workspace_bytes(int64_t rows);
void draw_tokens(const Tensor& logits,
                 const Tensor& requests,
                 const Tensor& workspace,
                 const Tensor& results,
                 const Tensor& candidates,
                 Stream stream);
void take_drawn(const Tensor& results, const Tensor& rows, const Tensor& tokens, Stream stream);

}  // namespace nibble::cuda
