// nvfp4_w4a16_sm90: entry and the kernels of plain output; the kernel is in nvfp4_w4a16_sm90.cuh.
#include "backends/cuda/nvfp4_w4a16_launch.cuh"

namespace nibble::cuda {

void launch_w4a16_sm90(const W4A16Plan& plan, const W4A16Args& args, CUstream_st* stream) {
  check_w4a16_args(plan, args);
  if (args.m == 0 || args.n == 0) {
    return;
  }
  if (plan.whole_rows > 0) {
    W4A16Plan whole;
    CHECK(plan.whole_rows < args.m && plan_w4a16_as(W4A16Tile::Tokens128Whole,
                                                    plan.whole_rows,
                                                    args.n,
                                                    args.k,
                                                    multiprocessors(),
                                                    &whole),
          "whole tiles for ",
          plan.whole_rows,
          " rows");
    W4A16Args first = args;
    first.m = plan.whole_rows;
    launch_w4a16_sm90(whole, first, stream);
    W4A16Plan last = plan;
    last.whole_rows = 0;
    W4A16Args rest = args;
    const int64_t size = args.y_is_f32 ? 4 : 2;
    rest.m -= plan.whole_rows;
    rest.x = static_cast<const uint8_t*>(args.x) + plan.whole_rows * args.ldx * 2;
    rest.y = static_cast<uint8_t*>(args.y) + plan.whole_rows * args.ldy * size;
    if (args.residual != nullptr) {
      rest.residual = static_cast<const uint8_t*>(args.residual) + plan.whole_rows * args.ldr * 2;
    }
    if (args.token_multiplier != nullptr) {
      rest.token_multiplier += plan.whole_rows;
    }
    return launch_w4a16_sm90(last, rest, stream);
  }
  if (plan.tile == W4A16Tile::Strips8) {
    return launch_w4a16_sm90_strips(args, stream);
  }
  if (args.swiglu) {
    return launch_w4a16_sm90_swiglu(plan, args, stream);
  }
  if (args.token_multiplier != nullptr) {
    return launch_w4a16_sm90_scaled(plan, args, stream);
  }
  launch_tile<W4A16Output::Plain>(plan, args, stream);
}

}  // namespace nibble::cuda
