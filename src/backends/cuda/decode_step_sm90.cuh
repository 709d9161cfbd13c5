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
// the same warps attend (decode_step_attention.cuh) while the others wait for it. The keys and
// values of the next layer are asked for as soon as those of one are done with.

#include <cstdint>

#include <cuda.h>
#include <cuda_bf16.h>

#include "backends/cuda/decode_step_attention.cuh"
#include "backends/cuda/decode_step_exchange.cuh"
#include "backends/cuda/decode_step_plan.h"
#include "backends/cuda/device/attention.cuh"
#include "backends/cuda/device/cp_async.cuh"
#include "backends/cuda/device/nvfp4_decode.cuh"
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

inline constexpr int kStepCodeBytes = 512;  // of a strip's K64 block
inline constexpr int kStepScaleBytes = kStripBytes - kStepCodeBytes;
static_assert(kStepThreads == kStepWarps * 32);

static_assert(sizeof(DecodeParams) <= kStepParameterBytes);
static_assert(StepAttention<128, 3>::kBytes == step_attention_bytes(128, 3) &&
              StepAttention<64, 2>::kBytes == step_attention_bytes(64, 2));

/// Rows that blocks hand to each other.
// NOLINTNEXTLINE(readability-identifier-naming): indices, used as the constants they are
enum StepRow { kRowQkv, kRowAttended, kRowO, kRowGated, kRowDown, kNumStepRows };

/// Boxes of a strip's codes and scales of a stage, of a matrix (strip_lines_map).
struct StepMaps {
  CUtensorMap codes, scales;
};

struct DecodeStepParams : StepShared {
  DecodeParams attention;  // caches and weights of heads are the layer's
  const DecodeStepLayer* layers;
  const StepBlock* blocks;
  const StepStage* stages;  // [blocks, most_stages]
  const StepMaps* maps;     // [layers, kNumStepProducts]
  uint32_t* epoch;          // tags of this step are above it
  uint64_t* rows[kNumStepRows];
  __nv_bfloat16* residual;
  int num_layers;
  int most_stages;
  int hidden;
  int row_pieces[kNumStepProducts];  // of eight values, of x of each product
  int max_pieces[kNumStepProducts];  // of K, of a strip
  float eps;
};

/// threadIdx.x, read anew: values made of it would be kept in registers over the whole step, or in
/// local memory, which takes 1 us to read back.
__device__ __forceinline__ int thread_again() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

/// A value that all lanes of a warp have, in a uniform register.
__device__ __forceinline__ int uniform(int value) { return __reduce_max_sync(0xFFFFFFFFu, value); }

/// A warp's walk over its stages of all layers, for the loads.
struct StepLoader {
  const StepMaps* maps;  // of the layer at hand
  int layers_left;
  int at, begin, end;  // in the table of stages

  /// Fills the stage at `to`; nothing once all is loaded. All lanes call it, one starts the copies.
  __device__ __forceinline__ void fill(const StepStage* stages, uint32_t to, uint32_t barrier) {
    if (layers_left == 0) {
      return;
    }
    const StepStage stage = stages[at];
    if (elect_lane()) {
      barrier_expect_bytes(barrier, kStepStageBytes);
      const StepMaps* map = maps + stage.product();
      const int record = stage.strip() / 4 * (kRecordBytes / 4);  // words into a line
      const int quarter = stage.strip() % 4;
      tensor_copy_3d(to,
                     &map->codes,
                     record + quarter * (kStepCodeBytes / 4),
                     stage.line(),
                     0,
                     barrier,
                     kEvictFirst);
      tensor_copy_3d(to + kStepStage * kStepCodeBytes,
                     &map->scales,
                     record + kRecordCodeBytes / 4 + quarter * (kStepScaleBytes / 4),
                     stage.line(),
                     0,
                     barrier,
                     kEvictFirst);
    }
    if (++at == end) {
      at = begin;
      maps += kNumStepProducts;
      --layers_left;
    }
  }
};

