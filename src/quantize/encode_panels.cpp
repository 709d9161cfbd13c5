#include "quantize/encode_panels.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "base/number_formats.h"

namespace nibble::quantize {

namespace {

int64_t num_panels(const RowRange& rows) { return (rows.end - rows.begin + kLanes - 1) / kLanes; }

int64_t lanes_of(const RowRange& rows, int64_t panel) {
  return std::min(kLanes, rows.end - rows.begin - panel * kLanes);
}

// Where block `b` of an order begins in the matrix; blocks stay whole.
int64_t block_begin(const std::vector<int32_t>& order, int64_t b) {
  const int64_t first = b * quant::kBlockSize;
  return order.empty() ? first
                       : order[static_cast<size_t>(first)] / quant::kBlockSize * quant::kBlockSize;
}

// Rows of panel `panel` side by side, columns in `order` (empty: as they are); absent rows are 0.
// Block by block, so that what is written stays in the first cache for all rows.
void load_panel(
    const RowRange& rows, int64_t k, int64_t panel, const std::vector<int32_t>& order, float* out) {
  const int64_t lanes = lanes_of(rows, panel);
  if (lanes < kLanes) {
    std::fill_n(out, k * kLanes, 0.0f);
  }
  const float* first = rows.values + (rows.begin + panel * kLanes) * k;
  for (int64_t b = 0; b < k / quant::kBlockSize; ++b) {
    const int64_t begin = block_begin(order, b);
    int64_t source[quant::kBlockSize];
    for (int64_t i = 0; i < quant::kBlockSize; ++i) {
      source[i] = order.empty() ? begin + i : order[static_cast<size_t>(b * quant::kBlockSize + i)];
    }
    float* to = out + b * quant::kBlockSize * kLanes;
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const float* row = first + lane * k;
      for (int64_t i = 0; i < quant::kBlockSize; ++i) {
        to[i * kLanes + lane] = row[source[i]];
      }
    }
  }
}

// quantized: an E2M1 value times the scale, rounded.
uint8_t code_of(float quantized, float inverse_scale) {
  // Twice the magnitude is a whole number but for roundings.
  constexpr std::array<uint8_t, 13> kCodes = {0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 7, 7};
  // NOLINTNEXTLINE(bugprone-incorrect-roundings): never near a half
  const auto steps = static_cast<int32_t>(std::fabs(quantized) * inverse_scale * 2.0f + 0.5f);
  const uint8_t magnitude = kCodes[static_cast<size_t>(std::min(steps, 12))];
  return static_cast<uint8_t>(magnitude | (quantized < 0.0f ? 8 : 0));  // never -0
}

// q: [k][kLanes] and codes: [k / 16][kLanes], in `order`.
void store_panel(const RowRange& rows,
                 int64_t panel,
                 const std::vector<int32_t>& order,
                 const float* q,
                 const int32_t* codes,
                 quant::Nvfp4Matrix& out) {
  const int64_t blocks = out.cols / quant::kBlockSize;
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t begin = block_begin(order, b);
    int shift[quant::kBlockSize];
    for (int64_t i = 0; i < quant::kBlockSize; ++i) {
      shift[i] = static_cast<int>(
          4 * (order.empty() ? i : order[static_cast<size_t>(b * quant::kBlockSize + i)] - begin));
    }
    for (int64_t lane = 0; lane < lanes_of(rows, panel); ++lane) {
      const int64_t row = rows.begin + panel * kLanes + lane;
      const auto code = static_cast<uint8_t>(codes[b * kLanes + lane]);
      const float inverse_scale = 1.0f / (e4m3_to_float(code) * out.global_scale);
      uint64_t packed = 0;  // 16 codes, the first in the low bits
      for (int64_t i = 0; i < quant::kBlockSize; ++i) {
        const float value = q[(b * quant::kBlockSize + i) * kLanes + lane];
        packed |= uint64_t{code_of(value, inverse_scale)} << shift[i];
      }
      static_assert(std::endian::native == std::endian::little);
      std::memcpy(out.codes.data() + (row * out.cols + begin) / 2, &packed, sizeof packed);
      out.block_scales[static_cast<size_t>(row * blocks + begin / quant::kBlockSize)] = code;
    }
  }
}

