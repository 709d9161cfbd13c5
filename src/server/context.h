// What endpoints work with: one object a server, alive as long as any request.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/config.h"
#include "server/live_requests.h"
#include "server/metrics.h"
#include "server/request_fields.h"
#include "server/task_pool.h"
#include "text/template/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace nibble::server {

// Immutable after load.
struct TextModel {
  text::Tokenizer tokenizer;
  std::optional<text::ChatTemplate> chat_template;
};

enum class ServerState : uint8_t { Starting, Serving, Draining };

struct ServerContext {
  ServerContext(ServerConfig server_config, engine::Engine& model, const TextModel* text_model);

  const ServerConfig config;
  engine::Engine& engine;
  const TextModel* text;  // nullptr: ids only
  const RequestLimits limits;
  const std::optional<int32_t> end_token;  // of the chat template, see chat_prompt.h
  const std::chrono::system_clock::time_point started = std::chrono::system_clock::now();
  LiveRequests live;
  Metrics metrics;
  std::atomic<ServerState> state{ServerState::Starting};
  std::mutex snapshot_mutex;
  std::vector<engine::WeightChecksum> weights_snapshot;  // guarded by snapshot_mutex

  const text::Tokenizer* tokenizer() const { return text != nullptr ? &text->tokenizer : nullptr; }
  // As they are now: a weight update changes the path, and the name where it was not given.
  std::string model_path() const { return engine.weights().model_path; }
  std::string served_model_name() const;
  // The seed of a request that gave none.
  uint64_t make_seed();

 private:
  std::atomic<uint64_t> num_seeds_{0};
  uint64_t first_seed_;

 public:  // last: tasks use everything above, and are gone before it
  TaskPool pool;
  TaskPool admin_pool{4};  // for what blocks: weight updates, cache flushes
};

}  // namespace nibble::server
