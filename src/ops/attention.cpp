#include "ops/attention.h"

#include "ops/selection.h"

namespace nibble {

namespace {

std::string describe(const AttentionDesc& desc) {
  return "attention of " + std::to_string(desc.heads) + " heads over " +
         std::to_string(desc.kv_heads) + " of " + std::to_string(desc.head_dim) + " on " +
         describe_device(desc.device, desc.isa);
}

}  // namespace

Result<const AttentionBackend*> select_attention(const AttentionDesc& desc,
                                                 std::string_view wanted) {
  return select_backend(attention_backends(), desc, wanted, describe(desc));
}

}  // namespace nibble
