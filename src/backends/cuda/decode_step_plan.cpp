#include "backends/cuda/decode_step_plan.h"

#include <algorithm>

#include "backends/cuda/nvfp4_layout.h"
#include "backends/cuda/nvfp4_w4a16_cuts.h"
#include "backends/cuda/nvfp4_w4a16_strips.h"
#include "base/check.h"

namespace nibble::cuda {

namespace {

// Rows are handed over in pieces of eight by whole warps.
constexpr int kRowMultiple = 256;
constexpr int kMaxHidden = 8192;  // two pieces a thread
constexpr int kMaxInner = 32768;  // x in shared memory
constexpr int kMaxGroup = 8;      // query heads a KV head
constexpr int kMaxLayers = 128;   // the table of layers is kept in shared memory
// K64 blocks that a piece costs besides its own: storing its sums, a short stage.
constexpr int kPieceCost = 1;

struct Matrix {
  int n, k;
};

std::array<Matrix, kNumStepProducts> matrices_of(const DecodeStepShape& s) {
  const int attended = s.heads * s.head_dim;
  return {Matrix{attended + 2 * s.kv_heads * s.head_dim, s.hidden},
          Matrix{s.hidden, attended},
          Matrix{2 * s.inner, s.hidden},
          Matrix{s.hidden, s.inner}};
}

/// Pieces of K of a tile's strips, first block and end of each.
std::vector<std::array<int, 2>> pieces_of(const W4A16Cuts& cuts, int tile) {
  const int tile_begin = tile * cuts.k_blocks;
  const int first = cuts.unit_of(tile_begin);
  const int last = cuts.unit_of(tile_begin + cuts.k_blocks - 1);
  std::vector<std::array<int, 2>> pieces;
  for (int unit = first; unit <= last; ++unit) {
    pieces.push_back({std::max(cuts.unit_begin(unit) - tile_begin, 0),
                      std::min(cuts.unit_begin(unit + 1) - tile_begin, cuts.k_blocks)});
  }
  return pieces;
}

/// First strip of each block, and the end of all. The first `light` blocks, which attend besides
/// and have less shared memory for their rings, get what is left when the others have an even
/// share, rounded up: the step is not longer for it.
std::vector<int> first_strips(int strips, int blocks, int light) {
  const int share = static_cast<int>(ceil_div(strips, blocks));
  const int left = strips - (blocks - light) * share;
  std::vector<int> first;
  for (int b = 0; b <= blocks; ++b) {
    if (light == 0 || left < light) {
      first.push_back(static_cast<int>(int64_t{b} * strips / blocks));
    } else if (b <= light) {
      first.push_back(b * left / light);
    } else {
      first.push_back(left + (b - light) * share);
    }
  }
  return first;
}

/// A piece of a strip, for one warp.
struct Piece {
  int strip, first_line, begin, count, part;  // K64 blocks
};

struct Deal {
  std::array<std::vector<Piece>, kStepWarps> of_warp;
  std::array<int, kStepWarps> cost{};

