// nvfp4_w4a16_sm80: entry and the kernels of plain output; the kernel is in nvfp4_w4a16_sm80.cuh.
#include "backends/cuda/nvfp4_w4a16_sm80_launch.cuh"

namespace nibble::cuda {

void launch_w4a16_sm80(const W4A16Plan& plan, const W4A16Args& args, CUstream_st* stream) {
  check_w4a16_args(plan, args);
  CHECK(args.token_multiplier == nullptr && plan.whole_rows == 0 && plan.units_per_block == 1,
        "not a call for nvfp4_w4a16_sm80");
  if (args.m == 0 || args.n == 0) {
    return;
  }
  if (args.swiglu) {
    return launch_w4a16_sm80_swiglu(plan, args, stream);
  }
  launch_sm80_tile<W4A16Output::Plain>(plan, args, stream);
}

}  // namespace nibble::cuda
