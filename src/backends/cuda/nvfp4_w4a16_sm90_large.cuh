#pragma once
// nvfp4_w4a16_sm90: what the consumers of large tiles (kSerial) do. Both warpgroups of a block have
// the same tokens and 64 features each.
//
// A block takes the pieces of K of a tile in turn: products of a piece add up in `acc`, pieces in
// `total`. Between two pieces the tensor cores have nothing to do, so as little as possible happens
// there: where the next piece ends is worked out while the last products run, and the first product
// of a piece overwrites `acc`. The second warpgroup begins a little later, so that it has products
// left while the first one stops. A whole tile's sums are stored while the next one's products run.
//
// ptxas keeps the ring's state in uniform registers as long as it can prove that warps do not
// diverge; a second group of products peeled off the loop, or a condition on what comes out of
// keep_in_register(), costs 1 to 10 % of a kernel. In the machine code such a loop has BSSY in it.

#include <cstdint>

#include "backends/cuda/nvfp4_w4a16_sm90_config.cuh"

namespace nibble::cuda {

/// The counter of a shared tile.
template <class Config>
__device__ __forceinline__ uint32_t* shared_counter(const W4A16Params& p,
                                                    int line_row,
                                                    int token_tile) {
  return p.counters + (Config::kLine ? 0 : token_tile * p.cuts.row_tiles) + line_row;
}

/// Thread 0 waits until `count` blocks have arrived, the other consumers for it.
template <class Config>
__device__ __forceinline__ void wait_for_parts(uint32_t* counter, int thread, int count) {
  if (thread == 0) {
    while (load_acquire(counter) < static_cast<uint32_t>(count)) {
    }
  }
  named_barrier_sync(1, Config::kConsumers);
}

/// For tiles of which every block adds a slice: waits until all parts are there, adds this block's
/// slice, and leaves the counter at zero.
template <class Config>
__device__ __forceinline__ void reduce_slice(const W4A16Params& p,
                                             int thread,
                                             int line_row,
                                             int token_tile) {
  const W4A16Sharing sharing(line_cuts<Config::kLine>(p), p.by_units_per_block, line_row);
  if (sharing.blocks <= Config::kOwnerBlocks) {
    return;  // one of them adds it all
  }
  uint32_t* counter = shared_counter<Config>(p, line_row, token_tile);
  int row_tile = line_row;
  if constexpr (Config::kLine) {
    find_tile(p, p.first_tiles + line_row, &row_tile, &token_tile);
  }
  wait_for_parts<Config>(counter, thread, sharing.blocks);
  reduce_parts<Config>(p,
                       thread,
                       row_tile,
                       token_tile,
                       sharing,
                       static_cast<int>(blockIdx.x) - sharing.first_block,
                       sharing.blocks);
  named_barrier_sync(1, Config::kConsumers);
  if (thread == 0 && add_acquire_release(counter, 1) == 2u * sharing.blocks - 1) {
    *counter = 0;
  }
}

/// total += part, or = part; kBatch chunks are loaded at a time.
template <class Config, int kBatch>
__device__ __forceinline__ void add_part(
    const W4A16Params& p, int thread, int token_tile, int slot, bool replace, float* total) {
  const uint8_t* from = part_address<Config>(p, thread, token_tile, slot);
#pragma unroll
  for (int j0 = 0; j0 < Config::kChunks; j0 += kBatch) {
    float4 v[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      v[j] = __ldcg(reinterpret_cast<const float4*>(from + (j0 + j) * 2048));
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      float* sum = total + 4 * (j0 + j);
      // -0 + v is v for every v.
      sum[0] = (replace ? -0.0f : sum[0]) + v[j].x;
      sum[1] = (replace ? -0.0f : sum[1]) + v[j].y;
      sum[2] = (replace ? -0.0f : sum[2]) + v[j].z;
      sum[3] = (replace ? -0.0f : sum[3]) + v[j].w;
    }
  }
}

/// sums += v, in the sums' own registers: ptxas would take the accumulators' and copy them back.
template <int kCount>
__device__ __forceinline__ void add_in_place(float (&sums)[kCount], const float (&v)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    asm volatile("add.rn.f32 %0, %0, %1;" : "+f"(sums[i]) : "f"(v[i]));
  }
}

/// -0 + v is v for every v, so a first piece is taken as it is.
template <int kCount>
__device__ __forceinline__ void clear(float (&total)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    total[i] = -0.0f;
  }
}

/// Has `a` computed here: to ptxas, pin_registers() means nothing, and a wait is no reason not to
/// put arithmetic off. Ten instructions.
__device__ __forceinline__ void settle(const uint32_t (&a)[4][4]) {
  uint32_t all = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    all ^= a[i][0] ^ a[i][1] ^ a[i][2] ^ a[i][3];
  }
  asm volatile(
      "{\n .reg .pred p;\n setp.eq.u32 p, %0, 0x7FC17FC1;\n @p nanosleep.u32 0;\n}" ::"r"(all)
      : "memory");
}

