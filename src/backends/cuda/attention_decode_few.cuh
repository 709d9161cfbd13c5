#pragma once
// Decode attention for few sequences, a chunk of a KV head at a time (attention_decode_few.cu: a
// kernel of its own; decode_step_sm90.cuh: inside the kernel of a whole step). The bits of
// attention_decode_paged (the pieces are those of attention_decode.cuh); what differs is the plan.
//
// Each warp asks for its first stages before this step's rows are there, for old keys and
// values do not depend on them. Then the rows: half a warp prepares a query head (norm, rotation)
// or, for the last chunk, the new key or value, which goes to the cache and, through shared memory,
// into the stage it belongs to. The warps leave their results in shared memory and every thread
// folds its columns, in the order of warps. A sequence of one chunk is done then; otherwise the
// last block of a head to arrive folds the chunks.

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "backends/cuda/attention_decode.cuh"
#include "backends/cuda/device/prepare_head.cuh"

namespace nibble::cuda::decode_few {

inline constexpr int kWarps = kDecodeWarps;
inline constexpr int kLanes = 16;  // that prepare a head
inline constexpr int kUnits = kDecodeThreads / kLanes;

/// kRows: 8 or 16, at least the group. kStages: of a warp's ring.
template <typename Cache, int kDim, int kRows, int kStages>
struct Layout {
  static constexpr int kWarpRing = kStages * 2 * kStageBytes;       // later the warp's result
  static constexpr int kQueryStride = kDim + 8;                     // rows start in different banks
  static constexpr int kQueries = kWarps * kWarpRing;               // [rows, kQueryStride] bf16
  static constexpr int kNew = kQueries + kRows * kQueryStride * 2;  // the new key, then the value
  static constexpr int kSums = kNew + 2 * DecodeStage<Cache, kDim>::kRowBytes;
  static constexpr int kBytes = kSums + kWarps * kRows * 8;  // [warps, rows] float2
  static_assert(kRows * kDim * 4 <= kWarpRing);
};

/// What a block has: a chunk of a KV head of a sequence.
struct Share {
  int sequence, head, chunk, length;
  Cut cut;

  __device__ __forceinline__ int begin() const { return chunk << cut.shift; }
  __device__ __forceinline__ int tokens() const { return min(cut.tokens(), length - begin()); }
};

/// What a lane of a preparing half warp knows before the rows are there.
struct Preparation {
  Rotation rotation;
  int64_t slot;
  float factor[8];  // of the first row that it prepares

  __device__ __forceinline__ void load(const DecodeParams& p, int sequence, int head_dim) {
    const PagedPrepare& prepare = p.call.prepare;
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    rotation.load(
        prepare.cos_sin + prepare.positions[sequence] * prepare.table_stride, prepare.half, lane);
    slot = prepare.slots[sequence];
    load_factor(p, static_cast<int>(threadIdx.x) / kLanes, head_dim);
  }
  __device__ __forceinline__ void load_factor(const DecodeParams& p, int row, int head_dim) {
    const PagedPrepare& prepare = p.call.prepare;
    const int at = static_cast<int>(threadIdx.x) % kLanes * 8;
    const void* weight = row < p.group ? prepare.q_weight : prepare.k_weight;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      factor[j] = 0.0f;
    }
    if (weight != nullptr && at < head_dim) {
      load_head_weight(weight, prepare.weight_f32, at, factor);
    }
  }
};

/// Eight channels of a new key or value to shared memory and the cache.
template <typename Cache, int kDim>
__device__ __forceinline__ void store_new(const DecodeParams& p,
                                          uint8_t* shared,
                                          bool is_value,
                                          int head,
                                          int64_t slot,
                                          int at,
                                          const uint4& raw) {
  const int64_t channel = (slot * p.call.kv_heads + head) * kDim + at;
  auto* cache = static_cast<Cache*>(is_value ? p.call.v : p.call.k) + (slot >= 0 ? channel : 0);
  auto* to = reinterpret_cast<Cache*>(shared) + (is_value ? kDim : 0) + at;
  if constexpr (sizeof(Cache) == 1) {
    const uint2 codes = codes_of(raw, is_value ? *p.call.v_scale : *p.call.k_scale);
    *reinterpret_cast<uint2*>(to) = codes;
    if (slot >= 0) {
      *reinterpret_cast<uint2*>(cache) = codes;
    }
  } else {
    *reinterpret_cast<uint4*>(to) = raw;
    if (slot >= 0) {
      *reinterpret_cast<uint4*>(cache) = raw;
    }
  }
}

