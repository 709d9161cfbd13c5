#include "support/random_model.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <stdexcept>
#include <vector>

#include <boost/json.hpp>

#include "base/number_formats.h"
#include "base/random.h"
#include "checkpoint/safetensors.h"

namespace nibble::test {

namespace {

struct Values {
  Shape shape;
  float mean = 0.0f;
  float spread = 0.0f;  // uniform in [mean - spread, mean + spread)
};

std::map<std::string, Values> tensors_of(const RandomModel& m) {
  std::map<std::string, Values> tensors;
  const auto matrix = [&](const std::string& name, int64_t n, int64_t k) {
    tensors[name + ".weight"] = {{n, k}, 0.0f, std::sqrt(3.0f / static_cast<float>(k))};
  };
  const auto norm = [&](const std::string& name, int64_t width) {
    tensors[name + ".weight"] = {{width}, 1.0f, 0.2f};
  };
  tensors["model.embed_tokens.weight"] = {{m.vocab, m.hidden}, 0.0f, 1.0f};
  tensors["lm_head.weight"] = {{m.vocab, m.hidden}, 0.0f, 0.3f};
  norm("model.norm", m.hidden);
  for (int64_t l = 0; l < m.layers; ++l) {
    const std::string prefix = "model.layers." + std::to_string(l) + ".";
    norm(prefix + "input_layernorm", m.hidden);
    norm(prefix + "post_attention_layernorm", m.hidden);
    matrix(prefix + "self_attn.q_proj", m.heads * m.head_dim, m.hidden);
    matrix(prefix + "self_attn.k_proj", m.kv_heads * m.head_dim, m.hidden);
    matrix(prefix + "self_attn.v_proj", m.kv_heads * m.head_dim, m.hidden);
    matrix(prefix + "self_attn.o_proj", m.hidden, m.heads * m.head_dim);
    matrix(prefix + "mlp.gate_proj", m.inner, m.hidden);
    matrix(prefix + "mlp.up_proj", m.inner, m.hidden);
    matrix(prefix + "mlp.down_proj", m.hidden, m.inner);
    if (m.architecture == "Qwen3ForCausalLM") {
      norm(prefix + "self_attn.q_norm", m.head_dim);
      norm(prefix + "self_attn.k_norm", m.head_dim);
    } else if (m.architecture == "Qwen2ForCausalLM") {
      for (const auto& [part, heads] :
           {std::pair{"q", m.heads}, {"k", m.kv_heads}, {"v", m.kv_heads}}) {
        tensors[prefix + "self_attn." + part + "_proj.bias"] = {{heads * m.head_dim}, 0.0f, 0.5f};
      }
    }
  }
  return tensors;
}

}  // namespace

void write_random_model(const RandomModel& model, const std::string& directory) {
  const boost::json::object config{{"architectures", {model.architecture}},
                                   {"model_type", "random"},
                                   {"hidden_act", "silu"},
                                   {"vocab_size", model.vocab},
                                   {"eos_token_id", 2},
                                   {"hidden_size", model.hidden},
                                   {"intermediate_size", model.inner},
                                   {"num_hidden_layers", model.layers},
                                   {"num_attention_heads", model.heads},
                                   {"num_key_value_heads", model.kv_heads},
                                   {"head_dim", model.head_dim},
                                   {"rms_norm_eps", 1e-6},
                                   {"rope_theta", 10000.0},
                                   {"max_position_embeddings", 2048},
                                   {"tie_word_embeddings", false}};
  std::ofstream(directory + "/config.json") << boost::json::serialize(config);

  const std::map<std::string, Values> tensors = tensors_of(model);
  std::vector<checkpoint::SafetensorsWriter::Entry> entries;
  entries.reserve(tensors.size());
  for (const auto& [name, values] : tensors) {
    entries.push_back({name, DType::BF16, values.shape});
  }
  auto writer = checkpoint::SafetensorsWriter::create(
      directory + "/model.safetensors", entries, {{"format", "pt"}});
  if (!writer) {
    throw std::runtime_error(writer.error().text());
  }
  uint64_t counter = 0;
  for (const auto& [name, values] : tensors) {
    std::vector<std::byte> bytes(static_cast<size_t>(num_elements(values.shape)) * 2);
    for (size_t i = 0; i < bytes.size(); i += 2) {
      const auto unit = static_cast<float>(random_unit(model.seed, counter++));
      const uint16_t value = float_to_bf16(values.mean + values.spread * (2.0f * unit - 1.0f));
      std::memcpy(bytes.data() + i, &value, sizeof value);
    }
    writer->append(name, bytes);
  }
  writer->finish();
}

}  // namespace nibble::test
