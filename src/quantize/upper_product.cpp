#include "quantize/upper_product.h"

#include <algorithm>
#include <vector>

namespace nibble::quantize {

namespace {

// Rows of A and B that two panels of them share in the first cache.
constexpr int64_t kDepth = 128;
// What a task works on: the panels of kTileRows stay in the second cache while those of
// kTileColumns pass.
constexpr int64_t kTileRows = 4 * kLanes;
constexpr int64_t kTileColumns = 8 * kLanes;

}  // namespace

void add_upper_product(const UpperProduct& product, SquareMatrix& c, const Compute& compute) {
  const int64_t n = c.n();
  struct Tile {
    int64_t row, column;
  };
  std::vector<Tile> tiles;
  for (int64_t row = product.from; row < product.to; row += kTileRows) {
    for (int64_t column = row; column < n; column += kTileColumns) {
      tiles.push_back({row, column});
    }
  }
  const auto at = [&](int64_t d, int64_t column) {
    return (column - product.from) / kLanes * product.panel_stride + d * kLanes;
  };
  compute.pool.parallel_for(
      static_cast<int64_t>(tiles.size()), 1, [&](int64_t begin, int64_t end, int /*thread*/) {
        for (int64_t tile = begin; tile < end; ++tile) {
          const auto [row, column] = tiles[static_cast<size_t>(tile)];
          const int64_t right = std::min(column + kTileColumns, n);
          for (int64_t d = 0; d < product.depth; d += kDepth) {
            for (int64_t i = row; i < std::min({row + kTileRows, product.to, right}); i += kLanes) {
              const int64_t j = std::max(i, column);
              const ProductTask task{.panels = (right - j + kLanes - 1) / kLanes,
                                     .rows = std::min(kLanes, n - i),
                                     .depth = std::min(kDepth, product.depth - d),
                                     .a = product.a + at(d, i),
                                     .a_stride = kLanes,
                                     .b = product.b + at(d, j),
                                     .b_panel = product.panel_stride,
                                     .c = c.row(i) + j,
                                     .c_panel = kLanes,
                                     .c_stride = c.stride()};
              compute.kernels.accumulate(&task);
            }
          }
        }
      });
}

}  // namespace nibble::quantize
