// All layers of a dense decoder for one generated token as one call, for devices where the layers'
// operations one after another leave the memory idle between them. Backends are listed in
// decode_step_list.cpp; a model that none takes runs op by op.
// Contract: the residual stream and the KV cache have the bits of the operations that the desc
// names.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/error.h"
#include "ops/attention.h"
#include "ops/gemm.h"
#include "tensor/tensor.h"

namespace nibble {

// The products of a layer, in order.
// NOLINTNEXTLINE(readability-identifier-naming): indices, used as the constants they are
enum DecodeProduct { kDecodeQkv, kDecodeO, kDecodeGateUp, kDecodeDown, kNumDecodeProducts };

// What a step has to agree with in every bit, the same in every layer.
struct DecodeStepDesc {
  Device device;
  int isa = 0;
  int64_t layers = 0;
  std::array<GemmDesc, kNumDecodeProducts> products;
  std::array<std::string_view, kNumDecodeProducts> product_kernels;  // that packed the weights
  AttentionDesc attention;  // of decode: heads, pages, type of the cache, scale
  std::string_view attention_kernel;
  DType norm = DType::BF16;  // of the weights of all norms
  bool head_norms = false;   // RMS norms of q and k heads
  int64_t rotary_dim = 0;    // rotated channels of a head
  bool operator==(const DecodeStepDesc&) const = default;
};

struct DecodeStepLayer {
  std::array<std::span<const Tensor>, kNumDecodeProducts> packed;  // slots, without the bias
  Tensor qkv_bias;                                                 // [n] bf16, or empty
  Tensor input_norm;                                               // [hidden]
  Tensor post_norm;                                                // [hidden]: before the MLP
  Tensor q_norm, k_norm;  // [head_dim]; empty: no norms of heads
  Tensor k_cache;         // [pages, page_size, kv_heads, head_dim] of the desc's type
  Tensor v_cache;
};

struct DecodeStepArgs {
  Tensor state;       // prepare() wrote it; one stream at a time
  Tensor residual;    // [1, hidden] bf16: the embedding; the residual stream after the last layer
  Tensor position;    // [1] i32
  Tensor slot;        // [1] i32: where the token's keys and values go; below 0: nowhere
  Tensor page_table;  // [1, max_pages] i32
  Tensor kv_len;      // [1] i32, this token included; 0: attention gives zeros
  Tensor cos_sin;     // [max_position, rotary_dim] f32, as for rope
  float norm_eps = 0.0f;
};

struct DecodeStepBackend {
  std::string_view name;
  Support (*supports)(const DecodeStepDesc&);
  // Of a desc that is taken: whether it is expected to be faster than the operations.
  bool (*pays)(const DecodeStepDesc&);
  // Of the memory that the steps of one model keep from call to call.
  int64_t (*state_bytes)(const DecodeStepDesc&);
  // Fills `state` [state_bytes] u8 and is done when it returns. Again when a tensor of a layer gets
  // another address, or the memory of `state` lost its content. Not to be captured.
  void (*prepare)(const DecodeStepDesc&,
                  std::span<const DecodeStepLayer> layers,
                  const Tensor& state,
                  Stream);
  void (*run)(const DecodeStepDesc&, const DecodeStepArgs&, Stream);  // graph-capturable
};

std::span<const DecodeStepBackend* const> decode_step_backends();  // ops/decode_step_list.cpp
// The first that takes the desc; else why each does not.
Result<const DecodeStepBackend*> select_decode_step(const DecodeStepDesc& desc);

}  // namespace nibble
