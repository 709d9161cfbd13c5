// Every experts backend and router, in order of preference: one line each. The objects live in
// backends/.
#include <vector>

#include "base/check.h"
#include "ops/experts.h"

namespace nibble {

extern const ExpertsBackend kExpertsW4a16Avx512Bf16;
extern const ExpertsBackend kExpertsW4a16Avx512;
extern const ExpertsBackend kExpertsW4a16Avx2;
extern const ExpertsBackend kExpertsW4a4Vnni;
extern const ExpertsBackend kExpertsW4a4Avx2;
extern const ExpertsBackend kExpertsBf16Avx512Bf16;
extern const ExpertsBackend kExpertsBf16Avx512;
extern const ExpertsBackend kExpertsBf16Avx2;
extern const ExpertsBackend kCpuReferenceExperts;
extern const RouterBackend kCpuRouter;

std::span<const ExpertsBackend* const> cuda_experts_backends();  // empty in backends/none
std::span<const RouterBackend* const> cuda_routers();            // empty in backends/none

std::span<const ExpertsBackend* const> experts_backends() {
  static const std::vector<const ExpertsBackend*> kAll = [] {
    std::vector<const ExpertsBackend*> all;
    for (const ExpertsBackend* backend : cuda_experts_backends()) {
      all.push_back(backend);
    }
    for (const ExpertsBackend* backend : {
             &kExpertsW4a16Avx512,
             &kExpertsW4a16Avx512Bf16,
             &kExpertsW4a16Avx2,
             &kExpertsW4a4Vnni,
             &kExpertsW4a4Avx2,
             &kExpertsBf16Avx512Bf16,
             &kExpertsBf16Avx512,
             &kExpertsBf16Avx2,
             &kCpuReferenceExperts,
         }) {
      all.push_back(backend);
    }
    return all;
  }();
  return kAll;
}

const RouterBackend* find_router(Device::Kind device) {
  const RouterBackend* found = device == Device::Kind::Cpu ? &kCpuRouter : nullptr;
  for (const RouterBackend* candidate : cuda_routers()) {
    if (candidate->device == device) {
      found = candidate;
    }
  }
  return found;
}

const RouterBackend& router(Device::Kind device) {
  const RouterBackend* found = find_router(device);
  CHECK(found != nullptr, "this build has no router for ", to_string(device));
  return *found;
}

}  // namespace nibble
