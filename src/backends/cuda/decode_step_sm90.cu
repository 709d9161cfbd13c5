// decode_step_sm90: state and launch; the kernel is in decode_step_sm90.cuh.
#include <array>
#include <type_traits>

#include <cuda_runtime.h>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/decode_step_plan.h"
#include "backends/cuda/decode_step_sm90.cuh"
#include "backends/cuda/decode_step_sm90.h"
#include "base/check.h"

namespace nibble::cuda {

namespace {

int64_t round_up(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

/// Where things lie in the state, in bytes.
struct StateLayout {
  int64_t epoch = 0;
  int64_t rows = 0;  // kStepCopies of them
  int64_t copy_bytes = 0;
  std::array<int64_t, kNumStepRows> row{};  // in a copy
  int64_t counters = 0;
  int64_t attention = 0;  // workspace
  int64_t layers = 0;
  int64_t blocks = 0;
  int64_t runs = 0;
  int64_t bytes = 0;

  StateLayout(const DecodeStepShape& s, const DecodeStepSizes& sizes) {
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
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = copy_bytes;
      copy_bytes = round_up(copy_bytes + int64_t{widths[i]} * 2, 256);
    }
    rows = take(kStepCopies * copy_bytes);
    counters = take(attention_decode_counters() * 4);
    attention = take(
        static_cast<int64_t>(attention_decode_workspace_bytes(s.heads, s.kv_heads, s.head_dim)));
    layers = take(s.layers * static_cast<int64_t>(sizeof(DecodeStepLayer)));
    blocks = take(sizes.blocks * static_cast<int64_t>(sizeof(StepBlock)));
    runs = take(int64_t{sizes.blocks} * sizes.most_runs * static_cast<int64_t>(sizeof(StepRun)));
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
  return StateLayout(shape, decode_step_sizes(shape, multiprocessors)).bytes;
}

void prepare_decode_step(const DecodeStepShape& shape,
                         std::span<const DecodeStepLayer> layers,
                         int multiprocessors,
                         void* state,
                         CUstream_st* stream) {
  const DecodeStepPlan plan = plan_decode_step(shape, multiprocessors);
  CHECK(static_cast<int>(layers.size()) == shape.layers, layers.size(), " layers given");
  const StateLayout layout(shape, plan.sizes);
  auto* at = static_cast<uint8_t*>(state);
  CUDA_CHECK(cudaMemsetAsync(at, 0, static_cast<size_t>(layout.bytes), stream));
  static_assert(kStepAbsent == 0xFFFFFFFFu);
  CUDA_CHECK(cudaMemsetAsync(
      at + layout.rows, 0xFF, static_cast<size_t>(kStepCopies * layout.copy_bytes), stream));
  CUDA_CHECK(cudaMemcpyAsync(
      at + layout.layers, layers.data(), layers.size_bytes(), cudaMemcpyHostToDevice, stream));
  CUDA_CHECK(cudaMemcpyAsync(at + layout.blocks,
                             plan.blocks.data(),
                             plan.blocks.size() * sizeof(StepBlock),
                             cudaMemcpyHostToDevice,
                             stream));
  CUDA_CHECK(cudaMemcpyAsync(at + layout.runs,
                             plan.runs.data(),
                             plan.runs.size() * sizeof(StepRun),
                             cudaMemcpyHostToDevice,
                             stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));  // the tables here go away
}

void launch_decode_step_sm90(const DecodeStepShape& shape,
                             int multiprocessors,
                             const DecodeStepCall& call,
                             CUstream_st* stream) {
  const DecodeStepSizes sizes = decode_step_sizes(shape, multiprocessors);
  const StateLayout layout(shape, sizes);
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
  static_cast<StepShared&>(params) = place_step_shared(shape, sizes);
  params.attention = decode_params_of(attention);
  params.layers = reinterpret_cast<const DecodeStepLayer*>(at + layout.layers);
  params.blocks = reinterpret_cast<const StepBlock*>(at + layout.blocks);
  params.epoch = reinterpret_cast<uint32_t*>(at + layout.epoch);
  params.rows = reinterpret_cast<uint32_t*>(at + layout.rows);
  params.copy_pairs = static_cast<int>(layout.copy_bytes / 4);
  for (size_t i = 0; i < layout.row.size(); ++i) {
    params.row_at[i] = static_cast<int>(layout.row[i] / 4);
  }
  params.residual = static_cast<__nv_bfloat16*>(call.residual);
  params.runs = reinterpret_cast<const StepRun*>(at + layout.runs);
  params.most_runs = sizes.most_runs;
  params.num_layers = shape.layers;
  params.hidden = shape.hidden;
  const std::array<int, kNumStepProducts> rows = {
      shape.hidden, shape.heads * shape.head_dim, shape.hidden, shape.inner};
  for (size_t i = 0; i < rows.size(); ++i) {
    params.row_pieces[i] = rows[i] / 8;
    params.max_pieces[i] = sizes.max_pieces[i];
  }
  params.eps = call.norm_eps;
  const int blocks = sizes.blocks;
  const auto by_norms = [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    step_norms(shape.hidden) == 1 ? launch<kDim, 1>(params, blocks, stream)
                                  : launch<kDim, 2>(params, blocks, stream);
  };
  shape.head_dim == 128 ? by_norms(std::integral_constant<int, 128>{})
                        : by_norms(std::integral_constant<int, 64>{});
}

}  // namespace nibble::cuda
