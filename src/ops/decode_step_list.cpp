// Every backend of whole decode steps: those of CUDA builds, as a CPU has nothing to gain.
#include "ops/decode_step.h"

namespace nibble {

std::span<const DecodeStepBackend* const> cuda_decode_steps();  // empty in backends/none

std::span<const DecodeStepBackend* const> decode_step_backends() { return cuda_decode_steps(); }

}  // namespace nibble
