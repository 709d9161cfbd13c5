// The Hopper attention kernels as backends: what they take, and tensors turned into pointers.
#include <string>

#include "backends/cuda/attention_paged.h"
#include "base/check.h"
#include "ops/attention.h"

namespace nibble {

namespace {

using namespace nibble::cuda;  // NOLINT(google-build-using-namespace): the folder's own helpers

Support supports_paged(const AttentionDesc& desc, AttentionPhase phase) {
  if (desc.device != Device::Kind::Cuda || desc.isa != 90) {
    return {false, "needs a Hopper GPU"};
  }
  if (desc.phase != phase) {
    return {false, phase == AttentionPhase::Decode ? "decode only" : "prefill only"};
  }
  if (desc.kv != DType::BF16 && desc.kv != DType::E4M3) {
    return {false, "takes a KV cache of bf16 or e4m3"};
  }
  if (desc.head_dim != 64 && desc.head_dim != 128) {
    return {false, "head_dim is neither 64 nor 128"};
  }
  if (desc.kv_heads <= 0 || desc.heads <= 0 || desc.heads % desc.kv_heads != 0) {
    return {false, "heads must be a multiple of kv_heads"};
  }
  if (desc.page_size < 8 || (desc.page_size & (desc.page_size - 1)) != 0) {
    return {false, "pages must be a power of two of at least 8 tokens"};
  }
  if (!(desc.scale > 0)) {
    return {false, "the scale must be positive"};
  }
  return {true, {}};
}

PagedAttention paged_call(const AttentionDesc& desc, const AttentionArgs& args) {
  const auto cache_ok = [&](const Tensor& cache) {
    return cache.dtype == desc.kv && cache.contiguous() && cache.shape[1] == desc.page_size &&
           cache.shape[2] == desc.kv_heads && cache.shape[3] == desc.head_dim &&
           reinterpret_cast<uintptr_t>(cache.data) % 16 == 0;
  };
  CHECK(cache_ok(args.k_cache) && cache_ok(args.v_cache), "layout of the KV cache");
  CHECK(args.q.stride[1] == desc.head_dim && args.q.stride[2] == 1 && args.out.contiguous(),
        "layout of q or out");
  PagedAttention call{};
  call.q = args.q.data;
  call.k = args.k_cache.data;
  call.v = args.v_cache.data;
  if (desc.kv == DType::E4M3) {
    call.k_scale = args.k_scale.as<float>();
    call.v_scale = args.v_scale.as<float>();
  }
  call.page_table = args.page_table.as<int32_t>();
  call.q_begin = args.q_begin.as<int32_t>();
  call.kv_lens = args.kv_lens.as<int32_t>();
  call.out = args.out.data;
  call.workspace = args.workspace.data;
  call.counters =
      args.counters.empty() ? nullptr : reinterpret_cast<uint32_t*>(args.counters.as<int32_t>());
  call.q_stride = args.q.stride[0];
  call.table_stride = args.page_table.stride[0];
  call.pages = args.k_cache.shape[0];
  call.tokens = static_cast<int>(args.q.shape[0]);
  call.seqs = static_cast<int>(args.kv_lens.shape[0]);
  call.heads = static_cast<int>(desc.heads);
  call.kv_heads = static_cast<int>(desc.kv_heads);
  call.head_dim = static_cast<int>(desc.head_dim);
  call.page_size = static_cast<int>(desc.page_size);
  call.scale = desc.scale;
  return call;
}

// ---- prefill ----

Support supports_prefill(const AttentionDesc& desc) {
  return supports_paged(desc, AttentionPhase::Prefill);
}

size_t no_workspace(const AttentionDesc& /*desc*/, int64_t /*max_tokens*/, int64_t /*max_seqs*/) {
  return 0;
}

int64_t prefill_counters(const AttentionDesc& /*desc*/) { return kAttentionPrefillCounters; }

void run_prefill(const AttentionDesc& desc, const AttentionArgs& args, Stream stream) {
  launch_attention_prefill_sm90(paged_call(desc, args), static_cast<CUstream_st*>(stream.native));
}

// ---- decode ----

Support supports_decode(const AttentionDesc& desc) {
  Support support = supports_paged(desc, AttentionPhase::Decode);
  if (support.ok && desc.heads / desc.kv_heads > kMaxGroup) {
    return {false, "more than 16 heads a KV head"};
  }
  return support;
}

size_t decode_workspace(const AttentionDesc& desc, int64_t /*max_tokens*/, int64_t /*max_seqs*/) {
  return attention_decode_workspace_bytes(static_cast<int>(desc.heads),
                                          static_cast<int>(desc.kv_heads),
                                          static_cast<int>(desc.head_dim));
}

int64_t decode_counters(const AttentionDesc& /*desc*/) { return attention_decode_counters(); }

bool aligned_rows(const Tensor& tensor, int64_t head_dim) {
  return tensor.stride[0] % 8 == 0 && tensor.stride[1] == head_dim &&
         reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0;
}

bool prepares(const AttentionDesc& desc, const QkvArgs& args) {
  const int64_t half = args.cos_sin.shape[1] / 2;
  const auto weight_ok = [](const Tensor& weight) {
    return weight.empty() || reinterpret_cast<uintptr_t>(weight.data) % 16 == 0;
  };
  return desc.phase == AttentionPhase::Decode && half % 8 == 0 && 2 * half <= desc.head_dim &&
         aligned_rows(args.q, desc.head_dim) && aligned_rows(args.k, desc.head_dim) &&
         aligned_rows(args.v, desc.head_dim) && weight_ok(args.q_weight) &&
         weight_ok(args.k_weight) &&
         attention_decode_is_few(static_cast<int>(args.q.shape[0]),
                                 static_cast<int>(desc.heads),
                                 static_cast<int>(desc.kv_heads));
}

PagedPrepare paged_prepare(const QkvArgs& args) {
  PagedPrepare prepare{};
  prepare.positions = args.positions.as<int32_t>();
  prepare.slots = args.slots.as<int32_t>();
  prepare.cos_sin = args.cos_sin.as<float>();
  prepare.k = args.k.data;
  prepare.v = args.v.data;
  prepare.q_weight = args.q_weight.data;
  prepare.k_weight = args.k_weight.data;
  prepare.k_stride = args.k.stride[0];
  prepare.v_stride = args.v.stride[0];
  prepare.table_stride = args.cos_sin.stride[0];
  prepare.half = static_cast<int>(args.cos_sin.shape[1] / 2);
  prepare.eps = args.eps;
  prepare.weight_f32 = !args.q_weight.empty() && args.q_weight.dtype == DType::F32;
  return prepare;
}

void run_decode(const AttentionDesc& desc, const AttentionArgs& args, Stream stream) {
  PagedAttention call = paged_call(desc, args);
  if (args.prepare != nullptr) {
    CHECK(prepares(desc, *args.prepare), "rows that this kernel does not prepare");
    call.prepare = paged_prepare(*args.prepare);
  }
  CHECK(call.tokens == call.seqs, "decode takes one row a sequence");
  launch_attention_decode_paged(call, static_cast<CUstream_st*>(stream.native));
}

}  // namespace

extern const AttentionBackend kAttentionPrefillSm90;
const AttentionBackend kAttentionPrefillSm90{
    .name = "attention_prefill_sm90",
    .family = "sm90",
    .supports = supports_prefill,
    .workspace_bytes = no_workspace,
    .run = run_prefill,
    .num_counters = prefill_counters,
};

extern const AttentionBackend kAttentionDecodePaged;
const AttentionBackend kAttentionDecodePaged{
    .name = "attention_decode_paged",
    .family = "sm90",
    .supports = supports_decode,
    .workspace_bytes = decode_workspace,
    .run = run_decode,
    .num_counters = decode_counters,
    .prepares = prepares,
};

}  // namespace nibble