void check_output(const RowRange& rows, int64_t k, const quant::Nvfp4Matrix& out) {
  CHECK(out.cols == k && rows.end <= out.rows && rows.begin <= rows.end,
        "rows out of the matrix: ",
        rows.end);
  CHECK(out.global_scale > 0.0f, "the global scale must be positive, got ", out.global_scale);
}

// Of every lane of the panels of a batch.
using LaneSums = std::array<double, kPanelsAtOnce * kLanes>;

// A batch below this fetches a large matrix for too little.
constexpr int64_t kFewestAtOnce = 2;

// Panels that go through a task together.
struct Batch {
  int64_t first = 0;
  int64_t count = 0;
};

// values: [kLanes] of the panel.
double sum_lanes(const RowRange& rows, int64_t panel, const double* values) {
  return std::accumulate(values, values + lanes_of(rows, panel), 0.0);
}

// Panels in batches of at most kPanelsAtOnce: as many for each thread, or where there are many,
// smaller ones towards the end, so that threads end together.
std::vector<Batch> batches_of(int64_t panels, int num_threads) {
  const bool few = panels <= num_threads * kPanelsAtOnce;
  const int64_t even = (panels + num_threads - 1) / num_threads;
  std::vector<Batch> falling;
  for (int64_t first = 0; first < panels;) {
    const int64_t left = panels - first;
    const int64_t share = few ? even : (left + 2 * num_threads - 1) / (2 * num_threads);
    const int64_t count =
        std::min(left, std::clamp(share, few ? int64_t{1} : kFewestAtOnce, kPanelsAtOnce));
    falling.push_back({first, count});
    first += count;
  }
  std::vector<Batch> dealt;  // to each thread large ones first
  dealt.reserve(falling.size());
  for (size_t thread = 0; thread < static_cast<size_t>(num_threads); ++thread) {
    for (size_t i = thread; i < falling.size(); i += static_cast<size_t>(num_threads)) {
      dealt.push_back(falling[i]);
    }
  }
  return dealt;
}

// Spreads the batches over the threads: make() gives a thread what it needs for batch after batch,
// body(batch, that) does one.
template <typename Make, typename Body>
void for_batches(int64_t panels, const Compute& compute, const Make& make, const Body& body) {
  const std::vector<Batch> batches = batches_of(panels, compute.pool.num_threads());
  compute.pool.parallel_for(
      static_cast<int64_t>(batches.size()), 1, [&](int64_t begin, int64_t end, int /*thread*/) {
        auto scratch = make(std::min(panels, kPanelsAtOnce));
        for (int64_t batch = begin; batch < end; ++batch) {
          body(batches[static_cast<size_t>(batch)], scratch);
        }
      });
}

// tr(W H W^T) is taken from about so many panels of a matrix.
constexpr int64_t kMeasuredPanels = 8;

// v: [k][kLanes].
double squares(
    const RowRange& rows, int64_t panel, int64_t k, const float* v, const Compute& compute) {
  std::array<double, kLanes> lanes{};
  compute.kernels.dot(k, v, v, lanes.data());
  return sum_lanes(rows, panel, lanes.data());
}

Objective total_of(const std::vector<Objective>& parts) {
  Objective total;
  for (const Objective& part : parts) {
    total.add(part);
  }
  return total;
}

}  // namespace

void Objective::add(const Objective& other) {
  before += other.before;
  after += other.after;
  weights += other.weights;
}

void encode_sweep(const RowRange& rows,
                  const std::vector<float>& weight,
                  const ScaleWindow& window,
                  const Compute& compute,
                  quant::Nvfp4Matrix& out) {
  const auto k = static_cast<int64_t>(weight.size());
  check_output(rows, k, out);
  compute.pool.parallel_for(num_panels(rows), 1, [&](int64_t begin, int64_t end, int /*thread*/) {
    const auto size = static_cast<size_t>(k * kLanes);
    AlignedFloats w(size, compute.blocks);
    AlignedFloats q(size, compute.blocks);
    std::vector<int32_t> codes(size / quant::kBlockSize);
    for (int64_t panel = begin; panel < end; ++panel) {
      load_panel(rows, k, panel, {}, w.data());
      for (int64_t i = 0; i < k; i += kPanelBlock) {
        const SweepTask task{.w = w.data() + i * kLanes,
                             .weight = weight.data() + i,
                             .global = out.global_scale,
                             .lowest = window.lowest,
                             .highest = window.highest,
                             .q = q.data() + i * kLanes,
                             .codes = codes.data() + i / kPanelBlock * kLanes};
        compute.kernels.sweep(&task);
      }
      store_panel(rows, panel, {}, q.data(), codes.data(), out);
    }
  });
}

