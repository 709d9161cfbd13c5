#include "backends/cuda/gemm_nvfp4.h"

#include <optional>
#include <string>

#include <cuda_runtime_api.h>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/nvfp4_layout.h"
#include "backends/cuda/nvfp4_pack.h"
#include "backends/cuda/nvfp4_w4a16_tiles.h"
#include "backends/cuda/scale_columns.h"

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

Support supports_nvfp4(const GemmDesc& desc, QuantMode mode, Needs needs) {
  if (desc.device != Device::Kind::Cuda) {
    return {false, "runs on CUDA only"};
  }
  if (needs == Needs::Hopper ? desc.isa != 90 : desc.isa < 80) {
    return {false,
            std::string("needs compute capability ") +
                (needs == Needs::Hopper ? "9.0 (Hopper)" : "8.0 (Ampere) or newer") +
                ", the device has " + std::to_string(desc.isa / 10) + "." +
                std::to_string(desc.isa % 10)};
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
    std::optional<Scratch> copies;  // codes, then scales
    const uint8_t* codes = part.weight.as<uint8_t>();
    const auto* scales = static_cast<const uint8_t*>(part.weight_scale.data);
    if (part.weight.device.kind != Device::Kind::Cuda) {
      uint8_t* to = copies.emplace(codes_bytes + scales_bytes).get();
      CUDA_CHECK(cudaMemcpyAsync(to, codes, codes_bytes, cudaMemcpyHostToDevice, native));
      CUDA_CHECK(
          cudaMemcpyAsync(to + codes_bytes, scales, scales_bytes, cudaMemcpyHostToDevice, native));
      codes = to;
      scales = to + codes_bytes;
    }
    const Nvfp4Source source{.codes = codes,
                             .scales = scales,
                             .n = n,
                             .k = desc.k,
                             .global_scale = *part.weight_scale_2.as<float>()};
    pack_nvfp4(
        source, row, desc.n, packed.data, row_multiplier.as<float>(), native, in_turn ? 2 : 1);
    if (copies) {
      CUDA_CHECK(cudaStreamSynchronize(native));  // they go away
    }
    row += in_turn ? 1 : n;
  }
  CHECK(in_turn || row == desc.n, "parts have ", row, " rows, the matrix ", desc.n);
}

std::vector<Tensor> w4a16_layout(const GemmDesc& desc) {
  const Device device{desc.device, 0};
  std::vector<Tensor> slots(kNumW4A16Slots);
  slots[kW4A16Records] = Tensor(nullptr, DType::U8, {packed_bytes(desc.n, desc.k)}, device);
  slots[kW4A16Multiplier] = Tensor(nullptr, DType::F32, {padded_rows(desc.n)}, device);
  slots[kW4A16Counters] = Tensor(nullptr, DType::I32, {w4a16_num_counters(desc.n)}, device);
  slots[kW4A16PreQuant] = pre_quant_slot(desc);
  return slots;
}

void pack_w4a16(const GemmDesc& desc,
                std::span<const LinearPart> parts,
                std::span<const Tensor> slots,
                Stream stream) {
  pack_parts(desc, parts, slots[kW4A16Records], slots[kW4A16Multiplier], stream);
  CUDA_CHECK(cudaMemsetAsync(slots[kW4A16Counters].data,
                             0,
                             static_cast<size_t>(slots[kW4A16Counters].size_bytes()),
                             static_cast<cudaStream_t>(stream.native)));
  pack_pre_quant(
      desc, parts.front(), slots[kW4A16PreQuant], static_cast<cudaStream_t>(stream.native));
}

size_t w4a16_gemm_workspace(const GemmDesc& desc, int64_t max_rows) {
  return static_cast<size_t>(pre_quant_bytes(desc, max_rows) +
                             w4a16_workspace_bytes(max_rows, desc.n, desc.k));
}

W4A16Args w4a16_args(const GemmDesc& desc, const GemmArgs& args) {
  return {
      .x = args.x.data,
      .packed = args.packed[kW4A16Records].data,
      .row_multiplier = args.packed[kW4A16Multiplier].as<float>(),
      .y = args.y.data,
      .bias = args.bias.data,
      .workspace = args.workspace.data,
      .counters = reinterpret_cast<uint32_t*>(args.packed[kW4A16Counters].as<int32_t>()),
      .residual = args.residual.data,
      .m = args.x.shape[0],
      .n = desc.n,
      .k = desc.k,
      .ldx = args.x.stride[0],
      .ldy = args.y.stride[0],
      .ldr = args.residual.empty() ? args.y.stride[0] : args.residual.stride[0],
      .y_is_f32 = args.y.dtype == DType::F32,
      .swiglu = desc.epilogue == Epilogue::SwiGlu,
  };
}

}  // namespace nibble::cuda
