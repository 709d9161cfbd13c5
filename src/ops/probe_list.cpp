// The probe of every device, one line each. The objects live in backends/.
#include "ops/probe.h"

namespace nibble {

extern const MachineProbe kCpuProbe;

std::span<const MachineProbe* const> cuda_probes();  // empty in backends/none

const MachineProbe* machine_probe(Device::Kind device) {
  if (device == kCpuProbe.device) {
    return &kCpuProbe;
  }
  for (const MachineProbe* probe : cuda_probes()) {
    if (probe->device == device) {
      return probe;
    }
  }
  return nullptr;
}

}  // namespace nibble
