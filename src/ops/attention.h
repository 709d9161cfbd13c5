// Causal grouped-query attention over a paged KV cache. Backends are listed in attention_list.cpp.
// Contract: the result of a query row depends on its own position and KV only: KV is walked in
// tiles whose borders are multiples of the page size from position 0, whatever the batch or chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/error.h"
#include "ops/gemm.h"
#include "ops/kernels.h"
#include "tensor/tensor.h"

namespace nibble {

// Prompt tokens are Prefill, also a chunk of one; generated tokens are Decode, one row a sequence,
// also when they are computed again. No call mixes the two.
enum class AttentionPhase : uint8_t { Prefill, Decode };

struct AttentionDesc {
  Device::Kind device = Device::Kind::Cpu;
  AttentionPhase phase = AttentionPhase::Prefill;
  int isa = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t page_size = 16;
  float scale = 1.0f;      // multiplies q.k, head_dim^-0.5 usually
  DType kv = DType::BF16;  // of the cache: BF16, or E4M3 with a scale for keys and one for values
  bool operator==(const AttentionDesc&) const = default;
};

struct AttentionArgs {
  Tensor q;           // [tokens, heads, head_dim] bf16, strided rows allowed
  Tensor k_cache;     // [pages, page_size, kv_heads, head_dim] desc.kv, already holds this step's k
  Tensor v_cache;     // same
  Tensor k_scale;     // [] f32 on the device: stored keys times this are the keys; E4M3 only
  Tensor v_scale;     // likewise
  Tensor page_table;  // [seqs, max_pages] i32
  Tensor q_begin;     // [seqs + 1] i32: rows of q of each sequence
  Tensor kv_lens;     // [seqs] i32: KV length after this step; row i of a sequence with c rows sits
                      // at position kv_len - c + i and sees positions up to its own
  Tensor out;         // [tokens, heads, head_dim] bf16, contiguous
  Tensor workspace;   // workspace_bytes(), any content
  Tensor counters;  // [num_counters()] i32: zeros, zero again after the call; one stream at a time
  // Not null, where prepares() allows it: q and the new keys and values are as the projection left
  // them. The call then does what prepare_qkv does, with the same bits, but leaves q as it is.
  const QkvArgs* prepare = nullptr;
};

struct AttentionBackend {
  std::string_view name;
  std::string_view family;  // what the flag may name instead: kernels of both phases
  Support (*supports)(const AttentionDesc&);
  size_t (*workspace_bytes)(const AttentionDesc&, int64_t max_tokens, int64_t max_seqs);
  void (*run)(const AttentionDesc&, const AttentionArgs&, Stream);
  int64_t (*num_counters)(const AttentionDesc&) = nullptr;  // nullptr: needs none
  // Whether run() takes these as AttentionArgs::prepare; nullptr: never.
  bool (*prepares)(const AttentionDesc&, const QkvArgs&) = nullptr;
};

std::span<const AttentionBackend* const> attention_backends();
Result<const AttentionBackend*> select_attention(const AttentionDesc& desc,
                                                 std::string_view wanted);

}  // namespace nibble
