// The CUDA attention kernels over a paged cache, as plain functions; attention_sm90.cpp makes
// backends of them. Pointers are device memory; calls enqueue and return.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace nibble::cuda {

/// What a decode call does to its rows first, as prepare_qkv does it: norms of q and k, rotation,
/// keys and values to the cache. Rows of q stay as they are in memory.
struct PagedPrepare {
  const int32_t* positions;  // [seqs]; null: q is ready and the cache has this step's keys
  const int32_t* slots;      // [seqs]: of the sequence's last token; below 0: nowhere
  const float* cos_sin;      // rows table_stride apart: `half` cosines, then sines
  const void* k;             // [seqs, kv_heads, head_dim] bf16, rows k_stride elements apart
  const void* v;
  const void* q_weight;  // [head_dim] bf16, or f32 where weight_f32; null: no norms
  const void* k_weight;
  int64_t k_stride, v_stride, table_stride;
  int half;  // rotated pairs of channels; a multiple of 8
  float eps;
  bool weight_f32;
};

struct PagedAttention {
  const void* q;              // [tokens, heads, head_dim] bf16, rows q_stride elements apart
  void* k;                    // [pages, page_size, kv_heads, head_dim] bf16 or e4m3, 16-byte
  void* v;                    // aligned; written by a call that prepares only
  const float* k_scale;       // stored keys times this are the keys; of e4m3, null: bf16
  const float* v_scale;       // likewise
  const int32_t* page_table;  // [seqs, table_stride]; entries past a sequence's pages are not read
  const int32_t* q_begin;     // [seqs + 1]
  const int32_t* kv_lens;     // [seqs]
  void* out;                  // [tokens, heads, head_dim] bf16, contiguous
  void* workspace;            // any content
  uint32_t* counters;         // zeros, zero again when the kernel has ended
  PagedPrepare prepare;       // decode of few sequences only (attention_decode_is_few)
  int64_t q_stride;
  int64_t table_stride;
  int64_t pages;
  int tokens;
  int seqs;
  int heads;
  int kv_heads;
  int head_dim;
  int page_size;  // a power of two, at least 8
  float scale;    // multiplies q.k; positive
};

inline constexpr int kMaxGroup = 16;  // heads a KV head, decode

/// Whether so many sequences take the kernel for few, which can prepare rows.
bool attention_decode_is_few(int seqs, int heads, int kv_heads);
int64_t attention_decode_counters();
size_t attention_decode_workspace_bytes(int heads, int kv_heads, int head_dim);
/// Sequence s is row s of q and out; a sequence of length 0 gives zeros.
void launch_attention_decode_paged(const PagedAttention& call, CUstream_st* stream);

inline constexpr int64_t kAttentionPrefillCounters = 2;
/// Rows of sequence s are q_begin[s] .. q_begin[s + 1]; needs no workspace.
void launch_attention_prefill_sm90(const PagedAttention& call, CUstream_st* stream);

}  // namespace nibble::cuda