namespace {

// What a thread needs for one batch after the other: [panels][k][kLanes] each.
struct BatchScratch {
  BatchScratch(int64_t panels, int64_t width, LargeBlocks* blocks)
      : k(width),
        w(static_cast<size_t>(panels * k * kLanes), blocks),
        q(w.size(), blocks),
        error(w.size(), blocks),
        residual(w.size(), blocks),
        gradient(w.size(), blocks),
        codes(w.size() / quant::kBlockSize) {}

  int64_t at(int64_t panel) const { return panel * k * kLanes; }

  int64_t k;
  AlignedFloats w, q, error, residual, gradient;
  std::vector<int32_t> codes;
};

// objectives: of the panels of the batch.
void encode_batch(const RowRange& rows,
                  const Batch& batch,
                  const Factored& input,
                  const GptqOptions& options,
                  const Compute& compute,
                  BatchScratch& s,
                  quant::Nvfp4Matrix& out,
                  Objective* objectives) {
  const int64_t k = input.hessian.n();
  for (int64_t i = 0; i < batch.count; ++i) {
    load_panel(rows, k, batch.first + i, input.order, s.w.data() + s.at(i));
  }
  LaneSums lanes{};
  const GptqTask gptq{.panels = batch.count,
                      .w = s.w.data(),
                      .feedback = input.feedback.data(),
                      .cost = input.cost.data(),
                      .k = k,
                      .global = out.global_scale,
                      .lowest = options.window.lowest,
                      .highest = options.window.highest,
                      .q = s.q.data(),
                      .codes = s.codes.data(),
                      .error = s.error.data(),
                      .residual = s.residual.data(),
                      .energy = lanes.data()};
  compute.kernels.gptq(&gptq);
  // The objective without the damping of H.
  const auto objective = [&](int64_t i) {
    return sum_lanes(rows, batch.first + i, lanes.data() + i * kLanes) -
           static_cast<double>(input.damping) *
               squares(rows, batch.first + i, k, s.error.data() + s.at(i), compute);
  };
  for (int64_t i = 0; i < batch.count; ++i) {
    objectives[i].before = objective(i);
    objectives[i].after = objectives[i].before;
  }
  if (options.rounds > 0) {
    const GradientTask gradient{.panels = batch.count,
                                .feedback = input.feedback.data(),
                                .residual = s.residual.data(),
                                .k = k,
                                .gradient = s.gradient.data()};
    compute.kernels.gradient(&gradient);
    const DescentTask descent{.panels = batch.count,
                              .w = s.w.data(),
                              .hessian = input.hessian.data(),
                              .k = k,
                              .global = out.global_scale,
                              .rounds = options.rounds,
                              .q = s.q.data(),
                              .codes = s.codes.data(),
                              .gradient = s.gradient.data(),
                              .energy = lanes.data()};
    compute.kernels.descend(&descent);
    for (int64_t i = 0; i < s.at(batch.count); ++i) {
      const auto at = static_cast<size_t>(i);
      s.error[at] = s.w[at] - s.q[at];
    }
    for (int64_t i = 0; i < batch.count; ++i) {
      objectives[i].after = objective(i);
    }
  }
  for (int64_t i = 0; i < batch.count; ++i) {
    store_panel(rows,
                batch.first + i,
                input.order,
                s.q.data() + s.at(i),
                s.codes.data() + s.at(i) / kPanelBlock,
                out);
  }
}

// tr(W H W^T) of a matrix from a sample of its panels.
class WeightEnergy {
 public:
  explicit WeightEnergy(int64_t panels)
      : step_(std::max<int64_t>(panels / kMeasuredPanels, 1)),
        all_(static_cast<size_t>(panels)),
        energy_(static_cast<size_t>(panels)) {}

