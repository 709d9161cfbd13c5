// What the NVFP4 backends of this folder share on the host: the check of a desc and packing.
#pragma once

#include <span>

#include "ops/gemm.h"

namespace nibble::cuda {

// Of the Hopper kernels and what shares their packed matrix.
Support supports_nvfp4_sm90(const GemmDesc& desc, QuantMode mode);

// Of the device, or of an H200 where there is none (to say what it would do).
int num_multiprocessors(Device device);

// Host parts into the packed matrix and its row multipliers; done when it returns.
void pack_parts(const GemmDesc& desc,
                std::span<const LinearPart> parts,
                const Tensor& packed,
                const Tensor& row_multiplier,
                Stream stream);

}  // namespace nibble::cuda
