// The kernels of nvfp4_w4a16_sm80 with SwiGLU in the epilogue.
#include "backends/cuda/nvfp4_w4a16_sm80_launch.cuh"

namespace nibble::cuda {

void launch_w4a16_sm80_swiglu(const W4A16Plan& plan, const W4A16Args& args, CUstream_st* stream) {
  launch_sm80_tile<W4A16Output::SwiGlu>(plan, args, stream);
}

}  // namespace nibble::cuda
