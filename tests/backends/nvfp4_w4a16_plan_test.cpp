// The host side of nvfp4_w4a16_sm90 and nvfp4_w4a16_sm80: cuts, plans and the packed encoding. No
// GPU needed.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "backends/cuda/nvfp4_layout.h"
#include "backends/cuda/nvfp4_w4a16_cuts.h"
#include "backends/cuda/nvfp4_w4a16_sm80.h"
#include "backends/cuda/nvfp4_w4a16_sm90.h"
#include "backends/cuda/nvfp4_w4a16_strips.h"
#include "backends/cuda/nvfp4_w4a16_tiles.h"
#include "base/number_formats.h"

namespace nibble::cuda {

namespace {

struct Size {
  int64_t n, k;
};
const std::vector<Size> kLayers{{6144, 4096},
                                {4096, 4096},
                                {24576, 4096},
                                {4096, 12288},
                                {10240, 8192},
                                {8192, 8192},
                                {57344, 8192},
                                {8192, 28672},
                                {5120, 2048},
                                {2048, 4096},
                                {6656, 19968},
                                {19968, 6656}};
const std::vector<Size> kOdd{{1, 16}, {64, 64}, {130, 1936}, {151936, 4096}, {128, 65536}};

std::vector<Size> all_sizes() {
  std::vector<Size> all = kLayers;
  all.insert(all.end(), kOdd.begin(), kOdd.end());
  return all;
}

float bf16_value(uint32_t bits) { return std::bit_cast<float>(bits << 16); }

}  // namespace

TEST(W4A16Cuts, CoverEveryBlockOnceInUnitsOfEqualLength) {
  for (const auto& [n, k] : all_sizes()) {
    const W4A16Cuts cuts = w4a16_cuts(n, k);
    ASSERT_EQ(cuts.unit_begin(0), 0);
    ASSERT_EQ(cuts.unit_begin(cuts.units), cuts.total());
    int shortest = cuts.total();
    int longest = 0;
    for (int unit = 0; unit < cuts.units; ++unit) {
      const int begin = cuts.unit_begin(unit);
      const int end = cuts.unit_begin(unit + 1);
      ASSERT_LT(begin, end) << n << "x" << k;
      shortest = std::min(shortest, end - begin);
      longest = std::max(longest, end - begin);
      for (int block = begin; block < end; ++block) {
        ASSERT_EQ(cuts.unit_of(block), unit) << n << "x" << k << " block " << block;
      }
    }
    EXPECT_LE(longest - shortest, 1) << n << "x" << k;
  }
}

TEST(W4A16Cuts, FillTwoBlocksOnEveryMultiprocessorForTheLayersOfRealModels) {
  for (const auto& [n, k] : kLayers) {
    const W4A16Cuts cuts = w4a16_cuts(n, k);
    EXPECT_LE(cuts.units, 264);
    if (n * k > int64_t{4096} * 4096) {
      EXPECT_GE(cuts.units, 238) << n << "x" << k;  // 90 %: the same cuts in every tile
    }
  }
  EXPECT_EQ(w4a16_cuts(128, 64).units, 1);  // and do not cut what is small
}

TEST(W4A16Cuts, JoinShortPiecesWhereATileHasMoreThanFour) {
  const auto pieces = [](int64_t n, int64_t k) {
    const W4A16Cuts cuts = w4a16_cuts(n, k);
    EXPECT_EQ(cuts.units % cuts.row_tiles, 0);
    return cuts.units / cuts.row_tiles;
  };
  EXPECT_EQ(pieces(4096, 4096), 4);  // of 16 blocks, not 8 of 8
  EXPECT_EQ(pieces(2048, 4096), 4);
  EXPECT_EQ(pieces(1024, 3072), 3);   // 6 of 8
  EXPECT_EQ(pieces(5120, 2048), 4);   // of 8 blocks, but no more than 4
  EXPECT_EQ(pieces(6144, 4096), 5);   // 12.8 blocks are long enough
  EXPECT_EQ(pieces(4096, 12288), 8);  // so are 24
}

TEST(W4A16Plan, TakesTheSmallestTileThatHoldsAllRowsWhereNothingWasMeasured) {
  const auto tokens = [](int64_t m) { return plan_w4a16(m, 4224, 4096, 132).tokens; };
  ASSERT_FALSE(measured_tile(8, 4224, 4096));
  EXPECT_EQ(tokens(1), 8);
  EXPECT_EQ(tokens(8), 8);
  EXPECT_EQ(tokens(9), 16);
  EXPECT_EQ(tokens(33), 64);
  EXPECT_EQ(tokens(65), 128);
  EXPECT_EQ(plan_w4a16(4096, 4096, 4096, 132).tile, W4A16Tile::Tokens128Whole);
}

TEST(FastDivisor, DividesEveryNumberOf32BitsExactly) {
  std::mt19937 random(1);
  std::vector<int> divisors = {
      1, 2, 3, 5, 7, 64, 93, 264, 12288, 65535, 65536, 1 << 30, 0x7FFFFFFF};
  for (int i = 0; i < 500; ++i) {
    divisors.push_back(static_cast<int>(random() >> (1 + i % 28)) + 1);
  }
  for (const int by : divisors) {
    const FastDivisor divisor(by);
    const auto d = static_cast<uint32_t>(by);
    const auto expect_exact = [&](uint32_t value) {
      ASSERT_EQ(static_cast<uint32_t>(divisor.divide(value)), value / d) << value << " / " << d;
    };
    for (int i = 0; i < 200; ++i) {
      const uint32_t multiple = static_cast<uint32_t>(random()) / d * d;  // and its neighbours
      for (const uint32_t value :
           {multiple - 1, multiple, multiple + 1, static_cast<uint32_t>(random())}) {
        expect_exact(value);
      }
    }
    for (const uint32_t value : {0u, 1u, 0x7FFFFFFFu, 0x80000000u, 0xFFFFFFFEu, 0xFFFFFFFFu}) {
      expect_exact(value);
    }
  }
  EXPECT_EQ(FastDivisor(0).divide(7), 7);  // what nothing is divided by
}

TEST(W4A16Tiles, CanDoWhatTheTableSaysAndAreTakenFromIt) {
  std::set<std::pair<int, int>> seen;
  for (const W4A16MeasuredTiles& row : h200_tiles()) {
    EXPECT_TRUE(seen.insert({row.n, row.k}).second) << row.n << "x" << row.k << " twice";
    int64_t first = 1;
    for (size_t i = 0; i < kMeasuredRows.size(); ++i) {
      for (const int64_t m : {first, int64_t{kMeasuredRows[i]}}) {
        EXPECT_EQ(measured_tile(m, row.n, row.k), row.tiles[i]);
        W4A16Plan plan;
        EXPECT_TRUE(plan_w4a16_as(row.tiles[i], m, row.n, row.k, kMeasuredMultiprocessors, &plan))
            << row.n << "x" << row.k << " m " << m << " " << to_string(row.tiles[i]);
        const W4A16Plan chosen = plan_w4a16(m, row.n, row.k, kMeasuredMultiprocessors);
        // One row of some matrices is a kernel of its own (nvfp4_w4a16_strips_test.cpp).
        const bool strips = w4a16_strips_pay(m, row.n, row.k, kMeasuredMultiprocessors);
        EXPECT_EQ(chosen.tile, strips ? W4A16Tile::Strips8 : row.tiles[i]) << describe(chosen);
      }
      first = kMeasuredRows[i] + 1;
    }
  }
  for (const auto& [n, k] : kLayers) {
    EXPECT_TRUE(seen.contains({static_cast<int>(n), static_cast<int>(k)})) << n << "x" << k;
  }
  EXPECT_FALSE(measured_tile(513, 4096, 4096));
  EXPECT_FALSE(measured_tile(0, 4096, 4096));
  EXPECT_FALSE(measured_tile(8, 4096, 4097));
}

TEST(W4A16Plan, IsTheSameForTheSameArgumentsAndDoesWithoutTheTableElsewhere) {
  for (const int multiprocessors : {16, 114, 132}) {
    for (const auto& [n, k] : all_sizes()) {
      for (const int64_t m : {1, 40, 130, 600, 1024}) {
        const W4A16Plan plan = plan_w4a16(m, n, k, multiprocessors);
        EXPECT_EQ(describe(plan), describe(plan_w4a16(m, n, k, multiprocessors)));
        W4A16Plan again;
        EXPECT_TRUE(plan_w4a16_as(plan.tile, m - plan.whole_rows, n, k, multiprocessors, &again))
            << describe(plan);
      }
    }
  }
}

TEST(W4A16Plan, SharesTheTilesOfAThinLastWave) {
  const W4A16Plan plan = plan_w4a16(1024, 6656, 19968, 132);  // 52 row tiles: 3.15 waves
  EXPECT_EQ(plan.tile, W4A16Tile::Tokens128Mixed);
  EXPECT_EQ(plan.first_tiles, 3 * 132);
  EXPECT_EQ(plan.line_tiles, 52 * 8 - 3 * 132);
  EXPECT_EQ(plan.units_per_block, 1);  // 20 tiles of 5 pieces on 132 multiprocessors
  EXPECT_EQ(plan_w4a16(1024, 8192, 8192, 132).tile, W4A16Tile::Tokens128Whole);  // 3.88 waves
}

TEST(W4A16Plan, ChainsSharedTilesBehindWholeOnesWhereNoBlockHasTwoOfThem) {
  EXPECT_TRUE(plan_w4a16(1024, 5120, 2048, 132).chain);  // 2 waves, then 56 tiles in halves
  EXPECT_TRUE(plan_w4a16(512, 5120, 2048, 132).chain);
  W4A16Plan plan;
  ASSERT_TRUE(plan_w4a16_as(W4A16Tile::Tokens128Mixed, 512, 6656, 19968, 132, &plan));
  EXPECT_FALSE(plan.chain);  // 5 pieces in threes
  ASSERT_TRUE(plan_w4a16_as(W4A16Tile::Tokens128Mixed, 256, 4096, 12288, 132, &plan));
  EXPECT_FALSE(plan.chain);  // nothing before or after: the last one would wait for the others
}

TEST(W4A16Plan, SharesTheLastWaveOnlyWhereAllTilesHaveTheSamePieces) {
  for (const int multiprocessors : {16, 114, 132}) {
    for (const auto& [n, k] : all_sizes()) {
      for (const int64_t m : {130, 512, 1024, 4096}) {
        W4A16Plan plan;
        if (!plan_w4a16_as(W4A16Tile::Tokens128Mixed, m, n, k, multiprocessors, &plan)) {
          continue;
        }
        const W4A16Cuts cuts = w4a16_cuts(n, k);
        const int pieces = cuts.units / cuts.row_tiles;
        EXPECT_EQ(plan.first_tiles % multiprocessors, 0);
        EXPECT_EQ(plan.first_tiles + plan.line_tiles, cuts.row_tiles * ceil_div(m, 128));
        EXPECT_LE(plan.line_tiles, w4a16_num_counters(n));
        EXPECT_GE(plan.units_per_block * multiprocessors, plan.line_tiles * pieces);
        EXPECT_LT(plan.units_per_block, pieces);
        // The line's own cuts are those of the matrix, tile by tile.
        const W4A16Cuts line{plan.line_tiles, cuts.k_blocks, plan.line_tiles * pieces};
        for (int unit = 0; unit < line.units; ++unit) {
          ASSERT_EQ(line.unit_begin(unit) % cuts.k_blocks,
                    cuts.unit_begin(unit % pieces) % cuts.k_blocks);
        }
      }
    }
  }
  W4A16Plan plan;
  EXPECT_FALSE(plan_w4a16_as(W4A16Tile::Tokens128Mixed, 512, 57344, 8192, 132, &plan));
  EXPECT_TRUE(plan_w4a16_as(W4A16Tile::Tokens128Mixed, 512, 5120, 2048, 132, &plan));
}

TEST(W4A16Plan, SplitsTheRowsWhereTheLastWaveIsThinAndTilesDifferInTheirPieces) {
  const W4A16Plan plan = plan_w4a16(2048, 6656, 19968, 132);  // beyond what is shared in one launch
  EXPECT_EQ(plan.whole_rows % 128, 0);
  EXPECT_GT(plan.whole_rows, 0);
  EXPECT_LT(plan.whole_rows, 2048);
  EXPECT_EQ(describe(plan), "t128w " + std::to_string(plan.whole_rows) + " + t128");
  EXPECT_EQ(plan_w4a16(1024, 8192, 8192, 132).whole_rows, 0);  // 3.88 waves
}

TEST(W4A16Plan, KeepsBlocksThatWaitForEachOtherWithinTheDevice) {
  for (const int multiprocessors : {16, 78, 114, 132, 144}) {
    for (const auto& [n, k] : all_sizes()) {
      W4A16Plan plan;
      ASSERT_TRUE(plan_w4a16_as(W4A16Tile::Tokens128, 128, n, k, multiprocessors, &plan));
      EXPECT_LE(ceil_div(w4a16_cuts(n, k).units, plan.units_per_block), multiprocessors);
      for (const auto tile : {W4A16Tile::Tokens32Slices, W4A16Tile::Tokens64Slices}) {
        for (const int64_t m : {1, 64, 128, 300}) {
          if (plan_w4a16_as(tile, m, n, k, multiprocessors, &plan)) {
            EXPECT_LE(w4a16_cuts(n, k).units * ceil_div(m, plan.tokens), 2 * multiprocessors);
          }
        }
      }
    }
  }
}

TEST(W4A16Plan, StaysWithinTheWorkspaceThatWasAnnounced) {
  for (const auto& [n, k] : all_sizes()) {
    int64_t before = 0;
    for (const int64_t rows : {1, 8, 9, 16, 33, 64, 65, 128, 129, 256, 300, 512, 513, 8192}) {
      const int64_t bound = w4a16_workspace_bytes(rows, n, k);
      EXPECT_GE(bound, before);
      before = bound;
      for (int64_t m = std::max<int64_t>(1, rows - 70); m <= rows; ++m) {
        ASSERT_LE(plan_w4a16(m, n, k, 132).workspace_bytes, bound) << m << " of " << rows;
      }
    }
  }
}

TEST(W4A16Plan, RefusesWhatATileCannotDo) {
  W4A16Plan plan;
  EXPECT_FALSE(plan_w4a16_as(W4A16Tile::Tokens8, 1024, 4096, 4096, 132, &plan));
  EXPECT_FALSE(plan_w4a16_as(W4A16Tile::Tokens8, 1, 4096, 4092, 132, &plan));
  EXPECT_TRUE(plan_w4a16_as(W4A16Tile::Tokens8, 64, 4096, 4096, 132, &plan));
}

TEST(W4A16Sm80Plan, TakesTheSmallestTileThatHoldsAllRowsAndSharesWhereItMay) {
  const auto tile = [](int64_t m) { return plan_w4a16_sm80(m, 4096, 4096, 132).tile; };
  EXPECT_EQ(tile(1), W4A16Tile::Tokens8);
  EXPECT_EQ(tile(9), W4A16Tile::Tokens16);
  EXPECT_EQ(tile(17), W4A16Tile::Tokens32);
  EXPECT_EQ(tile(64), W4A16Tile::Tokens64);
  EXPECT_EQ(tile(8192), W4A16Tile::Tokens64Whole);
  for (const int multiprocessors : {16, 84, 128, 132}) {
    for (const auto& [n, k] : all_sizes()) {
      for (const int64_t m : {1, 16, 65, 128, 300, 512, 600, 4096}) {
        const W4A16Plan plan = plan_w4a16_sm80(m, n, k, multiprocessors);
        W4A16Plan again;
        EXPECT_TRUE(plan_w4a16_sm80_as(plan.tile, m, n, k, multiprocessors, &again));
        EXPECT_EQ(plan.units_per_block, 1);
        EXPECT_EQ(plan.whole_rows, 0);
        EXPECT_LE(plan.workspace_bytes, w4a16_workspace_bytes(m, n, k));
      }
    }
  }
}

TEST(W4A16Sm80Plan, RefusesTheTilesThatItDoesNotHave) {
  W4A16Plan plan;
  for (const auto tile : {W4A16Tile::Tokens128,
                          W4A16Tile::Tokens128Whole,
                          W4A16Tile::Tokens128Mixed,
                          W4A16Tile::Tokens32Slices,
                          W4A16Tile::Tokens64Slices}) {
    EXPECT_FALSE(plan_w4a16_sm80_as(tile, 64, 4096, 4096, 132, &plan)) << to_string(tile);
  }
  EXPECT_FALSE(plan_w4a16_sm80_as(W4A16Tile::Tokens64, 1024, 4096, 4096, 132, &plan));
}

TEST(Nvfp4Layout, GivesEveryCodeOfAWordItsOwnBits) {
  uint32_t seen = 0;
  for (int reg = 0; reg < 4; ++reg) {
    const uint32_t bits = place_code(15, reg);
    EXPECT_EQ(std::popcount(bits), 4);
    EXPECT_EQ(seen & bits, 0u);
    seen |= bits;
  }
  EXPECT_EQ(seen, 0xFFFFu);
}

TEST(Nvfp4Layout, DecodesEveryCodeAndScaleExactly) {
  constexpr uint32_t kMask = 0x81C081C0u;
  for (uint32_t code = 0; code < 16; ++code) {
    for (int reg = 0; reg < 4; ++reg) {
      // The other half and the other registers hold all ones: they must not leak in.
      const uint32_t others = 0xFFFFu & ~place_code(15, reg);
      const uint32_t word = (place_code(code, reg) | others) | 0xFFFF0000u;
      uint32_t bits = 0;
      switch (reg) {
        case 0:
          bits = word & kMask;
          break;
        case 1:
          bits = (word << 3) & kMask;
          break;
        case 2:
          bits = (word << 6) & kMask;
          break;
        default:
          bits = (((word >> 8) & 0x006C006Cu) * 0x1042u) & kMask;
      }
      const double value = std::ldexp(bf16_value(bits & 0xFFFF), 126);
      ASSERT_EQ(value, e2m1_to_float(static_cast<uint8_t>(code))) << code << " register " << reg;
      for (uint32_t scale = 1; scale < 127; ++scale) {
        const double expanded = bf16_value(encode_scale(scale) << 4 | 0x7000);
        ASSERT_EQ(std::ldexp(expanded, -119), e4m3_to_float(static_cast<uint8_t>(scale)));
      }
    }
  }
  EXPECT_TRUE(std::isnan(bf16_value(encode_scale(127) << 4 | 0x7000)));
}

TEST(Nvfp4Layout, PlacesTheScalesOfTwoStepsWhereTheyAreDecoded) {
  for (uint32_t even = 0; even < 256; ++even) {
    for (uint32_t odd = 0; odd < 256; ++odd) {
      const uint32_t placed = place_scales(even, odd);
      ASSERT_LE(placed, 0xFFFFu);
      ASSERT_EQ(placed & 0x0FF0, even << 4);
      const uint32_t swapped = placed >> 8 | (placed & 0xFF) << 8;
      ASSERT_EQ(swapped & 0x0FF0, odd << 4);
    }
  }
}

TEST(Nvfp4Layout, PlacesEveryRecordOnceAndRunsOfATileTogether) {
  const int64_t n = 300;
  const int64_t k = 200;
  std::set<int64_t> offsets;
  for (int64_t row_block = 0; row_block < row_tiles_of(n) * 2; ++row_block) {
    for (int64_t k_block = 0; k_block < k_blocks_of(k); ++k_block) {
      offsets.insert(record_offset(row_block, k_block, k_blocks_of(k)));
    }
  }
  EXPECT_EQ(static_cast<int64_t>(offsets.size()) * kRecordBytes, packed_bytes(n, k));
  EXPECT_EQ(*offsets.rbegin() + kRecordBytes, packed_bytes(n, k));
  EXPECT_EQ(record_offset(2, 1, 4) - record_offset(2, 0, 4), kTileRecordBytes);
}

}  // namespace nibble::cuda
