#include "ops/experts.h"

#include "ops/selection.h"

namespace nibble {

std::string describe(const ExpertsDesc& desc) {
  return to_string(desc.mode) + " " + std::to_string(desc.experts) + " experts (" +
         std::to_string(desc.topk) + " a token) " + std::to_string(desc.hidden) + "x" +
         std::to_string(desc.ffn) + " on " + describe_device(desc.device, desc.isa);
}

Result<const ExpertsBackend*> select_experts(const ExpertsDesc& desc, std::string_view wanted) {
  return select_backend(experts_backends(), desc, wanted, describe(desc));
}

}  // namespace nibble
