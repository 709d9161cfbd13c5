// What the CUDA backends do not offer yet: these lists are empty in every build.
#include <span>

#include "ops/experts.h"

namespace nibble {

std::span<const ExpertsBackend* const> cuda_experts_backends();
std::span<const RouterBackend* const> cuda_routers();

std::span<const ExpertsBackend* const> cuda_experts_backends() { return {}; }
std::span<const RouterBackend* const> cuda_routers() { return {}; }

}  // namespace nibble
