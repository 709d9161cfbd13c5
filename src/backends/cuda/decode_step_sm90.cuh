#pragma once
// decode_step_sm90: all layers of a dense model for one token. One thread block a multiprocessor
// stays for the whole step.
//
// Sixteen warps multiply. Each streams its pieces of the matrices (decode_step_plan.h), of all
// products of all layers in a row, through its own ring of stages in shared memory: while a row is
// on its way from block to block, the first blocks of the next matrix arrive.
// Between products they exchange rows (decode_step_exchange.cuh). Every block keeps the residual
// row in registers and normalises it for itself: the same additions everywhere.
//
// In the blocks that have a share of attention, block b chunk b, b + blocks, ... of the KV heads,
// the same warps attend (decode_step_attention.cuh) while the others wait for it. The first keys
// and values of a layer are asked for at the end of the one before, but for those whose place is
// not free yet.

#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>

#include "backends/cuda/decode_step_attention.cuh"
#include "backends/cuda/decode_step_exchange.cuh"
#include "backends/cuda/decode_step_plan.h"
#include "backends/cuda/decode_step_product.cuh"
#include "backends/cuda/decode_step_registers.cuh"
#include "backends/cuda/device/attention.cuh"
#include "backends/cuda/device/cp_async.cuh"
#include "backends/cuda/device/prepare_head.cuh"
#include "backends/cuda/device/ptx.cuh"
#include "backends/cuda/device/warp_sum.cuh"
#include "backends/cuda/nvfp4_w4a16_sm90_strips.cuh"
#include "backends/cuda/nvfp4_w4a16_store.cuh"

namespace nibble::cuda {

// For bench/lab/decode_step_trace.cu: when a block was where in two layers.
#if defined(NIBBLE_STEP_TRACE)
inline constexpr int kTracedLayer = 6;
inline constexpr int kTracedEvents = 7;
__device__ uint64_t step_trace[256][2 * kNumStepProducts][kTracedEvents];
__device__ __forceinline__ void trace_step(int layer, int product, int event) {
  const int at = layer - kTracedLayer;
  if (at >= 0 && at < 2 && threadIdx.x % 32 == 0) {
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    step_trace[blockIdx.x][at * kNumStepProducts + product][event] = now;
  }
}
#else
__device__ __forceinline__ void trace_step(int, int, int) {}
#endif

inline constexpr int kLayerWords = sizeof(DecodeStepLayer) / 8;
static_assert(kStepThreads == kStepWarps * 32);

static_assert(sizeof(DecodeParams) <= kStepParameterBytes);
static_assert(StepAttention<128, 2>::kBytes == step_attention_bytes(128, 2) &&
              StepAttention<64, 1>::kBytes == step_attention_bytes(64, 1));

/// Rows that blocks hand to each other.
// NOLINTNEXTLINE(readability-identifier-naming): indices, used as the constants they are
enum StepRow { kRowQkv, kRowAttended, kRowO, kRowGated, kRowDown, kNumStepRows };

struct DecodeStepParams : StepShared {
  DecodeParams attention;  // caches and weights of heads are the layer's
  const DecodeStepLayer* layers;
  const StepBlock* blocks;
  const StepRun* runs;  // [blocks, most_runs]
  uint32_t* epoch;      // layers before this step
  uint32_t* rows;       // pairs of values: kStepCopies of all rows
  int copy_pairs;       // of all rows; a multiple of four
  int row_at[kNumStepRows];
  __nv_bfloat16* residual;
  int num_layers;
  int most_runs;
  int hidden;
  int row_pieces[kNumStepProducts];  // of eight values, of x of each product
  int max_pieces[kNumStepProducts];  // of K, of a strip
  float eps;
};

/// Piece `piece` of x to shared memory, in the order of B fragments (nvfp4_w4a16_sm90_strips.cuh):
/// four lanes have half a K64 block and exchange words. By whole warps.
__device__ __forceinline__ void store_x(uint32_t x, int piece, const uint4& v) {
  store_shared_16(x + piece * 16, transpose_words(v, threadIdx.x % 4));
}

/// What warp_sum makes of one number a lane, zeros from kCount on, in its order.
template <int kCount>
__device__ __forceinline__ float add_sums(const float* sums) {
  static_assert(kCount == 16 || kCount == 32);
  const auto* from = reinterpret_cast<const float4*>(sums);
  const auto add = [](const float4& a, const float4& b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
  };
  float4 four;
  if constexpr (kCount == 16) {
    four = add(add(from[0], from[2]), add(from[1], from[3]));
  } else {
    four = add(add(add(from[0], from[4]), add(from[2], from[6])),
               add(add(from[1], from[5]), add(from[3], from[7])));
  }
  return (four.x + four.z) + (four.y + four.w);
}

/// A thread's part of the residual row: pieces `thread`, `thread + kStepThreads`.
template <int kNorms>
struct StepResidual {
  uint4 piece[kNorms];

