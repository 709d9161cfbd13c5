// decode_step_sm90 as a backend of whole decode steps: what it takes, and tensors turned into
// pointers.
#include <string>
#include <vector>

#include "backends/cuda/decode_step_sm90.h"
#include "backends/cuda/gemm_nvfp4.h"
#include "base/check.h"
#include "ops/decode_step.h"

namespace nibble {

namespace {

static_assert(static_cast<int>(kDecodeQkv) == static_cast<int>(cuda::kStepQkv) &&
              static_cast<int>(kDecodeO) == static_cast<int>(cuda::kStepO) &&
              static_cast<int>(kDecodeGateUp) == static_cast<int>(cuda::kStepGateUp) &&
              static_cast<int>(kDecodeDown) == static_cast<int>(cuda::kStepDown));

// Whose packed matrices it reads, and whose bits it gives.
constexpr std::string_view kProductKernel = "nvfp4_w4a16_sm90";
constexpr std::string_view kAttentionKernel = "attention_decode_paged";

cuda::DecodeStepShape shape_of(const DecodeStepDesc& desc) {
  cuda::DecodeStepShape shape;
  shape.layers = static_cast<int>(desc.layers);
  shape.hidden = static_cast<int>(desc.products[kDecodeDown].n);
  shape.heads = static_cast<int>(desc.attention.heads);
  shape.kv_heads = static_cast<int>(desc.attention.kv_heads);
  shape.head_dim = static_cast<int>(desc.attention.head_dim);
  shape.inner = static_cast<int>(desc.products[kDecodeDown].k);
  shape.page_size = static_cast<int>(desc.attention.page_size);
  return shape;
}

// What the kernel does after a product beyond the model's own arithmetic: nothing but the bias of
// q, k and v.
Support supports_product(const DecodeStepDesc& desc, DecodeProduct index) {
  const GemmDesc& product = desc.products[index];
  if (desc.product_kernels[index] != kProductKernel) {
    return {false,
            "a product is computed by " + std::string(desc.product_kernels[index]) + ", not by " +
                std::string(kProductKernel)};
  }
  if (product.pre_quant_scale) {
    return {false, "the input of a product is scaled per channel"};
  }
  if (index == kDecodeGateUp) {
    return product.epilogue == Epilogue::SwiGlu ? Support{true, {}}
                                                : Support{false, "the MLP is not SwiGLU in one"};
  }
  const bool plain = product.epilogue == Epilogue::None ||
                     (index == kDecodeQkv && product.epilogue == Epilogue::Bias);
  return plain ? Support{true, {}}
               : Support{false, "a product other than that of q, k and v has a bias"};
}

Support supports(const DecodeStepDesc& desc) {
  if (desc.device.kind != Device::Kind::Cuda || desc.isa != 90) {
    return {false, "needs a Hopper GPU"};
  }
  for (const DecodeProduct index : {kDecodeQkv, kDecodeO, kDecodeGateUp, kDecodeDown}) {
    if (Support support = supports_product(desc, index); !support.ok) {
      return support;
    }
  }
  if (desc.attention.kv != DType::BF16) {
    return {false, "takes a KV cache of bf16"};
  }
  if (desc.attention_kernel != kAttentionKernel) {
    return {false,
            "attention is computed by " + std::string(desc.attention_kernel) + ", not by " +
                std::string(kAttentionKernel)};
  }
  if (desc.norm != DType::BF16) {
    return {false, "takes norms of bf16"};
  }
  if (desc.rotary_dim <= 0 || desc.rotary_dim % 16 != 0 ||
      desc.rotary_dim > desc.attention.head_dim) {
    return {false, "the rotated channels are not a multiple of 16"};
  }
  std::string refusal =
      cuda::decode_step_refusal(shape_of(desc), cuda::num_multiprocessors(desc.device));
  const bool ok = refusal.empty();
  return {ok, std::move(refusal)};
}

bool pays(const DecodeStepDesc& desc) {
  return cuda::decode_step_pays(shape_of(desc), cuda::num_multiprocessors(desc.device));
}

int64_t state_bytes(const DecodeStepDesc& desc) {
  return cuda::decode_step_state_bytes(shape_of(desc), cuda::num_multiprocessors(desc.device));
}

void check_sizes(const DecodeStepDesc& desc) {
  const AttentionDesc& a = desc.attention;
  const auto& p = desc.products;
  const int64_t hidden = p[kDecodeDown].n;
  CHECK(p[kDecodeQkv].n == (a.heads + 2 * a.kv_heads) * a.head_dim && p[kDecodeQkv].k == hidden &&
            p[kDecodeO].n == hidden && p[kDecodeO].k == a.heads * a.head_dim &&
            p[kDecodeGateUp].n == 2 * p[kDecodeDown].k && p[kDecodeGateUp].k == hidden,
        "products of a decode step that do not fit each other");
}

cuda::DecodeStepLayer layer_of(const DecodeStepDesc& desc, const DecodeStepLayer& from) {
  const AttentionDesc& a = desc.attention;
  const auto cache_ok = [&a](const Tensor& cache) {
    return cache.dtype == DType::BF16 && cache.contiguous() && cache.shape[1] == a.page_size &&
           cache.shape[2] == a.kv_heads && cache.shape[3] == a.head_dim;
  };
  CHECK(cache_ok(from.k_cache) && cache_ok(from.v_cache), "layout of the KV cache");
  CHECK(from.q_norm.empty() != desc.head_norms && from.k_norm.empty() != desc.head_norms,
        "norms of heads without their weights");
  CHECK(from.qkv_bias.empty() == (desc.products[kDecodeQkv].epilogue != Epilogue::Bias),
        "a bias of q, k and v that the desc does not have, or the other way round");
  cuda::DecodeStepLayer layer;
  for (const int index : {kDecodeQkv, kDecodeO, kDecodeGateUp, kDecodeDown}) {
    const std::span<const Tensor> slots = from.packed[static_cast<size_t>(index)];
    layer.packed[index] = slots[cuda::kW4A16Records].data;
    layer.row_multiplier[index] = slots[cuda::kW4A16Multiplier].as<float>();
    CHECK(layer.packed[index] != nullptr, "a decode step prepared without its weights");
  }
  layer.qkv_bias = from.qkv_bias.data;
  layer.input_norm = from.input_norm.data;
  layer.post_norm = from.post_norm.data;
  layer.q_norm = from.q_norm.data;
  layer.k_norm = from.k_norm.data;
  layer.k_cache = from.k_cache.data;
  layer.v_cache = from.v_cache.data;
  return layer;
}

void prepare(const DecodeStepDesc& desc,
             std::span<const DecodeStepLayer> layers,
             const Tensor& state,
             Stream stream) {
  check_sizes(desc);
  CHECK(
      static_cast<int64_t>(layers.size()) == desc.layers && state.size_bytes() >= state_bytes(desc),
      "layers or state of another decode step");
  std::vector<cuda::DecodeStepLayer> pointers;
  pointers.reserve(layers.size());
  for (const DecodeStepLayer& layer : layers) {
    pointers.push_back(layer_of(desc, layer));
  }
  cuda::prepare_decode_step(shape_of(desc),
                            pointers,
                            cuda::num_multiprocessors(desc.device),
                            state.data,
                            static_cast<CUstream_st*>(stream.native));
}

void run(const DecodeStepDesc& desc, const DecodeStepArgs& args, Stream stream) {
  CHECK(args.residual.shape[0] == 1 && args.residual.contiguous() && args.kv_len.shape[0] == 1,
        "a decode step of more than one token");
  cuda::DecodeStepCall call{};
  call.state = args.state.data;
  call.residual = args.residual.data;
  call.position = args.position.as<int32_t>();
  call.slot = args.slot.as<int32_t>();
  call.page_table = args.page_table.as<int32_t>();
  call.kv_len = args.kv_len.as<int32_t>();
  call.cos_sin = args.cos_sin.as<float>();
  call.table_stride = args.cos_sin.stride[0];
  call.half = static_cast<int>(args.cos_sin.shape[1] / 2);
  call.norm_eps = args.norm_eps;
  call.scale = desc.attention.scale;
  cuda::launch_decode_step_sm90(shape_of(desc),
                                cuda::num_multiprocessors(desc.device),
                                call,
                                static_cast<CUstream_st*>(stream.native));
}

}  // namespace

extern const DecodeStepBackend kDecodeStepSm90;
const DecodeStepBackend kDecodeStepSm90{
    .name = "decode_step_sm90",
    .supports = supports,
    .pays = pays,
    .state_bytes = state_bytes,
    .prepare = prepare,
    .run = run,
};

}  // namespace nibble
