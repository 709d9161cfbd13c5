// All layers of a dense model for one token in one kernel that stays on the device: plain
// functions; decode_step_cuda.cpp makes a backend of them. The bits are those of the kernels that
// it replaces (nvfp4_w4a16_sm90, attention_decode_*, the norms of small_ops.cu).
//
// Why: one after another, a layer's seven kernels of Qwen3-8B take 50 us where its weights are read
// in 24. Here weights keep coming while rows are handed over from block to block.
#pragma once

#include <cstdint>
#include <span>
#include <string>

struct CUstream_st;

namespace nibble::cuda {

/// The four products of a layer, in order.
// NOLINTNEXTLINE(readability-identifier-naming): indices, used as the constants they are
enum StepProduct { kStepQkv, kStepO, kStepGateUp, kStepDown, kNumStepProducts };

struct DecodeStepShape {
  int layers = 0;
  int hidden = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int inner = 0;      // intermediate_size
  int page_size = 0;  // tokens; a power of two, at least 8
};

/// Why the kernel does not take the shape on a Hopper GPU with so many multiprocessors; empty: it
/// does.
std::string decode_step_refusal(const DecodeStepShape& shape, int multiprocessors);

/// Of a shape that is taken: whether it is expected to be faster than the kernels one after
/// another.
bool decode_step_pays(const DecodeStepShape& shape, int multiprocessors);

/// Device pointers of a layer. Matrices are packed as for nvfp4_w4a16_sm90 (gate and up row by row
/// in turn), caches are [pages, page_size, kv_heads, head_dim] bf16.
struct DecodeStepLayer {
  const void* packed[kNumStepProducts] = {};
  const float* row_multiplier[kNumStepProducts] = {};
  const void* qkv_bias = nullptr;    // bf16 [heads + 2 kv_heads, head_dim]; null: none
  const void* input_norm = nullptr;  // bf16 [hidden]
  const void* post_norm = nullptr;   // bf16 [hidden]: before the MLP
  const void* q_norm = nullptr;      // bf16 [head_dim]; null: no norms of heads
  const void* k_norm = nullptr;
  void* k_cache = nullptr;
  void* v_cache = nullptr;
};

/// Bytes of device memory that one model's steps keep from call to call: tables, and what blocks
/// hand to each other. Not shared between models or streams.
int64_t decode_step_state_bytes(const DecodeStepShape& shape, int multiprocessors);

/// Writes the tables into `state` and clears the rest; done when it returns. Again when a pointer
/// of a layer changes.
void prepare_decode_step(const DecodeStepShape& shape,
                         std::span<const DecodeStepLayer> layers,
                         int multiprocessors,
                         void* state,
                         CUstream_st* stream);

struct DecodeStepCall {
  void* state;                // prepared
  void* residual;             // bf16 [hidden]: the embedding; the sum after the last layer
  const int32_t* position;    // [1]
  const int32_t* slot;        // [1]: where the token's keys and values go; below 0: nowhere
  const int32_t* page_table;  // [pages of the sequence]
  const int32_t* kv_len;      // [1], this token included; 0: none, attention gives zeros
  const float* cos_sin;       // rows table_stride apart: `half` cosines, then sines
  int64_t table_stride;
  int half;        // rotated pairs of channels; a multiple of 8
  float norm_eps;  // of rows and of heads
  float scale;     // multiplies q.k
};

/// Enqueues the step; can be captured in a graph.
void launch_decode_step_sm90(const DecodeStepShape& shape,
                             int multiprocessors,
                             const DecodeStepCall& call,
                             CUstream_st* stream);

}  // namespace nibble::cuda
