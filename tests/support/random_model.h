// A checkpoint of random BF16 weights with the shapes that a test asks for, where those of the
// golden models are too small.
#pragma once

#include <cstdint>
#include <string>

namespace nibble::test {

struct RandomModel {
  int64_t layers = 3;
  int64_t hidden = 256;
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t head_dim = 64;
  int64_t inner = 512;
  int64_t vocab = 512;
  // Qwen3 has norms of heads, Qwen2 a bias of q, k and v, Llama neither.
  std::string architecture = "Qwen3ForCausalLM";
  uint64_t seed = 1;
};

// config.json and model.safetensors, into an existing directory.
void write_random_model(const RandomModel& model, const std::string& directory);

}  // namespace nibble::test
