// decode_step_sm90: state and launch; the kernel is in decode_step_sm90.cuh.
#include <algorithm>
#include <vector>

#include <cuda_runtime.h>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/decode_step_plan.h"
#include "backends/cuda/decode_step_sm90.cuh"
#include "backends/cuda/decode_step_sm90.h"
#include "backends/cuda/tensor_map.h"
#include "base/check.h"

namespace nibble::cuda {

namespace {

int64_t round_up(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

/// Where things lie in the state, in bytes.
struct StateLayout {
  int64_t epoch = 0;
  std::array<int64_t, kNumStepRows> rows{};
  int64_t counters = 0;
  int64_t attention = 0;  // workspace
  int64_t layers = 0;
  int64_t blocks = 0;
  int64_t stages = 0;
  int64_t maps = 0;
  int64_t bytes = 0;

  StateLayout(const DecodeStepShape& s, const DecodeStepPlan& plan) {
    const int attended = s.heads * s.head_dim;
    const std::array<int, kNumStepRows> widths = {
        attended + 2 * s.kv_heads * s.head_dim, attended, s.hidden, s.inner, s.hidden};
    int64_t at = 0;
    const auto take = [&at](int64_t size) {
      const int64_t begin = at;
      at = round_up(at + size, 256);
      return begin;
    };
    epoch = take(4);
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i] = take(int64_t{widths[i]} * 4);
    }
    counters = take(attention_decode_counters() * 4);
    attention = take(
        static_cast<int64_t>(attention_decode_workspace_bytes(s.heads, s.kv_heads, s.head_dim)));
    layers = take(s.layers * static_cast<int64_t>(sizeof(DecodeStepLayer)));
    blocks = take(static_cast<int64_t>(plan.blocks.size() * sizeof(StepBlock)));
    stages = take(static_cast<int64_t>(plan.stages.size() * sizeof(StepStage)));
    maps = take(s.layers * static_cast<int64_t>(kNumStepProducts * sizeof(StepMaps)));
    bytes = at;
  }
};

template <int kDim, int kNorms>
void launch(const DecodeStepParams& params, int blocks, cudaStream_t stream) {
  const auto kernel = decode_step_sm90<kDim, kNorms>;
  static const bool kReady = [&] {
    CUDA_CHECK(cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kStepSharedBytes));
    return true;
  }();
  (void)kReady;
  // All blocks must be there at once: they wait for each other.
  cudaLaunchAttribute together{};
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kStepThreads);
  config.dynamicSmemBytes = kStepSharedBytes;
  config.stream = stream;
  config.attrs = &together;
  config.numAttrs = 1;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, params));
}

}  // namespace

int64_t decode_step_state_bytes(const DecodeStepShape& shape, int multiprocessors) {
  return StateLayout(shape, plan_decode_step(shape, multiprocessors)).bytes;
}

void prepare_decode_step(const DecodeStepShape& shape,
                         std::span<const DecodeStepLayer> layers,
                         int multiprocessors,
                         void* state,
                         CUstream_st* stream) {
  const DecodeStepPlan plan = plan_decode_step(shape, multiprocessors);
  CHECK(static_cast<int>(layers.size()) == shape.layers, layers.size(), " layers given");
  const StateLayout layout(shape, plan);
  auto* at = static_cast<uint8_t*>(state);
  CUDA_CHECK(cudaMemsetAsync(at, 0, static_cast<size_t>(layout.bytes), stream));
  CUDA_CHECK(cudaMemcpyAsync(
      at + layout.layers, layers.data(), layers.size_bytes(), cudaMemcpyHostToDevice, stream));
  CUDA_CHECK(cudaMemcpyAsync(at + layout.blocks,
                             plan.blocks.data(),
                             plan.blocks.size() * sizeof(StepBlock),
                             cudaMemcpyHostToDevice,
                             stream));
  CUDA_CHECK(cudaMemcpyAsync(at + layout.stages,
                             plan.stages.data(),
                             plan.stages.size() * sizeof(StepStage),
                             cudaMemcpyHostToDevice,
                             stream));
  std::vector<StepMaps> maps;
  for (const DecodeStepLayer& layer : layers) {
    for (size_t p = 0; p < kNumStepProducts; ++p) {
      const StepProductPlan& product = plan.products[p];
      const int64_t lines = row_tiles_of(product.n) * product.k_blocks;
      maps.push_back({strip_lines_map(layer.packed[p], lines, kStepCodeBytes / 4),
                      strip_lines_map(layer.packed[p], lines, kStepScaleBytes / 4)});
    }
  }
  CUDA_CHECK(cudaMemcpyAsync(at + layout.maps,
                             maps.data(),
                             maps.size() * sizeof(StepMaps),
                             cudaMemcpyHostToDevice,
                             stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));  // the tables here go away
}

void launch_decode_step_sm90(const DecodeStepShape& shape,
                             int multiprocessors,
                             const DecodeStepCall& call,
                             CUstream_st* stream) {
  const DecodeStepPlan plan = plan_decode_step(shape, multiprocessors);
  const StateLayout layout(shape, plan);
  auto* at = static_cast<uint8_t*>(call.state);
  PagedAttention attention{};
  attention.page_table = call.page_table;
  attention.kv_lens = call.kv_len;
  attention.workspace = at + layout.attention;
  attention.counters = reinterpret_cast<uint32_t*>(at + layout.counters);
  attention.seqs = 1;
  attention.tokens = 1;
  attention.heads = shape.heads;
  attention.kv_heads = shape.kv_heads;
  attention.head_dim = shape.head_dim;
  attention.page_size = shape.page_size;
  attention.scale = call.scale;
  attention.prepare.positions = call.position;
  attention.prepare.slots = call.slot;
  attention.prepare.cos_sin = call.cos_sin;
  attention.prepare.table_stride = call.table_stride;
  attention.prepare.half = call.half;
  attention.prepare.eps = call.norm_eps;
  DecodeStepParams params{};
  static_cast<StepShared&>(params) = place_step_shared(shape, plan);
  params.attention = decode_params_of(attention);
  params.layers = reinterpret_cast<const DecodeStepLayer*>(at + layout.layers);
  params.blocks = reinterpret_cast<const StepBlock*>(at + layout.blocks);
  params.maps = reinterpret_cast<const StepMaps*>(at + layout.maps);
  params.epoch = reinterpret_cast<uint32_t*>(at + layout.epoch);
  for (size_t i = 0; i < layout.rows.size(); ++i) {
    params.rows[i] = reinterpret_cast<uint64_t*>(at + layout.rows[i]);
  }
  params.residual = static_cast<__nv_bfloat16*>(call.residual);
  params.stages = reinterpret_cast<const StepStage*>(at + layout.stages);
  params.most_stages = plan.most_stages;
  params.num_layers = shape.layers;
  params.hidden = shape.hidden;
  for (size_t i = 0; i < plan.products.size(); ++i) {
    params.row_pieces[i] = plan.products[i].k / 8;
    params.max_pieces[i] = plan.products[i].max_pieces;
  }
  params.eps = call.norm_eps;
  const auto blocks = static_cast<int>(plan.blocks.size());
  const auto by_norms = [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    step_norms(shape.hidden) == 1 ? launch<kDim, 1>(params, blocks, stream)
                                  : launch<kDim, 2>(params, blocks, stream);
  };
  shape.head_dim == 128 ? by_norms(std::integral_constant<int, 128>{})
                        : by_norms(std::integral_constant<int, 64>{});
}

}  // namespace nibble::cuda