template <class Config>
__device__ __forceinline__ void consume_large(const W4A16Sm90Params& p, WgmmaRing<Config>& ring) {
  using Store = W4A16Store<Config::kOutput>;
  const uint32_t bias = ring.bias;

  if (p.lag > 0 && threadIdx.x >= 128) {  // from the first block's arrival on
    barrier_wait(ring.full, 0);
    const int64_t start = clock64();
    while (clock64() - start < p.lag) {
    }
  }
  __syncwarp();
  W4A16Walk<Config::kDeal> walk(p);
  W4A16Segment s;
  float total[Config::kAccumulators];
  clear(total);
  // Whether `total` has a finished tile that is still to be stored.
  bool unstored = false;
  int unstored_row_tile = 0;
  int unstored_token_tile = 0;
  while (walk.next(p, &s)) {
    const bool adds_to_others = Config::kChain && s.begin != 0 && s.end == p.cuts.k_blocks;

    if constexpr (!Config::kDefers) {
      clear(total);
    }
    // A piece's place in the cuts, and its end in the segment.
    const int tile_begin = s.row_tile * p.cuts.k_blocks;
    int unit = p.cuts.unit_of(tile_begin + s.begin);
    int end = min(s.end, p.cuts.unit_begin(unit + 1) - tile_begin);
    // Sets of fragments: one is being decoded while the products of another run. `first` is for a
    // piece's first block, which is decoded while the last products of the piece before run. No
    // accumulator is touched before the end of a piece, or ptxas would serialise the products.
    float acc[Config::kAccumulators];  // a piece's first product sets them
    uint32_t even[4][4];
    uint32_t odd[4][4];
    uint32_t own[4][4];
    uint32_t(&first)[4][4] = Config::kDecodesAhead ? own : even;
    ring.enter_stage();
    if constexpr (Config::kDecodesAhead) {
      decode_lane(ring.load_block(), bias, first);
    }
    for (int begin = s.begin; begin < s.end;) {
      // The next block is fetched before waiting.
      PackedLane packed;
      if constexpr (!Config::kDecodesAhead) {
        packed = ring.load_block();
      }
      int blocks = end - begin;
      int finished = -1;  // stage used up by the block before the one in flight
      auto fetch_next = [&] {
        if (--blocks == 0) {
          return false;
        }
        finished = ring.next_block();
        packed = ring.load_block();
        return true;
      };
      const bool adds_now = adds_to_others && begin == s.begin;
      if (adds_now) {
        // They came first for the others: this is no long wait.
        const W4A16Sharing sharing(p.line, p.by_units_per_block, s.line_row);
        wait_for_parts<Config>(shared_counter<Config>(p, s.line_row, s.token_tile),
                               static_cast<int>(threadIdx.x),
                               sharing.blocks - 1);
      }
      bool more = false;
      // A group of products after another one, which is done then.
      auto next_group = [&](uint32_t(&fragments)[4][4]) {
        decode_lane(packed, bias, fragments);
        ring.multiply(acc, fragments, ring.tokens);
        const int before = finished;
        more = fetch_next();
        wgmma_wait<1>();
        ring.release_if_finished(before);
      };
      if constexpr (!Config::kDecodesAhead) {
        decode_lane(packed, bias, first);
      }
      if (Config::kDefers && unstored) {
        const int thread = static_cast<int>(keep_in_register(threadIdx.x));
        const int token = unstored_token_tile * Config::kTokens + thread % 4 * 2;
        Store output;
        output.load(p, unstored_row_tile * kTileRows + first_row(thread));
        ring.template multiply<false>(acc, first, ring.tokens);
        __syncwarp();  // or ptxas would store before it starts the products
        output.pin();
        output.template store_all<Config::kChunks>(p, token, total);
        unstored = false;
        clear(total);
      } else {
        ring.template multiply<false>(acc, first, ring.tokens);
      }
      more = fetch_next();
      if (adds_now) {
        const W4A16Sharing sharing(p.line, p.by_units_per_block, s.line_row);
        add_part<Config, Config::kChunks / 4>(p,
                                              static_cast<int>(keep_in_register(threadIdx.x)),
                                              s.token_tile,
                                              sharing.slot(p.line, 0),
                                              true,
                                              total);
      }
      if (Config::kDecodesAhead && !more) {
        wgmma_wait<0>();  // `first` is to be decoded into
      }
#pragma unroll 1
      while (more) {
        next_group(odd);
        if (!more) {
          break;
        }
        next_group(even);
      }

      // Before the last products are done: where the next piece ends, and its first block.
      const int next_end = min(s.end, p.cuts.unit_begin(unit + 2) - tile_begin);
      if (end == s.end) {
        wgmma_wait<0>();
        ring.leave_segment();
      } else if constexpr (!Config::kDecodesAhead) {
        wgmma_wait<0>();
        ring.release_if_finished(ring.next_block());
      } else {
        const int last = ring.next_block();
        decode_lane(ring.load_block(), bias, first);
        settle(first);
        wgmma_wait<0>();
        ring.release_if_finished(last);
      }
      // The piece's sums.
      if (adds_now) {
        const int thread = static_cast<int>(keep_in_register(threadIdx.x));
        const W4A16Sharing sharing(p.line, p.by_units_per_block, s.line_row);
        const int own_unit = unit + (s.line_row - s.row_tile) * p.line_pieces;
#pragma unroll 1
        for (int part = 1; part <= own_unit - sharing.first_unit; ++part) {
          add_part<Config, Config::kChunks / 2>(
              p, thread, s.token_tile, sharing.slot(p.line, part), false, total);
        }
        if (thread == 0) {
          *shared_counter<Config>(p, s.line_row, s.token_tile) = 0;
        }
      }
      if (!Config::kWhole && s.begin != 0 && !adds_to_others) {
        const int slot = Config::kLine ? unit + (s.line_row - s.row_tile) * p.line_pieces : unit;
        export_part<Config>(p, keep_in_register(threadIdx.x), s.token_tile, slot, acc);
      } else {
        add_in_place(total, acc);
      }

      begin = end;
      end = next_end;
      ++unit;
    }
    if (p.residual != nullptr) {
      wait_for_previous_kernel();  // long over; makes its writes visible to this thread too
    }
    // What follows is not to be computed ahead of the loops: registers are short there.
    const int thread = static_cast<int>(keep_in_register(threadIdx.x));
    const int row_tile = static_cast<int>(keep_in_register(s.row_tile));
    const int token_tile = static_cast<int>(keep_in_register(s.token_tile));
    const int line_row = Config::kLine ? static_cast<int>(keep_in_register(s.line_row)) : row_tile;
    bool complete = Config::kWhole || s.end - s.begin == p.cuts.k_blocks || adds_to_others;
    if (!complete) {
      const W4A16Sharing sharing(line_cuts<Config::kLine>(p), p.by_units_per_block, line_row);
      uint32_t* counter = shared_counter<Config>(p, line_row, token_tile);
      if (Config::kSlices && s.begin == 0 && sharing.blocks <= Config::kOwnerBlocks) {
        // Few others: this block has the first part in registers and waits for the rest.
        wait_for_parts<Config>(counter, thread, sharing.blocks - 1);
#pragma unroll 1
        for (int part = 1; part < sharing.parts; ++part) {
          add_part<Config, Config::kChunks>(
              p, thread, token_tile, sharing.slot(line_cuts<Config::kLine>(p), part), false, total);
        }
        if (thread == 0) {
          *counter = 0;
        }
        complete = true;
      } else {
        if (s.begin == 0) {
          const int slot = line_cuts<Config::kLine>(p).units + static_cast<int>(blockIdx.x);
          export_part<Config>(p, thread, token_tile, slot, total);
        }
        named_barrier_sync(1, Config::kConsumers);
        if (thread == 0) {
          add_acquire_release(counter, 1);
        }
      }
    }
    if (complete) {
      unstored = Config::kDefers && Store::plain(p, s.row_tile) &&
                 (s.token_tile + 1) * Config::kTokens <= p.m;
      unstored_row_tile = s.row_tile;
      unstored_token_tile = s.token_tile;
      if (!unstored) {
        store_tile<Config>(p, thread, row_tile, token_tile, total);
        if constexpr (Config::kDefers) {
          clear(total);
        }
      }
    }
    if (Config::kSlices && s.last) {
      // The tile that other blocks began, and the one that this block began.
      const int first_block =
          line_cuts<Config::kLine>(p).unit_begin(static_cast<int>(blockIdx.x * p.units_per_block));
      const int first_tile = p.cuts.row_tile_of(first_block);
#pragma unroll 1
      for (int i = 0; i < 2; ++i) {
        const bool shares = i == 0 ? first_block != first_tile * p.cuts.k_blocks
                                   : s.begin == 0 && s.end != p.cuts.k_blocks;
        if (shares) {
          reduce_slice<Config>(p, thread, i == 0 ? first_tile : line_row, token_tile);
        }
      }
    }
  }
  if (Config::kDefers && unstored) {
    const int thread = static_cast<int>(keep_in_register(threadIdx.x));
    Store output;
    output.load(p, unstored_row_tile * kTileRows + first_row(thread));
    output.template store_all<Config::kChunks>(
        p, unstored_token_tile * Config::kTokens + thread % 4 * 2, total);
  }
}

}  // namespace nibble::cuda
