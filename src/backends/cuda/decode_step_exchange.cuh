#pragma once
// How the blocks of decode_step_sm90 hand rows to each other: words of 8 bytes, two bf16 and a tag
// that says which layer of which step they are of. A word is written and read at once, so whoever
// finds the tag has the values: no fence, no counter, one trip to the L2. Tags only grow, and the
// words of a layer are written after every block has read those of the layer before, because
// writing needs rows that all blocks have contributed to since.

#include <cstdint>

#include "backends/cuda/device/bf16_vector.cuh"

namespace nibble::cuda {

/// So many tries, each a trip to the L2, that only a mistake can wait for longer: the kernel ends
/// with an error instead of occupying the device for good.
inline constexpr uint32_t kStepMostTries = 1u << 23;

__device__ __forceinline__ void store_word(uint64_t* to, uint32_t pair, uint32_t tag) {
  asm volatile(
      "{\n .reg .b64 w;\n mov.b64 w, {%1, %2};\n st.relaxed.gpu.global.b64 [%0], w;\n}" ::"l"(to),
      "r"(pair),
      "r"(tag)
      : "memory");
}

/// The word of values `value` (even) and value + 1 of a row. Pieces of eight values are stored in
/// two halves, those of 32 pieces one after another: a warp that loads 32 pieces loads 512
/// contiguous bytes at a time.
constexpr __device__ __forceinline__ int step_word(int value) {
  return value / 256 * 128 + value % 8 / 4 * 64 + value / 8 % 32 * 2 + value % 4 / 2;
}
/// Where a row of so many values ends, in words.
constexpr int step_words(int values) { return (values + 255) / 256 * 128; }

/// Eight values; `from`: the first one's word.
struct StepPiece {
  uint32_t pair[4];
  uint32_t tag[4];

  __device__ __forceinline__ void load(const uint64_t* from) {
    uint64_t w[4];
    asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
                 : "=l"(w[0]), "=l"(w[1])
                 : "l"(from)
                 : "memory");
    asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
                 : "=l"(w[2]), "=l"(w[3])
                 : "l"(from + 64)
                 : "memory");
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pair[i] = static_cast<uint32_t>(w[i]);
      tag[i] = static_cast<uint32_t>(w[i] >> 32);
    }
  }
  __device__ __forceinline__ bool is_of(uint32_t wanted) const {
    return tag[0] == wanted && tag[1] == wanted && tag[2] == wanted && tag[3] == wanted;
  }
  __device__ __forceinline__ uint4 values() const {
    return make_uint4(pair[0], pair[1], pair[2], pair[3]);
  }
};

/// Loads kCount pieces, `apart` words from each other, until all lanes of `lanes`, who call this
/// together, have theirs: lanes that leave one by one would be apart in all that follows.
template <int kCount>
__device__ __forceinline__ void await_pieces(StepPiece (&piece)[kCount],
                                             const uint64_t* from,
                                             int apart,
                                             uint32_t wanted,
                                             unsigned lanes = 0xFFFFFFFFu) {
  for (uint32_t tries = 0;; ++tries) {
    bool all = true;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      piece[i].load(from + i * apart);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      all = all && piece[i].is_of(wanted);
    }
    if (__all_sync(lanes, all)) {
      return;
    }
    if (tries == kStepMostTries) {
      __trap();
    }
  }
}

__device__ __forceinline__ uint4 await_piece(const uint64_t* from,
                                             uint32_t wanted,
                                             unsigned lanes = 0xFFFFFFFFu) {
  StepPiece piece[1];
  await_pieces(piece, from, 0, wanted, lanes);
  return piece[0].values();
}

}  // namespace nibble::cuda
