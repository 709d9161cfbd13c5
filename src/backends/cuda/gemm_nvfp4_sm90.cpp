// nvfp4_w4a16_sm90 as a GEMM backend: slots, packing and dispatch. With Epilogue::SwiGlu the two
// parts are packed row by row in turn and y is [m, n / 2]. The kernel is in
// nvfp4_w4a16_sm90.cuh, its plans in nvfp4_w4a16_plan.cpp.
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/gemm_nvfp4.h"
#include "backends/cuda/nvfp4_layout.h"
#include "backends/cuda/nvfp4_w4a16_sm90.h"
#include "backends/cuda/scale_columns.h"
#include "ops/gemm.h"

namespace nibble {

namespace {

using namespace nibble::cuda;  // NOLINT(google-build-using-namespace): the folder's own helpers

// Slots: codes and scales, row multipliers f32, counters of shared tiles (zero between calls), the
// pre_quant_scale. The counters belong to the matrix, so one matrix must not be used on two streams
// at once.
enum Slot { kPacked, kMultiplier, kCounters, kPreQuant, kNumSlots };

std::vector<Tensor> packed_layout(const GemmDesc& desc) {
  const Device device{desc.device, 0};
  std::vector<Tensor> slots(kNumSlots);
  slots[kPacked] = Tensor(nullptr, DType::U8, {packed_bytes(desc.n, desc.k)}, device);
  slots[kMultiplier] = Tensor(nullptr, DType::F32, {padded_rows(desc.n)}, device);
  slots[kCounters] = Tensor(nullptr, DType::I32, {w4a16_num_counters(desc.n)}, device);
  slots[kPreQuant] = pre_quant_slot(desc);
  return slots;
}

void pack(const GemmDesc& desc,
          std::span<const LinearPart> parts,
          std::span<const Tensor> slots,
          Stream stream) {
  pack_parts(desc, parts, slots[kPacked], slots[kMultiplier], stream);
  CUDA_CHECK(cudaMemsetAsync(slots[kCounters].data,
                             0,
                             static_cast<size_t>(slots[kCounters].size_bytes()),
                             static_cast<cudaStream_t>(stream.native)));
  pack_pre_quant(desc, parts.front(), slots[kPreQuant], static_cast<cudaStream_t>(stream.native));
}

Support supports(const GemmDesc& desc) { return supports_nvfp4_sm90(desc, kW4A16); }

size_t workspace_bytes(const GemmDesc& desc, int64_t max_rows) {
  return static_cast<size_t>(pre_quant_bytes(desc, max_rows) +
                             w4a16_workspace_bytes(max_rows, desc.n, desc.k));
}

void run(const GemmDesc& desc, const GemmArgs& given, Stream stream) {
  auto* native = static_cast<cudaStream_t>(stream.native);
  const GemmArgs args = apply_pre_quant(desc, given, given.packed[kPreQuant], native);
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
      .swiglu = desc.epilogue == Epilogue::SwiGlu,
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
  launch_w4a16_sm90(plan, call, native);
}

}  // namespace

std::string nvfp4_w4a16_sm90_variant(const GemmDesc& desc, int64_t rows);
std::string nvfp4_w4a16_sm90_variant(const GemmDesc& desc, int64_t rows) {
  return describe(plan_w4a16(rows, desc.n, desc.k, num_multiprocessors({Device::Kind::Cuda, 0})));
}

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
