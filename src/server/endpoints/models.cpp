// GET /v1/models and /v1/models/{id}.
#include <chrono>

#include <boost/json.hpp>

#include "server/endpoints/endpoints.h"
#include "server/utf8.h"

namespace nibble::server {

namespace json = boost::json;

namespace {

json::object model_card(const ServerContext& context) {
  const std::string name = context.served_model_name();
  return {{"id", name},
          {"object", "model"},
          {"created", std::chrono::system_clock::to_time_t(context.started)},
          {"owned_by", "nibble"},
          {"root", name},
          {"parent", nullptr},
          {"max_model_len", context.limits.context_length}};
}

}  // namespace

Result<void> handle_models(Call& call) {
  json::array models;
  models.push_back(model_card(call.context));
  respond_json(call, json::object{{"object", "list"}, {"data", std::move(models)}});
  return {};
}

Result<void> handle_model(Call& call) {
  const std::string id = call.request().path.substr(std::string_view("/v1/models/").size());
  if (id == call.context.served_model_name()) {
    respond_json(call, model_card(call.context));
    return {};
  }
  const json::object error{{"message", "The model '" + to_valid_utf8(id) + "' does not exist"},
                           {"type", "invalid_request_error"},
                           {"param", "model"},
                           {"code", "model_not_found"}};
  call.exchange->respond(
      {404, "application/json", json::serialize(json::object{{"error", error}}), {}});
  return {};
}

}  // namespace nibble::server
