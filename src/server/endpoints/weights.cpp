// The weight lifecycle over HTTP (SGLang's routes): update, pause, flush, release and resume. The
// engine decides; these translate. They block, so they run on the admin threads.
#include <algorithm>
#include <optional>

#include <boost/json.hpp>

#include "base/file.h"
#include "base/manifest.h"
#include "server/endpoints/endpoints.h"
#include "server/endpoints/weight_replies.h"

namespace nibble::server {

namespace json = boost::json;
using engine::MemoryTag;

namespace {

constexpr size_t kMaxNamesListed = 16;

Result<engine::RunningPolicy> read_policy(const JsonObject& body) {
  if (TRY(body.find_bool("abort_all_requests")).value_or(false)) {
    return engine::RunningPolicy::Abort;
  }
  const std::string running = TRY(body.find_string("running")).value_or("wait");
  return engine::parse_running_policy(running);
}

// Fields of upstream's that change nothing here: graphs stay valid because addresses do, there is
// no allocator cache, an update neither pauses nor continues, and steps are the trainer's own.
Result<void> check_ignored_fields(const JsonObject& body) {
  for (const char* field :
       {"is_async", "keep_pause", "recapture_cuda_graph", "torch_empty_cache"}) {
    TRY(body.find_bool(field));
  }
  TRY(body.find_int("token_step"));
  return {};
}

// Ours lists files; upstream's holds tensor metadata that its default loader ignores too.
Result<std::optional<Manifest>> read_manifest_field(const JsonObject& body) {
  const auto manifest = TRY(body.find_object("manifest"));
  if (!manifest || !manifest->has("files")) {
    return std::nullopt;
  }
  return std::optional<Manifest>(TRY(parse_manifest(*manifest)));
}

Result<engine::WeightUpdate> read_update(const JsonObject& body) {
  engine::WeightUpdate update;
  update.model_path = TRY(body.get_string("model_path"));
  update.flush_cache = TRY(body.find_bool("flush_cache")).value_or(true);
  update.weight_version = TRY(body.find_string("weight_version"));
  update.allow_in_place = TRY(body.find_bool("allow_in_place")).value_or(false);
  update.running = TRY(read_policy(body));
  update.reuse_prefixes = TRY(body.find_bool("reuse_prefixes")).value_or(false);
  update.manifest = TRY(read_manifest_field(body));
  update.require_manifest = TRY(body.find_bool("require_manifest")).value_or(false);
  TRY(check_ignored_fields(body));
  const std::string format = TRY(body.find_string("load_format")).value_or("auto");
  if (format != "auto" && format != "safetensors") {
    return invalid(
        "Failed to get model loader: load_format: expected auto or safetensors, found '" + format +
        "'");
  }
  return update;
}

// Clients match on how these messages begin.
Result<std::string> update_from_disk(Call& call, json::object& report_json) {
  const json::value value = TRY(parse_body(call.request().body));
  const JsonObject body = TRY(JsonObject::from(value, ""));
  const engine::WeightUpdate update = TRY(read_update(body));
  if (!directory_exists(update.model_path)) {
    return invalid("Failed to get weights iterator: no such directory: " + update.model_path);
  }
  const auto report = call.context.engine.update_weights(update);
  if (!report) {
    const engine::EngineState state = call.context.engine.weights().state;
    const bool serves = state != engine::EngineState::NeedsWeights &&
                        state != engine::EngineState::Released &&
                        state != engine::EngineState::Failed;
    const bool nothing_there =
        report.error().code == ErrorCode::NotFound && report.error().where == update.model_path;
    return fail(
        report.error().code,
        (nothing_there ? "Failed to get weights iterator: " : "Failed to update weights: ") +
            report.error().text() + (serves ? ". The old weights go on serving." : ""));
  }
  report_json["weight_version"] = report->weight_version;
  report_json["bytes"] = report->bytes;
  report_json["tensors_read"] = report->tensors_read;
  report_json["tensors_unused"] = report->unused_tensors.size();
  json::array unused;
  for (size_t i = 0; i < std::min(report->unused_tensors.size(), kMaxNamesListed); ++i) {
    unused.push_back(json::value(report->unused_tensors[i]));
  }
  report_json["unused_tensors"] = std::move(unused);
  report_json["files_verified"] = report->files_verified;
  report_json["num_aborted_requests"] = report->requests_aborted;
  report_json["staging_seconds"] = report->staging_seconds;
  report_json["wait_seconds"] = report->wait_seconds;
  report_json["commit_seconds"] = report->commit_seconds;
  report_json["in_place"] = report->in_place;
  std::string message = "Succeeded to update model weights.";
  if (update.weight_version) {
    message += " Weight version updated to " + *update.weight_version + ".";
  }
  return message;
}

Result<std::vector<MemoryTag>> read_tags(const JsonObject& body) {
  std::vector<MemoryTag> tags;
  const auto names = TRY(body.find_string_list("tags")).value_or(std::vector<std::string>{});
  for (const std::string& name : names) {
    if (name == "weights") {
      tags.push_back(MemoryTag::Weights);
    } else if (name == "kv_cache") {
      tags.push_back(MemoryTag::KvCache);
    } else if (name == "cuda_graph") {
      tags.push_back(MemoryTag::CudaGraph);
    } else {
      return invalid("expected weights, kv_cache or cuda_graph, found '" + name + "'", "tags");
    }
  }
  return tags;
}

}  // namespace

Result<void> handle_update_weights_from_disk(Call& call) {
  json::object extra{{"num_paused_requests", 0}};
  const auto outcome = update_from_disk(call, extra);
  respond_outcome(call, outcome, std::move(extra));
  return {};
}

Result<void> handle_update_weight_version(Call& call) {
  const json::value value = TRY(parse_body(call.request().body));
  const JsonObject body = TRY(JsonObject::from(value, ""));
  const std::string version = TRY(body.get_string("new_version"));
  if (TRY(body.find_bool("abort_all_requests")).value_or(true)) {
    call.context.live.cancel_all();
  }
  TRY(call.context.engine.set_weight_version(version));
  respond_outcome(
      call, std::string("Weight version updated to " + version), {{"new_version", version}});
  return {};
}

Result<void> handle_pause_generation(Call& call) {
  const json::value value = TRY(optional_body(call));
  const JsonObject body = TRY(JsonObject::from(value, ""));
  const std::string mode = TRY(body.find_string("mode")).value_or("abort");
  engine::PauseMode pause = engine::PauseMode::Abort;
  if (mode == "retract") {
    pause = engine::PauseMode::Retract;
  } else if (mode == "in_place") {
    pause = engine::PauseMode::InPlace;
  } else if (mode != "abort") {
    return invalid("expected abort, retract or in_place, found '" + mode + "'", "mode");
  }
  TRY(call.context.engine.pause(pause));
  respond_json(call,
               json::object{{"message", "Generation paused successfully."}, {"status", "ok"}});
  return {};
}

Result<void> handle_continue_generation(Call& call) {
  TRY(call.context.engine.resume());
  respond_json(call,
               json::object{{"message", "Generation continued successfully."}, {"status", "ok"}});
  return {};
}

Result<void> handle_flush_cache(Call& call) {
  double timeout_seconds = 0;
  if (const auto text = call.request().query_value("timeout")) {
    char* end = nullptr;
    timeout_seconds = std::strtod(text->c_str(), &end);
    if (text->empty() || *end != '\0' || !(timeout_seconds >= 0) || timeout_seconds > 3600) {
      return invalid("expected seconds in [0, 3600], found '" + *text + "'", "timeout");
    }
  }
  const auto flushed = call.context.engine.flush_cache(timeout_seconds);
  call.exchange->respond(
      {flushed ? 200 : 400,
       "text/plain; charset=utf-8",
       flushed ? "Cache flushed.\n" : "Failed to flush the cache: " + flushed.error().text() + "\n",
       {}});
  return {};
}

Result<void> handle_release_memory(Call& call) {
  const json::value value = TRY(optional_body(call));
  const JsonObject body = TRY(JsonObject::from(value, ""));
  TRY(call.context.engine.release_memory(TRY(read_tags(body))));
  respond_json(call, nullptr);
  return {};
}

Result<void> handle_resume_memory(Call& call) {
  const json::value value = TRY(optional_body(call));
  const JsonObject body = TRY(JsonObject::from(value, ""));
  TRY(call.context.engine.resume_memory(TRY(read_tags(body))));
  respond_json(call, nullptr);
  return {};
}

}  // namespace nibble::server
