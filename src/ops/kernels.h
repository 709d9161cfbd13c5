// The small operations of a transformer layer, one table per device and instruction level.
// Activations are bf16 with FP32 arithmetic inside and one rounding at the end; rows do not depend
// on each other, so results do not depend on the batch.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/tensor.h"

namespace nibble {

// What comes between the projection of a layer and its attention, for all tokens of a step.
struct QkvArgs {
  Tensor q;  // [tokens, heads, head_dim] bf16, strided rows: normalised and rotated in place
  Tensor k;  // [tokens, kv_heads, head_dim] bf16: the same, into k_cache; its own content is then
             // undefined
  Tensor v;  // [tokens, kv_heads, head_dim] bf16: copied to v_cache
  Tensor q_weight, k_weight;  // of the per-head norms, [head_dim] bf16 or f32; empty: no norm
  float eps = 0.0f;
  Tensor positions, cos_sin, slots, k_cache, v_cache;  // as for rope and store_kv
  Tensor k_scale, v_scale;                             // of caches of e4m3, as for store_kv_e4m3
};

// How to choose the token of one row of logits, and what came of it. Plain data, copied to the
// device as it is.
struct DrawRequest {
  double scale = 1.0;  // 1 / temperature; 1 when greedy
  double unit = 0.0;   // in [0, 1): the share of the distribution, in order of tokens, to stop at
  int32_t greedy = 1;
  int32_t candidates = 0;  // not 0: the kDrawCandidates best are wanted instead of a draw
};
struct DrawResult {
  double log_total = 0.0;  // log of the sum of exp(logit * scale)
  float logit = 0.0f;      // of the token
  int32_t token = -1;      // -1: the logits were not finite
};

// A token that filters (top_k, top_p, min_p) may keep.
struct DrawCandidate {
  float logit = 0.0f;
  int32_t token = 0;
};
inline constexpr int64_t kDrawCandidates = 256;  // a row, or the vocabulary where that is smaller

// Inputs of a decode step: where the host wrote them, in pinned memory, and where the step reads
// them. All i32 but `results`.
struct StepInputs {
  Tensor fields;     // [fields, rows]; the first field is the tokens
  Tensor sources;    // [rows]: row i's token is that of results[sources[i]] where that is not below
                     // 0 (token 0 where that has none); empty: all tokens are in `fields`
  Tensor results;    // on the device, as of draw_tokens; not read without sources
  Tensor pages;      // [sequences, width]
  Tensor to_fields;  // [fields, rows], strided rows
  Tensor to_pages;   // [at least sequences, at least width], strided rows; the rest is left alone
};

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
  // offset; below 0: nowhere) of k_cache, v_cache [pages, page_size, kv_heads, head_dim] bf16.
  void (*store_kv)(const Tensor& k,
                   const Tensor& v,
                   const Tensor& slots,
                   const Tensor& k_cache,
                   const Tensor& v_cache,
                   Stream);
  // out[i, :] = x[rows[i], :]; rows i32 [count].
  void (*gather_rows)(const Tensor& x, const Tensor& rows, const Tensor& out, Stream);
  // ---- null where a device has no such kernel ----
  // store_kv into e4m3: the value over its scale ([] f32), rounded to nearest even, at most 448.
  void (*store_kv_e4m3)(const Tensor& k,
                        const Tensor& v,
                        const Tensor& slots,
                        const Tensor& k_scale,
                        const Tensor& v_scale,
                        const Tensor& k_cache,
                        const Tensor& v_cache,
                        Stream) = nullptr;
  // head_rms_norm, rope and store_kv or store_kv_e4m3 in one, bit for bit.
  void (*prepare_qkv)(const QkvArgs&, Stream) = nullptr;
  // Chooses the token of every row: logits f32 [rows, vocab]; requests u8 [rows *
  // sizeof(DrawRequest)], in pinned memory, where the host may read them, too; results u8 [rows *
  // sizeof(DrawResult)], on the device; shown u8: the same once more, in pinned memory, or empty.
  // workspace u8, of draw_workspace_bytes(rows). candidates u8 [rows * kDrawCandidates *
  // sizeof(DrawCandidate)], in any order, of the rows that ask for them (token and logit of their
  // result are the largest); empty where none does.
  void (*draw_tokens)(const Tensor& logits,
                      const Tensor& requests,
                      const Tensor& workspace,
                      const Tensor& results,
                      const Tensor& shown,
                      const Tensor& candidates,
                      Stream) = nullptr;
  int64_t (*draw_workspace_bytes)(int64_t rows) = nullptr;
  // Puts the inputs of a step where it reads them. No kernel after it begins before it has ended.
  void (*place_inputs)(const StepInputs&, Stream) = nullptr;
};

std::span<const SmallOps* const> compute_list();  // ops/compute_list.cpp
// The first table of the device that the level allows.
const SmallOps& small_ops(Device::Kind device, int isa);

}  // namespace nibble
