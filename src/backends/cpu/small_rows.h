// The row functions of the small operations at an instruction level (small_ops.cpp).
#pragma once

#include "backends/cpu/isa_abi.h"

namespace nibble::cpu {

const SmallOpsRows& small_rows(int isa);  // CpuIsa

// out = relu(x)^2, rounded to bf16 after each step as the dense layers do.
void relu2_row(const uint16_t* x, int64_t width, uint16_t* out);

}  // namespace nibble::cpu
