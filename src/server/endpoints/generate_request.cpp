#include "server/endpoints/generate_request.h"

#include <array>

namespace nibble::server {

namespace json = boost::json;

namespace {

// Of a field that is one value for all prompts or a list with one a prompt: the value of prompt i.
class PerPrompt {
 public:
  static Result<PerPrompt> from(const JsonObject& fields, std::string_view key, size_t count) {
    PerPrompt out;
    out.value_ = fields.find(key);
    out.path_ = fields.path_of(key);
    out.list_ = out.value_ != nullptr && out.value_->is_array();
    if (out.list_ && out.value_->get_array().size() != count) {
      return invalid("expected one value for each of the " + std::to_string(count) +
                         " prompts, found " + std::to_string(out.value_->get_array().size()),
                     out.path_);
    }
    return out;
  }
  const json::value* at(size_t i) const { return list_ ? &value_->get_array()[i] : value_; }
  std::string path(size_t i) const { return list_ ? path_ + "[" + std::to_string(i) + "]" : path_; }

 private:
  const json::value* value_ = nullptr;
  std::string path_;
  bool list_ = false;
};

Result<int64_t> as_int(const json::value* value,
                       const std::string& path,
                       int64_t fallback,
                       int64_t low,
                       int64_t high) {
  if (value == nullptr || value->is_null()) {
    return fallback;
  }
  if (!value->is_int64()) {
    return invalid("expected an integer, found " + std::string(json_kind_name(*value)), path);
  }
  const int64_t number = value->get_int64();
  if (number < low || number > high) {
    return invalid("expected an integer in [" + std::to_string(low) + ", " + std::to_string(high) +
                       "], found " + std::to_string(number),
                   path);
  }
  return number;
}

Result<bool> as_bool(const json::value* value, const std::string& path) {
  if (value == nullptr || value->is_null()) {
    return false;
  }
  if (!value->is_bool()) {
    return invalid("expected true or false, found " + std::string(json_kind_name(*value)), path);
  }
  return value->get_bool();
}

Result<void> read_sampling_list(const JsonObject& body,
                                const RequestLimits& limits,
                                size_t count,
                                std::vector<Sampling>& out) {
  const auto values = TRY(PerPrompt::from(body, "sampling_params", count));
  const json::object none;
  for (size_t i = 0; i < count; ++i) {
    const json::value* value = values.at(i);
    const JsonObject fields = value == nullptr || value->is_null()
                                  ? JsonObject(none, values.path(i))
                                  : TRY(JsonObject::from(*value, values.path(i)));
    out.push_back(TRY(read_sampling(fields, SamplingDialect::Native, limits)));
    if (out.back().n != out.front().n) {
      return invalid("n must be the same for all prompts of a request", values.path(i) + ".n");
    }
  }
  return {};
}

Result<std::vector<int32_t>> read_token_ids_logprob(const json::value* value,
                                                    const std::string& path,
                                                    size_t prompt,
                                                    bool batch,
                                                    const RequestLimits& limits) {
  if (value == nullptr || !value->is_array() || value->get_array().empty()) {
    if (value != nullptr && !value->is_array() && !value->is_null()) {
      return invalid(
          "expected a flat list of integers, found " + std::string(json_kind_name(*value)), path);
    }
    return std::vector<int32_t>{};
  }
  const json::array& array = value->get_array();
  if (!array[0].is_array()) {
    return read_token_ids(*value, path, limits);
  }
  if (!batch) {
    return invalid("expected a flat list of integers, found a list of lists", path);
  }
  if (prompt >= array.size()) {
    return invalid("expected one list for each prompt, found " + std::to_string(array.size()),
                   path);
  }
  return read_token_ids(array[prompt], path + "[" + std::to_string(prompt) + "]", limits);
}

Result<void> read_logprob_options(const JsonObject& body,
                                  const RequestLimits& limits,
                                  bool batch,
                                  size_t count,
                                  std::vector<engine::LogprobOptions>& out) {
  const auto wanted = TRY(PerPrompt::from(body, "return_logprob", count));
  const auto start = TRY(PerPrompt::from(body, "logprob_start_len", count));
  const auto top = TRY(PerPrompt::from(body, "top_logprobs_num", count));
  const json::value* ids = body.find("token_ids_logprob");
  for (size_t i = 0; i < count; ++i) {
    engine::LogprobOptions options;
    options.output = TRY(as_bool(wanted.at(i), wanted.path(i)));
    const int64_t prompt_start =
        TRY(as_int(start.at(i), start.path(i), -1, -1, limits.context_length));
    const int64_t num_top = TRY(as_int(top.at(i), top.path(i), 0, 0, limits.top_logprobs()));
    auto token_ids =
        TRY(read_token_ids_logprob(ids, body.path_of("token_ids_logprob"), i, batch, limits));
    if (static_cast<int64_t>(token_ids.size()) > limits.max_logprobs) {
      return invalid("expected at most " + std::to_string(limits.max_logprobs) +
                         " token ids, found " + std::to_string(token_ids.size()),
                     body.path_of("token_ids_logprob"));
    }
    if (options.output) {
      options.prompt_start = prompt_start;
      options.top = static_cast<int32_t>(num_top);
      options.token_ids = std::move(token_ids);
    }
    out.push_back(std::move(options));
  }
  return {};
}

Result<std::vector<std::string>> read_rids(const JsonObject& body, bool batch, size_t count) {
  std::vector<std::string> rids;
  const json::value* value = body.find("rid");
  if (value == nullptr) {
    return rids;
  }
  if (value->is_array()) {
    rids = TRY(body.find_string_list("rid")).value_or(std::move(rids));
    if (rids.size() != count) {
      return invalid("expected one id for each of the " + std::to_string(count) +
                         " prompts, found " + std::to_string(rids.size()),
                     body.path_of("rid"));
    }
  } else {
    const std::string rid = TRY(body.find_string("rid")).value_or("");
    for (size_t i = 0; i < count; ++i) {
      rids.push_back(batch ? rid + "_" + std::to_string(i) : rid);
    }
  }
  for (const std::string& rid : rids) {
    if (rid.empty()) {
      return invalid("must not be empty", body.path_of("rid"));
    }
  }
  return rids;
}

// Whether `value` is text or a list of texts, as opposed to ids.
bool is_text(const json::value& value) {
  return value.is_string() ||
         (value.is_array() && !value.get_array().empty() && value.get_array()[0].is_string());
}

// As upstream: where text and input_ids are both there, the ids are the prompt and the text is the
// client's note. A note of another number of prompts is refused: one of the two is a mistake.
Result<void> read_prompt_fields(const JsonObject& body,
                                const RequestLimits& limits,
                                GenerateRequest& request) {
  const json::value* text = body.find("text");
  const json::value* ids = body.find("input_ids");
  if (text == nullptr && ids == nullptr) {
    return invalid("one of text and input_ids is required");
  }
  if (ids != nullptr && is_text(*ids)) {
    return invalid("expected token ids, found text", "input_ids");
  }
  request.prompt_field = ids != nullptr ? "input_ids" : "text";
  request.prompts = TRY(read_prompts(ids != nullptr ? *ids : *text, request.prompt_field, limits));
  if (text == nullptr) {
    return {};
  }
  const Prompts& prompts = request.prompts;
  if (ids == nullptr && !std::holds_alternative<std::string>(prompts.prompts.front())) {
    return invalid("expected a string or a list of strings, found token ids", "text");
  }
  if (ids != nullptr && (!is_text(*text) || text->is_array() != prompts.batch ||
                         (prompts.batch && text->get_array().size() != prompts.prompts.size()))) {
    return invalid(
        "input_ids is the prompt where both are given, and text must then be a string for each of "
        "its prompts; send one of them",
        "text");
  }
  return {};
}

}  // namespace

Result<GenerateRequest> parse_generate_request(std::string_view body_text,
                                               const RequestLimits& limits) {
  const json::value value = TRY(parse_body(body_text));
  const JsonObject body = TRY(JsonObject::from(value, ""));
  static constexpr std::array<std::string_view, 14> kUnsupported = {"input_embeds",
                                                                    "image_data",
                                                                    "video_data",
                                                                    "audio_data",
                                                                    "lora_path",
                                                                    "custom_logit_processor",
                                                                    "session_id",
                                                                    "session_params",
                                                                    "return_hidden_states",
                                                                    "return_routed_experts",
                                                                    "return_entropy",
                                                                    "return_sampling_mask",
                                                                    "bootstrap_host",
                                                                    "bootstrap_room"};
  TRY(refuse_fields(body, kUnsupported));

  GenerateRequest request;
  TRY(read_prompt_fields(body, limits, request));
  const size_t count = request.prompts.prompts.size();
  TRY(read_sampling_list(body, limits, count, request.sampling));
  if (static_cast<int64_t>(count) * request.sampling.front().n > limits.max_sequences) {
    return invalid("prompts times n may be at most " + std::to_string(limits.max_sequences),
                   "sampling_params.n");
  }
  TRY(read_logprob_options(body, limits, request.prompts.batch, count, request.logprobs));
  request.rids = TRY(read_rids(body, request.prompts.batch, count));
  request.extra_key = TRY(read_extra_key(body));
  request.text_in_logprobs = TRY(body.find_bool("return_text_in_logprobs")).value_or(false);
  request.return_prompt_token_ids = TRY(body.find_bool("return_prompt_token_ids")).value_or(false);
  request.stream = TRY(body.find_bool("stream")).value_or(false);
  if (body.has("stream_interval")) {
    request.stream_interval = TRY(int_in_range(body, "stream_interval", 1, 1, 1 << 20));
  }
  const auto dp_rank = TRY(body.find_int("routed_dp_rank"));
  if (dp_rank && *dp_rank != 0) {
    return invalid("this server has one data-parallel rank, 0, found " + std::to_string(*dp_rank),
                   "routed_dp_rank");
  }
  return request;
}

}  // namespace nibble::server