  void add(const RowRange& rows,
           const Batch& batch,
           const Factored& input,
           const BatchScratch& s,
           const Compute& compute) {
    const int64_t k = input.hessian.n();
    for (int64_t i = 0; i < batch.count; ++i) {
      const int64_t panel = batch.first + i;
      const float* w = s.w.data() + s.at(i);
      const double own = squares(rows, panel, k, w, compute);
      all_[static_cast<size_t>(panel)] = own;
      if (panel % step_ == 0) {
        std::array<double, kLanes> lanes{};
        compute.kernels.energy(1, k, input.hessian.data(), w, lanes.data());
        energy_[static_cast<size_t>(panel)] =
            sum_lanes(rows, panel, lanes.data()) - static_cast<double>(input.damping) * own;
      }
    }
  }

  double total() const {
    double all = 0;       // squares
    double measured = 0;  // squares of the panels that were measured
    double energy = 0;    // of those
    for (size_t panel = 0; panel < all_.size(); ++panel) {
      all += all_[panel];
      if (static_cast<int64_t>(panel) % step_ == 0) {
        measured += all_[panel];
        energy += energy_[panel];
      }
    }
    return measured > 0 ? energy * (all / measured) : 0;
  }

 private:
  int64_t step_;
  std::vector<double> all_, energy_;  // of each panel
};

}  // namespace

Objective encode_gptq(const RowRange& rows,
                      const Factored& input,
                      const GptqOptions& options,
                      const Compute& compute,
                      quant::Nvfp4Matrix& out) {
  const int64_t k = input.hessian.n();
  check_output(rows, k, out);
  const int64_t panels = num_panels(rows);
  std::vector<Objective> objectives(static_cast<size_t>(panels));
  WeightEnergy weights(panels);
  for_batches(
      panels,
      compute,
      [&](int64_t size) { return BatchScratch(size, k, compute.blocks); },
      [&](const Batch& batch, BatchScratch& scratch) {
        encode_batch(
            rows, batch, input, options, compute, scratch, out, objectives.data() + batch.first);
        if (options.measure_weights) {
          weights.add(rows, batch, input, scratch, compute);
        }
      });
  Objective total = total_of(objectives);
  total.weights = weights.total();
  return total;
}

double measure(const RowRange& rows,
               const quant::Nvfp4Matrix& quantized,
               const BlockMatrix& hessian,
               const Compute& compute) {
  const int64_t k = hessian.n();
  check_output(rows, k, quantized);
  std::vector<double> energies(static_cast<size_t>(num_panels(rows)));
  struct Scratch {
    AlignedFloats error;
    std::vector<float> row;
  };
  const auto subtract = [&](int64_t panel, float* error, std::vector<float>& row) {
    load_panel(rows, k, panel, {}, error);
    for (int64_t lane = 0; lane < lanes_of(rows, panel); ++lane) {
      const int64_t index = rows.begin + panel * kLanes + lane;
      quant::decode(quantized.codes.data() + index * k / 2,
                    quantized.block_scales.data() + index * k / quant::kBlockSize,
                    quantized.global_scale,
                    1,
                    k,
                    row.data());
      for (int64_t column = 0; column < k; ++column) {
        error[column * kLanes + lane] -= row[static_cast<size_t>(column)];
      }
    }
  };
  for_batches(
      num_panels(rows),
      compute,
      [&](int64_t size) {
        return Scratch{AlignedFloats(static_cast<size_t>(size * k * kLanes), compute.blocks),
                       std::vector<float>(static_cast<size_t>(k))};
      },
      [&](const Batch& batch, Scratch& scratch) {
        for (int64_t i = 0; i < batch.count; ++i) {
          subtract(batch.first + i, scratch.error.data() + i * k * kLanes, scratch.row);
        }
        LaneSums lanes{};
        compute.kernels.energy(batch.count, k, hessian.data(), scratch.error.data(), lanes.data());
        for (int64_t i = 0; i < batch.count; ++i) {
          energies[static_cast<size_t>(batch.first + i)] =
              sum_lanes(rows, batch.first + i, lanes.data() + i * kLanes);
        }
      });
  return std::accumulate(energies.begin(), energies.end(), 0.0);
}

}  // namespace nibble::quantize
