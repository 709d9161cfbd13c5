#include "quantize/budget.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "base/json.h"

namespace nibble::quantize {

Result<void> check_budget(double bits) {
  if (!(bits >= kNvfp4Bits && bits <= kFp8Bits)) {
    return invalid(fmt::format("expected {} (all NVFP4) to {} (all FP8), found {}",
                               kNvfp4Bits,
                               kFp8Bits,
                               format_number(bits)),
                   "bits");
  }
  return {};
}

std::vector<bool> spend_budget(const std::vector<BudgetItem>& items, double bits) {
  constexpr double kRounding = 1e-9;  // of all bits: an exact fit must not fail for its sums
  double left = 0;
  std::vector<size_t> order;
  for (size_t i = 0; i < items.size(); ++i) {
    left += (bits - items[i].bits + kRounding) * static_cast<double>(items[i].weights);
    if (!items[i].fixed) {
      order.push_back(i);
    }
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return items[a].loss / static_cast<double>(items[a].weights) >
           items[b].loss / static_cast<double>(items[b].weights);
  });
  std::vector<bool> fp8(items.size(), false);
  for (const size_t i : order) {
    const double cost = (kFp8Bits - items[i].bits) * static_cast<double>(items[i].weights);
    if (cost <= left) {
      fp8[i] = true;
      left -= cost;
    }
  }
  return fp8;
}

}  // namespace nibble::quantize
