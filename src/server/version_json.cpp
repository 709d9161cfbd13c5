#include "server/version_json.h"

#include <utility>

#include <boost/json.hpp>

namespace nibble::server {

namespace json = boost::json;

void add_weight_versions(const Sequence& sequence, json::object& meta) {
  meta["weight_version"] = sequence.weight_version;
  json::array versions;
  for (const auto& [version, count] : sequence.weight_versions) {
    versions.push_back(json::object{{"weight_version", version}, {"tokens", count}});
  }
  meta["weight_versions"] = std::move(versions);
  if (!sequence.prefix_versions.empty()) {
    meta["prefix_weight_versions"] =
        json::array(sequence.prefix_versions.begin(), sequence.prefix_versions.end());
  }
}

}  // namespace nibble::server
