// The files of a checkpoint with their sizes and hashes, written by whoever writes the checkpoint
// and last of all, so that its presence says that the rest is complete. Where there is one, nothing
// that does not match it is loaded. docs/reload.md has the format. Only the reading is here; the
// files are compared with it in checkpoint/verify.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace nibble {

inline constexpr std::string_view kManifestName = "weights_manifest.json";

struct ManifestFile {
  std::string name;  // plain, inside the directory
  uint64_t size_bytes = 0;
  std::string sha256;  // 64 lower-case hex digits; empty: not given
};

struct Manifest {
  std::string weight_version;       // empty: not given
  std::vector<ManifestFile> files;  // at least one, sorted by name

  const ManifestFile* find(std::string_view name) const;  // nullptr when it is not listed
};

Result<Manifest> parse_manifest(const JsonObject& root);
// Of a checkpoint directory; nullopt when it has none.
Result<std::optional<Manifest>> read_manifest(const std::string& directory);

}  // namespace nibble
