// nvfp4_w4a16_sm90 as a GEMM backend: slots, packing and dispatch. With Epilogue::SwiGlu the two
// parts are packed row by row in turn and y is [m, n / 2]. The kernel is in
// nvfp4_w4a16_sm90.cuh, its plans in nvfp4_w4a16_plan.cpp.
#include <string>

#include <cuda_runtime_api.h>

#include "backends/cuda/gemm_nvfp4.h"
#include "backends/cuda/nvfp4_w4a16_sm90.h"
#include "backends/cuda/scale_columns.h"
#include "ops/gemm.h"

namespace nibble {

namespace {

using namespace nibble::cuda;  // NOLINT(google-build-using-namespace): the folder's own helpers

Support supports(const GemmDesc& desc) { return supports_nvfp4(desc, kW4A16, Needs::Hopper); }

void run(const GemmDesc& desc, const GemmArgs& given, Stream stream) {
  auto* native = static_cast<cudaStream_t>(stream.native);
  const GemmArgs args = apply_pre_quant(desc, given, given.packed[kW4A16PreQuant], native);
  const W4A16Args call = w4a16_args(desc, args);
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
    .packed_layout = w4a16_layout,
    .pack = pack_w4a16,
    .workspace_bytes = w4a16_gemm_workspace,
    .run = run,
    .packs_from_device = true,
};

}  // namespace nibble
