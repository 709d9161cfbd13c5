#include "ops/decode_step.h"

#include <string>

#include "ops/selection.h"

namespace nibble {

Result<const DecodeStepBackend*> select_decode_step(const DecodeStepDesc& desc) {
  const std::string what = "a decode step of " + std::to_string(desc.layers) + " layers on " +
                           describe_device(desc.device.kind, desc.isa);
  return select_backend(decode_step_backends(), desc, "auto", what);
}

}  // namespace nibble