/// Rows of the projection in memory, as the kernel before left them.
template <int kDim>
struct RowsFromMemory {
  /// Channels [at, at + 8) of query `row` of the group, of the new key (row = group) or value.
  __device__ __forceinline__ uint4 load(const DecodeParams& p,
                                        const Share& share,
                                        int row,
                                        int at) const {
    const PagedPrepare& prepare = p.call.prepare;
    const auto* from = row < p.group ? static_cast<const __nv_bfloat16*>(p.call.q) +
                                           share.sequence * p.call.q_stride +
                                           (static_cast<int64_t>(share.head) * p.group + row) * kDim
                       : row == p.group ? static_cast<const __nv_bfloat16*>(prepare.k) +
                                              share.sequence * prepare.k_stride + share.head * kDim
                                        : static_cast<const __nv_bfloat16*>(prepare.v) +
                                              share.sequence * prepare.v_stride + share.head * kDim;
    return *reinterpret_cast<const uint4*>(from + at);
  }
};

/// The queries of the head to shared memory and, in the block of the last chunk, the new key and
/// value. `prepares`: normalised and rotated here. By all threads, once there are rows.
template <typename Cache, int kDim, int kRows, int kStages, typename Source>
__device__ __forceinline__ void take_rows(const DecodeParams& p,
                                          const Share& share,
                                          bool prepares,
                                          Preparation& known,
                                          uint8_t* shared,
                                          const Source& source) {
  using L = Layout<Cache, kDim, kRows, kStages>;
  const PagedPrepare& prepare = p.call.prepare;
  const unsigned lanes = 0xFFFFu << (threadIdx.x % 32 / kLanes * kLanes);
  const int at = static_cast<int>(threadIdx.x) % kLanes * 8;
  const bool mine = at < kDim;
  const bool has_last = share.chunk + 1 == share.cut.count;
  const int rows = p.group + (prepares && has_last ? 2 : 0);
  const int first = static_cast<int>(threadIdx.x) / kLanes;
#pragma unroll 1
  for (int row = first; row < rows; row += kUnits) {
    const bool is_query = row < p.group;
    const bool is_value = row == p.group + 1;
    uint4 raw = make_uint4(0, 0, 0, 0);
    if (mine) {
      raw = source.load(p, share, row, at);
    }
    if (prepares && !is_value) {
      if (row != first) {
        known.load_factor(p, row, kDim);
      }
      raw = prepare_head<kLanes>(
          raw, prepare.q_weight != nullptr, known.factor, kDim, prepare.eps, known.rotation, lanes);
    }
    if (!mine) {
      continue;
    }
    if (is_query) {
      *reinterpret_cast<uint4*>(shared + L::kQueries + (row * L::kQueryStride + at) * 2) = raw;
    } else {
      store_new<Cache, kDim>(p, shared + L::kNew, is_value, share.head, known.slot, at, raw);
    }
  }
}

/// The new key and value to row `row` of a stage. By a warp, between two __syncwarp().
template <typename Stage>
__device__ __forceinline__ void patch_stage(uint32_t stage, int row, const uint8_t* fresh) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int segment = lane % 16;
  const bool is_value = lane >= 16;
  if (segment < Stage::kSegments) {
    store_shared_16(
        stage + (is_value ? kStageBytes : 0) + row * Stage::kRowBytes +
            Stage::place(segment, row) * 16,
        *reinterpret_cast<const uint4*>(fresh + (is_value ? Stage::kRowBytes : 0) + segment * 16));
  }
}

/// The chunk's result from those of its warps: every thread four columns of a head. To the output
/// where it is the only chunk, or else to slot `place` of the partial results.
template <typename Cache, int kDim, int kRows, int kStages, typename Target>
__device__ __forceinline__ void fold_warps(const DecodeParams& p,
                                           const Share& share,
                                           int64_t place,
                                           uint8_t* shared,
                                           float v_scale,
                                           const Target& target) {
  using L = Layout<Cache, kDim, kRows, kStages>;
  using Part = Result<Cache, kDim, kRows>;
  const auto* sums = reinterpret_cast<const float2*>(shared + L::kSums);
  float* part = p.partial + place * p.group * kDim;
  float2* part_sums = p.summary + place * p.group;
  for (int i = static_cast<int>(threadIdx.x) * 4; i < p.group * kDim; i += kDecodeThreads * 4) {
    const int row = i / kDim;
    const int column = i % kDim;
    float values[4];
    float2 all{};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float4 v = *reinterpret_cast<const float4*>(
          Part::place(reinterpret_cast<float*>(shared + w * L::kWarpRing), row, column));
      const float2 sum = sums[w * kRows + row];
      const float later[4] = {v.x, v.y, v.z, v.w};
      if (w == 0) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          values[j] = later[j];
        }
        all = sum;
      } else {
        fold(all.x, all.y, values, sum.x, sum.y, later);
      }
    }
    if (share.cut.count == 1) {
      target.store(p,
                   share.sequence,
                   share.head * p.group + row,
                   column,
                   finish_columns(values, all.y, v_scale));
    } else {
      *reinterpret_cast<float4*>(part + i) =
          make_float4(values[0], values[1], values[2], values[3]);
      if (column == 0) {
        part_sums[row] = all;
      }
    }
  }
}

