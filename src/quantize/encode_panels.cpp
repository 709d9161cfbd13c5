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

// A product of H with a panel of vectors v: out = H v. [k][kLanes] both.
void multiply(const SquareMatrix& hessian,
              const std::vector<float>& v,
              std::vector<float>& out,
              const Compute& compute) {
  std::fill(out.begin(), out.end(), 0.0f);
  for (int64_t begin = 0; begin < hessian.n(); begin += kPanelBlock) {
    compute.kernels.accumulate(hessian.n(),
                               kPanelBlock,
                               hessian.row(begin),
                               hessian.stride(),
                               v.data() + begin * kLanes,
                               kLanes,
                               out.data(),
                               kLanes);
  }
}

// v^T H v of every lane, summed.
double energy(const RowRange& rows,
              int64_t panel,
              const SquareMatrix& hessian,
              const std::vector<float>& v,
              std::vector<float>& product,
              const Compute& compute) {
  multiply(hessian, v, product, compute);
  std::array<double, kLanes> lanes{};
  compute.kernels.dot(hessian.n(), v.data(), product.data(), lanes.data());
  return sum_lanes(rows, panel, lanes);
}

double squares(const RowRange& rows,
               int64_t panel,
               const std::vector<float>& v,
               int64_t k,
               const Compute& compute) {
  std::array<double, kLanes> lanes{};
  compute.kernels.dot(k, v.data(), v.data(), lanes.data());
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
    std::vector<float> w(size);
    std::vector<float> q(size);
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

Objective encode_gptq(const RowRange& rows,
                      const Factored& input,
                      const GptqOptions& options,
                      const Compute& compute,
                      quant::Nvfp4Matrix& out) {
  const int64_t k = input.hessian.n();
  check_output(rows, k, out);
  std::vector<Objective> objectives(static_cast<size_t>(num_panels(rows)));
  compute.pool.parallel_for(num_panels(rows), 1, [&](int64_t begin, int64_t end, int /*thread*/) {
    const auto size = static_cast<size_t>(k * kLanes);
    std::vector<float> w(size);
    std::vector<float> scratch(size);
    std::vector<float> q(size);
    std::vector<int32_t> codes(size / quant::kBlockSize);
    for (int64_t panel = begin; panel < end; ++panel) {
      load_panel(rows, k, panel, input.order, w.data());
      scratch = w;
      const GptqTask gptq{.w = scratch.data(),
                          .factor = input.factor.data(),
                          .stride = input.factor.stride(),
                          .k = k,
                          .global = out.global_scale,
                          .lowest = options.window.lowest,
                          .highest = options.window.highest,
                          .q = q.data(),
                          .codes = codes.data()};
      compute.kernels.gptq(&gptq);
      std::array<double, kLanes> before{};
      std::array<double, kLanes> after{};
      double squares_before = 0;
      for (size_t i = 0; i < size; ++i) {
        const double e = static_cast<double>(w[i]) - static_cast<double>(q[i]);
        squares_before += e * e;
      }
      const DescentTask descent{.w = w.data(),
                                .hessian = input.hessian.data(),
                                .stride = input.hessian.stride(),
                                .k = k,
                                .global = out.global_scale,
                                .rounds = options.rounds,
                                .q = q.data(),
                                .codes = codes.data(),
                                .gradient = scratch.data(),
                                .before = before.data(),
                                .after = after.data()};
      compute.kernels.descend(&descent);
      store_panel(rows, panel, input.order, q.data(), codes.data(), out);

      double squares_after = 0;
      for (size_t i = 0; i < size; ++i) {
        const double e = static_cast<double>(w[i]) - static_cast<double>(q[i]);
        squares_after += e * e;
      }
      const auto damping = static_cast<double>(input.damping);
      Objective& objective = objectives[static_cast<size_t>(panel)];
      objective.before = sum_lanes(rows, panel, before) - damping * squares_before;
      objective.after = sum_lanes(rows, panel, after) - damping * squares_after;
      if (options.measure_weights) {
        objective.weights = energy(rows, panel, input.hessian, w, scratch, compute) -
                            damping * squares(rows, panel, w, k, compute);
      }
    }
  });
  return total_of(objectives);
}

Objective measure(const RowRange& rows,
                  const quant::Nvfp4Matrix& quantized,
                  const SquareMatrix& hessian,
                  int64_t step,
                  const Compute& compute) {
  const int64_t k = hessian.n();
  check_output(rows, k, quantized);
  const int64_t count = (num_panels(rows) + step - 1) / step;
  std::vector<Objective> objectives(static_cast<size_t>(count));
  compute.pool.parallel_for(count, 1, [&](int64_t begin, int64_t end, int /*thread*/) {
    std::vector<float> w(static_cast<size_t>(k * kLanes));
    std::vector<float> error(w.size());
    std::vector<float> product(w.size());
    std::vector<float> row(static_cast<size_t>(k));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t panel = i * step;
      load_panel(rows, k, panel, {}, w.data());
      error = w;
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
      Objective& objective = objectives[static_cast<size_t>(i)];
      objective.after = energy(rows, panel, hessian, error, product, compute);
      objective.before = objective.after;
      objective.weights = energy(rows, panel, hessian, w, product, compute);
    }
  });
  return total_of(objectives);
}

}  // namespace nibble::quantize
