#include "checkpoint/shard_list.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <dirent.h>

#include "base/file.h"
#include "base/json.h"

namespace nibble::checkpoint {

namespace {

constexpr std::string_view kSuffix = ".safetensors";
constexpr std::array<std::string_view, 2> kStems = {"model", "consolidated"};
// The largest published checkpoints have a few hundred.
constexpr size_t kMaxFiles = 16384;
constexpr JsonLimits kIndexLimits{.max_bytes = size_t{256} << 20, .max_depth = 8};

Result<ShardList> read_index(const std::string& directory, const std::string& index) {
  ShardList list;
  list.index = index;
  const auto value = TRY(parse_json_file(directory + "/" + index, kIndexLimits));
  const JsonObject root = TRY(JsonObject::from(value, index));
  const JsonObject weight_map = TRY(root.get_object("weight_map"));
  std::set<std::string> files;
  for (const auto& member : weight_map.raw()) {
    std::string file = TRY(weight_map.get_string(member.key()));
    const bool plain = file.find('/') == std::string::npos &&
                       file.find('\\') == std::string::npos &&
                       file.find('\0') == std::string::npos && !file.starts_with('.') &&
                       file.size() < 256 && file.ends_with(kSuffix);
    if (!plain) {
      return invalid("'" + file.substr(0, 200) +
                         "' is not the plain name of a safetensors file in this directory",
                     weight_map.path_of(member.key()));
    }
    files.insert(file);
    if (files.size() > kMaxFiles) {
      return invalid("names more than " + std::to_string(kMaxFiles) + " files", weight_map.path());
    }
    list.weight_map.emplace(member.key(), std::move(file));
  }
  if (files.empty()) {
    return invalid("names no files", weight_map.path());
  }
  list.files.assign(files.begin(), files.end());
  return list;
}

// "model-00002-of-00005.safetensors" -> 5
std::optional<int> shard_count(std::string_view name, std::string_view stem) {
  if (!name.starts_with(std::string(stem) + "-") || !name.ends_with(kSuffix)) {
    return std::nullopt;
  }
  const size_t of = name.find("-of-");
  if (of == std::string_view::npos) {
    return std::nullopt;
  }
  const std::string_view digits = name.substr(of + 4, name.size() - of - 4 - kSuffix.size());
  int count = 0;
  const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
  if (status != std::errc{} || end != digits.data() + digits.size()) {
    return std::nullopt;
  }
  return count;
}

std::string join(const std::vector<std::string>& names) {
  constexpr size_t kMaxListed = 12;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMaxListed); ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  return names.empty() ? "none"
                       : text + (names.size() > kMaxListed
                                     ? " and " + std::to_string(names.size() - kMaxListed) + " more"
                                     : "");
}

}  // namespace

Result<ShardList> list_shards(const std::string& directory) {
  std::vector<std::string> found;
  // What cannot be listed has no weight files: the message below names the directory.
  // Not std::filesystem: its iterator ends the process when memory runs out (libstdc++ 12).
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(directory.c_str()), ::closedir);
  while (const dirent* entry = listing ? ::readdir(listing.get()) : nullptr) {
    std::string name = entry->d_name;
    if (name.ends_with(kSuffix) || name.ends_with(".safetensors.index.json")) {
      found.push_back(std::move(name));
    }
  }
  std::sort(found.begin(), found.end());
  for (std::string_view stem : kStems) {
    const std::string file = std::string(stem) + std::string(kSuffix);
    if (file_exists(directory + "/" + file + ".index.json")) {
      return read_index(directory, file + ".index.json");
    }
    if (file_exists(directory + "/" + file)) {
      return ShardList{{file}, {}, {}};
    }
    ShardList shards;
    int count = 0;
    for (const std::string& name : found) {
      if (const auto of = shard_count(name, stem)) {
        count = std::max(count, *of);
        shards.files.push_back(name);
      }
    }
    if (count > 0 && shards.files.size() == static_cast<size_t>(count)) {
      return shards;
    }
    if (count > 0) {
      return invalid("there is no index, and of " + std::to_string(count) + " shards only " +
                         std::to_string(shards.files.size()) + " are here: " + join(shards.files),
                     directory);
    }
  }
  return fail(ErrorCode::NotFound,
              "no weights: looked for model.safetensors.index.json, model.safetensors, "
              "model-00001-of-0000N.safetensors and the same with 'consolidated'; found " +
                  join(found),
              directory);
}

}  // namespace nibble::checkpoint
