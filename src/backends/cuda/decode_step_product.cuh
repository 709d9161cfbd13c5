#pragma once
// A warp's part of a product in decode_step_sm90: its runs (decode_step_plan.h), streamed through a
// ring of stages in shared memory, decoded and multiplied, block after block of K.

#include <cstdint>

#include "backends/cuda/decode_step_plan.h"
#include "backends/cuda/decode_step_registers.cuh"
#include "backends/cuda/device/cp_async.cuh"
#include "backends/cuda/device/nvfp4_decode.cuh"
#include "backends/cuda/device/ptx.cuh"
#include "backends/cuda/nvfp4_w4a16_sm90_strips.cuh"

namespace nibble::cuda {

inline constexpr int kStepCodeBytes = 512;  // of a strip's K64 block
inline constexpr int kStepScaleBytes = kStripBytes - kStepCodeBytes;
inline constexpr int kL2Line = 128;
inline constexpr int kStepPointers = kNumStepProducts * 8;  // bytes of a layer's matrices

/// A lane's part of what a warp does with stages.
struct StepLane {
  uint32_t scales;          // of its two rows in a stage, from its codes
  uint32_t copy_codes_to;   // where it copies codes to, from its own codes
  uint32_t copy_scales_to;  // the same of scales; two lanes copy the same

  /// An instruction copies an eighth of a K64 block's codes of all four blocks: so its offsets in
  /// both memories are the same, and one address each is enough.
  __device__ __forceinline__ explicit StepLane(uint32_t lane)
      : scales(kStepStage * kStepCodeBytes + lane / 4 * 8 - lane * 16),
        copy_codes_to(lane / 8 * kStepCodeBytes + lane % 8 * 16 - lane * 16),
        copy_scales_to(kStepStage * kStepCodeBytes + lane / 8 * kStepScaleBytes + lane % 4 * 16 -
                       lane * 16) {}
  /// Where from, from a strip's first codes and scales.
  static __device__ __forceinline__ uint32_t codes_from(uint32_t lane) {
    return lane / 8 * kTileRecordBytes + lane % 8 * 16;
  }
  static __device__ __forceinline__ uint32_t scales_from(uint32_t lane) {
    return lane / 8 * kTileRecordBytes + lane % 4 * 16;
  }
};
static_assert(kStepStage == 4 && kStepCodeBytes == 4 * 128 && kStepScaleBytes == 64);

/// A warp's walk over its runs of all layers, for the loads. Lanes copy 16 bytes at a time: five
/// instructions a stage (tensor copies by one lane take 60 of the warp's). Every fill is a group of
/// copies of its own, so that a stage is there when all but the youngest groups are.
struct StepLoader {
  const uint8_t* codes;  // this lane's of the next stage of the run at hand
  uint32_t scales;       // this lane's, from there
  int stages;            // left of the run at hand
  uint32_t run;          // shared address of the run after it
  uint32_t matrices;     // shared address of its layer's
  int runs;              // left in all layers

