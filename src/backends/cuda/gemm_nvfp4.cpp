#include "backends/cuda/gemm_nvfp4.h"

#include <string>

#include <cuda_runtime_api.h>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/nvfp4_pack.h"
#include "backends/cuda/nvfp4_w4a16_tiles.h"

namespace nibble::cuda {

namespace {

// Device memory of one call of pack(); packing is no hot path.
class Scratch {
 public:
  explicit Scratch(size_t size_bytes) { CUDA_CHECK(cudaMalloc(&memory_, size_bytes)); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { (void)cudaFree(memory_); }
  uint8_t* get() const { return static_cast<uint8_t*>(memory_); }

 private:
  void* memory_ = nullptr;
};

}  // namespace

Support supports_nvfp4_sm90(const GemmDesc& desc, QuantMode mode) {
  if (desc.device != Device::Kind::Cuda) {
    return {false, "runs on CUDA only"};
  }
  if (desc.isa != 90) {
    return {false,
            "needs compute capability 9.0 (Hopper), the device has " +
                std::to_string(desc.isa / 10) + "." + std::to_string(desc.isa % 10)};
  }
  if (desc.mode != mode) {
    return {false, "computes " + to_string(mode) + " only"};
  }
  if (desc.in != DType::BF16 || (desc.out != DType::BF16 && desc.out != DType::F32)) {
    return {false, "takes bf16 and gives bf16 or f32"};
  }
  if (desc.k % 16 != 0 || desc.k <= 0 || desc.n <= 0) {
    return {false, "k must be a positive multiple of 16"};
  }
  if (desc.epilogue == Epilogue::SwiGlu &&
      (mode != kW4A16 || desc.num_parts != 2 || desc.part_rows[0] != desc.part_rows[1] ||
       desc.out != DType::BF16)) {
    return {false, "fuses SwiGLU with w4a16, two parts of equal rows and bf16 output only"};
  }
  return {true, {}};
}

int num_multiprocessors(Device device) {
  int count = 0;
  if (cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device.index) != cudaSuccess) {
    (void)cudaGetLastError();
    return kMeasuredMultiprocessors;
  }
  return count;
}

void pack_parts(const GemmDesc& desc,
                std::span<const LinearPart> parts,
                const Tensor& packed,
                const Tensor& row_multiplier,
                Stream stream) {
  auto* native = static_cast<cudaStream_t>(stream.native);
  CUDA_CHECK(cudaSetDevice(stream.device.index));
  const bool in_turn = desc.epilogue == Epilogue::SwiGlu;  // gate and up, row by row
  int64_t row = 0;
  for (const LinearPart& part : parts) {
    const int64_t n = part.weight.shape[0];
    if (n == 0) {
      continue;
    }
    const size_t codes_bytes = static_cast<size_t>(n * (desc.k / 2));
    const size_t scales_bytes = static_cast<size_t>(n * (desc.k / 16));
    const Scratch codes(codes_bytes);
    const Scratch scales(scales_bytes);
    CUDA_CHECK(cudaMemcpyAsync(
        codes.get(), part.weight.data, codes_bytes, cudaMemcpyHostToDevice, native));
    CUDA_CHECK(cudaMemcpyAsync(
        scales.get(), part.weight_scale.data, scales_bytes, cudaMemcpyHostToDevice, native));
    const Nvfp4Source source{.codes = codes.get(),
                             .scales = scales.get(),
                             .n = n,
                             .k = desc.k,
                             .global_scale = *part.weight_scale_2.as<float>()};
    pack_nvfp4(
        source, row, desc.n, packed.data, row_multiplier.as<float>(), native, in_turn ? 2 : 1);
    CUDA_CHECK(cudaStreamSynchronize(native));  // the scratch goes away
    row += in_turn ? 1 : n;
  }
  CHECK(in_turn || row == desc.n, "parts have ", row, " rows, the matrix ", desc.n);
}

}  // namespace nibble::cuda
