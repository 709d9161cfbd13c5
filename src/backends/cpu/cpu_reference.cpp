// cpu_reference: the scalar oracle of every GEMM mode, and the backend of CPUs without AVX2.
//
// Order of summation, which the AVX2 and AVX-512 kernels (not the BF16 dot-product ones) repeat bit
// for bit: nvfp4: t = sum of code * x over a block of 16, k ascending; acc = fma(t, block scale,
// acc), blocks ascending. bf16 and fp8: acc += w * x, k ascending. Every w * x product here is
// exact in FP32 (8 + 8 significant bits at most), so adding it equals a fused multiply-add. The
// global scale multiplies the finished accumulator.
#include <cmath>
#include <cstring>

#include "backends/cpu/gemm_shared.h"
#include "base/number_formats.h"

namespace nibble {

namespace {

using namespace nibble::cpu;  // NOLINT(google-build-using-namespace): the folder's own helpers

// Slots: weight as stored, block scales (nvfp4), alpha f32 [parts], input scale f32 [parts]
// (0: per token), pre-quant scale f32 [parts, k] when the desc has one.
// NOLINTNEXTLINE(readability-identifier-naming): indices, used as the constants they are
enum Slot : size_t { kWeight, kScales, kAlpha, kInputScale, kPreQuant };

bool is_nvfp4(const GemmDesc& desc) { return desc.mode.weight == QuantMode::Weight::Nvfp4; }
bool is_w4a4(const GemmDesc& desc) { return desc.mode.act == QuantMode::Act::Nvfp4; }

Support supports(const GemmDesc& desc) { return check_desc(desc, CpuIsa::Scalar); }

std::vector<Tensor> packed_layout(const GemmDesc& desc) {
  const Device cpu{};
  const int64_t parts = desc.num_parts;
  std::vector<Tensor> slots;
  if (is_nvfp4(desc)) {
    slots.emplace_back(nullptr, DType::U8, Shape{desc.n, desc.k / 2}, cpu);
    slots.emplace_back(nullptr, DType::E4M3, Shape{desc.n, desc.k / 16}, cpu);
  } else {
    const DType dtype = desc.mode.weight == QuantMode::Weight::Bf16 ? DType::BF16 : DType::E4M3;
    slots.emplace_back(nullptr, dtype, Shape{desc.n, desc.k}, cpu);
    slots.emplace_back(nullptr, DType::E4M3, Shape{0}, cpu);
  }
  slots.emplace_back(nullptr, DType::F32, Shape{parts}, cpu);
  slots.emplace_back(nullptr, DType::F32, Shape{parts}, cpu);
  if (desc.pre_quant_scale) {
    slots.emplace_back(nullptr, DType::F32, Shape{parts, desc.k}, cpu);
  }
  return slots;
}

void pack(const GemmDesc& desc,
          std::span<const LinearPart> parts,
          std::span<const Tensor> slots,
          Stream /*stream*/) {
  CHECK(static_cast<int>(parts.size()) == desc.num_parts, "expected as many parts as the desc has");
  for (int index = 0; index < desc.num_parts; ++index) {
    const LinearPart& part = parts[static_cast<size_t>(index)];
    const PartRange range = part_range(desc, index);
    const Tensor weight = slots[kWeight].rows(range.begin, range.end);
    std::memcpy(weight.data, part.weight.data, static_cast<size_t>(weight.size_bytes()));
    if (is_nvfp4(desc)) {
      const Tensor scales = slots[kScales].rows(range.begin, range.end);
      std::memcpy(scales.data, part.weight_scale.data, static_cast<size_t>(scales.size_bytes()));
    }
    slots[kAlpha].as<float>()[index] = part_alpha(desc, part);
    slots[kInputScale].as<float>()[index] =
        desc.static_input_scale ? read_scalar(part.input_scale, 0.0f) : 0.0f;
    if (desc.pre_quant_scale) {
      read_pre_quant_scale(part, desc.k, slots[kPreQuant].as<float>() + index * desc.k);
    }
  }
}

// Prepared activations: f32 [m, k] values (E2M1 values for w4a4), block scales f32 [m, k/16], row
// scales f32 [m].
struct Prepared {
  float* x;
  float* scales;
  float* row_scale;
  uint8_t* codes;  // u8 [m, k], w4a4 only
};

size_t workspace_bytes(const GemmDesc& desc, int64_t max_rows) {
  const int64_t floats = desc.k + desc.k / 16 + 1;
  return static_cast<size_t>(max_rows * (floats * 4 + (is_w4a4(desc) ? desc.k : 0)));
}

float dot_nvfp4(const uint8_t* codes, const uint8_t* scales, const float* x, int64_t k) {
  float acc = 0.0f;
  for (int64_t block = 0; block < k / 16; ++block) {
    float sum = 0.0f;
    for (int64_t i = 0; i < 16; i += 2) {
      const uint8_t byte = codes[block * 8 + i / 2];
      sum += e2m1_to_float(byte & 0xF) * x[block * 16 + i];
      sum += e2m1_to_float(static_cast<uint8_t>(byte >> 4)) * x[block * 16 + i + 1];
    }
    acc = std::fma(sum, e4m3_to_float(scales[block]), acc);
  }
  return acc;
}

float dot_w4a4(
    const uint8_t* codes, const uint8_t* scales, const float* x, const float* x_scales, int64_t k) {
  float acc = 0.0f;
  for (int64_t block = 0; block < k / 16; ++block) {
    float sum = 0.0f;
    for (int64_t i = 0; i < 16; i += 2) {
      const uint8_t byte = codes[block * 8 + i / 2];
      sum += e2m1_to_float(byte & 0xF) * x[block * 16 + i];
      sum += e2m1_to_float(static_cast<uint8_t>(byte >> 4)) * x[block * 16 + i + 1];
    }
    // Exact up to the addition: 12 + 8 significant bits.
    acc += sum * (e4m3_to_float(scales[block]) * x_scales[block]);
  }
  return acc;
}

float dot_bf16(const uint16_t* w, const float* x, int64_t k) {
  float acc = 0.0f;
  for (int64_t i = 0; i < k; ++i) {
    acc += bf16_to_float(w[i]) * x[i];
  }
  return acc;
}

float dot_fp8(const uint8_t* w, const float* x, int64_t k) {
  float acc = 0.0f;
  for (int64_t i = 0; i < k; ++i) {
    acc += e4m3_to_float(w[i]) * x[i];
  }
  return acc;
}

void prepare(
    const GemmDesc& desc, const GemmArgs& args, int part, const Prepared& to, Stream stream) {
  const float* pre_quant =
      desc.pre_quant_scale ? args.packed[kPreQuant].as<float>() + part * desc.k : nullptr;
  const float input_scale = args.packed[kInputScale].as<float>()[part];
  pool_of(stream).parallel_for(args.x.shape[0], 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      float* x = to.x + row * desc.k;
      load_row(args.x.as<uint16_t>() + row * args.x.stride[0], pre_quant, desc.k, x);
      to.row_scale[row] = 1.0f;
      if (is_w4a4(desc)) {
        uint8_t* codes = to.codes + row * desc.k;
        to.row_scale[row] =
            quantize_row(x, input_scale, desc.k, codes, to.scales + row * (desc.k / 16));
        for (int64_t i = 0; i < desc.k; ++i) {
          x[i] = e2m1_to_float(codes[i]);
        }
      }
    }
  });
}