  /// residual += row, as norm_kernel of small_ops.cu does it.
  __device__ __forceinline__ void add(const DecodeStepParams& p, int thread, const uint32_t* row) {
#pragma unroll
    for (int i = 0; i < kNorms; ++i) {
      const int at = thread + i * kStepThreads;
      if (at * 8 < p.hidden) {
        float x[8];
        float r[8];
        unpack8(await_piece(row + at * 4), x);
        unpack8(piece[i], r);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          r[j] = r[j] + x[j];
        }
        piece[i] = pack8(r);
      }
    }
  }
  /// x = the normalised row; the weights of a thread's pieces are where their x will be.
  __device__ __forceinline__ void normalise(const DecodeStepParams& p,
                                            int thread,
                                            float* sums,
                                            uint32_t x_at) const {
#pragma unroll
    for (int i = 0; i < kNorms; ++i) {
      const int at = thread + i * kStepThreads;
      if (at * 8 < p.hidden) {
        float x[8];
        unpack8(piece[i], x);
        const float sum = warp_sum(square_sum(x));
        if (elect_lane()) {
          sums[at / 32] = sum;
        }
      }
    }
    step_block_sync();
    const float sum = add_sums<16 * kNorms>(sums);
    const float scale = 1.0f / sqrtf(sum / static_cast<float>(p.hidden) + p.eps);
#pragma unroll
    for (int i = 0; i < kNorms; ++i) {
      const int at = thread + i * kStepThreads;
      if (at * 8 < p.hidden) {
        float x[8];
        float w[8];
        unpack8(piece[i], x);
        unpack8(load_shared_16(x_at + at * 16), w);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          x[j] = x[j] * scale * w[j];
        }
        store_x(x_at, at, pack8(x));
      }
    }
  }
};

/// kCount pieces of x as they are, kStepThreads apart.
template <int kCount>
__device__ __forceinline__ void take_pieces(const uint32_t* row, int piece, uint32_t x_at) {
  uint4 pieces[kCount];
  await_pieces(pieces, row + piece * 4, kStepThreads * 8);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    store_x(x_at, piece + i * kStepThreads, pieces[i]);
  }
}

/// x = a row as it is. Pieces are a multiple of a warp's.
__device__ __forceinline__ void take_row(const uint32_t* row,
                                         int pieces,
                                         int thread,
                                         uint32_t x_at) {
  int piece = thread;
#pragma unroll 1
  for (; piece + 2 * kStepThreads < pieces; piece += 3 * kStepThreads) {
    take_pieces<3>(row, piece, x_at);
  }
#pragma unroll 1
  for (; piece < pieces; piece += kStepThreads) {
    take_pieces<1>(row, piece, x_at);
  }
}

// What the thread that finishes a pair of rows will need comes to shared memory while the product
// runs, 16 bytes a thread: two multipliers, two biases (bf16), the first row and its pieces.
// Registers are short, and after the product every look-up that waits for another is time.

