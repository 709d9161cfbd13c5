#include "backends/experts_problem.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "base/number_formats.h"

namespace nibble::test {

namespace {

GemmDesc matrix_desc(const ExpertsDesc& desc, int64_t n, int64_t k) {
  GemmDesc gemm = make_gemm_desc(desc.mode, n, k, desc.isa);
  gemm.pre_quant_scale = desc.pre_quant_scale;
  gemm.static_input_scale = desc.static_input_scale;
  gemm.out = DType::F32;
  return gemm;
}

}  // namespace

ExpertsProblem make_experts_problem(const ExpertsDesc& desc, int64_t tokens, uint64_t seed) {
  ExpertsProblem problem;
  problem.desc = desc;
  problem.tokens = tokens;
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (int64_t e = 0; e < desc.experts; ++e) {
    const auto make = [&](int64_t n, int64_t k) {
      GemmProblem made = make_gemm_problem(matrix_desc(desc, n, k), 0, random());
      // Every matrix has its own scales, so that mixing any two up shows.
      if (desc.mode != kBf16) {
        made.weight_scale[0] *= 0.5f + static_cast<float>(random() % 100) / 100.0f;
      }
      made.input_scale[0] *= 0.5f + static_cast<float>(random() % 100) / 100.0f;
      return made;
    };
    problem.gate.push_back(make(desc.ffn, desc.hidden));
    problem.up.push_back(make(desc.ffn, desc.hidden));
    problem.down.push_back(make(desc.hidden, desc.ffn));
  }
  problem.x.resize(static_cast<size_t>(tokens * desc.hidden));
  for (uint16_t& value : problem.x) {
    value = float_to_bf16(normal(random) * 0.1f);
  }
  std::vector<int32_t> all(static_cast<size_t>(desc.experts));
  std::iota(all.begin(), all.end(), 0);
  for (int64_t t = 0; t < tokens; ++t) {
    std::shuffle(all.begin(), all.end(), random);
    for (int64_t j = 0; j < desc.topk; ++j) {
      problem.ids.push_back(all[static_cast<size_t>(j)]);
      problem.weights.push_back(0.1f + std::fabs(normal(random)));
    }
  }
  return problem;
}

std::vector<double> ExpertsProblem::expected() const {
  const auto hidden = static_cast<size_t>(desc.hidden);
  std::vector<double> y(static_cast<size_t>(tokens) * hidden, 0.0);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < desc.topk; ++j) {
      const auto pair = static_cast<size_t>(t * desc.topk + j);
      const auto e = static_cast<size_t>(ids[pair]);
      const auto product = [](GemmProblem matrix, std::vector<uint16_t> row) {
        matrix.m = 1;
        matrix.x = std::move(row);
        return matrix.expected();
      };
      const std::vector<uint16_t> row(x.begin() + t * desc.hidden,
                                      x.begin() + (t + 1) * desc.hidden);
      const std::vector<double> u = product(up[e], row);
      const std::vector<double> g =
          desc.activation == ExpertActivation::SwiGlu ? product(gate[e], row) : u;
      std::vector<uint16_t> h(static_cast<size_t>(desc.ffn));
      for (size_t i = 0; i < h.size(); ++i) {
        const double relu = std::max(u[i], 0.0);
        const double value = desc.activation == ExpertActivation::SwiGlu
                                 ? g[i] / (1.0 + std::exp(-g[i])) * u[i]
                                 : relu * relu;
        h[i] = float_to_bf16(static_cast<float>(value));
      }
      const std::vector<double> out = product(down[e], h);
      for (size_t i = 0; i < hidden; ++i) {
        y[static_cast<size_t>(t) * hidden + i] += weights[pair] * out[i];
      }
    }
  }
  return y;
}

std::vector<uint16_t> ExpertsProblem::run(const ExpertsBackend& backend,
                                          Stream stream,
                                          int64_t begin,
                                          int64_t end) const {
  std::vector<Buffer> buffers;
  const auto allocate = [&](DType dtype, Shape shape) {
    const Tensor sizes{nullptr, dtype, shape, Device{}};
    const auto bytes = static_cast<size_t>(sizes.size_bytes());
    buffers.push_back(Buffer::allocate_or_throw("test", bytes, stream));
    if (bytes > 0) {
      std::memset(buffers.back().data(), 0xFF, bytes);
    }
    return buffers.back().view(dtype, shape);
  };
  std::vector<Tensor> slots;
  for (const Tensor& slot : backend.packed_layout(desc)) {
    slots.push_back(allocate(slot.dtype, slot.shape));
  }
  for (int64_t e = 0; e < desc.experts; ++e) {
    const auto at = static_cast<size_t>(e);
    ExpertParts parts{
        .gate = gate[at].parts()[0], .up = up[at].parts()[0], .down = down[at].parts()[0]};
    if (desc.activation == ExpertActivation::Relu2) {
      parts.gate = {};
    }
    backend.pack(desc, e, parts, slots, stream);
  }
  const int64_t rows = end - begin;
  const auto host = [&](const auto* data, DType dtype, int64_t width) {
    return Tensor{const_cast<void*>(static_cast<const void*>(data + begin * width)),
                  dtype,
                  {rows, width},
                  Device{}};
  };
  std::vector<uint16_t> out(static_cast<size_t>(rows * desc.hidden), 0xFFFF);
  ExpertsArgs args;
  args.x = host(x.data(), DType::BF16, desc.hidden);
  args.ids = host(ids.data(), DType::I32, desc.topk);
  args.weights = host(weights.data(), DType::F32, desc.topk);
  args.y = {out.data(), DType::BF16, {rows, desc.hidden}, Device{}};
  args.packed = slots;
  args.workspace = allocate(DType::U8, {static_cast<int64_t>(backend.workspace_bytes(desc, rows))});
  backend.run(desc, args, stream);
  return out;
}

}  // namespace nibble::test
