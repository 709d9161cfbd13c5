// What the weights are: checksums of what is in memory, numbers behind a name.
#include <mutex>
#include <string>
#include <vector>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "base/random.h"
#include "server/endpoints/endpoints.h"
#include "server/endpoints/weight_replies.h"

namespace nibble::server {

namespace json = boost::json;

namespace {

constexpr int64_t kDefaultRows = 100;           // upstream's
constexpr size_t kMaxValues = size_t{4} << 20;  // of one answer: about 80 MB of JSON

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

// Row-major values as nested lists, from dimension `axis` on.
json::value nested(const engine::NamedWeight& weight, size_t axis, size_t& next) {
  if (axis == weight.shape.size()) {
    return weight.values[next++];
  }
  const int64_t count = axis == 0 ? weight.rows : weight.shape[axis];
  json::array list;
  list.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    list.push_back(nested(weight, axis + 1, next));
  }
  return list;
}

}  // namespace

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

Result<void> handle_get_weights_by_name(Call& call) {
  const json::value value = TRY(optional_body(call));
  const JsonObject body = TRY(JsonObject::from(value, ""));
  std::string name =
      TRY(body.find_string("name")).value_or(call.request().query_value("name").value_or(""));
  if (name.empty()) {
    return invalid("required: the name of a tensor", "name");
  }
  const int64_t rows = TRY(body.find_int("truncate_size")).value_or(kDefaultRows);
  if (rows < 0) {
    return invalid(fmt::format("expected at least 0, found {}", rows), "truncate_size");
  }
  const auto weight = call.context.engine.weight_by_name(name, rows);
  if (!weight) {
    Error error = weight.error();
    if (error.code == ErrorCode::NotFound) {
      error.code = ErrorCode::InvalidArgument;  // 400, as upstream: the route was found
    }
    return tl::unexpected(std::move(error));
  }
  if (weight->values.size() > kMaxValues) {
    return fail(
        ErrorCode::TooLarge,
        fmt::format(
            "{} values asked for, at most {} are answered", weight->values.size(), kMaxValues),
        "truncate_size");
  }
  size_t next = 0;
  json::value list = nested(*weight, 0, next);
  if (!list.is_array()) {  // a scalar
    list = json::array{std::move(list)};
  }
  respond_json(call, list);
  return {};
}

}  // namespace nibble::server
