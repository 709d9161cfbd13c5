#include "backends/cuda/decode_step_plan.h"

#include <algorithm>
#include <optional>

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
constexpr int kStripsOfRecord = kRecordRows / kStripRows;
constexpr int kMaxGroup = 8;     // query heads a KV head
constexpr int kMaxLayers = 128;  // the table of layers is kept in shared memory
// K64 blocks that a piece costs besides its own: storing its sums, a short stage.
constexpr int kPieceCost = 1;
constexpr int kLeastPart = 2;  // K64 blocks of a piece's last part: fewer are not worth a wait

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

/// First and last unit that a tile's strips have a piece in.
std::array<int, 2> units_of(const W4A16Cuts& cuts, int tile) {
  const int begin = tile * cuts.k_blocks;
  return {cuts.unit_of(begin), cuts.unit_of(begin + cuts.k_blocks - 1)};
}

/// Pieces of K of a tile's strips, first block and end of each.
std::vector<std::array<int, 2>> pieces_of(const W4A16Cuts& cuts, int tile) {
  const int tile_begin = tile * cuts.k_blocks;
  const auto [first, last] = units_of(cuts, tile);
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

/// A piece of a strip, or a part of one, for one warp.
struct Piece {
  int strip, first_line, begin, count, part;  // K64 blocks
  bool takes_over = false, hands_on = false;  // the last, the first part of a piece
};

using Deal = std::array<std::vector<Piece>, kStepWarps>;

/// Deals `pieces`, the longest first, so that no warp has more than `share` to do; false: it needs
/// more.
bool deal_pieces(std::vector<Piece> pieces, int share, Deal* deal) {
  const auto cost = [](const Piece& piece) { return piece.count + kPieceCost; };
  std::optional<Piece> first_part;  // of what the warp before ends with
  for (size_t w = 0; w < kStepWarps; ++w) {
    std::vector<Piece>& own = (*deal)[w];
    own.clear();
    int left = share;
    if (first_part) {
      own.push_back(*first_part);
      left -= cost(*first_part);
      first_part.reset();
    }
    const auto next = [&] {
      return std::find_if(
          pieces.begin(), pieces.end(), [&](const Piece& piece) { return cost(piece) <= left; });
    };
    for (auto fits = next(); fits != pieces.end(); fits = next()) {
      left -= cost(*fits);
      own.push_back(*fits);
      pieces.erase(fits);
    }
    if (pieces.empty() || w + 1 == kStepWarps) {
      continue;
    }
    // The shortest: its two parts are furthest apart. The first is whole stages.
    Piece& cut = pieces.back();
    const int first =
        static_cast<int>(ceil_div(cut.count + kPieceCost - left, kStepStage)) * kStepStage;
    if (cut.count - first < kLeastPart || first + kPieceCost > share) {
      continue;
    }
    Piece last = cut;
    last.takes_over = true;
    last.first_line += first;
    last.begin += first;
    last.count -= first;
    own.push_back(last);
    first_part = cut;
    first_part->hands_on = true;
    first_part->count = first;
    pieces.pop_back();
  }
  return pieces.empty();
}

Deal deal_pieces(const std::vector<Piece>& pieces) {
  int all = 0;
  int longest = 0;
  for (const Piece& piece : pieces) {
    all += piece.count + kPieceCost;
    longest = std::max(longest, piece.count + kPieceCost);
  }
  Deal deal;
  int share = std::max(static_cast<int>(ceil_div(all, kStepWarps)), longest);
  while (!deal_pieces(pieces, share, &deal)) {
    ++share;
  }
  return deal;
}

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

StepRun run_of(const Piece& piece, size_t product) {
  const int short_count = piece.count % kStepStage;
  const int count = short_count == 0 ? kStepStage : short_count;
  // A short stage begins earlier, in lines that it does not need.
  const int load = std::max(0, piece.first_line + count - kStepStage);
  const int64_t record =
      int64_t{load} * kTileRecordBytes + piece.strip / kStripsOfRecord * kRecordBytes;
  const int quarter = piece.strip % kStripsOfRecord;
  const int64_t codes = record + quarter * (kRecordCodeBytes / kStripsOfRecord);
  StepRun run{};
  run.codes = static_cast<uint32_t>(codes) | static_cast<uint32_t>(product) << 3;
  run.scales = static_cast<int16_t>(record + kRecordCodeBytes +
                                    quarter * (kRecordScaleBytes / kStripsOfRecord) - codes);
  run.stages = static_cast<uint16_t>(ceil_div(piece.count, kStepStage));
  run.x_at = static_cast<uint16_t>(piece.begin * kStepBlockX);
  run.part = static_cast<uint16_t>(piece.part);
  run.what = static_cast<uint16_t>((piece.first_line - load) | (count - 1) << 2 |
                                   (piece.takes_over ? 1 << 4 : 0) | (piece.hands_on ? 1 << 5 : 0));
  run.advance = sizeof(StepRun);
  return run;
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

/// Runs that pieces which two warps share are more, of a product: a warp shares one with the next.
constexpr int kMostShared = kStepWarps - 1;

/// Of a shape whose rows and matrices are of a size that is taken.
DecodeStepSizes sizes_of(const DecodeStepShape& shape, int multiprocessors) {
  DecodeStepSizes sizes;
  sizes.blocks = decode_step_blocks(shape, multiprocessors);
  const auto matrices = matrices_of(shape);
  for (size_t p = 0; p < kNumStepProducts; ++p) {
    const W4A16Cuts cuts = w4a16_cuts(matrices[p].n, matrices[p].k);
    for (int tile = 0; tile < cuts.row_tiles; ++tile) {
      const auto [first, last] = units_of(cuts, tile);
      sizes.max_pieces[p] = std::max(sizes.max_pieces[p], last - first + 1);
    }
    const int strips = static_cast<int>(ceil_div(matrices[p].n / kStripRows, sizes.blocks));
    sizes.most_strips = std::max(sizes.most_strips, strips);
    sizes.part_places = std::max(sizes.part_places, strips * sizes.max_pieces[p]);
    sizes.most_runs += strips * sizes.max_pieces[p] + kMostShared;
  }
  return sizes;
}

std::string refusal_of(const DecodeStepShape& s, int multiprocessors) {
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
  for (const Matrix& matrix : matrices_of(s)) {
    if (ceil_div(matrix.n / kStripRows, blocks) > kStepMaxStrips) {
      return "a matrix has more than " + std::to_string(kStepMaxStrips) +
             " strips of 16 rows a multiprocessor";
    }
    if (w4a16_cuts(matrix.n, matrix.k).total() >= kStepMaxLines) {
      return "a matrix has more than 7 billion weights";
    }
  }
  const DecodeStepSizes sizes = sizes_of(s, multiprocessors);
  if (sizes.most_runs > kStepMaxRuns) {
    return "a layer has too many pieces for a block's table";
  }
  return place_step_shared(s, sizes).ring_beside < kStepMinRing
             ? "rows and tables leave no shared memory for the matrices"
             : "";
}

}  // namespace

DecodeStepPlan plan_decode_step(const DecodeStepShape& shape, int multiprocessors) {
  DecodeStepPlan plan;
  plan.sizes = decode_step_sizes(shape, multiprocessors);
  const int num_blocks = plan.sizes.blocks;
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
  }
  std::array<std::vector<int>, kNumStepProducts> begins;
  for (size_t p = 0; p < kNumStepProducts; ++p) {
    begins[p] = first_strips(
        plan.products[p].strips, num_blocks, shape.kv_heads < num_blocks ? shape.kv_heads : 0);
  }
  std::vector<std::vector<StepRun>> of_block(static_cast<size_t>(num_blocks));
  for (int b = 0; b < num_blocks; ++b) {
    StepBlock& block = plan.blocks[static_cast<size_t>(b)];
    std::array<Deal, kNumStepProducts> deals;
    for (size_t p = 0; p < kNumStepProducts; ++p) {
      const int first = begins[p][static_cast<size_t>(b)];
      const int end = begins[p][static_cast<size_t>(b) + 1];
      block.first_strip[p] = first;
      block.strips[p] = end - first;
      CHECK(end - first <= plan.sizes.most_strips, "more strips than there are places");
      deals[p] = deal_pieces(
          pieces_of_strips(cuts[p], first, end - first, plan.sizes.max_pieces[p], block.pieces[p]));
    }
    std::vector<StepRun>& runs = of_block[static_cast<size_t>(b)];
    for (size_t w = 0; w < kStepWarps; ++w) {
      const size_t begin = runs.size();
      for (size_t p = 0; p < kNumStepProducts; ++p) {
        block.run_begin[w * kNumStepProducts + p] = static_cast<uint16_t>(runs.size());
        for (const Piece& piece : deals[p][w]) {
          runs.push_back(run_of(piece, p));
        }
      }
      if (runs.size() > begin) {
        StepRun& last = runs.back();
        last.codes |= 1u << 5;
        last.advance = static_cast<int16_t>(-static_cast<int>(runs.size() - 1 - begin) *
                                            static_cast<int>(sizeof(StepRun)));
      }
    }
    block.run_begin[kStepWarps * kNumStepProducts] = static_cast<uint16_t>(runs.size());
    CHECK(static_cast<int>(runs.size()) <= plan.sizes.most_runs, "too many runs");
  }
  for (std::vector<StepRun>& runs : of_block) {
    runs.resize(static_cast<size_t>(plan.sizes.most_runs));
    plan.runs.insert(plan.runs.end(), runs.begin(), runs.end());
  }
  return plan;
}

