#include "model/registry.h"

#include <array>

namespace nibble::model {

std::unique_ptr<Model> make_llama(Builder& builder);  // arch/llama.cpp
std::unique_ptr<Model> make_qwen2(Builder& builder);  // arch/qwen2.cpp
std::unique_ptr<Model> make_qwen3(Builder& builder);  // arch/qwen3.cpp

std::span<const Architecture> architectures() {
  static constexpr std::array<Architecture, 3> kAll{{
      {"LlamaForCausalLM", make_llama},
      {"Qwen2ForCausalLM", make_qwen2},
      {"Qwen3ForCausalLM", make_qwen3},
  }};
  return kAll;
}

}  // namespace nibble::model
