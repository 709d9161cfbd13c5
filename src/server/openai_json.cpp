#include "server/openai_json.h"

#include <array>
#include <chrono>

#include "server/http/message.h"
#include "server/version_json.h"

namespace nibble::server {

namespace json = boost::json;
using engine::FinishReason;

Result<OpenAiOptions> read_openai_options(const JsonObject& body) {
  OpenAiOptions options;
  options.model = TRY(body.find_string("model")).value_or("");
  options.rid = TRY(body.find_string("rid")).value_or("");
  options.extra_key = TRY(read_extra_key(body));
  options.stream = TRY(body.find_bool("stream")).value_or(false);
  if (const auto stream_options = TRY(body.find_object("stream_options"))) {
    options.include_usage = TRY(stream_options->find_bool("include_usage")).value_or(false);
    options.continuous_usage =
        TRY(stream_options->find_bool("continuous_usage_stats")).value_or(false);
  }
  return options;
}

json::object OpenAiHead::object(std::string_view kind) const {
  return {{"id", id}, {"object", kind}, {"created", created}, {"model", model}};
}

OpenAiHead make_head(const ServerContext& context,
                     const OpenAiOptions& options,
                     std::string_view id_prefix) {
  OpenAiHead head;
  head.id = options.rid.empty() ? std::string(id_prefix) + http::random_id() : options.rid;
  head.model = options.model.empty() ? context.served_model_name() : options.model;
  head.created = std::chrono::duration_cast<std::chrono::seconds>(
                     std::chrono::system_clock::now().time_since_epoch())
                     .count();
  return head;
}

json::value finish_reason_json(const Sequence& sequence) {
  switch (sequence.finish) {
    case FinishReason::None:
      return nullptr;
    case FinishReason::Length:
      return "length";
    case FinishReason::StopToken:
    case FinishReason::StopString:
      return "stop";
    case FinishReason::Abort:
    case FinishReason::Error:
      return "abort";
  }
  return nullptr;
}

json::value matched_stop_json(const Sequence& sequence) {
  if (sequence.finish == FinishReason::StopToken) {
    return sequence.matched_token;
  }
  if (sequence.finish == FinishReason::StopString) {
    return json::value(sequence.text.matched_stop());
  }
  return nullptr;
}

json::object metadata_json(const Generation& generation) {
  const Sequence& first = generation.sequences().front();
  json::object metadata{{"seed", std::to_string(first.spec.sampling.seed)}};
  add_weight_versions(first, metadata);
  for (auto& [key, value] : metadata) {
    if (!value.is_string()) {
      value = json::serialize(value);  // the protocol's metadata holds strings only
    }
  }
  return metadata;
}

std::string make_tool_call_id() {
  constexpr size_t kDigits = 24;
  return "call_" + http::random_id().substr(0, kDigits);
}

std::string sequence_rid(const OpenAiHead& head, size_t index, size_t count) {
  return count == 1 ? head.id : head.id + "_" + std::to_string(index);
}

Result<void> refuse_unsupported_openai(const JsonObject& body) {
  static constexpr std::array<std::string_view, 14> kUnsupported = {"lora_path",
                                                                    "session_id",
                                                                    "session_params",
                                                                    "custom_logit_processor",
                                                                    "return_hidden_states",
                                                                    "bootstrap_room",
                                                                    "suffix",
                                                                    "functions",
                                                                    "function_call",
                                                                    "chat_template",
                                                                    "guided_json",
                                                                    "guided_regex",
                                                                    "guided_choice",
                                                                    "guided_grammar"};
  TRY(refuse_fields(body, kUnsupported));
  if (const auto format = TRY(body.find_object("response_format"))) {
    const std::string type = TRY(format->get_string("type"));
    if (type != "text") {
      return invalid("'" + type + "' is not supported by this server", format->path_of("type"));
    }
  }
  return {};
}

}  // namespace nibble::server