struct StepFinish {
  /// By threads whose warp finishes any rows. `rows`: where threads have their places.
  static __device__ __forceinline__ void ask(const StepBlock& block,
                                             const DecodeStepLayer& layer,
                                             int product,
                                             uint32_t rows) {
    const int thread = thread_again();
    const int strip = thread / 8;
    const int strips = block.strips[product];
    if (thread / 32 * 4 < strips) {
      const uint32_t to = rows + thread * 16;
      const int feature = (block.first_strip[product] + strip) * 16 + thread % 8 * 2;
      uint32_t what = 0;
      if (strip < strips) {
        what = feature | static_cast<uint32_t>(block.pieces[product][strip]) << 24;
        copy_async_8(to, layer.row_multiplier[product] + feature);
        if (product == kStepQkv && layer.qkv_bias != nullptr) {
          copy_async_4(to + 8, static_cast<const __nv_bfloat16*>(layer.qkv_bias) + feature);
        }
      }
      store_shared_word(to + 12, what);
    }
  }
  /// Adds the pieces up in order and hands the rows over. By whole warps, once the copies are
  /// there.
  static __device__ __forceinline__ void run(
      int product, int max_pieces, uint32_t parts, uint32_t rows_at, bool has_bias, uint32_t* row) {
    const int thread = thread_again();
    const uint4 own = load_shared_16(rows_at + thread * 16);
    const auto pieces = static_cast<int>(own.w >> 24);
    const auto feature = static_cast<int>(own.w & 0xFFFFFF);
    const uint32_t part = parts + (thread / 8 * max_pieces * 8 + thread % 8) * 8;
    float sum[2] = {-0.0f, -0.0f};
    constexpr int kAtOnce = 4;
#pragma unroll 1
    for (int first = 0; first < pieces; first += kAtOnce) {
      uint2 v[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        v[i] = make_uint2(0x80000000u, 0x80000000u);  // -0: v + -0 is v
        if (first + i < pieces) {
          v[i] = load_shared_8(part + (first + i) * 64);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        sum[0] += __uint_as_float(v[i].x);
        sum[1] += __uint_as_float(v[i].y);
      }
    }
    W4A16Store<W4A16Output::Plain> rows{};
    rows.multiplier[0] = __uint_as_float(own.x);
    rows.multiplier[1] = __uint_as_float(own.y);
    if (has_bias) {
      rows.bias[0] = __uint_as_float(own.z << 16);
      rows.bias[1] = __uint_as_float(own.z & 0xFFFF0000u);
    }
    if (product == kStepGateUp) {
      const uint32_t bits = __bfloat16_as_ushort(rows.gated(0.0f, sum[0], sum[1]));
      const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, bits, 1);
      if (pieces != 0 && feature % 4 == 0) {
        store_pair(row + feature / 4, bits | other << 16);
      }
    } else if (pieces != 0) {
      const __nv_bfloat162 pair =
          __floats2bfloat162_rn(rows.value(sum[0], 0, 1.0f), rows.value(sum[1], 1, 1.0f));
      store_pair(row + feature / 2, *reinterpret_cast<const uint32_t*>(&pair));
    }
  }
};

