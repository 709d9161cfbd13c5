#include "ops/attention.h"

#include "ops/selection.h"

namespace nibble {

namespace {

std::string describe(const AttentionDesc& desc) {
  const bool decode = desc.phase == AttentionPhase::Decode;
  return std::string(decode ? "decode" : "prefill") + " attention of " +
         std::to_string(desc.heads) + " heads over " + std::to_string(desc.kv_heads) + " of " +
         std::to_string(desc.head_dim) + " on " + describe_device(desc.device, desc.isa);
}

}  // namespace

Result<const AttentionBackend*> select_attention(const AttentionDesc& desc,
                                                 std::string_view wanted) {
  return select_backend(attention_backends(), desc, wanted, describe(desc));
}

}  // namespace nibble
