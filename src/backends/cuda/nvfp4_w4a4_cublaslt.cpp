// W4A4 on Blackwell's FP4 tensor cores through cuBLASLt: block-scaled E2M1 with an E4M3 scale for
// 16 columns of k, both operands in 128x4 tiles. x is quantized by quantize_act with the stored
// input_scale; each part is a product of its own, with alpha = its global scale * its input_scale.
//
// Compiled in every CUDA build, refused on other GPUs. Never run so far: no Blackwell GPU was at
// hand. The packing is tested on the CPU, the quantizer on Hopper.
#include "backends/cuda/nvfp4_w4a4_cublaslt.h"

#include <algorithm>
#include <array>
#include <string>

#include <cuda_runtime_api.h>

#include "backends/cuda/cublas_api.h"
#include "backends/cuda/cublas_lt_product.h"
#include "backends/cuda/cuda_check.h"
#include "backends/cuda/nvfp4_layout.h"
#include "backends/cuda/quantize_act.h"
#include "base/check.h"
#include "ops/gemm.h"
#include "quant/nvfp4.h"

namespace nibble {

namespace cuda {

Fp4Part pack_fp4_part(std::span<const uint8_t> codes,
                      std::span<const uint8_t> scales,
                      int64_t rows,
                      int64_t k) {
  CHECK(k % 16 == 0 && static_cast<int64_t>(codes.size()) == rows * k / 2 &&
            static_cast<int64_t>(scales.size()) == rows * k / 16,
        "codes and scales of ",
        rows,
        " x ",
        k);
  Fp4Part part{{codes.begin(), codes.end()}, {}};
  std::vector<uint8_t> magnitudes(scales.begin(), scales.end());
  for (size_t block = 0; block < magnitudes.size(); ++block) {
    if ((magnitudes[block] & 0x80) != 0) {
      magnitudes[block] &= 0x7F;
      for (size_t i = 0; i < 8; ++i) {
        part.codes[block * 8 + i] ^= 0x88;
      }
    }
  }
  part.scales = quant::to_scale_layout(quant::ScaleLayout::Tile128x4, magnitudes, rows, k / 16);
  return part;
}

}  // namespace cuda

namespace {

using namespace nibble::cuda;  // NOLINT(google-build-using-namespace): the folder's own helpers

constexpr std::array<int, 3> kIsas{100, 103, 120};
constexpr int64_t kRowMultiple = 16;
constexpr int64_t kColumnMultiple = 32;  // rows of codes are multiples of 16 bytes

// Scalars: alpha of each part, input_scale of each part, 0.
// NOLINTNEXTLINE(readability-identifier-naming): indices, used as the constants they are
enum Slot { kCodes, kScales, kScalars, kNumSlots };
constexpr int kInputScales = kMaxParts;
constexpr int kZero = 2 * kMaxParts;

int64_t tile_bytes(int64_t rows, int64_t k) {
  return quant::scale_layout_bytes(quant::ScaleLayout::Tile128x4, rows, k / 16);
}

Support supports(const GemmDesc& desc) {
  if (desc.device != Device::Kind::Cuda) {
    return {false, "runs on CUDA only"};
  }
  if (std::find(kIsas.begin(), kIsas.end(), desc.isa) == kIsas.end()) {
    return {false,
            "needs FP4 tensor cores (compute capability 10.0, 10.3 or 12.0), the device has " +
                std::to_string(desc.isa / 10) + "." + std::to_string(desc.isa % 10)};
  }
  if (desc.mode != kW4A4) {
    return {false, "computes w4a4 only"};
  }
  if (desc.in != DType::BF16 || (desc.out != DType::BF16 && desc.out != DType::F32)) {
    return {false, "takes bf16 and gives bf16 or f32"};
  }
  if (!desc.static_input_scale) {
    return {false, "needs a stored input_scale: a product has one multiplier, not one a token"};
  }
  if (desc.k <= 0 || desc.k % kColumnMultiple != 0) {
    return {false, "k must be a positive multiple of 32"};
  }
  for (int part = 0; part < desc.num_parts; ++part) {
    const int64_t rows = desc.num_parts == 1 ? desc.n : desc.part_rows[static_cast<size_t>(part)];
    if (rows % kRowMultiple != 0) {
      return {false, "parts must have a multiple of 16 rows"};
    }
  }
  if (desc.n <= 0) {
    return {false, "has no rows"};
  }
  if (desc.pre_quant_scale) {
    return {false, "has no pre_quant_scale"};
  }
  const bool bias = desc.epilogue == Epilogue::Bias && desc.out == DType::BF16;
  if (desc.epilogue != Epilogue::None && !bias) {
    return {false, "adds nothing but a bias, and that to bf16 output only"};
  }
  return {true, {}};
}

int64_t part_rows(const GemmDesc& desc, int part) {
  return desc.num_parts == 1 ? desc.n : desc.part_rows[static_cast<size_t>(part)];
}

std::vector<Tensor> packed_layout(const GemmDesc& desc) {
  const Device device{desc.device, 0};
  int64_t scale_bytes = 0;
  for (int part = 0; part < desc.num_parts; ++part) {
    scale_bytes += tile_bytes(part_rows(desc, part), desc.k);
  }
  std::vector<Tensor> slots(kNumSlots);
  slots[kCodes] = Tensor(nullptr, DType::U8, {desc.n, desc.k / 2}, device);
  slots[kScales] = Tensor(nullptr, DType::U8, {scale_bytes}, device);
  slots[kScalars] = Tensor(nullptr, DType::F32, {kZero + 1}, device);
  return slots;
}

void pack(const GemmDesc& desc,
          std::span<const LinearPart> parts,
          std::span<const Tensor> slots,
          Stream stream) {
  require_cublas_lt("nvfp4_w4a4_cublaslt");
  auto* native = static_cast<cudaStream_t>(stream.native);
  CUDA_CHECK(cudaSetDevice(stream.device.index));
  std::array<float, kZero + 1> scalars{};
  auto* codes_to = static_cast<uint8_t*>(slots[kCodes].data);
  auto* scales_to = static_cast<uint8_t*>(slots[kScales].data);
  for (size_t i = 0; i < parts.size(); ++i) {
    const LinearPart& part = parts[i];
    const int64_t rows = part.weight.shape[0];
    const Fp4Part packed =
        pack_fp4_part({part.weight.as<uint8_t>(), static_cast<size_t>(rows * desc.k / 2)},
                      {part.weight_scale.as<uint8_t>(), static_cast<size_t>(rows * desc.k / 16)},
                      rows,
                      desc.k);
    const float input_scale = *part.input_scale.as<float>();
    scalars[i] = *part.weight_scale_2.as<float>() * input_scale;
    scalars[kInputScales + i] = input_scale;
    CUDA_CHECK(cudaMemcpyAsync(
        codes_to, packed.codes.data(), packed.codes.size(), cudaMemcpyHostToDevice, native));
    CUDA_CHECK(cudaMemcpyAsync(
        scales_to, packed.scales.data(), packed.scales.size(), cudaMemcpyHostToDevice, native));
    CUDA_CHECK(cudaStreamSynchronize(native));  // `packed` goes away
    codes_to += packed.codes.size();
    scales_to += packed.scales.size();
  }
  CUDA_CHECK(cudaMemcpyAsync(
      slots[kScalars].data, scalars.data(), sizeof scalars, cudaMemcpyHostToDevice, native));
  CUDA_CHECK(cudaStreamSynchronize(native));
}

int64_t aligned(int64_t bytes) { return ceil_div(bytes, 256) * 256; }

size_t workspace_bytes(const GemmDesc& desc, int64_t max_rows) {
  return kLtWorkspace + static_cast<size_t>(aligned(max_rows * desc.k / 2) +
                                            aligned(tile_bytes(max_rows, desc.k)));
}

void run(const GemmDesc& desc, const GemmArgs& args, Stream stream) {
  const int64_t m = args.x.shape[0];
  if (m == 0) {
    return;
  }
  auto* native = static_cast<cudaStream_t>(stream.native);
  auto* workspace = static_cast<uint8_t*>(args.workspace.data);
  auto* x_codes = workspace + kLtWorkspace;
  auto* x_scales = x_codes + aligned(m * desc.k / 2);
  const float* scalars = args.packed[kScalars].as<float>();
  const auto* w_codes = args.packed[kCodes].as<uint8_t>();
  const auto* w_scales = args.packed[kScales].as<uint8_t>();
  const int64_t size = size_of(args.y.dtype);
  int64_t row = 0;
  for (int part = 0; part < desc.num_parts; ++part) {
    const int64_t rows = part_rows(desc, part);
    if (rows > 0) {
      quantize_act({.x = args.x.data,
                    .m = m,
                    .k = desc.k,
                    .ldx = args.x.stride[0],
                    .input_scale = scalars + kInputScales + part,
                    .codes = x_codes,
                    .scales = x_scales,
                    .tiled_scales = true},
                   native);
      const LtProblem problem{.m = m,
                              .n = rows,
                              .k = desc.k,
                              .ldx = desc.k,
                              .ldy = args.y.stride[0],
                              .in = kCudaE2M1,
                              .out = args.y.dtype == DType::F32 ? kCudaF32 : kCudaBf16,
                              .bias = args.bias.empty() ? nullptr : args.bias.as<uint16_t>() + row,
                              .w_scales = w_scales,
                              .x_scales = x_scales};
      run_lt(problem,
             scalars + part,
             scalars + kZero,
             w_codes,
             x_codes,
             static_cast<uint8_t*>(args.y.data) + row * size,
             workspace,
             native);
    }
    w_codes += rows * desc.k / 2;
    w_scales += tile_bytes(rows, desc.k);
    row += rows;
  }
}

}  // namespace

extern const GemmBackend kNvfp4W4a4CublasLt;
const GemmBackend kNvfp4W4a4CublasLt{
    .name = "nvfp4_w4a4_cublaslt",
    .family = "cublaslt",
    .opt_in = false,
    .supports = supports,
    .packed_layout = packed_layout,
    .pack = pack,
    .workspace_bytes = workspace_bytes,
    .run = run,
};

}  // namespace nibble