template <int kDim, int kNorms>
__device__ __forceinline__ void step_layers(const DecodeStepParams& p, uint8_t* shared, int warp) {
  const uint32_t base = shared_address(shared);
  const auto block = [&]() -> const StepBlock& {
    return *reinterpret_cast<const StepBlock*>(shared + again(p.block_at));
  };
  auto* sums = reinterpret_cast<float*>(shared + p.sums_at);
  const auto thread = static_cast<int>(threadIdx.x);
  const uint32_t lane = threadIdx.x % 32;

  const auto word = [&](int which) { return load_shared_word(base + p.words_at + which * 4); };
  const auto attends = [&] { return word(kWordAttends) != 0; };
  StepRing ring;
  const auto ring_size = [&] { return static_cast<int>(word(kWordRing)); };
  ring.left = ring_size();
  ring.slot = base + p.pool_at + (attends() ? p.attention_bytes : 0) +
              warp * ring_size() * kStepStageBytes + lane * 16;
  const auto norm_barrier = [&] { return base + again(p.barriers_at); };
  const auto rows_barrier = [&] { return base + again(p.barriers_at) + 8; };
  if (thread == 0) {
    barrier_init(norm_barrier(), kStepThreads);
    barrier_init(rows_barrier(), kStepThreads);
    barrier_init_fence();
  }
  step_block_sync();
  const auto run_at = [&](int index) {
    const int of_block = thread_again() / 32 * kNumStepProducts + index;
    return base + p.runs_at +
           uniform(block().run_begin[of_block]) * static_cast<int>(sizeof(StepRun));
  };
  StepLoader loader;
  loader.codes = nullptr;
  loader.scales = 0;
  loader.stages = 0;
  loader.run = run_at(0);
  loader.matrices = base + p.matrices_at;
  loader.runs = uniform(block().run_begin[(warp + 1) * kNumStepProducts] -
                        block().run_begin[warp * kNumStepProducts]) *
                p.num_layers;
#pragma unroll 1
  for (int i = 0; i < ring_size(); ++i) {
    loader.fill(ring.slot + i * kStepStageBytes, StepLane(lane));
  }

  StepResidual<kNorms> residual;
#pragma unroll
  for (int i = 0; i < kNorms; ++i) {
    const int at = (thread + i * kStepThreads) * 8;
    residual.piece[i] =
        at < p.hidden ? *reinterpret_cast<const uint4*>(p.residual + at) : make_uint4(0, 0, 0, 0);
  }
  const auto ask_norm = [&](const void* weights) {  // each thread what it will use
    const int thread = thread_again();
#pragma unroll
    for (int i = 0; i < kNorms; ++i) {
      const int at = thread + i * kStepThreads;
      if (at * 8 < p.hidden) {
        copy_async_16(base + p.x_at[0] + at * 16,
                      static_cast<const __nv_bfloat16*>(weights) + at * 8);
      }
    }
    barrier_arrive_copied(norm_barrier());
  };
  const auto layer_at = [&](int l) -> const DecodeStepLayer& {
    return *reinterpret_cast<const DecodeStepLayer*>(shared + p.layers_at +
                                                     l % 2 * kStepLayerBytes);
  };
  ask_norm(layer_at(0).input_norm);
  constexpr int kAttentionStages = step_attention_stages(kNorms);
  auto& attention = *reinterpret_cast<DecodeParams*>(shared + p.attention_at);
  // In the place of x and of products' parts: free between qkv and o, all but the last chain's from
  // the end of down on.
  const auto more_stages = [&] {
    return StepMoreStages{p.more_stages, base + p.x_at[0], p.parts_at - p.pool_at};
  };
  const auto ask_keys = [&](const DecodeStepLayer& layer) {
    if (thread_again() == 0) {
      attention.call.k = layer.k_cache;
      attention.call.v = layer.v_cache;
    }
    step_ask_norms<kDim, kAttentionStages>(attention, base + p.pool_at, layer.q_norm, layer.k_norm);
    step_block_sync();
    step_ask<kDim, kAttentionStages>(attention,
                                     shared + p.pool_at,
                                     uniform(thread_again() / 32),
                                     static_cast<int>(blockIdx.x),
                                     more_stages(),
                                     false);
  };
  if (attends()) {
    step_know<kDim, kAttentionStages>(attention, shared + p.pool_at, layer_at(0).q_norm != nullptr);
    ask_keys(layer_at(0));
  }
  const auto row_at = [&](int layer, int at) {
    return step_row(p.rows + at, p.copy_pairs, word(kWordEpoch) + static_cast<uint32_t>(layer));
  };
  // This block's part of the next layer's rows; the fence is before any row handed over after it.
  const auto clear_rows = [&](int layer) {
    uint32_t* copy = row_at(layer, 0);
#pragma unroll 1
    for (int at = (static_cast<int>(blockIdx.x) * 32 + thread_again() % 32) * 4; at < p.copy_pairs;
         at += static_cast<int>(gridDim.x) * 128) {
      clear_pairs(copy + at);
    }
    fence_device();
  };
  // One counter, and what follows from it worked out at every use: registers are short.
#pragma unroll 1
  for (int turn = 0; turn < p.num_layers * kNumStepProducts; ++turn) {
    const auto product = [&] { return step_product_of(turn); };
    const auto layer_index = [&] { return step_layer_of(turn); };
    const auto layer = [&]() -> const DecodeStepLayer& { return layer_at(layer_index()); };
    const auto x_at = [&] { return base + p.x_at[product() % 2]; };
    trace_step(layer_index(), product(), 0);
    if (product() % 2 == 0) {
      if (product() == kStepGateUp) {
        residual.add(p, thread_again(), row_at(layer_index(), p.row_at[kRowO]));
      } else if (turn > 0) {
        residual.add(p, thread_again(), row_at(layer_index() - 1, p.row_at[kRowDown]));
      }
      if (product() == kStepQkv && layer_index() + 1 < p.num_layers) {
        // In the place of the layer before, which is done.
        const int word = thread_again();
        if (word < kLayerWords) {
          reinterpret_cast<uint2*>(shared + p.layers_at +
                                   (layer_index() + 1) % 2 * kStepLayerBytes)[word] =
              reinterpret_cast<const uint2*>(p.layers + layer_index() + 1)[word];
        }
      }
      barrier_wait(norm_barrier(), turn / 2 % 2);
      trace_step(layer_index(), product(), 1);
      residual.normalise(p, thread_again(), sums, x_at());
    } else {
      // The next norm's weights, a product ahead: x of the product before is no longer read.
      if (product() == kStepO) {
        if (attends()) {
          step_attend<kDim, kAttentionStages>(
              attention,
              shared + p.pool_at,
              uniform(thread_again() / 32),
              more_stages(),
              p.rows + p.row_at[kRowQkv],
              p.rows + p.row_at[kRowAttended],
              p.copy_pairs,
              *reinterpret_cast<const uint32_t*>(shared + p.words_at + kWordEpoch * 4),
              layer_index());
          trace_step(layer_index(), product(), 6);
        }
        ask_norm(layer().post_norm);  // in the place of what attention has read by now
      } else if (layer_index() + 1 < p.num_layers) {
        ask_norm(layer_at(layer_index() + 1).input_norm);
      }
      // While others attend, or, in a block that does, while those with more rows finish.
      if (product() == (attends() ? kStepDown : kStepO) && thread_again() / 32 == kStepWarps - 1) {
        clear_rows(layer_index() + 1);
      }
      static_assert(kRowAttended == static_cast<int>(kStepO) &&
                    kRowGated == static_cast<int>(kStepDown));
      take_row(row_at(layer_index(), p.row_at[product()]),
               p.row_pieces[product()],
               thread_again(),
               x_at());
    }
    StepFinish::ask(block(), layer(), product(), base + p.rows_at);
    barrier_arrive_copied(rows_barrier());
    step_block_sync();
    trace_step(layer_index(), product(), 2);
    const auto multiply = [&](auto known_size) {
      step_product<decltype(known_size)::value>(
          run_at(product()),
          run_at(product() + 1),
          loader,
          ring,
          ring_size(),
          x_at() + thread_again() % 4 * 16,
          base + p.parts_at + thread_again() % 32 / 4 * 8,
          base + p.turns_at + uniform(thread_again() / 32) * 4,
          turn + 1);
    };
    if (ring_size() == 5) {
      multiply(std::integral_constant<int, 5>{});
    } else {
      multiply(std::integral_constant<int, 0>{});
    }
    trace_step(layer_index(), product(), 3);
    step_block_sync();
    trace_step(layer_index(), product(), 4);
    if (thread_again() / 32 * 4 < block().strips[product()]) {
      const int now = product();
      barrier_wait(rows_barrier(), turn % 2);
      StepFinish::run(now,
                      p.max_pieces[now],
                      base + p.parts_at,
                      base + p.rows_at,
                      now == kStepQkv && layer().qkv_bias != nullptr,
                      row_at(layer_index(),
                             p.row_at[now == kStepQkv      ? kRowQkv
                                      : now == kStepO      ? kRowO
                                      : now == kStepGateUp ? kRowGated
                                                           : kRowDown]));
      trace_step(layer_index(), product(), 5);
    }
    // Nobody asks for rows before the own ones are out: asking keeps the path to memory busy.
    step_block_sync();
    if (product() == kStepQkv && word(kWordAsksAhead) != 0) {
      loader.ask_l2();
    }
    if (product() == kStepDown && attends() && layer_index() + 1 < p.num_layers) {
      ask_keys(layer_at(layer_index() + 1));  // now, while the others, who have more rows, finish
    }
  }
  if (blockIdx.x == 0) {
    residual.add(p, thread, row_at(p.num_layers - 1, p.row_at[kRowDown]));
#pragma unroll
    for (int i = 0; i < kNorms; ++i) {
      const int at = (thread + i * kStepThreads) * 8;
      if (at < p.hidden) {
        *reinterpret_cast<uint4*>(p.residual + at) = residual.piece[i];
      }
    }
    step_block_sync();  // all rows are there, so every block has read the epoch
    if (thread == 0) {
      *p.epoch = word(kWordEpoch) + p.num_layers;
    }
  }
}

