// Every attention backend, in order of preference: one line each. The objects live in backends/.
#include <vector>

#include "ops/attention.h"

namespace nibble {

extern const AttentionBackend kCpuAvx512Attention;
extern const AttentionBackend kCpuAvx2Attention;
extern const AttentionBackend kCpuReferenceAttention;

std::span<const AttentionBackend* const> cuda_attention_backends();  // empty in backends/none

std::span<const AttentionBackend* const> attention_backends() {
  static const std::vector<const AttentionBackend*> kAll = [] {
    std::vector<const AttentionBackend*> all;
    for (const AttentionBackend* backend : cuda_attention_backends()) {
      all.push_back(backend);
    }
    for (const AttentionBackend* backend : {
             &kCpuAvx512Attention,
             &kCpuAvx2Attention,
             &kCpuReferenceAttention,
         }) {
      all.push_back(backend);
    }
    return all;
  }();
  return kAll;
}

}  // namespace nibble
