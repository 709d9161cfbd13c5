#include "backends/cpu/gemm_shared.h"

#include <algorithm>
#include <cmath>

#include "base/number_formats.h"

namespace nibble::cpu {

Support check_desc(const GemmDesc& desc, CpuIsa needed) {
  if (desc.device != Device::Kind::Cpu) {
    return {false, "runs on the cpu only"};
  }
  if (desc.isa < static_cast<int>(needed)) {
    return {false,
            "needs " + std::string(to_string(needed)) + ", the cpu level is " +
                std::string(to_string(static_cast<CpuIsa>(desc.isa)))};
  }
  if (desc.in != DType::BF16 || (desc.out != DType::BF16 && desc.out != DType::F32)) {
    return {false, "takes bf16 and gives bf16 or f32"};
  }
  if (desc.n <= 0 || desc.k <= 0 || desc.num_parts < 1 || desc.num_parts > kMaxParts) {
    return {false, "n, k and the number of parts must be positive"};
  }
  int64_t rows = 0;
  for (int part = 0; part < desc.num_parts; ++part) {
    rows += desc.part_rows[static_cast<size_t>(part)];
  }
  if (desc.num_parts > 1 && rows != desc.n) {
    return {false, "the parts must sum to n"};
  }
  if (desc.mode.weight == QuantMode::Weight::Nvfp4 && desc.k % 16 != 0) {
    return {false, "nvfp4 needs k to be a multiple of 16"};
  }
  if (desc.mode.act == QuantMode::Act::Fp8) {
    return {false, "no fp8 activations on the cpu"};
  }
  if (desc.mode.act == QuantMode::Act::Nvfp4 && desc.mode.weight != QuantMode::Weight::Nvfp4) {
    return {false, "nvfp4 activations need nvfp4 weights"};
  }
  if (desc.epilogue == Epilogue::SwiGlu) {
    return {false, "no fused SwiGLU on the cpu"};
  }
  return {true, {}};
}

PartRange part_range(const GemmDesc& desc, int index) {
  if (desc.num_parts <= 1) {
    return {0, desc.n};
  }
  PartRange range;
  for (int part = 0; part < index; ++part) {
    range.begin += desc.part_rows[static_cast<size_t>(part)];
  }
  range.end = range.begin + desc.part_rows[static_cast<size_t>(index)];
  return range;
}

float read_scalar(const Tensor& scalar, float otherwise) {
  return scalar.empty() ? otherwise : *scalar.as<float>();
}

float part_alpha(const GemmDesc& desc, const LinearPart& part) {
  switch (desc.mode.weight) {
    case QuantMode::Weight::Bf16:
      return 1.0f;
    case QuantMode::Weight::Nvfp4:
      return read_scalar(part.weight_scale_2, 1.0f);
    case QuantMode::Weight::Fp8:
      return read_scalar(part.weight_scale, 1.0f);
  }
  return 1.0f;
}

void read_pre_quant_scale(const LinearPart& part, int64_t k, float* out) {
  const Tensor& scale = part.pre_quant_scale;
  for (int64_t i = 0; i < k; ++i) {
    if (scale.empty()) {
      out[i] = 1.0f;
    } else if (scale.dtype == DType::F32) {
      out[i] = scale.as<float>()[i];
    } else {
      out[i] = bf16_to_float(scale.as<uint16_t>()[i]);
    }
  }
}

void load_row(const uint16_t* x, const float* pre_quant_scale, int64_t k, float* out) {
  if (pre_quant_scale == nullptr) {
    for (int64_t i = 0; i < k; ++i) {
      out[i] = bf16_to_float(x[i]);
    }
    return;
  }
  for (int64_t i = 0; i < k; ++i) {
    out[i] = bf16_to_float(float_to_bf16(bf16_to_float(x[i]) * pre_quant_scale[i]));
  }
}

float quantize_row(const float* x, float input_scale, int64_t k, uint8_t* codes, float* scales) {
  float global = input_scale;
  if (global <= 0.0f) {
    float amax = 0.0f;
    for (int64_t i = 0; i < k; ++i) {
      amax = std::max(amax, std::fabs(x[i]));
    }
    global = amax / (6.0f * 448.0f);
    if (global <= 0.0f) {
      global = 1.0f;
    }
  }
  for (int64_t block = 0; block < k / 16; ++block) {
    const float* values = x + block * 16;
    float amax = 0.0f;
    for (int i = 0; i < 16; ++i) {
      amax = std::max(amax, std::fabs(values[i]));
    }
    const float scale = e4m3_to_float(float_to_e4m3(amax / 6.0f / global));
    scales[block] = scale;
    const float divisor = scale * global;
    for (int i = 0; i < 16; ++i) {
      codes[block * 16 + i] =
          divisor > 0.0f ? float_to_e2m1(values[i] / divisor) : static_cast<uint8_t>(0);
    }
  }
  return global;
}

void store_output(const GemmDesc& desc, const GemmArgs& args, int64_t row, int64_t n, float value) {
  if (!args.bias.empty()) {
    value += bf16_to_float(args.bias.as<uint16_t>()[n]);
  }
  if (!args.residual.empty()) {
    value += bf16_to_float(args.residual.as<uint16_t>()[row * args.residual.stride[0] + n]);
  }
  if (desc.out == DType::F32) {
    args.y.as<float>()[row * args.y.stride[0] + n] = value;
  } else {
    args.y.as<uint16_t>()[row * args.y.stride[0] + n] = float_to_bf16(value);
  }
}

}  // namespace nibble::cpu

namespace nibble {

void announce_weights_cpu(const Tensor& weights, Stream stream) {
  cpu::pool_of(stream).announce(weights.data, weights.size_bytes());
}

}  // namespace nibble