  /// Fills the stage whose codes of this lane are at `to`; nothing once all is loaded. By all
  /// lanes.
  __device__ __forceinline__ void fill(uint32_t to, const StepLane& own) {
    if (stages != 0) {
      --stages;
      copy(to, own);
      codes += kStepStage * kTileRecordBytes;
    } else if (runs != 0) {
      begin_run(to, own);
    }
    copy_async_commit();
  }
  /// Asks for the next stages of the run at hand in the L2. By all lanes.
  __device__ __forceinline__ void ask_l2() const {
    constexpr int kMostStages = 4;  // as much as attention's time is enough for
    constexpr uint32_t kCodeLines = kStepCodeBytes / kL2Line;
    const uint32_t lane = thread_again() % 32;
    const uint32_t line = lane % 8;  // of a K64 block: its codes, then its scales
    const uint8_t* from = line < kCodeLines ? codes + line * kL2Line - line * 16 : codes + scales;
    const int count = min(stages, kMostStages);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      if (line <= kCodeLines) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(from) : "memory");
      }
      from += kStepStage * kTileRecordBytes;
    }
  }

 private:
  __device__ __forceinline__ void copy(uint32_t to, const StepLane& own) const {
    const uint32_t codes_to = to + own.copy_codes_to;
#pragma unroll
    for (int i = 0; i < kStepStage; ++i) {
      copy_async_16(codes_to + i * 128, codes + i * 128);
    }
    copy_async_16(to + own.copy_scales_to, codes + scales);
  }
  /// The first stage of the next run.
  __device__ __forceinline__ void begin_run(uint32_t to, const StepLane& own) {
    --runs;
    const uint4 r = load_shared_16(run);
    const uint2 matrix = load_shared_8(matrices + (r.x & 24));
    const uint32_t lane = thread_again() % 32;
    codes = reinterpret_cast<const uint8_t*>(static_cast<uint64_t>(matrix.y) << 32 | matrix.x) +
            ((r.x & ~255u) + StepLane::codes_from(lane));
    scales = (r.y & 0xFFFF) + StepLane::scales_from(lane) - StepLane::codes_from(lane);
    stages = static_cast<int>(r.y >> 16) - 1;
    run += static_cast<int32_t>(r.w) >> 16;
    static_assert(kStepPointers == 32);
    matrices += r.x & 32;  // after the last run of a layer
    copy(to, own);
    codes += ((r.w & 3) + (r.w >> 2 & 3) + 1) * kTileRecordBytes;  // lines that the second has not
  }
};

/// A warp's ring of stages: the one at hand.
struct StepRing {
  uint32_t slot;  // shared address of this lane's codes
  int left;       // stages from this one to the ring's end

  /// `size`: of the ring, in stages.
  __device__ __forceinline__ void advance(int size) {
    slot += kStepStageBytes;
    if (--left == 0) {
      left = size;
      slot -= size * kStepStageBytes;
    }
  }
  /// Until the stage at hand is there (kUsed = 0), or the next one, while the one at hand has not
  /// been filled again (kUsed = 1). By all lanes, whose reads so far are done then.
  /// kSize: how many stages it has, 0: any number.
  template <int kSize, int kUsed>
  static __device__ __forceinline__ void wait(int size) {
    static_assert(kStepMaxRing == 5 && kStepMinRing == 2);
    if (kSize == 5 || size == 5) {
      copy_async_wait<4 - kUsed>();
    } else if (size == 2) {
      copy_async_wait<1 - kUsed>();
    } else if (size == 4) {
      copy_async_wait<3 - kUsed>();
    } else {
      copy_async_wait<2 - kUsed>();
    }
    __syncwarp();
  }
};

/// The sums of a piece so far, from warp to warp (decode_step_plan.h). A lane has sums of two rows;
/// those of all columns are the same.
__device__ __forceinline__ void store_part(uint32_t place, const float (&acc)[4]) {
  if (threadIdx.x % 4 == 0) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(place), "f"(acc[0]), "f"(acc[2])
                 : "memory");
  }
}
__device__ __forceinline__ void hand_part_on(uint32_t to_turn, uint32_t turn) {
  __syncwarp();
  if (elect_lane()) {
    asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(to_turn), "r"(turn) : "memory");
  }
}
__device__ __forceinline__ void take_part_over(uint32_t own_turn,
                                               uint32_t turn,
                                               uint32_t place,
                                               float (&acc)[4]) {
  uint32_t left = 0;
  do {
    asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(left) : "r"(own_turn) : "memory");
  } while (!__all_sync(0xFFFFFFFFu, left == turn));
  const uint2 sums = load_shared_8(place);
  acc[0] = acc[1] = __uint_as_float(sums.x);
  acc[2] = acc[3] = __uint_as_float(sums.y);
}

