// The engine: one thread that owns scheduler, KV pool, sequences and the model runner. submit() and
// abort() may be called from any thread; everything else happens on the engine thread, and results
// arrive through the request's sink there.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/manifest.h"
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
  int64_t linear_bytes = 0;  // of them, in matrices that a step of one token reads
  double load_seconds = 0;
  std::vector<int32_t> eos_token_ids;
  std::string quantization;      // "nvfp4 (w4a16)", "bf16"
  std::string fp4_gemm_kernels;  // chosen, "a, b"; empty: the model has no such layer
  std::string moe_kernels;
  std::string attention_kernels;
  std::string step_kernel;               // of decode steps of one token; empty: op by op
  std::vector<std::string> layer_table;  // the per-layer scheme and kernel table as printed
  struct Segment {
    std::string_view name;
    int64_t size_bytes = 0;
    bool pinned = false;  // of the host; else of the device
  };
  std::vector<Segment> memory;  // what the engine holds for its life
};

struct Load {  // a snapshot
  int64_t running = 0;
  int64_t waiting = 0;
  int64_t used_tokens = 0;
  int64_t max_total_tokens = 0;
  int64_t generated_tokens = 0;  // since start
  double last_decode_tokens_per_second = 0;
  int64_t early_steps = 0;  // decode steps that began before the one before was over; since start
};

// ---- weight lifecycle ----

// What happens to requests that run when new weights are ready.
enum class RunningPolicy : uint8_t {
  Wait,   // the commit waits until all accepted requests are done; later ones queue behind it
  Abort,  // they end with FinishReason::Abort
  Swap,   // the commit happens between two of their tokens; they go on with their old KV
};

// "wait", "abort" or "swap".
inline Result<RunningPolicy> parse_running_policy(std::string_view text) {
  if (text == "wait") {
    return RunningPolicy::Wait;
  }
  if (text == "abort") {
    return RunningPolicy::Abort;
  }
  if (text == "swap") {
    return RunningPolicy::Swap;
  }
  return invalid("expected wait, abort or swap, found '" + std::string(text) + "'", "running");
}

struct WeightUpdate {
  std::string model_path;
  bool flush_cache = true;  // false: entries of old weights stay, unused, until evicted
  // Without a flush: prefixes that old weights computed go on being found. Answers that use one say
  // so (Output::prefix_versions).
  bool reuse_prefixes = false;
  RunningPolicy running = RunningPolicy::Wait;
  std::optional<std::string> weight_version;  // default: "default" or the number of the update
  bool allow_in_place = false;                // when there is no spare memory for staging
  std::optional<Manifest> manifest;           // default: the directory's own, where it has one
  bool require_manifest = false;
};

struct WeightUpdateReport {
  std::string weight_version;
  int64_t bytes = 0;
  int64_t tensors_read = 0;
  std::vector<std::string> unused_tensors;  // in the checkpoint, of no use to this model
  int64_t files_verified = 0;               // against a manifest
  int64_t requests_aborted = 0;
  double staging_seconds = 0;  // the old weights served meanwhile
  double wait_seconds = 0;     // for running requests
  double commit_seconds = 0;   // nothing ran meanwhile
  bool in_place = false;
};

enum class PauseMode : uint8_t {
  Abort,    // running and waiting requests end with FinishReason::Abort
  Retract,  // running requests lose their KV and wait; recomputed after resume()
  InPlace,  // running requests keep their KV and go on later
};

enum class MemoryTag : uint8_t { Weights, KvCache, CudaGraph };

// docs/engine.md has the diagram. Moves that the state does not allow fail with WrongState, the
// state and the allowed moves; a failed move changes nothing.
enum class EngineState : uint8_t { Serving, Paused, Committing, Released, NeedsWeights, Failed };
inline std::string_view to_string(EngineState state) {
  switch (state) {
    case EngineState::Serving:
      return "serving";
    case EngineState::Paused:
      return "paused";
    case EngineState::Committing:
      return "committing";
    case EngineState::Released:
      return "released";
    case EngineState::NeedsWeights:
      return "needs-weights";
    case EngineState::Failed:
      return "failed";
  }
  return "unknown";
}

inline std::string_view to_string(MemoryTag tag) {
  switch (tag) {
    case MemoryTag::Weights:
      return "weights";
    case MemoryTag::KvCache:
      return "kv_cache";
    case MemoryTag::CudaGraph:
      return "cuda_graph";
  }
  return "unknown";
}

struct WeightsInfo {  // a snapshot
  std::string model_path;
  std::string weight_version;
  int64_t num_updates = 0;
  bool staging = false;
  EngineState state = EngineState::Serving;
  std::vector<MemoryTag> released;
  bool valid = true;  // the weights are those of a checkpoint
};

struct WeightChecksum {
  std::string name;
  std::string hex;  // 16 digits
};

struct NamedWeight {
  std::vector<int64_t> shape;  // of the whole tensor
  std::vector<float> values;   // its first rows, dequantised, row-major
  int64_t rows = 0;
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

  // ---- lifecycle; these block, and must not be called from a sink ----
  virtual WeightsInfo weights() const = 0;
  // Stages on the calling thread, commits between two steps. One at a time.
  virtual Result<WeightUpdateReport> update_weights(const WeightUpdate& update) = 0;
  // Ends the reading of an update that is being staged; nothing has changed then.
  virtual void cancel_update() {}
  virtual Result<void> set_weight_version(const std::string& version) = 0;
  virtual Result<void> pause(PauseMode mode) = 0;  // new requests queue until resume()
  virtual Result<void> resume() = 0;
  // Drops every cached prefix once nothing runs; waits up to timeout_seconds for that.
  virtual Result<void> flush_cache(double timeout_seconds) = 0;
  // Empty: all tags. Needs an idle engine; afterwards requests are refused until all is resumed
  // and, after Weights, new weights came.
  virtual Result<void> release_memory(const std::vector<MemoryTag>& tags) = 0;
  virtual Result<void> resume_memory(const std::vector<MemoryTag>& tags) = 0;
  // Of every parameter as it is in memory now.
  virtual Result<std::vector<WeightChecksum>> weight_checksums() = 0;
  // By its name in the checkpoint, as stored in the checkpoint that was loaded last.
  virtual Result<NamedWeight> weight_by_name(const std::string& name, int64_t /*max_rows*/) {
    return unsupported("this engine does not show its weights", name);
  }
};

}  // namespace nibble::engine
