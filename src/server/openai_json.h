// What the two OpenAI endpoints share: parsing of stream options and names, ids, usage, finish
// reasons.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <boost/json/object.hpp>

#include "server/generation.h"
#include "server/request_fields.h"

namespace nibble::server {

struct OpenAiOptions {
  std::string model;      // as the client said it; empty: this server's
  std::string rid;        // empty: made up
  std::string extra_key;  // of the prefix cache
  bool stream = false;
  bool include_usage = false;     // a last event with usage
  bool continuous_usage = false;  // usage in every event
};
Result<OpenAiOptions> read_openai_options(const JsonObject& body);

// What every object of an answer begins with.
struct OpenAiHead {
  std::string id;
  std::string model;
  int64_t created = 0;

  boost::json::object object(std::string_view kind) const;
};
OpenAiHead make_head(const ServerContext& context,
                     const OpenAiOptions& options,
                     std::string_view id_prefix);

boost::json::value finish_reason_json(const Sequence& sequence);  // null while running
boost::json::value matched_stop_json(const Sequence& sequence);
// Weight version and seed. OpenAI's metadata holds texts only, and a seed can have 64 bits.
boost::json::object metadata_json(const Generation& generation);
std::string make_tool_call_id();

// Request ids of the sequences: rid, or rid_0, rid_1, ... of several.
std::string sequence_rid(const OpenAiHead& head, size_t index, size_t count);

// Names that change the answer and are not implemented.
Result<void> refuse_unsupported_openai(const JsonObject& body);

}  // namespace nibble::server
