// The weighted sum over a token's experts. Included by ISA files too: declarations only.
#pragma once

#include <cstdint>

namespace nibble::cpu {

// out[i] = sum over j < count of weights[j] * rows[places[j] * stride + i], j ascending, products
// and sums rounded one by one, so that both give the same bits; i in [begin, end), out bf16.
void weighted_sum_scalar(const float* weights,
                         const int32_t* places,
                         int64_t count,
                         const float* rows,
                         int64_t stride,
                         int64_t begin,
                         int64_t end,
                         uint16_t* out);
void weighted_sum_avx2(const float* weights,
                       const int32_t* places,
                       int64_t count,
                       const float* rows,
                       int64_t stride,
                       int64_t begin,
                       int64_t end,
                       uint16_t* out);

}  // namespace nibble::cpu
