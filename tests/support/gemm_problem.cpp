#include "support/gemm_problem.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "base/check.h"
#include "base/number_formats.h"
#include "quant/nvfp4.h"

namespace nibble::test {

namespace {

Tensor host(const void* data, DType dtype, Shape shape) {
  return {const_cast<void*>(data), dtype, shape, Device{}};
}

int64_t part_rows(const GemmDesc& desc, size_t part) { return desc.part_rows[part]; }

// One activation row as the kernels must see it, in double, and its global scale.
double prepare_row(const GemmProblem& problem, size_t part, int64_t row, std::vector<double>& out) {
  const int64_t k = problem.desc.k;
  std::vector<float> x(static_cast<size_t>(k));
  for (int64_t i = 0; i < k; ++i) {
    x[static_cast<size_t>(i)] = bf16_to_float(problem.x[static_cast<size_t>(row * k + i)]);
    if (problem.desc.pre_quant_scale) {
      x[static_cast<size_t>(i)] = bf16_to_float(float_to_bf16(
          x[static_cast<size_t>(i)] * problem.pre_quant_scale[part][static_cast<size_t>(i)]));
    }
  }
  out.assign(x.begin(), x.end());
  if (problem.desc.mode.act != QuantMode::Act::Nvfp4) {
    return 1.0;
  }
  float global = problem.desc.static_input_scale ? problem.input_scale[part] : 0.0f;
  if (global == 0.0f) {
    float amax = 0.0f;
    for (float value : x) {
      amax = std::max(amax, std::fabs(value));
    }
    global = amax > 0.0f ? amax / 2688.0f : 1.0f;
  }
  for (int64_t block = 0; block < k / 16; ++block) {
    float amax = 0.0f;
    for (int64_t i = block * 16; i < block * 16 + 16; ++i) {
      amax = std::max(amax, std::fabs(x[static_cast<size_t>(i)]));
    }
    const float scale = e4m3_to_float(float_to_e4m3(amax / 6.0f / global));
    for (int64_t i = block * 16; i < block * 16 + 16; ++i) {
      const float value = scale > 0.0f ? x[static_cast<size_t>(i)] / (scale * global) : 0.0f;
      out[static_cast<size_t>(i)] =
          static_cast<double>(e2m1_to_float(float_to_e2m1(value))) * scale;
    }
  }
  return global;
}

double weight_at(const GemmProblem& problem, size_t part, int64_t row, int64_t column) {
  const int64_t k = problem.desc.k;
  const std::vector<uint8_t>& bytes = problem.weights[part];
  switch (problem.desc.mode.weight) {
    case QuantMode::Weight::Bf16: {
      uint16_t word = 0;
      std::memcpy(&word, &bytes[static_cast<size_t>((row * k + column) * 2)], 2);
      return bf16_to_float(word);
    }
    case QuantMode::Weight::Fp8:
      return e4m3_to_float(bytes[static_cast<size_t>(row * k + column)]);
    case QuantMode::Weight::Nvfp4: {
      const uint8_t byte = bytes[static_cast<size_t>((row * k + column) / 2)];
      const auto code = static_cast<uint8_t>(column % 2 == 0 ? byte & 0xF : byte >> 4);
      const uint8_t scale = problem.scales[part][static_cast<size_t>(row * (k / 16) + column / 16)];
      return static_cast<double>(e2m1_to_float(code)) * e4m3_to_float(scale);
    }
  }
  return 0.0;
}

}  // namespace

GemmDesc make_gemm_desc(QuantMode mode, int64_t n, int64_t k, int isa, std::vector<int64_t> parts) {
  GemmDesc desc;
  desc.isa = isa;
  desc.mode = mode;
  desc.n = n;
  desc.k = k;
  if (parts.empty()) {
    parts = {n};
  }
  desc.num_parts = static_cast<int>(parts.size());
  std::copy(parts.begin(), parts.end(), desc.part_rows.begin());
  return desc;
}

std::vector<LinearPart> GemmProblem::parts() const {
  std::vector<LinearPart> out;
  for (size_t part = 0; part < weights.size(); ++part) {
    const int64_t rows = part_rows(desc, part);
    LinearPart linear;
    switch (desc.mode.weight) {
      case QuantMode::Weight::Bf16:
        linear.weight = host(weights[part].data(), DType::BF16, {rows, desc.k});
        break;
      case QuantMode::Weight::Fp8:
        linear.weight = host(weights[part].data(), DType::E4M3, {rows, desc.k});
        linear.weight_scale = host(&weight_scale[part], DType::F32, {});
        break;
      case QuantMode::Weight::Nvfp4:
        linear.weight = host(weights[part].data(), DType::U8, {rows, desc.k / 2});
        linear.weight_scale = host(scales[part].data(), DType::E4M3, {rows, desc.k / 16});
        linear.weight_scale_2 = host(&weight_scale[part], DType::F32, {});
        break;
    }
    if (desc.static_input_scale) {
      linear.input_scale = host(&input_scale[part], DType::F32, {});
    }
    if (desc.pre_quant_scale) {
      linear.pre_quant_scale = host(pre_quant_scale[part].data(), DType::F32, {desc.k});
    }
    out.push_back(linear);
  }
  return out;
}

std::vector<double> GemmProblem::expected() const {
  std::vector<double> y(static_cast<size_t>(m * desc.n));
  int64_t first = 0;
  std::vector<double> x_row;
  std::vector<double> w_row(static_cast<size_t>(desc.k));
  for (size_t part = 0; part < weights.size(); ++part) {
    const int64_t rows = part_rows(desc, part);
    std::vector<std::vector<double>> x_rows;
    std::vector<double> globals;
    for (int64_t row = 0; row < m; ++row) {
      globals.push_back(prepare_row(*this, part, row, x_row));
      x_rows.push_back(x_row);
    }
    for (int64_t n = 0; n < rows; ++n) {
      for (int64_t i = 0; i < desc.k; ++i) {
        w_row[static_cast<size_t>(i)] = weight_at(*this, part, n, i);
      }
      for (int64_t row = 0; row < m; ++row) {
        double sum = 0.0;
        for (size_t i = 0; i < w_row.size(); ++i) {
          sum += w_row[i] * x_rows[static_cast<size_t>(row)][i];
        }
        const auto at = static_cast<size_t>(row * desc.n + first + n);
        y[at] = sum * weight_scale[part] * globals[static_cast<size_t>(row)];
        if (!bias.empty()) {
          y[at] += bf16_to_float(bias[static_cast<size_t>(first + n)]);
        }
        if (!residual.empty()) {
          y[at] += bf16_to_float(residual[at]);
        }
      }
    }
    first += rows;
  }
  return y;
}

GemmProblem make_gemm_problem(const GemmDesc& desc, int64_t m, uint64_t seed) {
  GemmProblem problem;
  problem.desc = desc;
  problem.m = m;
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const auto any_byte = [&] { return static_cast<uint8_t>(random() & 0xFF); };
  for (int part = 0; part < desc.num_parts; ++part) {
    const int64_t rows = desc.part_rows[static_cast<size_t>(part)];
    const auto count = static_cast<size_t>(rows * desc.k);
    std::vector<uint8_t> bytes;
    std::vector<uint8_t> scales;
    float scale = 1.0f;
    switch (desc.mode.weight) {
      case QuantMode::Weight::Bf16:
        bytes.resize(count * 2);
        for (size_t i = 0; i < count; ++i) {
          const uint16_t word = float_to_bf16(normal(random));
          std::memcpy(&bytes[i * 2], &word, 2);
        }
        break;
      case QuantMode::Weight::Fp8:
        bytes.resize(count);
        for (uint8_t& byte : bytes) {
          byte = float_to_e4m3(normal(random) * 30.0f);
        }
        scale = 0.01f * static_cast<float>(part + 1);
        break;
      case QuantMode::Weight::Nvfp4:
        bytes.resize(count / 2);
        scales.resize(count / 16);
        for (uint8_t& byte : bytes) {
          byte = any_byte();
        }
        for (uint8_t& byte : scales) {
          byte = static_cast<uint8_t>(random() % 0x7F);  // every finite code, zero included
        }
        scale = 0.001f * static_cast<float>(part + 1);
        break;
    }
    problem.weights.push_back(bytes);
    problem.scales.push_back(scales);
    problem.weight_scale.push_back(scale);
    problem.input_scale.push_back(0.0015f * static_cast<float>(part + 1));
    std::vector<float> pre_quant(static_cast<size_t>(desc.k));
    for (float& value : pre_quant) {
      value = 0.5f + std::fabs(normal(random));
    }
    // Parts share their input, and the store accepts nothing else.
    problem.pre_quant_scale.push_back(
        problem.pre_quant_scale.empty() ? pre_quant : problem.pre_quant_scale.front());
  }
  problem.x.resize(static_cast<size_t>(m * desc.k));
  for (uint16_t& value : problem.x) {
    value = float_to_bf16(normal(random));
  }
  if (desc.epilogue == Epilogue::Bias) {
    problem.bias.resize(static_cast<size_t>(desc.n));
  }
  if (desc.epilogue == Epilogue::Residual) {
    problem.residual.resize(static_cast<size_t>(m * desc.n));
  }
  for (auto* values : {&problem.bias, &problem.residual}) {
    for (uint16_t& value : *values) {
      value = float_to_bf16(normal(random));
    }
  }
  return problem;
}

PackedGemm pack_gemm(const GemmBackend& backend, const GemmProblem& problem, Stream stream) {
  PackedGemm packed;
  for (const Tensor& slot : backend.packed_layout(problem.desc)) {
    const auto bytes = static_cast<size_t>(slot.size_bytes());
    packed.buffers.push_back(Buffer::allocate_or_throw("slot", bytes, stream));
    device_api(stream.device).fill_bytes(packed.buffers.back().data(), 0xFF, bytes, stream);
    packed.slots.push_back(packed.buffers.back().view(slot.dtype, slot.shape));
  }
  const std::vector<LinearPart> parts = problem.parts();
  backend.pack(problem.desc, parts, packed.slots, stream);
  return packed;
}

std::vector<float> run_gemm(const GemmBackend& backend,
                            const GemmProblem& problem,
                            const PackedGemm& packed,
                            Stream stream,
                            int64_t begin,
                            int64_t end) {
  const GemmDesc& desc = problem.desc;
  const DeviceApi& api = device_api(stream.device);
  const int64_t rows = end - begin;
  std::vector<Buffer> buffers;
  const auto upload = [&](DType dtype, Shape shape, const void* data) {
    const Tensor sizes{nullptr, dtype, shape, stream.device};
    const auto bytes = static_cast<size_t>(sizes.size_bytes());
    buffers.push_back(Buffer::allocate_or_throw("test", bytes, stream));
    if (data != nullptr) {
      api.copy_to_device(buffers.back().data(), data, bytes, stream);
    } else {
      api.fill_bytes(buffers.back().data(), 0xFF, bytes, stream);
    }
    return buffers.back().view(dtype, shape);
  };
  GemmArgs args;
  args.packed = packed.slots;
  args.x = upload(DType::BF16, {rows, desc.k}, problem.x.data() + begin * desc.k);
  args.y = upload(desc.out, {rows, desc.n}, nullptr);
  const auto workspace = static_cast<int64_t>(backend.workspace_bytes(desc, rows));
  args.workspace = upload(DType::U8, {workspace}, nullptr);
  if (!problem.bias.empty()) {
    args.bias = upload(DType::BF16, {desc.n}, problem.bias.data());
  }
  if (!problem.residual.empty()) {
    args.residual = upload(DType::BF16, {rows, desc.n}, problem.residual.data() + begin * desc.n);
  }
  backend.run(desc, args, stream);
  std::vector<float> out(static_cast<size_t>(rows * desc.n));
  if (desc.out == DType::F32) {
    api.copy_to_host(out.data(), args.y.data, out.size() * 4, stream);
    api.synchronize(stream);
  } else {
    std::vector<uint16_t> words(out.size());
    api.copy_to_host(words.data(), args.y.data, words.size() * 2, stream);
    api.synchronize(stream);
    std::transform(words.begin(), words.end(), out.begin(), bf16_to_float);
  }
  return out;
}

std::vector<float> run_gemm(const GemmBackend& backend, const GemmProblem& problem, Stream stream) {
  const PackedGemm packed = pack_gemm(backend, problem, stream);
  return run_gemm(backend, problem, packed, stream, 0, problem.m);
}

double relative_l2(const std::vector<double>& want, const std::vector<float>& got) {
  CHECK(want.size() == got.size(), "sizes differ");
  double error = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (want[i] - got[i]) * (want[i] - got[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(error / std::max(norm, 1e-300));
}

}  // namespace nibble::test
