#include "quantize/encode_panels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/number_formats.h"

namespace nibble::quantize {

namespace {

int64_t num_panels(const RowRange& rows) { return (rows.end - rows.begin + kLanes - 1) / kLanes; }

int64_t lanes_of(const RowRange& rows, int64_t panel) {
  return std::min(kLanes, rows.end - rows.begin - panel * kLanes);
}

// Rows of panel `panel` side by side, columns in `order` (empty: as they are); absent rows are 0.
void load_panel(
    const RowRange& rows, int64_t k, int64_t panel, const std::vector<int32_t>& order, float* out) {
  std::fill_n(out, k * kLanes, 0.0f);
  for (int64_t lane = 0; lane < lanes_of(rows, panel); ++lane) {
    const float* row = rows.values + (rows.begin + panel * kLanes + lane) * k;
    for (int64_t i = 0; i < k; ++i) {
      out[i * kLanes + lane] = row[order.empty() ? i : order[static_cast<size_t>(i)]];
    }
  }
}

uint8_t code_of(float quantized, float scale) {
  if (quantized == 0.0f) {
    return 0;  // never -0
  }
  const uint8_t magnitude = float_to_e2m1(std::fabs(quantized) / scale);
  return static_cast<uint8_t>(magnitude | (quantized < 0.0f ? 8 : 0));
}

// q: [k][kLanes] and codes: [k / 16][kLanes], in `order`.
void store_panel(const RowRange& rows,
                 int64_t panel,
                 const std::vector<int32_t>& order,
                 const float* q,
                 const int32_t* codes,
                 quant::Nvfp4Matrix& out) {
  const int64_t blocks = out.cols / quant::kBlockSize;
  for (int64_t lane = 0; lane < lanes_of(rows, panel); ++lane) {
    const int64_t row = rows.begin + panel * kLanes + lane;
    uint8_t* packed = out.codes.data() + row * out.cols / 2;
    uint8_t* scales = out.block_scales.data() + row * blocks;
    std::fill_n(packed, out.cols / 2, uint8_t{0});
    for (int64_t b = 0; b < blocks; ++b) {
      const auto code = static_cast<uint8_t>(codes[b * kLanes + lane]);
      const float scale = e4m3_to_float(code) * out.global_scale;
      for (int64_t i = b * quant::kBlockSize; i < (b + 1) * quant::kBlockSize; ++i) {
        const int64_t column = order.empty() ? i : order[static_cast<size_t>(i)];
        if (i == b * quant::kBlockSize) {
          scales[column / quant::kBlockSize] = code;
        }
        const uint8_t value = code_of(q[i * kLanes + lane], scale);
        packed[column / 2] |= static_cast<uint8_t>(column % 2 == 0 ? value : value << 4);
      }
    }
  }
}

void check_output(const RowRange& rows, int64_t k, const quant::Nvfp4Matrix& out) {
  CHECK(out.cols == k && rows.end <= out.rows && rows.begin <= rows.end,
        "rows out of the matrix: ",
        rows.end);
  CHECK(out.global_scale > 0.0f, "the global scale must be positive, got ", out.global_scale);
}

double sum_lanes(const RowRange& rows, int64_t panel, const std::array<double, kLanes>& values) {
  return std::accumulate(values.begin(), values.begin() + lanes_of(rows, panel), 0.0);
}

// tr(W H W^T) is taken from about so many panels of a matrix.
constexpr int64_t kMeasuredPanels = 8;

// v^T H v of every lane, summed.
double energy(const RowRange& rows,
              int64_t panel,
              const BlockMatrix& hessian,
              const AlignedFloats& v,
              const Compute& compute) {
  std::array<double, kLanes> lanes{};
  compute.kernels.energy(hessian.n(), hessian.data(), v.data(), lanes.data());
  return sum_lanes(rows, panel, lanes);
}

double squares(const RowRange& rows,
               int64_t panel,
               const AlignedFloats& v,
               const Compute& compute) {
  std::array<double, kLanes> lanes{};
  compute.kernels.dot(static_cast<int64_t>(v.size()) / kLanes, v.data(), v.data(), lanes.data());
  return sum_lanes(rows, panel, lanes);
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
    AlignedFloats w(size);
    AlignedFloats q(size);
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

// What a thread needs for one panel after the other.
struct PanelScratch {
  explicit PanelScratch(int64_t k)
      : w(static_cast<size_t>(k * kLanes)),
        q(w.size()),
        error(w.size()),
        residual(w.size()),
        gradient(w.size()),
        codes(w.size() / quant::kBlockSize) {}

  AlignedFloats w, q, error, residual, gradient;
  std::vector<int32_t> codes;
};

Objective encode_panel(const RowRange& rows,
                       int64_t panel,
                       const Factored& input,
                       const GptqOptions& options,
                       const Compute& compute,
                       PanelScratch& s,
                       quant::Nvfp4Matrix& out) {
  const int64_t k = input.hessian.n();
  load_panel(rows, k, panel, input.order, s.w.data());
  std::array<double, kLanes> lanes{};
  const GptqTask gptq{.w = s.w.data(),
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
  const auto damping = static_cast<double>(input.damping);
  Objective objective;
  objective.before =
      sum_lanes(rows, panel, lanes) - damping * squares(rows, panel, s.error, compute);
  objective.after = objective.before;
  if (options.rounds > 0) {
    const GradientTask gradient{.feedback = input.feedback.data(),
                                .residual = s.residual.data(),
                                .k = k,
                                .gradient = s.gradient.data()};
    compute.kernels.gradient(&gradient);
    const DescentTask descent{.w = s.w.data(),
                              .hessian = input.hessian.data(),
                              .k = k,
                              .global = out.global_scale,
                              .rounds = options.rounds,
                              .q = s.q.data(),
                              .codes = s.codes.data(),
                              .gradient = s.gradient.data(),
                              .energy = lanes.data()};
    compute.kernels.descend(&descent);
    for (size_t i = 0; i < s.w.size(); ++i) {
      s.error[i] = s.w[i] - s.q[i];
    }
    objective.after =
        sum_lanes(rows, panel, lanes) - damping * squares(rows, panel, s.error, compute);
  }
  store_panel(rows, panel, input.order, s.q.data(), s.codes.data(), out);
  return objective;
}

}  // namespace

Objective encode_gptq(const RowRange& rows,
                      const Factored& input,
                      const GptqOptions& options,
                      const Compute& compute,
                      quant::Nvfp4Matrix& out) {
  const int64_t k = input.hessian.n();
  check_output(rows, k, out);
  const int64_t panels = num_panels(rows);
  const int64_t step = std::max<int64_t>(panels / kMeasuredPanels, 1);
  struct Weights {
    double all = 0;       // squares
    double measured = 0;  // squares of the panels that were measured
    double energy = 0;    // of those
  };
  std::vector<Objective> objectives(static_cast<size_t>(panels));
  std::vector<Weights> weights(static_cast<size_t>(panels));
  compute.pool.parallel_for(panels, 1, [&](int64_t begin, int64_t end, int /*thread*/) {
    PanelScratch scratch(k);
    for (int64_t panel = begin; panel < end; ++panel) {
      objectives[static_cast<size_t>(panel)] =
          encode_panel(rows, panel, input, options, compute, scratch, out);
      if (options.measure_weights) {
        Weights& own = weights[static_cast<size_t>(panel)];
        own.all = squares(rows, panel, scratch.w, compute);
        if (panel % step == 0) {
          own.measured = own.all;
          own.energy = energy(rows, panel, input.hessian, scratch.w, compute) -
                       static_cast<double>(input.damping) * own.all;
        }
      }
    }
  });
  Objective total = total_of(objectives);
  Weights sum;
  for (const Weights& own : weights) {
    sum.all += own.all;
    sum.measured += own.measured;
    sum.energy += own.energy;
  }
  total.weights = sum.measured > 0 ? sum.energy * (sum.all / sum.measured) : 0;
  return total;
}

double measure(const RowRange& rows,
               const quant::Nvfp4Matrix& quantized,
               const BlockMatrix& hessian,
               const Compute& compute) {
  const int64_t k = hessian.n();
  check_output(rows, k, quantized);
  std::vector<double> energies(static_cast<size_t>(num_panels(rows)));
  compute.pool.parallel_for(num_panels(rows), 1, [&](int64_t begin, int64_t end, int /*thread*/) {
    AlignedFloats error(static_cast<size_t>(k * kLanes));
    std::vector<float> row(static_cast<size_t>(k));
    for (int64_t panel = begin; panel < end; ++panel) {
      load_panel(rows, k, panel, {}, error.data());
      for (int64_t lane = 0; lane < lanes_of(rows, panel); ++lane) {
        const int64_t index = rows.begin + panel * kLanes + lane;
        quant::decode(quantized.codes.data() + index * k / 2,
                      quantized.block_scales.data() + index * k / quant::kBlockSize,
                      quantized.global_scale,
                      1,
                      k,
                      row.data());
        for (int64_t column = 0; column < k; ++column) {
          error[static_cast<size_t>(column * kLanes + lane)] -= row[static_cast<size_t>(column)];
        }
      }
      energies[static_cast<size_t>(panel)] = energy(rows, panel, hessian, error, compute);
    }
  });
  return std::accumulate(energies.begin(), energies.end(), 0.0);
}

}  // namespace nibble::quantize
