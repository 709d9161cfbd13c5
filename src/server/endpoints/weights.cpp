// The weight lifecycle over HTTP (SGLang's routes): update, pause, flush, release and resume. The
// engine decides; these translate. They block, so they run on the admin threads.
#include <algorithm>
#include <mutex>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "base/file.h"
#include "base/random.h"
#include "server/endpoints/endpoints.h"

namespace nibble::server {

namespace json = boost::json;
using engine::MemoryTag;

namespace {

Result<json::value> optional_body(Call& call) {
  const std::string& text = call.request().body;
  return text.empty() ? json::value(json::object{}) : TRY(parse_body(text));
}

void respond_outcome(Call& call, const Result<std::string>& outcome, json::object extra = {}) {
  extra["success"] = outcome.has_value();
  extra["message"] = outcome ? *outcome : outcome.error().text();
  call.exchange->respond({outcome ? 200 : 400, "application/json", json::serialize(extra), {}});
}

Result<engine::RunningPolicy> read_policy(const JsonObject& body) {
  if (TRY(body.find_bool("abort_all_requests")).value_or(false)) {
    return engine::RunningPolicy::Abort;
  }
  const std::string running = TRY(body.find_string("running")).value_or("wait");
  if (running == "wait") {
    return engine::RunningPolicy::Wait;
  }
  if (running == "abort") {
    return engine::RunningPolicy::Abort;
  }
  if (running == "swap") {
    return engine::RunningPolicy::Swap;
  }
  return invalid("expected wait, abort or swap, found '" + running + "'", "running");
}

Result<engine::WeightUpdate> read_update(const JsonObject& body) {
  engine::WeightUpdate update;
  update.model_path = TRY(body.get_string("model_path"));
  update.flush_cache = TRY(body.find_bool("flush_cache")).value_or(true);
  update.weight_version = TRY(body.find_string("weight_version"));
  update.allow_in_place = TRY(body.find_bool("allow_in_place")).value_or(false);
  update.running = TRY(read_policy(body));
  const std::string format = TRY(body.find_string("load_format")).value_or("auto");
  if (format != "auto" && format != "safetensors") {
    return invalid(
        "Failed to get model loader: expected auto or safetensors, found '" + format + "'",
        "load_format");
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
    return fail(report.error().code,
                "Failed to update weights: " + report.error().text() +
                    (serves ? ". The old weights go on serving." : ""));
  }
  report_json["weight_version"] = report->weight_version;
  report_json["bytes"] = report->bytes;
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

// One number for a list of checksums, whatever their order in memory.
std::string combine(const std::vector<engine::WeightChecksum>& sums) {
  uint64_t hash = 0;
  for (const engine::WeightChecksum& sum : sums) {
    uint64_t one = 0;
    for (const char c : sum.name + '\0' + sum.hex) {
      one = mix64(one ^ static_cast<unsigned char>(c));
    }
    hash += one;  // commutative
  }
  return fmt::format("{:016x}", mix64(hash));
}

json::object checksum_report(const std::vector<engine::WeightChecksum>& sums) {
  json::object checksums;
  for (const engine::WeightChecksum& sum : sums) {
    checksums[sum.name] = sum.hex;
  }
  const std::string total = combine(sums);
  json::object rank{{"checksums", std::move(checksums)},
                    {"per_gpu_checksum", total},
                    {"parallelism_info",
                     {{"tp_rank", 0},
                      {"tp_size", 1},
                      {"dp_rank", 0},
                      {"dp_size", 1},
                      {"pp_rank", 0},
                      {"pp_size", 1},
                      {"rank", 0},
                      {"size", 1}}}};
  json::array ranks;
  ranks.push_back(std::move(rank));
  return {{"ranks", std::move(ranks)}, {"per_engine_checksum", total}};
}

Result<std::string> compare_checksums(const std::vector<engine::WeightChecksum>& before,
                                      const std::vector<engine::WeightChecksum>& now) {
  if (before.empty()) {
    return fail(ErrorCode::WrongState, "there is no snapshot to compare with");
  }
  if (before.size() != now.size()) {
    return invalid("the number of tensors changed from " + std::to_string(before.size()) + " to " +
                   std::to_string(now.size()));
  }
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i].name != now[i].name || before[i].hex != now[i].hex) {
      return invalid("differs from the snapshot (checksums; max_abs_err unknown)", now[i].name);
    }
  }
  return std::string("all tensors equal the snapshot");
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

Result<void> handle_weights_checker(Call& call) {
  const json::value value = TRY(optional_body(call));
  const JsonObject body = TRY(JsonObject::from(value, ""));
  const std::string action = TRY(body.find_string("action")).value_or("checksum");
  if (action != "checksum" && action != "snapshot" && action != "compare") {
    respond_outcome(
        call,
        invalid("Unsupported action '" + action + "': expected checksum, snapshot or compare"));
    return {};
  }
  const auto sums = call.context.engine.weight_checksums();
  if (!sums) {
    respond_outcome(call, tl::unexpected(sums.error()));
    return {};
  }
  const std::lock_guard lock(call.context.snapshot_mutex);
  if (action == "checksum") {
    respond_outcome(call, std::string("checksums computed"), checksum_report(*sums));
  } else if (action == "snapshot") {
    call.context.weights_snapshot = *sums;
    respond_outcome(call, std::string("snapshot of the checksums taken"));
  } else {
    respond_outcome(call, compare_checksums(call.context.weights_snapshot, *sums));
  }
  return {};
}

}  // namespace nibble::server
