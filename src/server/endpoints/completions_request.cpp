#include "server/endpoints/completions_request.h"

namespace nibble::server {

namespace json = boost::json;

Result<CompletionRequest> parse_completion_request(std::string_view body_text,
                                                   const RequestLimits& limits) {
  const json::value value = TRY(parse_body(body_text));
  const JsonObject body = TRY(JsonObject::from(value, ""));
  TRY(refuse_unsupported_openai(body));
  CompletionRequest request;
  request.options = TRY(read_openai_options(body));
  const json::value* prompt = body.find("prompt");
  if (prompt == nullptr) {
    return invalid("required but missing", "prompt");
  }
  request.prompts = TRY(read_prompts(*prompt, "prompt", limits));
  request.sampling = TRY(read_sampling(body, SamplingDialect::Completions, limits));
  if (static_cast<int64_t>(request.prompts.prompts.size()) * request.sampling.n >
      limits.max_sequences) {
    return invalid("prompts times n may be at most " + std::to_string(limits.max_sequences), "n");
  }
  request.echo = TRY(body.find_bool("echo")).value_or(false);
  const json::value* logprobs = body.find("logprobs");
  if (logprobs != nullptr && !(logprobs->is_bool() && !logprobs->get_bool())) {
    request.logprobs = TRY(int_in_range(body, "logprobs", 0, 0, limits.top_logprobs()));
  }
  return request;
}

}  // namespace nibble::server
