#include "model/registry.h"

#include <array>

namespace nibble::model {

std::unique_ptr<Model> make_llama(Builder& builder);      // arch/llama.cpp
std::unique_ptr<Model> make_mixtral(Builder& builder);    // arch/mixtral.cpp
std::unique_ptr<Model> make_qwen2(Builder& builder);      // arch/qwen2.cpp
std::unique_ptr<Model> make_qwen3(Builder& builder);      // arch/qwen3.cpp
std::unique_ptr<Model> make_qwen3_moe(Builder& builder);  // arch/qwen3_moe.cpp

std::span<const Architecture> architectures() {
  static constexpr std::array<Architecture, 5> kAll{{
      {"LlamaForCausalLM", make_llama},
      {"MixtralForCausalLM", make_mixtral},
      {"Qwen2ForCausalLM", make_qwen2},
      {"Qwen3ForCausalLM", make_qwen3},
      {"Qwen3MoeForCausalLM", make_qwen3_moe},
  }};
  return kAll;
}

}  // namespace nibble::model
