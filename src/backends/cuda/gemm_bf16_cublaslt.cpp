// BF16 products, and FP8 weights as BF16 (E4M3 fits bf16 exactly; the scale of a part is the alpha
// of its own product), through cuBLASLt.
//
// A row's bits do not depend on the others: a few classes of row counts have algorithms of their
// own, found when a matrix of a size is packed first, with the same bits (cublas_lt_tune.h).
#include <array>
#include <vector>

#include <cuda_runtime_api.h>

#include "backends/cuda/cublas_api.h"
#include "backends/cuda/cublas_lt_product.h"
#include "backends/cuda/cublas_lt_tune.h"
#include "backends/cuda/cuda_check.h"
#include "base/number_formats.h"
#include "ops/gemm.h"

namespace nibble {

namespace {

using namespace nibble::cuda;  // NOLINT(google-build-using-namespace): the folder's own helpers

constexpr int kMinIsa = 80;

// Scalars: alpha of each part, then 0.
// NOLINTNEXTLINE(readability-identifier-naming): indices, used as the constants they are
enum Slot { kWeights, kScalars, kNumSlots };

Support supports(const GemmDesc& desc) {
  if (desc.device != Device::Kind::Cuda) {
    return {false, "runs on CUDA only"};
  }
  if (desc.isa < kMinIsa) {
    return {false, "needs compute capability 8.0"};
  }
  if (desc.mode != kBf16 && desc.mode != kFp8) {
    return {false, "computes bf16 and fp8 weights only, with bf16 activations"};
  }
  if (desc.in != DType::BF16 || (desc.out != DType::BF16 && desc.out != DType::F32)) {
    return {false, "takes bf16 and gives bf16 or f32"};
  }
  if (desc.k % 8 != 0 || desc.k <= 0 || desc.n <= 0) {
    return {false, "k must be a positive multiple of 8"};
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

// BF16 parts have no scales of their own: one product.
bool is_whole(const GemmDesc& desc) { return desc.mode == kBf16; }

std::vector<Tensor> packed_layout(const GemmDesc& desc) {
  const Device device{desc.device, 0};
  std::vector<Tensor> slots(kNumSlots);
  slots[kWeights] = Tensor(nullptr, DType::BF16, {desc.n, desc.k}, device);
  slots[kScalars] = Tensor(nullptr, DType::F32, {kMaxParts + 1}, device);
  return slots;
}

void pack(const GemmDesc& desc,
          std::span<const LinearPart> parts,
          std::span<const Tensor> slots,
          Stream stream) {
  const CublasLtApi& api = require_cublas_lt("gemm_bf16_cublaslt");
  auto* native = static_cast<cudaStream_t>(stream.native);
  CUDA_CHECK(cudaSetDevice(stream.device.index));
  std::array<float, kMaxParts + 1> scalars{};
  auto* to = static_cast<uint16_t*>(slots[kWeights].data);
  for (size_t i = 0; i < parts.size(); ++i) {
    const int64_t count = parts[i].weight.shape[0] * desc.k;
    std::vector<uint16_t> wide;
    const void* from = parts[i].weight.data;
    scalars[i] = 1.0f;
    if (desc.mode == kFp8) {
      const auto* codes = static_cast<const uint8_t*>(from);
      wide.resize(static_cast<size_t>(count));
      for (int64_t j = 0; j < count; ++j) {
        wide[static_cast<size_t>(j)] = float_to_bf16(e4m3_to_float(codes[j]));
      }
      from = wide.data();
      scalars[i] = parts[i].weight_scale.empty() ? 1.0f : *parts[i].weight_scale.as<float>();
    }
    if (to != from) {  // else a loader has put it there
      CUDA_CHECK(
          cudaMemcpyAsync(to, from, static_cast<size_t>(count) * 2, cudaMemcpyDefault, native));
      CUDA_CHECK(cudaStreamSynchronize(native));  // `wide` goes away
    }
    to += count;
  }
  CUDA_CHECK(cudaMemcpyAsync(
      slots[kScalars].data, scalars.data(), sizeof scalars, cudaMemcpyHostToDevice, native));
  CUDA_CHECK(cudaStreamSynchronize(native));
  for (int part = 0; part < (is_whole(desc) ? 1 : desc.num_parts); ++part) {
    const int64_t rows = is_whole(desc) ? desc.n : desc.part_rows[static_cast<size_t>(part)];
    if (rows > 0) {
      // The bias is only asked about; any pointer will do.
      tune_lt(api,
              {.n = rows,
               .k = desc.k,
               .in = kCudaBf16,
               .out = desc.out == DType::F32 ? kCudaF32 : kCudaBf16,
               .bias = desc.epilogue == Epilogue::Bias ? slots[kScalars].data : nullptr},
              native);
    }
  }
}

size_t workspace_bytes(const GemmDesc& /*desc*/, int64_t /*max_rows*/) { return kLtWorkspace; }

void run(const GemmDesc& desc, const GemmArgs& args, Stream stream) {
  const int64_t m = args.x.shape[0];
  if (m == 0) {
    return;
  }
  const int out = args.y.dtype == DType::F32 ? kCudaF32 : kCudaBf16;
  const int64_t ldx = args.x.stride[0];
  const int64_t ldy = args.y.stride[0];
  const float* scalars = args.packed[kScalars].as<float>();
  const int64_t size = size_of(args.y.dtype);
  const bool whole = is_whole(desc);
  int64_t row = 0;
  for (int part = 0; part < (whole ? 1 : desc.num_parts); ++part) {
    const int64_t rows = whole ? desc.n : desc.part_rows[static_cast<size_t>(part)];
    if (rows > 0) {
      const void* bias = args.bias.empty() ? nullptr : args.bias.as<uint16_t>() + row;
      const bool aligned = row * size % 16 == 0 && ldy * size % 16 == 0;
      const LtProblem problem{.m = m,
                              .n = rows,
                              .k = desc.k,
                              .ldx = ldx,
                              .ldy = ldy,
                              .in = kCudaBf16,
                              .out = out,
                              .y_alignment = aligned ? 16u : static_cast<uint32_t>(size),
                              .bias = bias};
      run_lt(problem,
             scalars + part,
             scalars + kMaxParts,
             args.packed[kWeights].as<uint16_t>() + row * desc.k,
             args.x.data,
             static_cast<uint8_t*>(args.y.data) + row * size,
             args.workspace.data,
             static_cast<cudaStream_t>(stream.native));
    }
    row += rows;
  }
}

}  // namespace

extern const GemmBackend kGemmBf16CublasLt;
const GemmBackend kGemmBf16CublasLt{
    .name = "gemm_bf16_cublaslt",
    .family = "cublaslt",
    .opt_in = false,
    .supports = supports,
    .packed_layout = packed_layout,
    .pack = pack,
    .workspace_bytes = workspace_bytes,
    .run = run,
    .packs_from_device = true,  // bf16 ones; fp8 is converted on the host
    .keeps_bf16 = true,
};

}  // namespace nibble
