// The small-op tables, best first for each device, one line each. The objects live in backends/.
#include <vector>

#include "base/check.h"
#include "ops/kernels.h"

namespace nibble {

extern const SmallOps kCpuSmallOpsAvx512;
extern const SmallOps kCpuSmallOpsAvx2;
extern const SmallOps kCpuSmallOpsScalar;

std::span<const SmallOps* const> cuda_small_ops();  // empty in backends/none

std::span<const SmallOps* const> compute_list() {
  static const std::vector<const SmallOps*> kAll = [] {
    std::vector<const SmallOps*> all{&kCpuSmallOpsAvx512, &kCpuSmallOpsAvx2, &kCpuSmallOpsScalar};
    for (const SmallOps* ops : cuda_small_ops()) {
      all.push_back(ops);
    }
    return all;
  }();
  return kAll;
}

const SmallOps& small_ops(Device::Kind device, int isa) {
  const SmallOps* found = nullptr;
  for (const SmallOps* ops : compute_list()) {
    if (found == nullptr && ops->device == device && ops->isa <= isa) {
      found = ops;
    }
  }
  CHECK(found != nullptr, "this build has no small operations for ", to_string(device));
  return *found;
}

}  // namespace nibble
