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
  std::string refused;
  std::string would_work;
  bool name_known = wanted == "auto";
  for (const AttentionBackend* backend : attention_backends()) {
    const Support support = backend->supports(desc);
    if (wanted == "auto" || wanted == backend->name) {
      name_known = true;
      if (support.ok) {
        return backend;
      }
      detail::add_refusal(refused, backend->name, support.why_not);
    } else if (support.ok) {
      would_work += (would_work.empty() ? "" : ", ") + std::string(backend->name);
    }
  }
  return detail::no_backend(describe(desc), wanted, name_known, refused, would_work);
}

}  // namespace nibble
