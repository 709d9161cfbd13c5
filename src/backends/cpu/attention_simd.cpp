// The SIMD attention backend of the CPU: cuts the work into (sequence, KV head, block of queries)
// units and spreads them over the pool. The unit's kernel is in attention_kernel.h.
#include <algorithm>
#include <cstddef>
#include <string>

#include "backends/cpu/gemm_shared.h"
#include "backends/cpu/isa_abi.h"
#include "base/check.h"
#include "ops/attention.h"

namespace nibble {

namespace {

using namespace nibble::cpu;  // NOLINT(google-build-using-namespace): the folder's own helpers

template <CpuIsa kIsa>
Support supports(const AttentionDesc& desc) {
  if (desc.device != Device::Kind::Cpu) {
    return {false, "runs on the cpu only"};
  }
  if (desc.isa < static_cast<int>(kIsa)) {
    return {false, "needs " + std::string(to_string(kIsa))};
  }
  if (desc.kv_heads <= 0 || desc.heads <= 0 || desc.heads % desc.kv_heads != 0) {
    return {false, "heads must be a multiple of kv_heads"};
  }
  if (desc.head_dim <= 0 || desc.head_dim > kMaxHeadDim) {
    return {false, "head_dim is above 256"};
  }
  return {true, {}};
}

size_t workspace_bytes(const AttentionDesc& /*desc*/, int64_t /*max_tokens*/, int64_t /*seqs*/) {
  return 0;
}

int64_t blocks_of(int64_t rows, int64_t heads_per_kv, int64_t block_queries) {
  return (rows * heads_per_kv + block_queries - 1) / block_queries;
}

const void* head_of(const Tensor& cache, int64_t kv_head) {
  return static_cast<const std::byte*>(cache.data) +
         kv_head * cache.stride[2] * size_of(cache.dtype);
}

template <void (*kKernel)(const AttentionTask*)>
void run(const AttentionDesc& desc, const AttentionArgs& args, Stream stream) {
  const int64_t seqs = args.kv_lens.shape[0];
  const int32_t* q_begin = args.q_begin.as<int32_t>();
  const int32_t* kv_lens = args.kv_lens.as<int32_t>();
  const int64_t group = desc.heads / desc.kv_heads;
  const bool is_e4m3 = desc.kv == DType::E4M3;
  const float scale = desc.scale * (is_e4m3 ? *args.k_scale.as<float>() : 1.0f);
  const float value_scale = is_e4m3 ? *args.v_scale.as<float>() : 1.0f;
  const auto count_blocks = [&](int64_t block_queries) {
    int64_t blocks = 0;
    for (int64_t seq = 0; seq < seqs; ++seq) {
      blocks += blocks_of(q_begin[seq + 1] - q_begin[seq], group, block_queries);
    }
    return blocks;
  };
  // A step of one sequence has a unit a KV head: too few are cut into pairs, then single queries,
  // which share less of the widening of KV but keep all threads at work.
  const int threads = pool_of(stream).num_threads();
  int64_t block_queries = kMaxQueries;
  for (const int64_t fewer : {2, 1}) {
    if (threads > 1 && count_blocks(block_queries) * desc.kv_heads < 2 * threads) {
      block_queries = fewer;
    }
  }
  const int64_t blocks = count_blocks(block_queries);
  const int64_t units = blocks * desc.kv_heads;
  pool_of(stream).parallel_for(units, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t unit = begin; unit < end; ++unit) {
      // Later blocks of a prompt see more KV: taking units from both ends in turn gives each
      // thread's contiguous range about the same work.
      const int64_t folded = unit % 2 == 0 ? unit / 2 : units - 1 - unit / 2;
      // Few queries of one KV head follow each other: a thread finds KV in its cache.
      const bool few = block_queries != kMaxQueries;
      int64_t block = few ? unit % blocks : folded / desc.kv_heads;
      const int64_t kv_head = few ? unit / blocks : folded % desc.kv_heads;
      int64_t seq = 0;
      while (block >= blocks_of(q_begin[seq + 1] - q_begin[seq], group, block_queries)) {
        block -= blocks_of(q_begin[seq + 1] - q_begin[seq], group, block_queries);
        ++seq;
      }
      const int64_t rows = q_begin[seq + 1] - q_begin[seq];
      AttentionTask task{};
      task.q = args.q.as<uint16_t>() + q_begin[seq] * args.q.stride[0] +
               kv_head * group * args.q.stride[1];
      task.q_row_stride = args.q.stride[0];
      task.q_head_stride = args.q.stride[1];
      task.k_cache = head_of(args.k_cache, kv_head);
      task.v_cache = head_of(args.v_cache, kv_head);
      task.is_e4m3 = is_e4m3;
      task.k_page_stride = args.k_cache.stride[0];
      task.k_slot_stride = args.k_cache.stride[1];
      task.v_page_stride = args.v_cache.stride[0];
      task.v_slot_stride = args.v_cache.stride[1];
      task.pages = args.page_table.as<int32_t>() + seq * args.page_table.stride[0];
      task.page_size = args.k_cache.shape[1];
      task.out = args.out.as<uint16_t>() + q_begin[seq] * args.out.stride[0] +
                 kv_head * group * args.out.stride[1];
      task.out_row_stride = args.out.stride[0];
      task.out_head_stride = args.out.stride[1];
      task.begin = block * block_queries;
      task.end = std::min<int64_t>(rows * group, task.begin + block_queries);
      task.heads_per_kv = group;
      task.first_position = kv_lens[seq] - rows;
      task.head_dim = desc.head_dim;
      task.scale = scale;
      task.value_scale = value_scale;
      kKernel(&task);
    }
  });
}

}  // namespace

extern const AttentionBackend kCpuAvx512Attention;
extern const AttentionBackend kCpuAvx2Attention;
const AttentionBackend kCpuAvx512Attention{
    .name = "attention_avx512",
    .family = "cpu",
    .supports = supports<CpuIsa::Avx512>,
    .workspace_bytes = workspace_bytes,
    .run = run<attention_avx512>,
};
const AttentionBackend kCpuAvx2Attention{
    .name = "attention_avx2",
    .family = "cpu",
    .supports = supports<CpuIsa::Avx2>,
    .workspace_bytes = workspace_bytes,
    .run = run<attention_avx2>,
};

}  // namespace nibble