void run(const GemmDesc& desc, const GemmArgs& args, Stream stream) {
  const int64_t m = args.x.shape[0];
  const int64_t k = desc.k;
  CHECK(args.x.shape[1] == k && args.y.shape[1] == desc.n, "x or y has other sizes than the desc");
  CHECK(args.workspace.size_bytes() >= static_cast<int64_t>(workspace_bytes(desc, m)),
        "the workspace is too small: ",
        args.workspace.size_bytes());
  Prepared prepared{};
  prepared.x = static_cast<float*>(args.workspace.data);
  prepared.scales = prepared.x + m * k;
  prepared.row_scale = prepared.scales + m * (k / 16);
  prepared.codes = reinterpret_cast<uint8_t*>(prepared.row_scale + m);
  for (int part = 0; part < desc.num_parts; ++part) {
    if (part == 0 || desc.pre_quant_scale || is_w4a4(desc)) {
      prepare(desc, args, part, prepared, stream);
    }
    const PartRange range = part_range(desc, part);
    const float part_scale = args.packed[kAlpha].as<float>()[part];
    pool_of(stream).parallel_for(range.end - range.begin, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t n = range.begin + begin; n < range.begin + end; ++n) {
        const auto* bytes = static_cast<const uint8_t*>(args.packed[kWeight].data);
        const auto* scales = static_cast<const uint8_t*>(args.packed[kScales].data);
        for (int64_t row = 0; row < m; ++row) {
          const float* x = prepared.x + row * k;
          float acc = 0.0f;
          if (is_w4a4(desc)) {
            const float* x_scales = prepared.scales + row * (k / 16);
            acc = dot_w4a4(bytes + n * (k / 2), scales + n * (k / 16), x, x_scales, k);
          } else if (is_nvfp4(desc)) {
            acc = dot_nvfp4(bytes + n * (k / 2), scales + n * (k / 16), x, k);
          } else if (desc.mode.weight == QuantMode::Weight::Fp8) {
            acc = dot_fp8(bytes + n * k, x, k);
          } else {
            acc = dot_bf16(args.packed[kWeight].as<uint16_t>() + n * k, x, k);
          }
          store_output(desc, args, row, n, acc * (part_scale * prepared.row_scale[row]));
        }
      }
    });
  }
}

}  // namespace

extern const GemmBackend kCpuReferenceGemm;
const GemmBackend kCpuReferenceGemm{
    .name = "cpu_reference",
    .family = "reference",
    .opt_in = false,
    .supports = supports,
    .packed_layout = packed_layout,
    .pack = pack,
    .workspace_bytes = workspace_bytes,
    .run = run,
};

}  // namespace nibble
