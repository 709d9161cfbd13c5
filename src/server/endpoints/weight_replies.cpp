#include "server/endpoints/weight_replies.h"

#include <utility>

#include "server/utf8.h"

namespace nibble::server {

namespace json = boost::json;

Result<json::value> optional_body(Call& call) {
  const std::string& text = call.request().body;
  return text.empty() ? json::value(json::object{}) : TRY(parse_body(text));
}

void respond_outcome(Call& call, const Result<std::string>& outcome, json::object extra) {
  extra["success"] = outcome.has_value();
  extra["message"] = to_valid_utf8(outcome ? *outcome : outcome.error().text());
  call.exchange->respond({outcome ? 200 : 400, "application/json", json::serialize(extra), {}});
}

}  // namespace nibble::server
