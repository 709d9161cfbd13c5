// What the NVFP4 backends of this folder share on the host: the check of a desc and packing.
#pragma once

#include <span>

#include "ops/gemm.h"

namespace nibble::cuda {

Support supports_nvfp4_w4a16(const GemmDesc& desc);

// Host parts into the packed matrix and its row multipliers; done when it returns.
void pack_parts(const GemmDesc& desc,
                std::span<const LinearPart> parts,
                const Tensor& packed,
                const Tensor& row_multiplier,
                Stream stream);

}  // namespace nibble::cuda
