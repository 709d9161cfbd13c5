#include "base/manifest.h"

#include <algorithm>

#include "base/file.h"

namespace nibble {

namespace {

constexpr JsonLimits kLimits{.max_bytes = size_t{16} << 20, .max_depth = 8};
constexpr int64_t kFormat = 1;

bool is_plain_name(std::string_view name) {
  return !name.empty() && name.size() < 256 && !name.starts_with('.') &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

bool is_sha256(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace

const ManifestFile* Manifest::find(std::string_view name) const {
  const auto found =
      std::lower_bound(files.begin(), files.end(), name, [](const ManifestFile& file, auto wanted) {
        return file.name < wanted;
      });
  return found == files.end() || found->name != name ? nullptr : &*found;
}

Result<Manifest> parse_manifest(const JsonObject& root) {
  const int64_t format = TRY(root.find_int("format")).value_or(kFormat);
  if (format != kFormat) {
    return unsupported("expected 1, found " + std::to_string(format), root.path_of("format"));
  }
  Manifest manifest;
  manifest.weight_version = TRY(root.find_string("weight_version")).value_or("");
  const JsonObject files = TRY(root.get_object("files"));
  for (const auto& member : files.raw()) {
    const std::string name(member.key());
    if (!is_plain_name(name)) {
      return invalid("expected the plain name of a file in this directory", files.path_of(name));
    }
    const JsonObject entry = TRY(files.get_object(name));
    const int64_t size_bytes = TRY(entry.get_int("size"));
    if (size_bytes < 0) {
      return invalid("expected at least 0, found " + std::to_string(size_bytes),
                     entry.path_of("size"));
    }
    std::string sha256 = TRY(entry.find_string("sha256")).value_or("");
    if (!sha256.empty() && !is_sha256(sha256)) {
      return invalid("expected 64 lower-case hex digits, found '" + sha256.substr(0, 80) + "'",
                     entry.path_of("sha256"));
    }
    manifest.files.push_back({name, static_cast<uint64_t>(size_bytes), std::move(sha256)});
  }
  if (manifest.files.empty()) {
    return invalid("names no files", files.path());
  }
  std::sort(manifest.files.begin(), manifest.files.end(), [](const auto& a, const auto& b) {
    return a.name < b.name;
  });
  return manifest;
}

Result<std::optional<Manifest>> read_manifest(const std::string& directory) {
  const std::string path = directory + "/" + std::string(kManifestName);
  if (!file_exists(path)) {
    return std::nullopt;
  }
  const boost::json::value value = TRY(parse_json_file(path, kLimits));
  const JsonObject root = TRY(JsonObject::from(value, std::string(kManifestName)));
  return std::optional<Manifest>(TRY(parse_manifest(root)));
}

}  // namespace nibble