/// The share of a sequence and head that a block has: chunk `index`, all heads of a chunk next to
/// each other.
__device__ __forceinline__ Share share_of(const DecodeParams& p, int index) {
  const int heads = p.call.seqs * p.call.kv_heads;
  Share share;
  share.chunk = index / heads;
  const int head = index - share.chunk * heads;
  share.sequence = head / p.call.kv_heads;
  share.head = head - share.sequence * p.call.kv_heads;
  share.length = p.call.kv_lens[share.sequence];
  share.cut = share.length > 0 ? cut_of(share.length, p) : Cut{kMinChunkShift, 0};
  return share;
}

/// Attends to a chunk: old keys and values are asked for, then `wait(share)` returns when this
/// step's rows can be taken from `source`, then the rest. By kDecodeThreads threads, threadIdx 0
/// on.
template <typename Cache,
          int kDim,
          int kRows,
          int kStages,
          typename Source,
          typename Target,
          typename Wait>
__device__ __forceinline__ void attend_chunk(const DecodeParams& p,
                                             const Share& share,
                                             uint8_t* shared,
                                             const Source& source,
                                             const Target& target,
                                             const Wait& wait) {
  using L = Layout<Cache, kDim, kRows, kStages>;
  using Stage = DecodeStage<Cache, kDim>;
  constexpr int kTokens = Stage::kTokens;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const uint32_t own_ring = shared_address(shared) + warp * L::kWarpRing;
  const bool prepares = p.call.prepare.positions != nullptr;
  const int begin = share.begin();
  const int tokens = share.tokens();

  // The last token's key and value come through shared memory where they are prepared here.
  const int end = prepares ? share.length - 1 : share.length;
  const int32_t* table = p.call.page_table + share.sequence * p.call.table_stride;
  int ahead = warp * kTokens;
  const auto copy_stage = [&](int slot) {
    if (ahead < tokens) {
      Stage::copy(p,
                  table,
                  share.head,
                  begin + ahead,
                  end,
                  share.length,
                  own_ring + slot * (2 * kStageBytes));
      ahead += kWarps * kTokens;
    }
    copy_async_commit();
  };
  bool waited = false;  // for the kernel that writes this step's rows
#pragma unroll 1
  for (int i = 0; i < kStages; ++i) {
    if (!waited && !prepares && begin + ahead + kTokens >= share.length) {
      wait();
      waited = true;
    }
    copy_stage(i);
  }
  Preparation known{};
  if (prepares) {
    known.load(p, share.sequence, kDim);
  }
  const float2 scales = scales_of<Cache>(p);
  if (!waited) {
    wait();
  }
  take_rows<Cache, kDim, kRows, kStages>(p, share, prepares, known, shared, source);
  decode_team_sync();
  Queries<Cache, kDim, kRows> q;
  q.load(reinterpret_cast<const __nv_bfloat16*>(shared + L::kQueries), L::kQueryStride, p.group);

  Result<Cache, kDim, kRows> result;
  result.clear();
  int slot = 0;
#pragma unroll 1
  for (int token = warp * kTokens; token < tokens; token += kWarps * kTokens) {
    copy_async_wait<kStages - 1>();
    __syncwarp();
    const uint32_t stage = own_ring + slot * (2 * kStageBytes);
    const int left = share.length - begin - token;
    if (prepares && left <= kTokens) {
      patch_stage<Stage>(stage, left - 1, shared + L::kNew);
      __syncwarp();
    }
    attend_stage(q, stage, left, scales.x, result);
    __syncwarp();
    copy_stage(slot);
    slot = slot + 1 == kStages ? 0 : slot + 1;
  }
  result.add_up();
  result.store(reinterpret_cast<float*>(shared + warp * L::kWarpRing),
               reinterpret_cast<float2*>(shared + L::kSums) + warp * kRows,
               p.group);
  decode_team_sync();
  const int head = share.sequence * p.call.kv_heads + share.head;
  const int64_t place = static_cast<int64_t>(head) * p.max_chunks + share.chunk;
  fold_warps<Cache, kDim, kRows, kStages>(p, share, place, shared, scales.y, target);
  if (share.cut.count > 1) {
    finish_if_last<kDim>(
        p, share.sequence, share.head, share.cut.count, 1, head, 1, scales.y, target);
  }
}

}  // namespace nibble::cuda::decode_few
