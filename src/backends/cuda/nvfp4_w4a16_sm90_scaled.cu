// The kernels of nvfp4_w4a16_sm90 with a multiplier a token.
#include "backends/cuda/nvfp4_w4a16_launch.cuh"

namespace nibble::cuda {

void launch_w4a16_sm90_scaled(const W4A16Plan& plan, const W4A16Args& args, CUstream_st* stream) {
  launch_tile<W4A16Output::TokenScaled>(plan, args, stream);
}

}  // namespace nibble::cuda