/// A warp's ring of stages.
struct StepRing {
  uint32_t slots, barriers;  // shared addresses
  int size;
  int index = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ uint32_t barrier() const { return barriers + index * 8; }
  __device__ __forceinline__ uint32_t slot() const { return slots + index * kStepStageBytes; }
  __device__ __forceinline__ void advance() {
    if (++index == size) {
      index = 0;
      parity ^= 1;
    }
  }
};

/// Piece `piece` of x to shared memory, in the order of B fragments (nvfp4_w4a16_sm90_strips.cuh):
/// four lanes have half a K64 block and exchange words. By whole warps.
__device__ __forceinline__ void store_x(uint32_t x, int piece, const uint4& v) {
  store_shared_16(x + piece * 16, transpose_words(v, threadIdx.x % 4));
}

/// A thread's part of the residual row: pieces `thread`, `thread + kStepThreads`.
template <int kNorms>
struct StepResidual {
  uint4 piece[kNorms];

  /// residual += row `words`, as norm_kernel of small_ops.cu does it.
  __device__ __forceinline__ void add(const DecodeStepParams& p,
                                      int thread,
                                      const uint64_t* words,
                                      uint32_t tag) {
#pragma unroll
    for (int i = 0; i < kNorms; ++i) {
      const int at = thread + i * kStepThreads;
      if (at * 8 < p.hidden) {
        float x[8];
        float r[8];
        unpack8(await_piece(words + at * 4, tag), x);
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
    const int lane = thread % 32;
    const float sum = warp_sum(lane < p.hidden / 256 ? sums[lane] : 0.0f);
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
__device__ __forceinline__ void take_pieces(const uint64_t* words,
                                            uint32_t tag,
                                            int piece,
                                            uint32_t x_at) {
  StepPiece pieces[kCount];
  await_pieces(pieces, words + piece * 4, kStepThreads * 4, tag);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    store_x(x_at, piece + i * kStepThreads, pieces[i].values());
  }
}

/// x = a row as it is. Pieces are a multiple of a warp's.
__device__ __forceinline__ void take_row(
    const uint64_t* words, uint32_t tag, int pieces, int thread, uint32_t x_at) {
  int piece = thread;
#pragma unroll 1
  for (; piece + 2 * kStepThreads < pieces; piece += 3 * kStepThreads) {
    take_pieces<3>(words, tag, piece, x_at);
  }
#pragma unroll 1
  for (; piece < pieces; piece += kStepThreads) {
    take_pieces<1>(words, tag, piece, x_at);
  }
}

// Multipliers and biases of the rows that a block finishes come to shared memory while the product
// runs: 12 bytes (16 apart) a pair of rows, asked for by the thread that will finish them.
// Registers are short.

struct StepFinish {
  int strip, feature;
  bool mine;

  __device__ __forceinline__ StepFinish(const StepBlock& block, int product) {
    const int thread = thread_again();
    strip = thread / 8;
    feature = (block.first_strip[product] + strip) * 16 + thread % 8 * 2;
    mine = strip < block.strips[product];
  }

  /// `rows`: where threads have their places, 16 bytes each.
  __device__ __forceinline__ void ask(const DecodeStepLayer& layer,
                                      int product,
                                      uint32_t rows) const {
    if (mine) {
      const uint32_t to = rows + thread_again() * 16;
      copy_async_8(to, layer.row_multiplier[product] + feature);
      if (product == kStepQkv && layer.qkv_bias != nullptr) {
        copy_async_4(to + 8, static_cast<const __nv_bfloat16*>(layer.qkv_bias) + feature);
      }
    }
    copy_async_commit();
  }
  /// Adds the pieces up in order and hands the rows over. By whole warps.
  __device__ __forceinline__ void run(const DecodeStepParams& p,
                                      const StepBlock& block,
                                      int product,
                                      uint32_t parts,
                                      uint32_t rows_at,
                                      bool has_bias,
                                      uint64_t* words,
                                      uint32_t tag) const {
    copy_async_wait<0>();
    float sum[2] = {-0.0f, -0.0f};
    W4A16Store<W4A16Output::Plain> rows{};
    if (mine) {
      const int pieces = block.pieces[product][strip];
      const uint32_t part = parts + (strip * p.max_pieces[product] * 8 + thread_again() % 8) * 8;
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
      const uint32_t own = rows_at + thread_again() * 16;
      const uint2 multiplier = load_shared_8(own);
      rows.multiplier[0] = __uint_as_float(multiplier.x);
      rows.multiplier[1] = __uint_as_float(multiplier.y);
      if (has_bias) {
        const uint32_t pair = load_shared_word(own + 8);
        rows.bias[0] = __uint_as_float(pair << 16);
        rows.bias[1] = __uint_as_float(pair & 0xFFFF0000u);
      }
    }
    if (product == kStepGateUp) {
      const uint32_t bits = __bfloat16_as_ushort(rows.gated(0.0f, sum[0], sum[1]));
      const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, bits, 1);
      if (mine && feature % 4 == 0) {
        store_word(words + feature / 4, bits | other << 16, tag);
      }
    } else if (mine) {
      const __nv_bfloat162 pair =
          __floats2bfloat162_rn(rows.value(sum[0], 0, 1.0f), rows.value(sum[1], 1, 1.0f));
      store_word(words + feature / 2, *reinterpret_cast<const uint32_t*>(&pair), tag);
    }
  }
};

/// A warp's pieces of a product, stages [at, end): their sums to shared memory.
__device__ __forceinline__ void step_product(const StepStage* stages,
                                             int at,
                                             int end,
                                             StepLoader& loader,
                                             StepRing& ring,
                                             uint32_t x_lane,
                                             uint32_t parts) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t bias = scale_bias();
  float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  const auto multiply = [&](const PackedLane& packed, const uint4& x0, const uint4& x1) {
    uint32_t a[4][4];
    decode_lane(packed, bias, a);
    mma_m16n8k16(acc, a[0], x0.x, x0.y);
    mma_m16n8k16(acc, a[1], x0.z, x0.w);
    mma_m16n8k16(acc, a[2], x1.x, x1.y);
    mma_m16n8k16(acc, a[3], x1.z, x1.w);
  };
  bool ready = false;
#pragma unroll 1
  while (at < end) {
    const StepStage stage = stages[at];
    const uint32_t slot = ring.slot();
    const uint32_t barrier = ring.barrier();
    uint32_t x = x_lane + stage.x_block * 128;
    uint32_t codes = slot + lane * 16 + stage.first() * kStepCodeBytes;
    uint32_t scales =
        slot + kStepStage * kStepCodeBytes + lane / 4 * 8 + stage.first() * kStepScaleBytes;
    const auto load = [&](int b) {
      return PackedLane{load_shared_16(codes + b * kStepCodeBytes),
                        load_shared_8(scales + b * kStepScaleBytes)};
    };
    uint4 x0 = load_shared_16(x);
    uint4 x1 = load_shared_16(x + 64);
    if (!ready) {
      barrier_wait(barrier, ring.parity);
    }
    // What the next block needs is asked for before the products of this one, which wait for each
    // other.
    PackedLane packed = load(0);
    ring.advance();
    ready = barrier_test(ring.barrier(), ring.parity);
    if (stage.count() == kStepStage) {
#pragma unroll
      for (int b = 0; b < kStepStage; ++b) {
        const PackedLane now = packed;
        const uint4 now_x0 = x0;
        const uint4 now_x1 = x1;
        if (b + 1 < kStepStage) {
          packed = load(b + 1);
          x0 = load_shared_16(x + (b + 1) * 128);
          x1 = load_shared_16(x + (b + 1) * 128 + 64);
        }
        multiply(now, now_x0, now_x1);
      }
    } else {
#pragma unroll 1
      for (int left = stage.count();;) {
        multiply(packed, x0, x1);
        if (--left == 0) {
          break;
        }
        codes += kStepCodeBytes;
        scales += kStepScaleBytes;
        x += 128;
        packed = load(0);
        x0 = load_shared_16(x);
        x1 = load_shared_16(x + 64);
      }
    }
    __syncwarp();  // all lanes have read the stage
    loader.fill(stages, slot, barrier);
    if (stage.ends_piece()) {
      if (lane % 4 == 0) {  // tokens are the same in all columns
        asm volatile(
            "st.shared.v2.f32 [%0], {%1, %2};" ::"r"(parts + (stage.part * 8 + lane / 4) * 8),
            "f"(acc[0]),
            "f"(acc[2])
            : "memory");
      }
      acc[0] = acc[1] = acc[2] = acc[3] = 0.0f;
    }
    ++at;
  }
}

template <int kDim, int kNorms>
__device__ __forceinline__ void step_layers(const DecodeStepParams& p,
                                            uint8_t* shared,
                                            int warp,
                                            bool attends) {
  const uint32_t base = shared_address(shared);
  const auto* layers = reinterpret_cast<const DecodeStepLayer*>(shared + p.layers_at);
  const auto& block = *reinterpret_cast<const StepBlock*>(shared + p.block_at);
  auto* sums = reinterpret_cast<float*>(shared + p.sums_at);
  const auto thread = static_cast<int>(threadIdx.x);
  const uint32_t lane = threadIdx.x % 32;

  const auto* stages = reinterpret_cast<const StepStage*>(shared + p.stages_at);
  StepRing ring;
  ring.size = attends ? p.ring_beside : p.ring_alone;
  ring.slots =
      base + p.pool_at + (attends ? p.attention_bytes : 0) + warp * ring.size * kStepStageBytes;
  ring.barriers = base + p.barriers_at + warp * kStepMaxRing * 8;
  if (lane == 0) {
    for (int i = 0; i < ring.size; ++i) {
      barrier_init(ring.barriers + i * 8, 1);
    }
    barrier_init_fence();
  }
  __syncwarp();
  const uint16_t* stage_begin = block.stage_begin + warp * kNumStepProducts;
  StepLoader loader;
  loader.maps = p.maps;
  loader.begin = uniform(stage_begin[0]);
  loader.end = uniform(stage_begin[kNumStepProducts]);
  loader.at = loader.begin;
  loader.layers_left = loader.begin == loader.end ? 0 : p.num_layers;
#pragma unroll 1
  for (int i = 0; i < ring.size; ++i) {
    loader.fill(stages, ring.slots + i * kStepStageBytes, ring.barriers + i * 8);
  }

  StepResidual<kNorms> residual;
#pragma unroll
  for (int i = 0; i < kNorms; ++i) {
    const int at = (thread + i * kStepThreads) * 8;
    residual.piece[i] =
        at < p.hidden ? *reinterpret_cast<const uint4*>(p.residual + at) : make_uint4(0, 0, 0, 0);
  }
  const uint32_t parts = base + p.parts_at;
  const auto ask_norm = [&](const void* weights) {  // each thread what it will use
#pragma unroll
    for (int i = 0; i < kNorms; ++i) {
      const int at = thread + i * kStepThreads;
      if (at * 8 < p.hidden) {
        copy_async_16(base + p.x_at[0] + at * 16,
                      static_cast<const __nv_bfloat16*>(weights) + at * 8);
      }
    }
    copy_async_commit();
  };
  ask_norm(layers[0].input_norm);
  constexpr int kAttentionStages = step_attention_stages(kNorms);
  auto& attention = *reinterpret_cast<DecodeParams*>(shared + p.attention_at);
  const auto ask_keys = [&](int l) {
    if (thread == 0) {
      attention.call.k = layers[l].k_cache;
      attention.call.v = layers[l].v_cache;
      attention.call.prepare.q_weight = layers[l].q_norm;
      attention.call.prepare.k_weight = layers[l].k_norm;
    }
    step_block_sync();
    step_ask<kDim, kAttentionStages>(
        attention, shared + p.pool_at, warp, static_cast<int>(blockIdx.x));
  };
  if (attends) {
    ask_keys(0);
  }
#pragma unroll 1
  for (int turn = 0; turn < p.num_layers * kNumStepProducts; ++turn) {  // one counter: registers
    const int l = turn / kNumStepProducts;
    const int product = turn % kNumStepProducts;
    const DecodeStepLayer& layer = layers[l];
    // Read each time: registers are short.
    const uint32_t tag = load_shared_word(base + p.epoch_at) + 1 + l;
    const uint32_t x_at = base + p.x_at[product % 2];
    trace_step(l, product, 0);
    if (product % 2 == 0) {
      if (product == kStepGateUp) {
        residual.add(p, thread, p.rows[kRowO], tag);
      } else if (l > 0) {
        residual.add(p, thread, p.rows[kRowDown], tag - 1);
      }
      copy_async_wait<0>();
      trace_step(l, product, 1);
      residual.normalise(p, thread, sums, x_at);
    } else {
      // The next norm's weights, a product ahead: x of the product before is no longer read.
      if (product == kStepO) {
        ask_norm(layer.post_norm);
      } else if (l + 1 < p.num_layers) {
        ask_norm(layers[l + 1].input_norm);
      }
      if (product == kStepO && attends) {
        step_attend<kDim, kAttentionStages>(attention,
                                            shared + p.pool_at,
                                            warp,
                                            p.rows[kRowQkv],
                                            p.rows[kRowAttended],
                                            *reinterpret_cast<const uint32_t*>(shared + p.epoch_at),
                                            l);
        trace_step(l, product, 6);
      }
      static_assert(kRowAttended == static_cast<int>(kStepO) &&
                    kRowGated == static_cast<int>(kStepDown));
      take_row(p.rows[product], tag, p.row_pieces[product], thread, x_at);
    }
    StepFinish(block, product).ask(layer, product, base + p.rows_at);
    step_block_sync();
    trace_step(l, product, 2);
    step_product(stages,
                 uniform(stage_begin[product]),
                 uniform(stage_begin[product + 1]),
                 loader,
                 ring,
                 x_at + lane % 4 * 16,
                 parts);
    trace_step(l, product, 3);
    step_block_sync();
    trace_step(l, product, 4);
    if (thread_again() / 32 * 4 < block.strips[product]) {
      StepFinish(block, product)
          .run(p,
               block,
               product,
               parts,
               base + p.rows_at,
               product == kStepQkv && layer.qkv_bias != nullptr,
               p.rows[product == kStepQkv      ? kRowQkv
                      : product == kStepO      ? kRowO
                      : product == kStepGateUp ? kRowGated
                                               : kRowDown],
               tag);
      trace_step(l, product, 5);
    }
    if (product == kStepO && attends && l + 1 < p.num_layers) {
      ask_keys(l + 1);  // now, while the others finish
    }
  }
  if (blockIdx.x == 0) {
    const uint32_t last = load_shared_word(base + p.epoch_at) + p.num_layers;
    residual.add(p, thread, p.rows[kRowDown], last);
#pragma unroll
    for (int i = 0; i < kNorms; ++i) {
      const int at = (thread + i * kStepThreads) * 8;
      if (at < p.hidden) {
        *reinterpret_cast<uint4*>(p.residual + at) = residual.piece[i];
      }
    }
    step_block_sync();  // all rows are there, so every block has read the epoch
    if (thread == 0) {
      *p.epoch = last;
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
  copy(p.stages_at,
       p.stages + static_cast<int64_t>(blockIdx.x) * p.most_stages,
       p.most_stages * static_cast<int>(sizeof(StepStage)));
  copy(p.layers_at, p.layers, p.num_layers * static_cast<int>(sizeof(DecodeStepLayer)));
  if (threadIdx.x == 0) {
    *reinterpret_cast<uint32_t*>(shared + p.epoch_at) = *p.epoch;
  }
  const bool attends = static_cast<int>(blockIdx.x) < step_shares(p.attention);
  __syncthreads();
  step_layers<kDim, kNorms>(p, shared, warp, attends);
}

}  // namespace nibble::cuda
