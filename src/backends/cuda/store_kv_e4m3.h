// Keys and values into an E4M3 cache; see SmallOps::store_kv_e4m3.
#pragma once

#include "ops/kernels.h"

namespace nibble::cuda {

void store_kv_e4m3(const Tensor& k,
                   const Tensor& v,
                   const Tensor& slots,
                   const Tensor& k_scale,
                   const Tensor& v_scale,
                   const Tensor& k_cache,
                   const Tensor& v_cache,
                   Stream stream);

}  // namespace nibble::cuda