/// kNorms: pieces of eight channels of the residual row a thread.
template <int kDim, int kNorms>
__global__ void __launch_bounds__(kStepThreads, 1) decode_step_sm90(
    const __grid_constant__ DecodeStepParams p) {
  extern __shared__ __align__(128) uint8_t shared[];
  const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0);
  const auto copy = [&](int to, const void* from, int bytes) {
    for (int i = static_cast<int>(threadIdx.x) * 8; i < bytes; i += kStepThreads * 8) {
      *reinterpret_cast<uint2*>(shared + to + i) =
          *reinterpret_cast<const uint2*>(static_cast<const uint8_t*>(from) + i);
    }
  };
  copy(p.attention_at, &p.attention, sizeof(DecodeParams));
  copy(p.block_at, p.blocks + blockIdx.x, sizeof(StepBlock));
  copy(p.runs_at,
       p.runs + static_cast<int64_t>(blockIdx.x) * p.most_runs,
       p.most_runs * static_cast<int>(sizeof(StepRun)));
  copy(p.layers_at, p.layers, static_cast<int>(sizeof(DecodeStepLayer)));
  for (auto i = static_cast<int>(threadIdx.x); i < p.num_layers * kNumStepProducts;
       i += kStepThreads) {
    reinterpret_cast<const void**>(shared + p.matrices_at)[i] =
        p.layers[i / kNumStepProducts].packed[i % kNumStepProducts];
  }
  if (threadIdx.x == 0) {
    auto* words = reinterpret_cast<uint32_t*>(shared + p.words_at);
    words[kWordEpoch] = *p.epoch;
    words[kWordAttends] = static_cast<int>(blockIdx.x) < step_shares(p.attention) ? 1 : 0;
    words[kWordRing] =
        static_cast<uint32_t>(words[kWordAttends] != 0 ? p.ring_beside : p.ring_alone);
    // While a few blocks attend, the memory rests; not where they have chunks of keys to read.
    words[kWordAsksAhead] =
        words[kWordAttends] == 0 && step_shares(p.attention) <= p.attention.call.kv_heads ? 1 : 0;
  }
  if (threadIdx.x < kStepWarps) {
    reinterpret_cast<uint32_t*>(shared + p.turns_at)[threadIdx.x] = 0;
  }
  if (threadIdx.x < 32) {
    reinterpret_cast<float*>(shared + p.sums_at)[threadIdx.x] = 0.0f;  // of pieces that no row has
  }
  __syncthreads();
  step_layers<kDim, kNorms>(p, shared, warp);
}

}  // namespace nibble::cuda
