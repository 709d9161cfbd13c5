#include "backends/cuda/cuda_check.h"

#include <string>

#include "base/error.h"

namespace nibble::cuda {

void throw_cuda_error(cudaError_t error, const char* call, const char* file, int line) {
  throw SystemError(std::string(call) + " failed: " + cudaGetErrorString(error) + " (" + file +
                    ":" + std::to_string(line) + ")");
}

}  // namespace nibble::cuda
