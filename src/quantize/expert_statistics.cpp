#include "quantize/expert_statistics.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/number_formats.h"

namespace nibble::quantize {

using checkpoint::Checkpoint;

namespace {

constexpr int64_t kTaskRows = 8;  // ProductTask::rows is a multiple of it

constexpr int64_t kDepth = 64;  // columns of a panel that stay in the first cache

Result<std::vector<float>> read_part(const Checkpoint& source,
                                     const model::PartSpec& part,
                                     int64_t columns) {
  const auto info = TRY(source.linear(part.module, part.n, columns, part.expected_from));
  return source.read_weight(info);
}

// [n][k] as [k][n].
std::vector<float> transposed(const std::vector<float>& matrix, int64_t n, int64_t k) {
  std::vector<float> result(matrix.size());
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      result[static_cast<size_t>(j * n + i)] = matrix[static_cast<size_t>(i * k + j)];
    }
  }
  return result;
}

float rounded(float value) { return bf16_to_float(float_to_bf16(value)); }

}  // namespace

std::vector<uint16_t> expert_inner(const std::vector<float>& gate,
                                   const std::vector<float>& up,
                                   int64_t ffn,
                                   int64_t hidden,
                                   const std::vector<const uint16_t*>& rows,
                                   const Compute& compute) {
  CHECK(ffn % kTaskRows == 0, "not whole tiles of rows: ", ffn);
  const auto count = static_cast<int64_t>(rows.size());
  std::vector<uint16_t> out(static_cast<size_t>(count * ffn));
  const std::vector<float> gate_columns = gate.empty() ? gate : transposed(gate, ffn, hidden);
  const std::vector<float> up_columns = transposed(up, ffn, hidden);
  const int64_t panels = (count + kLanes - 1) / kLanes;
  compute.pool.parallel_for(panels, 1, [&](int64_t begin, int64_t end, int /*thread*/) {
    AlignedFloats x(static_cast<size_t>(hidden * kLanes));
    AlignedFloats gated(static_cast<size_t>(ffn * kLanes));
    AlignedFloats product(gated.size());
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t lanes = std::min(kLanes, count - panel * kLanes);
      std::fill(x.begin(), x.end(), 0.0f);
      for (int64_t lane = 0; lane < lanes; ++lane) {
        const uint16_t* row = rows[static_cast<size_t>(panel * kLanes + lane)];
        for (int64_t i = 0; i < hidden; ++i) {
          x[static_cast<size_t>(i * kLanes + lane)] = bf16_to_float(row[i]);
        }
      }
      std::fill(gated.begin(), gated.end(), 0.0f);
      std::fill(product.begin(), product.end(), 0.0f);
      const auto multiply = [&](const std::vector<float>& columns, AlignedFloats& result) {
        for (int64_t d = 0; d < hidden; d += kDepth) {
          const ProductTask task{.panels = 1,
                                 .rows = ffn,
                                 .depth = std::min(kDepth, hidden - d),
                                 .a = columns.data() + d * ffn,
                                 .a_stride = ffn,
                                 .b = x.data() + d * kLanes,
                                 .b_panel = 0,
                                 .c = result.data(),
                                 .c_panel = 0,
                                 .c_stride = kLanes};
          compute.kernels.accumulate(&task);
        }
      };
      if (!gate.empty()) {
        multiply(gate_columns, gated);
      }
      multiply(up_columns, product);
      for (int64_t lane = 0; lane < lanes; ++lane) {
        uint16_t* to = out.data() + (panel * kLanes + lane) * ffn;
        for (int64_t i = 0; i < ffn; ++i) {
          const auto at = static_cast<size_t>(i * kLanes + lane);
          const float u = rounded(product[at]);
          const float g = rounded(gated[at]);
          const float positive = std::max(u, 0.0f);
          to[i] = float_to_bf16(gate.empty() ? positive * positive : g / (1.0f + std::exp(-g)) * u);
        }
      }
    }
  });
  return out;
}

void ExpertTokens::add(const model::ExpertsSpec& spec, const Tensor& x, const Tensor& ids) {
  spec_ = &spec;
  hidden_ = x.shape[1];
  tokens_.resize(spec.experts.size());
  const int64_t topk = ids.shape[1];
  for (int64_t t = 0; t < x.shape[0]; ++t) {
    const auto token = static_cast<int64_t>(x_.size()) / hidden_;
    const uint16_t* row = x.as<uint16_t>() + t * x.stride[0];
    x_.insert(x_.end(), row, row + hidden_);
    for (int64_t j = 0; j < topk; ++j) {
      tokens_[static_cast<size_t>(ids.as<int32_t>()[t * topk + j])].push_back(token);
    }
  }
}

Result<void> ExpertTokens::finish(const Checkpoint& source,
                                  const std::set<std::string, std::less<>>& wanted,
                                  bool hessian,
                                  const Compute& compute,
                                  LayerStatistics& statistics) const {
  for (size_t e = 0; e < tokens_.size(); ++e) {
    const model::ExpertSpec& expert = spec_->experts[e];
    std::vector<const uint16_t*> rows;
    for (const int64_t token : tokens_[e]) {
      rows.push_back(x_.data() + token * hidden_);
    }
    const auto add =
        [&](const std::string& group, int64_t width, const std::vector<const uint16_t*>& read) {
          StatisticsCollector collector(width, hessian);
          if (!read.empty()) {
            collector.add(read, compute);
          }
          statistics.inputs[group] = collector.finish(compute);
        };
    if (const std::string group = scale_group(expert.up.module); wanted.contains(group)) {
      add(group, hidden_, rows);
    }
    const std::string group = scale_group(expert.down.module);
    if (!wanted.contains(group) || rows.empty()) {
      continue;
    }
    const int64_t ffn = spec_->desc.ffn;
    std::vector<float> gate;
    if (spec_->desc.activation == ExpertActivation::SwiGlu) {
      gate = TRY(read_part(source, expert.gate, hidden_));
    }
    const std::vector<float> up = TRY(read_part(source, expert.up, hidden_));
    const std::vector<uint16_t> inner = expert_inner(gate, up, ffn, hidden_, rows, compute);
    std::vector<const uint16_t*> inner_rows;
    inner_rows.reserve(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      inner_rows.push_back(inner.data() + static_cast<int64_t>(i) * ffn);
    }
    add(group, ffn, inner_rows);
  }
  return {};
}

}  // namespace nibble::quantize
