// The small operations of a transformer layer, one table per device and instruction level.
// Activations are bf16 with FP32 arithmetic inside and one rounding at the end; rows do not depend
// on each other, so results do not depend on the batch.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/tensor.h"

namespace nibble {

struct SmallOps {
  Device::Kind device;
  int isa = 0;  // least level it needs: CpuIsa on the CPU
  // out[t, :] = table[ids[t], :]; ids i32 [tokens], table bf16 [vocab, hidden], out bf16.
  void (*embedding)(const Tensor& ids, const Tensor& table, const Tensor& out, Stream);
  // out = x * rsqrt(mean(x^2) + eps) * weight over the last dimension; x, out bf16 [rows, width],
  // weight bf16 or f32 [width]. out may alias x. (Llama: Zhang & Sennrich 2019.)
  void (*rms_norm)(const Tensor& x, const Tensor& weight, float eps, const Tensor& out, Stream);
  // residual += x (rounded to bf16), then out = rms_norm(residual). All bf16 [rows, width].
  void (*add_rms_norm)(const Tensor& x,
                       const Tensor& residual,
                       const Tensor& weight,
                       float eps,
                       const Tensor& out,
                       Stream);
  // Per-head norm in place: x bf16 [tokens, heads, head_dim] (strided rows allowed).
  void (*head_rms_norm)(const Tensor& x, const Tensor& weight, float eps, Stream);
  // Half-rotate RoPE in place on the first rotary_dim channels of q [tokens, heads, head_dim] and
  // k [tokens, kv_heads, head_dim] (strided); cos_sin f32 [max_position, rotary_dim]: rotary_dim/2
  // cosines, then the sines; positions i32 [tokens].
  void (*rope)(
      const Tensor& q, const Tensor& k, const Tensor& positions, const Tensor& cos_sin, Stream);
  // out[t, i] = silu(x[t, i]) * x[t, width + i]; x bf16 [tokens, 2 * width], out bf16.
  void (*silu_mul)(const Tensor& x, const Tensor& out, Stream);
  // x += y, bf16.
  void (*add)(const Tensor& x, const Tensor& y, Stream);
  // Writes k, v [tokens, kv_heads, head_dim] (strided) to slots i32 [tokens] (page * page_size +
  // offset) of k_cache, v_cache [pages, page_size, kv_heads, head_dim] bf16.
  void (*store_kv)(const Tensor& k,
                   const Tensor& v,
                   const Tensor& slots,
                   const Tensor& k_cache,
                   const Tensor& v_cache,
                   Stream);
  // out[i, :] = x[rows[i], :]; rows i32 [count].
  void (*gather_rows)(const Tensor& x, const Tensor& rows, const Tensor& out, Stream);
};

std::span<const SmallOps* const> compute_list();  // ops/compute_list.cpp
// The first table of the device that the level allows.
const SmallOps& small_ops(Device::Kind device, int isa);

}  // namespace nibble
