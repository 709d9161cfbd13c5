// nvfp4_w4a16_sm90 as a GEMM backend: slots, packing and dispatch. The kernel is in
// nvfp4_w4a16_sm90.cuh, its plans in nvfp4_w4a16_plan.cpp.
#include <algorithm>
#include <vector>

#include <cuda_runtime_api.h>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/nvfp4_layout.h"
#include "backends/cuda/nvfp4_pack.h"
#include "backends/cuda/nvfp4_w4a16_sm90.h"
#include "ops/gemm.h"

namespace nibble {

namespace {

using namespace nibble::cuda;  // NOLINT(google-build-using-namespace): the folder's own helpers

// Slots: codes and scales, row multipliers f32, counters of shared tiles (zero between calls). The
// counters belong to the matrix, so one matrix must not be used on two streams at once.
enum Slot { kPacked, kMultiplier, kCounters, kNumSlots };

Support supports(const GemmDesc& desc) {
  if (desc.device != Device::Kind::Cuda) {
    return {false, "runs on CUDA only"};
  }
  if (desc.isa != 90) {
    return {false,
            "needs compute capability 9.0 (Hopper), the device has " +
                std::to_string(desc.isa / 10) + "." + std::to_string(desc.isa % 10)};
  }
  if (desc.mode != kW4A16) {
    return {false, "computes w4a16 only"};
  }
  if (desc.in != DType::BF16 || (desc.out != DType::BF16 && desc.out != DType::F32)) {
    return {false, "takes bf16 and gives bf16 or f32"};
  }
  if (desc.k % 16 != 0 || desc.k <= 0 || desc.n <= 0) {
    return {false, "k must be a positive multiple of 16"};
  }
  if (desc.pre_quant_scale) {
    return {false, "has no pre_quant_scale"};
  }
  if (desc.epilogue == Epilogue::SwiGlu) {
    return {false, "has no SwiGLU epilogue"};
  }
  return {true, {}};
}

std::vector<Tensor> packed_layout(const GemmDesc& desc) {
  const Device device{desc.device, 0};
  std::vector<Tensor> slots(kNumSlots);
  slots[kPacked] = Tensor(nullptr, DType::U8, {packed_bytes(desc.n, desc.k)}, device);
  slots[kMultiplier] = Tensor(nullptr, DType::F32, {padded_rows(desc.n)}, device);
  slots[kCounters] = Tensor(nullptr, DType::I32, {w4a16_num_counters(desc.n)}, device);
  return slots;
}

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

void pack(const GemmDesc& desc,
          std::span<const LinearPart> parts,
          std::span<const Tensor> slots,
          Stream stream) {
  auto* native = static_cast<cudaStream_t>(stream.native);
  CUDA_CHECK(cudaSetDevice(stream.device.index));
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
    pack_nvfp4(source, row, desc.n, slots[kPacked].data, slots[kMultiplier].as<float>(), native);
    CUDA_CHECK(cudaStreamSynchronize(native));  // the scratch goes away
    row += n;
  }
  CHECK(row == desc.n, "parts have ", row, " rows, the matrix ", desc.n);
  CUDA_CHECK(cudaMemsetAsync(slots[kCounters].data, 0, slots[kCounters].size_bytes(), native));
}

size_t workspace_bytes(const GemmDesc& desc, int64_t max_rows) {
  return static_cast<size_t>(w4a16_workspace_bytes(max_rows, desc.n, desc.k));
}

int num_multiprocessors(Device device) {
  int count = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device.index));
  return count;
}

void run(const GemmDesc& desc, const GemmArgs& args, Stream stream) {
  const W4A16Args call{
      .x = args.x.data,
      .packed = args.packed[kPacked].data,
      .row_multiplier = args.packed[kMultiplier].as<float>(),
      .y = args.y.data,
      .bias = args.bias.data,
      .workspace = args.workspace.data,
      .counters = reinterpret_cast<uint32_t*>(args.packed[kCounters].as<int32_t>()),
      .residual = args.residual.data,
      .m = args.x.shape[0],
      .n = desc.n,
      .k = desc.k,
      .ldx = args.x.stride[0],
      .ldy = args.y.stride[0],
      .ldr = args.residual.empty() ? args.y.stride[0] : args.residual.stride[0],
      .y_is_f32 = args.y.dtype == DType::F32,
  };
  if (call.m == 0) {
    return;
  }
  const W4A16Plan plan = plan_w4a16(call.m, call.n, call.k, num_multiprocessors(stream.device));
  CHECK(args.workspace.empty() || args.workspace.size_bytes() >= plan.workspace_bytes,
        "workspace of ",
        args.workspace.size_bytes(),
        " bytes, needed ",
        plan.workspace_bytes);
  launch_w4a16_sm90(plan, call, static_cast<cudaStream_t>(stream.native));
}

}  // namespace

extern const GemmBackend kNvfp4W4a16Sm90;
const GemmBackend kNvfp4W4a16Sm90{
    .name = "nvfp4_w4a16_sm90",
    .family = "sm90",
    .opt_in = false,
    .supports = supports,
    .packed_layout = packed_layout,
    .pack = pack,
    .workspace_bytes = workspace_bytes,
    .run = run,
};

}  // namespace nibble
