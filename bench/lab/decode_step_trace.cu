// decode_step_trace: when the blocks of decode_step_sm90 are where, over two layers in the middle
// of a step of step_bench's model. Its own copy of the kernel, with timestamps (%globaltimer); the
// last warp of a block to come by leaves the time that is printed.
//
// decode_step_trace [CONTEXT]

#define NIBBLE_STEP_TRACE
#include "backends/cuda/decode_step_sm90.cu"  // NOLINT(bugprone-suspicious-include): on purpose
#include "bench/gpu/step_model.cuh"

namespace nibble::bench {
namespace {

int run(int64_t context) {
  CUDA_CHECK(cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking));
  stream = {kGpu, native};
  const Model model = make_model(kShapes[0], 1);
  const Step step = make_step(model, 1, 1, context, DType::BF16);
  const FusedStep fused = make_fused_step(model, step);
  for (int i = 0; i < 20; ++i) {
    fused.run();
  }
  CUDA_CHECK(cudaStreamSynchronize(native));
  constexpr int kPhases = 2 * cuda::kNumStepProducts;
  static uint64_t times[256][kPhases][cuda::kTracedEvents];
  CUDA_CHECK(cudaMemcpyFromSymbol(times, cuda::step_trace, sizeof(times)));
  const auto blocks = static_cast<size_t>(cuda::num_multiprocessors(kGpu));
  uint64_t begin = ~uint64_t{0};
  for (size_t b = 0; b < blocks; ++b) {
    begin = std::min(begin, times[b][0][0]);
  }
  const char* products[] = {"qkv", "o", "gate_up", "down"};
  const char* events[] = {
      "comes", "has row", "has x", "warp done", "block done", "handed over", "attended"};
  for (int phase = 0; phase < kPhases; ++phase) {
    for (int event = 0; event < cuda::kTracedEvents; ++event) {
      std::vector<double> us;
      for (size_t b = 0; b < blocks; ++b) {
        if (times[b][phase][event] >= begin) {
          us.push_back(static_cast<double>(times[b][phase][event] - begin) * 1e-3);
        }
      }
      if (us.empty()) {
        continue;
      }
      std::sort(us.begin(), us.end());
      std::printf("%-8s %-12s %4zu blocks  first %7.2f  median %7.2f  last %7.2f us\n",
                  products[phase % 4],
                  events[event],
                  us.size(),
                  us.front(),
                  us[us.size() / 2],
                  us.back());
    }
  }
  return 0;
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  return nibble::bench::run(argc > 1 ? std::strtoll(argv[1], nullptr, 10) : 128);
}
