// The engine: one thread that owns scheduler, KV pool, sequences and the model runner. submit() and
// abort() may be called from any thread; everything else happens on the engine thread, and results
// arrive through the request's sink there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/config.h"
#include "engine/request.h"

namespace nibble::engine {

struct ModelInfo {  // fixed after load
  std::string model_path;
  std::string architecture;
  std::string model_type;
  int64_t vocab_size = 0;
  int64_t context_length = 0;
  int64_t max_total_tokens = 0;  // KV capacity in tokens
  int64_t weight_bytes = 0;
  double load_seconds = 0;
  std::vector<int32_t> eos_token_ids;
  std::string quantization;              // "nvfp4 (w4a16)", "bf16"
  std::vector<std::string> layer_table;  // the per-layer scheme and kernel table as printed
};

struct Load {  // a snapshot
  int64_t running = 0;
  int64_t waiting = 0;
  int64_t used_tokens = 0;
  int64_t max_total_tokens = 0;
  int64_t generated_tokens = 0;  // since start
  double last_decode_tokens_per_second = 0;
};

class Engine {
 public:
  // Loads the model; Result for a bad checkpoint or configuration, SystemError for the machine.
  static Result<std::unique_ptr<Engine>> create(const EngineConfig& config);
  virtual ~Engine() = default;  // aborts what runs, joins the thread

  virtual const ModelInfo& info() const = 0;
  // Refuses what can never run (empty prompt, ids outside the vocabulary, too long) with the
  // field's name. Otherwise the sink gets at least one Output, the last one with finish != None.
  virtual Result<RequestId> submit(Request request) = 0;
  virtual void abort(RequestId id) = 0;  // unknown ids are ignored
  virtual void abort_all() = 0;
  virtual Load load() const = 0;
  virtual bool healthy() const = 0;  // false after the environment failed
};

}  // namespace nibble::engine
