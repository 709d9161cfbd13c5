#pragma once
// How the blocks of decode_step_sm90 hand rows to each other: rows of bf16 in which a pair of
// values that is not there yet is kStepAbsent, which no conversion gives. A pair is written and
// read at once, so whoever finds it has it: no flag, no fence, one trip to the L2.
//
// Layers take turns at kStepCopies copies of all rows. During a layer every block clears its part
// of the next layer's copy. Nobody reads that any more: it was used kStepCopies - 1 layers ago, and
// this layer's rows need what every block has made of the later ones. And nobody reads or writes it
// before it is clear: the clearing is followed by a fence and then by a row of the block's own,
// which all others await before they come to the next layer. By the letter of the memory model that
// order would need a fence in the thread that hands over and one in those that read; here it rests
// on the fence's being done when the block's barrier is passed, and on loads that go to the L2 and
// are not started before the branch that waits for the row before. Every pair that is written is
// read by somebody in its layer, so none comes late.

#include <cstdint>

#include "backends/cuda/device/bf16_vector.cuh"

namespace nibble::cuda {

/// Two NaNs with all bits set; conversions to bf16 give 0x7FFF.
inline constexpr uint32_t kStepAbsent = 0xFFFFFFFFu;
inline constexpr uint32_t kStepCopies = 4;

/// Where the row of a layer is, from where it is in the first copy. `layer`: of all steps so far,
/// in order.
__device__ __forceinline__ uint32_t* step_row(uint32_t* first, int copy_pairs, uint32_t layer) {
  return first + layer % kStepCopies * copy_pairs;
}

/// So many tries, each a trip to the L2, that only a mistake can wait for longer: the kernel ends
/// with an error instead of occupying the device for good.
inline constexpr uint32_t kStepMostTries = 1u << 23;

/// A pair as it is handed over.
__device__ __forceinline__ uint32_t present_pair(uint32_t pair) {
  return pair == kStepAbsent ? 0x7FFF7FFFu : pair;
}
__device__ __forceinline__ void store_pair(uint32_t* to, uint32_t pair) {
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(to), "r"(present_pair(pair)) : "memory");
}
/// Four values, 8-byte aligned.
__device__ __forceinline__ void store_pairs(uint32_t* to, const uint2& pairs) {
  asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1, %2};" ::"l"(to),
               "r"(present_pair(pairs.x)),
               "r"(present_pair(pairs.y))
               : "memory");
}
/// Eight values.
__device__ __forceinline__ void clear_pairs(uint32_t* to) {
  asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %1, %1, %1};" ::"l"(to), "r"(kStepAbsent)
               : "memory");
}
__device__ __forceinline__ void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

/// Eight values, 16-byte aligned.
__device__ __forceinline__ void load_pairs(uint4& piece, const uint32_t* from) {
  asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w)
               : "l"(from)
               : "memory");
}
__device__ __forceinline__ bool are_present(const uint4& piece) {
  return piece.x != kStepAbsent && piece.y != kStepAbsent && piece.z != kStepAbsent &&
         piece.w != kStepAbsent;
}

/// Loads kCount pieces of eight values, `apart` values from each other, until all lanes of `lanes`,
/// who call this together, have theirs: lanes that leave one by one would be apart in all that
/// follows.
template <int kCount>
__device__ __forceinline__ void await_pieces(uint4 (&piece)[kCount],
                                             const uint32_t* from,
                                             int apart,
                                             unsigned lanes = 0xFFFFFFFFu) {
  for (uint32_t tries = 0;; ++tries) {
    bool all = true;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      load_pairs(piece[i], from + i * (apart / 2));
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      all = all && are_present(piece[i]);
    }
    if (__all_sync(lanes, all)) {
      return;
    }
    if (tries == kStepMostTries) {
      __trap();
    }
  }
}

__device__ __forceinline__ uint4 await_piece(const uint32_t* from, unsigned lanes = 0xFFFFFFFFu) {
  uint4 piece[1];
  await_pieces(piece, from, 0, lanes);
  return piece[0];
}

}  // namespace nibble::cuda
