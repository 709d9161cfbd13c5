#include "server/context.h"

#include <algorithm>
#include <random>

#include "base/random.h"
#include "server/chat_prompt.h"

namespace nibble::server {

namespace {

constexpr uint64_t kDeterministicSeed = 42;  // upstream's, for requests without a seed

RequestLimits make_limits(const ServerConfig& config,
                          const engine::ModelInfo& model,
                          bool has_tokenizer) {
  RequestLimits limits;
  limits.vocab_size = model.vocab_size;
  limits.context_length = model.context_length;
  limits.has_tokenizer = has_tokenizer;
  limits.defaults = config.sampling_defaults;
  return limits;
}

uint64_t system_seed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

}  // namespace

ServerContext::ServerContext(ServerConfig server_config,
                             engine::Engine& model,
                             const TextModel* text_model)
    : config(std::move(server_config)),
      engine(model),
      text(text_model),
      limits(make_limits(config, model.info(), text_model != nullptr)),
      end_token(text_model != nullptr && text_model->chat_template
                    ? server::end_token(
                          *text_model->chat_template, text_model->tokenizer, limits.vocab_size)
                    : std::nullopt),
      metrics(served_model_name()),
      first_seed_(config.random_seed.value_or(system_seed())),
      pool(std::max(1, config.num_text_threads)) {}

std::string ServerContext::served_model_name() const {
  return config.served_model_name.empty() ? model_path() : config.served_model_name;
}

uint64_t ServerContext::make_seed() {
  if (config.deterministic_seeds) {
    return kDeterministicSeed;
  }
  // 53 bits: clients that read JSON numbers as doubles can send it back unchanged.
  return random_u64(first_seed_, num_seeds_.fetch_add(1)) >> 11;
}

}  // namespace nibble::server