  void give(const Piece& piece) {
    const auto least = std::min_element(cost.begin(), cost.end()) - cost.begin();
    of_warp[static_cast<size_t>(least)].push_back(piece);
    cost[static_cast<size_t>(least)] += piece.count + kPieceCost;
  }
};

/// The pieces of `strips` strips from `first` on, and how many each has.
std::vector<Piece> pieces_of_strips(
    const W4A16Cuts& cuts, int first, int strips, int max_pieces, uint8_t* num_pieces) {
  std::vector<Piece> all;
  for (int local = 0; local < strips; ++local) {
    const int strip = first + local;
    const int tile = strip / kStripsOfTile;
    const auto pieces = pieces_of(cuts, tile);
    num_pieces[local] = static_cast<uint8_t>(pieces.size());
    for (size_t i = 0; i < pieces.size(); ++i) {
      all.push_back({.strip = strip % kStripsOfTile,
                     .first_line = tile * cuts.k_blocks + pieces[i][0],
                     .begin = pieces[i][0],
                     .count = pieces[i][1] - pieces[i][0],
                     .part = local * max_pieces + static_cast<int>(i)});
    }
  }
  std::sort(all.begin(), all.end(), [](const Piece& one, const Piece& other) {
    return one.count != other.count ? one.count > other.count : one.part < other.part;
  });
  return all;
}

void add_stages(const Piece& piece, size_t product, std::vector<StepStage>* stages) {
  for (int at = 0; at < piece.count; at += kStepStage) {
    const int count = std::min(kStepStage, piece.count - at);
    const int line = piece.first_line + at;
    // A short stage begins earlier, in lines that it does not need.
    const int load = std::max(0, line + count - kStepStage);
    const bool ends = at + count == piece.count;
    StepStage stage{};
    stage.where = static_cast<uint32_t>(load) | static_cast<uint32_t>(piece.strip) << 20 |
                  static_cast<uint32_t>(line - load) << 23 |
                  static_cast<uint32_t>(count - 1) << 25 | (ends ? 1u << 27 : 0u) |
                  static_cast<uint32_t>(product) << 28;
    stage.x_block = static_cast<uint16_t>(piece.begin + at);
    stage.part = static_cast<uint16_t>(piece.part);
    stages->push_back(stage);
  }
}

}  // namespace

int decode_step_blocks(const DecodeStepShape& shape, int multiprocessors) {
  int blocks = multiprocessors;
  for (const Matrix& matrix : matrices_of(shape)) {
    blocks = std::min(blocks, matrix.n / kStripRows);
  }
  return blocks;
}

namespace {

/// What can be said of a shape without its tables.
std::string shape_refusal(const DecodeStepShape& s, int multiprocessors) {
  if (multiprocessors < 1) {
    return "no multiprocessors";
  }
  if (s.layers < 1 || s.layers > kMaxLayers) {
    return "takes 1 to " + std::to_string(kMaxLayers) + " layers";
  }
  if (s.head_dim != 64 && s.head_dim != 128) {
    return "takes head_dim 64 or 128";
  }
  if (s.kv_heads < 1 || s.heads % s.kv_heads != 0 || s.heads / s.kv_heads > kMaxGroup ||
      s.heads < s.kv_heads) {
    return "takes up to " + std::to_string(kMaxGroup) + " query heads a KV head";
  }
  if (s.kv_heads > multiprocessors) {  // attention's counters and parts
    return "takes no more KV heads than there are multiprocessors";
  }
  if (s.page_size < 8 || (s.page_size & (s.page_size - 1)) != 0) {
    return "page_size must be a power of two, at least 8";
  }
  if (s.hidden < kRowMultiple || s.hidden % kRowMultiple != 0 || s.hidden > kMaxHidden) {
    return "hidden_size must be a multiple of " + std::to_string(kRowMultiple) + ", at most " +
           std::to_string(kMaxHidden);
  }
  if (s.heads * s.head_dim % kRowMultiple != 0 || s.heads * s.head_dim > kMaxInner) {
    return "num_attention_heads * head_dim must be a multiple of " + std::to_string(kRowMultiple) +
           ", at most " + std::to_string(kMaxInner);
  }
  if (s.inner < kRowMultiple || s.inner % kRowMultiple != 0 || s.inner > kMaxInner) {
    return "intermediate_size must be a multiple of " + std::to_string(kRowMultiple) +
           ", at most " + std::to_string(kMaxInner);
  }
  const int blocks = decode_step_blocks(s, multiprocessors);
  int stages = 0;
  for (const Matrix& matrix : matrices_of(s)) {
    const int strips = static_cast<int>(ceil_div(matrix.n / kStripRows, blocks));
    if (strips > kStepMaxStrips) {
      return "a matrix has more than " + std::to_string(kStepMaxStrips) +
             " strips of 16 rows a multiprocessor";
    }
    const W4A16Cuts cuts = w4a16_cuts(matrix.n, matrix.k);
    if (cuts.total() >= kStepMaxLines) {
      return "a matrix has 2^33 weights or more";
    }
    int most = 0;
    for (int tile = 0; tile < cuts.row_tiles; ++tile) {
      int of_tile = 0;
      for (const auto& piece : pieces_of(cuts, tile)) {
        of_tile += static_cast<int>(ceil_div(piece[1] - piece[0], kStepStage));
      }
      most = std::max(most, of_tile);
    }
    stages += strips * most;
  }
  if (stages > kStepMaxStages) {
    return "a layer has too many pieces for a block's table";
  }
  return {};
}

DecodeStepPlan make_plan(const DecodeStepShape& shape, int multiprocessors) {
  DecodeStepPlan plan;
  const int num_blocks = decode_step_blocks(shape, multiprocessors);
  plan.blocks.resize(static_cast<size_t>(num_blocks));
  const auto matrices = matrices_of(shape);
  std::array<W4A16Cuts, kNumStepProducts> cuts;
  for (size_t p = 0; p < kNumStepProducts; ++p) {
    StepProductPlan& product = plan.products[p];
    product.n = matrices[p].n;
    product.k = matrices[p].k;
    product.strips = product.n / kStripRows;
    cuts[p] = w4a16_cuts(product.n, product.k);
    product.k_blocks = cuts[p].k_blocks;
    for (int tile = 0; tile < cuts[p].row_tiles; ++tile) {
      product.max_pieces =
          std::max(product.max_pieces, static_cast<int>(pieces_of(cuts[p], tile).size()));
    }
  }
  std::array<std::vector<int>, kNumStepProducts> begins;
  for (size_t p = 0; p < kNumStepProducts; ++p) {
    begins[p] = first_strips(
        plan.products[p].strips, num_blocks, shape.kv_heads < num_blocks ? shape.kv_heads : 0);
  }
  std::vector<std::vector<StepStage>> of_block(static_cast<size_t>(num_blocks));
  for (int b = 0; b < num_blocks; ++b) {
    StepBlock& block = plan.blocks[static_cast<size_t>(b)];
    std::array<Deal, kNumStepProducts> deals;
    for (size_t p = 0; p < kNumStepProducts; ++p) {
      const StepProductPlan& product = plan.products[p];
      const int first = begins[p][static_cast<size_t>(b)];
      const int end = begins[p][static_cast<size_t>(b) + 1];
      block.first_strip[p] = first;
      block.strips[p] = end - first;
      plan.part_places = std::max(plan.part_places, (end - first) * product.max_pieces);
      for (const Piece& piece :
           pieces_of_strips(cuts[p], first, end - first, product.max_pieces, block.pieces[p])) {
        deals[p].give(piece);
      }
    }
    std::vector<StepStage>& stages = of_block[static_cast<size_t>(b)];
    for (size_t w = 0; w < kStepWarps; ++w) {
      for (size_t p = 0; p < kNumStepProducts; ++p) {
        block.stage_begin[w * kNumStepProducts + p] = static_cast<uint16_t>(stages.size());
        for (const Piece& piece : deals[p].of_warp[w]) {
          add_stages(piece, p, &stages);
        }
      }
    }
    block.stage_begin[kStepWarps * kNumStepProducts] = static_cast<uint16_t>(stages.size());
    CHECK(stages.size() <= kStepMaxStages, "too many stages");
    plan.most_stages = std::max(plan.most_stages, static_cast<int>(stages.size() + 1) / 2 * 2);
  }
  for (std::vector<StepStage>& stages : of_block) {
    stages.resize(static_cast<size_t>(plan.most_stages));
    plan.stages.insert(plan.stages.end(), stages.begin(), stages.end());
  }
  return plan;
}

/// What can be said once the tables are there.
std::string memory_refusal(const DecodeStepShape& shape, const DecodeStepPlan& plan) {
  return place_step_shared(shape, plan).ring_beside < 1
             ? "rows and tables leave no shared memory for the matrices"
             : "";
}

}  // namespace

StepShared place_step_shared(const DecodeStepShape& s, const DecodeStepPlan& plan) {
  StepShared shared;
  int64_t at = 0;
  const auto take = [&at](int64_t size) {
    const int64_t begin = ceil_div(at, 128) * 128;
    at = begin + size;
    return static_cast<int>(begin);
  };
  shared.x_at[0] = take(int64_t{2} * s.hidden);
  shared.x_at[1] = take(int64_t{2} * std::max(s.heads * s.head_dim, s.inner));
  shared.rows_at = take(int64_t{16} * 8 * kStepMaxStrips);
  shared.parts_at = take(int64_t{64} * plan.part_places);
  shared.sums_at = take(int64_t{32} * 4);
  shared.layers_at = take(s.layers * static_cast<int64_t>(sizeof(DecodeStepLayer)));
  shared.block_at = take(sizeof(StepBlock));
  shared.stages_at = take(plan.most_stages * static_cast<int64_t>(sizeof(StepStage)));
  shared.attention_at = take(kStepParameterBytes);
  shared.epoch_at = take(4);
  shared.barriers_at = take(int64_t{8} * kStepWarps * kStepMaxRing);
  shared.pool_at = take(0);
  const int stages = step_attention_stages(step_norms(s.hidden));
  shared.attention_bytes =
      static_cast<int>(ceil_div(step_attention_bytes(s.head_dim, stages), 128) * 128);
  const auto ring_in = [](int64_t bytes) {
    constexpr int64_t kStageOfAll = int64_t{kStepWarps} * kStepStageBytes;
    return static_cast<int>(std::clamp<int64_t>(bytes / kStageOfAll, 0, kStepMaxRing));
  };
  const int64_t pool = kStepSharedBytes - at;
  shared.ring_beside = pool < shared.attention_bytes ? 0 : ring_in(pool - shared.attention_bytes);
  shared.ring_alone = ring_in(pool);
  return shared;
}

std::string decode_step_refusal(const DecodeStepShape& shape, int multiprocessors) {
  std::string refusal = shape_refusal(shape, multiprocessors);
  return refusal.empty() ? memory_refusal(shape, make_plan(shape, multiprocessors)) : refusal;
}

DecodeStepPlan plan_decode_step(const DecodeStepShape& shape, int multiprocessors) {
  std::string refusal = shape_refusal(shape, multiprocessors);
  CHECK(refusal.empty(), refusal);
  DecodeStepPlan plan = make_plan(shape, multiprocessors);
  refusal = memory_refusal(shape, plan);
  CHECK(refusal.empty(), refusal);
  return plan;
}

}  // namespace nibble::cuda
