// Dequantize, then cuBLAS: the weights become BF16 in the workspace at every call. Opt-in by name:
// it reads and writes 4 bytes a weight more and its bits depend on the number of rows, but for
// thousands of rows it is the yardstick. Values times block scales are exact in BF16; the global
// scale of a part is the alpha of its own product.
#include <array>
#include <mutex>
#include <vector>

#include <cuda_runtime_api.h>

#include "backends/cuda/cublas_api.h"
#include "backends/cuda/cuda_check.h"
#include "backends/cuda/gemm_nvfp4.h"
#include "backends/cuda/nvfp4_layout.h"
#include "backends/cuda/nvfp4_pack.h"
#include "base/error.h"
#include "ops/gemm.h"

namespace nibble {

namespace {

using namespace nibble::cuda;  // NOLINT(google-build-using-namespace): the folder's own helpers

constexpr size_t kCublasWorkspace = size_t{32} << 20;

// Scalars: the global scale of each part, then 0.
// NOLINTNEXTLINE(readability-identifier-naming): indices, used as the constants they are
enum Slot { kPacked, kMultiplier, kScalars, kNumSlots };

Support supports(const GemmDesc& desc) {
  Support support = supports_nvfp4(desc, kW4A16, Needs::Ampere);
  if (support.ok && (desc.epilogue != Epilogue::None || desc.pre_quant_scale)) {
    return {false, "has neither epilogue nor pre_quant_scale"};
  }
  return support;
}

std::vector<Tensor> packed_layout(const GemmDesc& desc) {
  const Device device{desc.device, 0};
  std::vector<Tensor> slots(kNumSlots);
  slots[kPacked] = Tensor(nullptr, DType::U8, {packed_bytes(desc.n, desc.k)}, device);
  slots[kMultiplier] = Tensor(nullptr, DType::F32, {padded_rows(desc.n)}, device);
  slots[kScalars] = Tensor(nullptr, DType::F32, {kMaxParts + 1}, device);
  return slots;
}

void pack(const GemmDesc& desc,
          std::span<const LinearPart> parts,
          std::span<const Tensor> slots,
          Stream stream) {
  if (cublas_api() == nullptr) {
    throw SystemError(
        "nvfp4_dequant_cublaslt needs libcublas.so.13, which was not found or did not start");
  }
  pack_parts(desc, parts, slots[kPacked], slots[kMultiplier], stream);
  std::array<float, kMaxParts + 1> scalars{};
  for (size_t i = 0; i < parts.size(); ++i) {
    scalars[i] = *parts[i].weight_scale_2.as<float>();
  }
  auto* native = static_cast<cudaStream_t>(stream.native);
  CUDA_CHECK(cudaMemcpyAsync(
      slots[kScalars].data, scalars.data(), sizeof scalars, cudaMemcpyHostToDevice, native));
  CUDA_CHECK(cudaStreamSynchronize(native));
}

size_t workspace_bytes(const GemmDesc& desc, int64_t /*max_rows*/) {
  return kCublasWorkspace + static_cast<size_t>(desc.n * desc.k) * 2;
}

void run(const GemmDesc& desc, const GemmArgs& args, Stream stream) {
  const int64_t m = args.x.shape[0];
  if (m == 0) {
    return;
  }
  auto* native = static_cast<cudaStream_t>(stream.native);
  auto* weights = static_cast<uint8_t*>(args.workspace.data) + kCublasWorkspace;
  unpack_nvfp4(args.packed[kPacked].data, nullptr, desc.n, desc.k, weights, native);

  const CublasApi* cublas = cublas_api();
  CHECK(cublas != nullptr, "cuBLAS was found but did not start");
  static std::mutex one_at_a_time;  // the handle
  const std::scoped_lock lock(one_at_a_time);
  bool ok = cublas->set_stream(cublas->handle, native) == 0 &&
            cublas->set_workspace(cublas->handle, args.workspace.data, kCublasWorkspace) == 0 &&
            cublas->set_pointer_mode(cublas->handle, kCublasPointerModeDevice) == 0;
  const int out_type = args.y.dtype == DType::F32 ? kCudaF32 : kCudaBf16;
  const float* scalars = args.packed[kScalars].as<float>();
  int64_t row = 0;
  for (int part = 0; part < desc.num_parts; ++part) {
    const int64_t rows = desc.part_rows[static_cast<size_t>(part)];
    if (rows > 0) {
      // Column-major: y^T[rows, m] = w[rows, k] x[m, k]^T.
      ok = ok && cublas->gemm(cublas->handle,
                              kCublasTranspose,
                              kCublasNoTranspose,
                              static_cast<int>(rows),
                              static_cast<int>(m),
                              static_cast<int>(desc.k),
                              scalars + part,
                              weights + row * desc.k * 2,
                              kCudaBf16,
                              static_cast<int>(desc.k),
                              args.x.data,
                              kCudaBf16,
                              static_cast<int>(args.x.stride[0]),
                              scalars + kMaxParts,
                              static_cast<uint8_t*>(args.y.data) + row * size_of(args.y.dtype),
                              out_type,
                              static_cast<int>(args.y.stride[0]),
                              kCublasCompute32F,
                              kCublasDefaultAlgorithm) == 0;
    }
    row += rows;
  }
  CHECK(ok, "cuBLAS refused a product of ", m, " rows");
}

}  // namespace

extern const GemmBackend kNvfp4DequantCublasLt;
const GemmBackend kNvfp4DequantCublasLt{
    .name = "nvfp4_dequant_cublaslt",
    .family = "cublaslt-dequant",
    .opt_in = true,
    .supports = supports,
    .packed_layout = packed_layout,
    .pack = pack,
    .workspace_bytes = workspace_bytes,
    .run = run,
    .packs_from_device = true,
};

}  // namespace nibble