namespace {

/// x_bytes, part_bytes: at least so much for both x, for sums.
StepShared place_shared(const DecodeStepShape& s,
                        const DecodeStepSizes& sizes,
                        int64_t x_bytes,
                        int64_t part_bytes) {
  StepShared shared;
  int64_t at = 0;
  const auto take = [&at](int64_t size) {
    const int64_t begin = ceil_div(at, 128) * 128;
    at = begin + size;
    return static_cast<int>(begin);
  };
  shared.x_at[0] = take(int64_t{2} * s.hidden);
  shared.x_at[1] = take(int64_t{2} * std::max(s.heads * s.head_dim, s.inner));
  at = std::max(at, x_bytes);
  shared.rows_at = take(int64_t{16} * 32 * ceil_div(sizes.most_strips, 4));  // whole warps
  shared.parts_at = take(std::max(int64_t{64} * sizes.part_places, part_bytes));
  shared.sums_at = take(int64_t{32} * 4);
  shared.turns_at = take(int64_t{kStepWarps} * 4);
  shared.matrices_at = take(s.layers * int64_t{8} * kNumStepProducts);
  shared.layers_at = take(int64_t{2} * kStepLayerBytes);
  shared.block_at = take(sizeof(StepBlock));
  shared.runs_at = take(sizes.most_runs * static_cast<int64_t>(sizeof(StepRun)));
  shared.attention_at = take(kStepParameterBytes);
  shared.words_at = take(int64_t{4} * kNumStepWords);
  shared.barriers_at = take(int64_t{8} * kStepBarriers);
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

}  // namespace

StepShared place_step_shared(const DecodeStepShape& s, const DecodeStepSizes& sizes) {
  const StepShared shared = place_shared(s, sizes, 0, 0);
  StepShared more = place_shared(s, sizes, kStepMoreBytes, step_more_score_bytes(s.head_dim));
  // The last chain's stage is asked for later than the others, when the first x has been read.
  const bool fits = more.x_at[1] <= kStepMoreBytes / 4 && more.ring_beside == shared.ring_beside &&
                    more.ring_alone == shared.ring_alone;
  more.more_stages = 1;
  return fits ? more : shared;
}

std::string decode_step_refusal(const DecodeStepShape& shape, int multiprocessors) {
  return refusal_of(shape, multiprocessors);
}

// Measured (docs/benchmarks.md): from Llama-3.2-1B to 8B faster at all contexts. Rows of two pieces
// a thread (Qwen3-32B, Llama-3.1-70B) leave registers and shared memory for short rings only, and
// nothing has been measured with shorter rings than those models have (Qwen2.5-7B would); rows of
// half as many strips as there are multiprocessors (Qwen3-0.6B) leave the others without a part in
// attention.
bool decode_step_pays(const DecodeStepShape& shape, int multiprocessors) {
  constexpr int kLeastHidden = 2048;
  constexpr int kLeastBeside = 3;
  if (step_norms(shape.hidden) != 1 || shape.hidden < kLeastHidden) {
    return false;
  }
  const StepShared shared = place_step_shared(shape, decode_step_sizes(shape, multiprocessors));
  return shared.ring_alone == kStepMaxRing && shared.ring_beside >= kLeastBeside;
}

DecodeStepSizes decode_step_sizes(const DecodeStepShape& shape, int multiprocessors) {
  const std::string refusal = refusal_of(shape, multiprocessors);
  CHECK(refusal.empty(), refusal);
  return sizes_of(shape, multiprocessors);
}

}  // namespace nibble::cuda
