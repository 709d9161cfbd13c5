// POST /abort_request: by id prefix, or everything. Unknown ids are ignored, as upstream does.
#include <boost/json.hpp>

#include "server/endpoints/endpoints.h"

namespace nibble::server {

Result<void> handle_abort_request(Call& call) {
  const std::string& text = call.request().body;
  const boost::json::value value =
      text.empty() ? boost::json::value(boost::json::object{}) : TRY(parse_body(text));
  const JsonObject body = TRY(JsonObject::from(value, ""));
  const std::string rid = TRY(body.find_string("rid")).value_or("");
  if (TRY(body.find_bool("abort_all")).value_or(false)) {
    call.context.live.cancel_all();
  } else {
    call.context.live.cancel_prefix(rid);
  }
  call.exchange->respond({200, "", "", {}});
  return {};
}

}  // namespace nibble::server
