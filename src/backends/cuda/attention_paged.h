// The CUDA attention kernels over a paged cache, as plain functions; attention_sm90.cpp makes
// backends of them. Pointers are device memory; calls enqueue and return.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace nibble::cuda {

struct PagedAttention {
  const void* q;              // [tokens, heads, head_dim] bf16, rows q_stride elements apart
  const void* k;              // [pages, page_size, kv_heads, head_dim] bf16, 16-byte aligned
  const void* v;              // same
  const int32_t* page_table;  // [seqs, table_stride]; entries past a sequence's pages are not read
  const int32_t* q_begin;     // [seqs + 1]
  const int32_t* kv_lens;     // [seqs]
  void* out;                  // [tokens, heads, head_dim] bf16, contiguous
  void* workspace;            // any content
  uint32_t* counters;         // zeros, zero again when the kernel has ended
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

int64_t attention_decode_counters();
size_t attention_decode_workspace_bytes(int heads, int kv_heads, int head_dim);
/// Sequence s is row s of q and out; a sequence of length 0 gives zeros.
void launch_attention_decode_paged(const PagedAttention& call, CUstream_st* stream);

inline constexpr int64_t kAttentionPrefillCounters = 2;
/// Rows of sequence s are q_begin[s] .. q_begin[s + 1]; needs no workspace.
void launch_attention_prefill_sm90(const PagedAttention& call, CUstream_st* stream);

}  // namespace nibble::cuda