/// A warp's runs of a product, [at, end) (shared addresses): their sums to shared memory.
/// `own_turn`: where the next warp says that sums are there. kRing: stages of the ring, 0: any
/// number.
template <int kRing>
__device__ __forceinline__ void step_product(uint32_t at,
                                             uint32_t end,
                                             StepLoader& loader,
                                             StepRing& ring,
                                             int ring_size,
                                             uint32_t x_lane,
                                             uint32_t parts_lane,
                                             uint32_t own_turn,
                                             uint32_t turn) {
  const StepLane own(thread_again() % 32);
  const uint32_t bias = scale_bias();
  const int size = kRing != 0 ? kRing : ring_size;
  float acc[4];
  const auto multiply = [&](const PackedLane& packed, const uint4& x0, const uint4& x1) {
    multiply_strip_block(acc, packed, bias, x0, x1);
  };
  const auto load = [&](uint32_t codes, uint32_t scales) {
    return PackedLane{load_shared_16(codes), load_shared_8(scales)};
  };
#pragma unroll 1
  for (; at != end; at += sizeof(StepRun)) {
    const uint4 run = load_shared_16(at);
    uint32_t x = x_lane + (run.z & 0xFFFF);
    const uint32_t part = parts_lane + (run.z >> 16) * 64;
    auto stages = static_cast<int>(run.y >> 16);
    acc[0] = acc[1] = acc[2] = acc[3] = 0.0f;
    if ((run.w & 1u << 4) != 0) {
      take_part_over(own_turn, turn, part, acc);
    }
    StepRing::wait<kRing, 0>(size);
    if ((run.w & 12) != (kStepStage - 1) << 2) {
      uint32_t codes = ring.slot + (run.w & 3) * kStepCodeBytes;
      uint32_t scales = ring.slot + own.scales + (run.w & 3) * kStepScaleBytes;
#pragma unroll 1
      for (uint32_t left = run.w >> 2 & 3;; --left) {
        multiply(load(codes, scales), load_shared_16(x), load_shared_16(x + 64));
        codes += kStepCodeBytes;
        scales += kStepScaleBytes;
        x += kStepBlockX;
        if (left == 0) {
          break;
        }
      }
      const uint32_t used = ring.slot;
      ring.advance(size);
      --stages;
      __syncwarp();  // all lanes have read the stage
      loader.fill(used, own);
      if (stages != 0) {
        StepRing::wait<kRing, 0>(size);
      }
    }
    if (stages != 0) {
      // What the next block needs is asked for before the products of this one, which wait for each
      // other.
      PackedLane packed = load(ring.slot, ring.slot + own.scales);
      uint4 x0 = load_shared_16(x);
      uint4 x1 = load_shared_16(x + 64);
#pragma unroll 1
      for (;;) {
#pragma unroll
        for (int b = 0; b + 1 < kStepStage; ++b) {
          const PackedLane now = packed;
          const uint4 now_x0 = x0;
          const uint4 now_x1 = x1;
          packed = load(ring.slot + (b + 1) * kStepCodeBytes,
                        ring.slot + own.scales + (b + 1) * kStepScaleBytes);
          x0 = load_shared_16(x + (b + 1) * kStepBlockX);
          x1 = load_shared_16(x + (b + 1) * kStepBlockX + 64);
          multiply(now, now_x0, now_x1);
        }
        const uint32_t used = ring.slot;
        if (--stages == 0) {
          ring.advance(size);
          __syncwarp();
          loader.fill(used, own);
          break;
        }
        const PackedLane now = packed;
        const uint4 now_x0 = x0;
        const uint4 now_x1 = x1;
        StepRing::wait<kRing, 1>(size);
        ring.advance(size);
        x += kStepStage * kStepBlockX;
        packed = load(ring.slot, ring.slot + own.scales);
        x0 = load_shared_16(x);
        x1 = load_shared_16(x + 64);
        loader.fill(used, own);
        multiply(now, now_x0, now_x1);
      }
      multiply(packed, x0, x1);
    }
    store_part(part, acc);
    if ((run.w & 1u << 5) != 0) {
      hand_part_on(own_turn - 4, turn);
    }
  }
}

}  // namespace nibble::cuda
