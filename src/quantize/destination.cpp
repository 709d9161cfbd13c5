#include "quantize/destination.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <sys/stat.h>

#include "base/file.h"
#include "quantize/budget.h"
#include "quantize/work_folder.h"

namespace nibble::quantize {

namespace fs = std::filesystem;

namespace {

// Hidden states lie there twice while those of the next layer are written.
constexpr uint64_t kHiddenCopies = 2;
constexpr double kBitsPerByte = 8;

Result<void> require_free(const fs::path& disk, uint64_t bytes, const std::string& destination) {
  std::error_code error;
  const auto space = fs::space(disk, error);
  if (!error && space.available < bytes) {
    return invalid(fmt::format("no space left: needs {} bytes (finished layers and the result lie "
                               "there at the same time), the disk has {} free",
                               bytes,
                               space.available),
                   destination);
  }
  return {};
}

// Such a destination gets a copy of the result.
bool is_own_disk(const fs::path& folder, const fs::path& parent) {
  struct stat inner{};
  struct stat outer{};
  return ::stat(folder.c_str(), &inner) == 0 && ::stat(parent.c_str(), &outer) == 0 &&
         inner.st_dev != outer.st_dev;
}

}  // namespace

std::string partial_folder(const std::string& destination) { return destination + ".partial"; }

std::string plain_destination(const std::string& destination) {
  std::string plain = destination;
  while (plain.size() > 1 && plain.ends_with('/')) {
    plain.pop_back();
  }
  const fs::path path(plain);
  if (std::find(path.begin(), path.end(), "..") == path.end()) {
    return plain;
  }
  std::error_code error;
  const fs::path resolved = fs::weakly_canonical(path, error);  // follows links that are there
  return error ? plain : resolved.string();
}

Result<void> require_vacant(const std::string& destination) {
  if (destination.empty()) {
    return invalid("expected a directory to write, found an empty name", "destination");
  }
  for (const char* name : {"config.json",
                           "model.safetensors",
                           "model.safetensors.index.json",
                           "weights_manifest.json"}) {
    if (file_exists(destination + "/" + name)) {
      return invalid(std::string("there is a ") + name + " already; choose an empty directory",
                     destination);
    }
  }
  std::error_code error;
  if (fs::symlink_status(destination, error).type() != fs::file_type::not_found &&
      !directory_exists(destination)) {
    return invalid("is in the way, and no directory", destination);
  }
  return {};
}

DiskNeed disk_need(const Plan& plan, double bits, uint64_t hidden_bytes) {
  DiskNeed need{kHiddenCopies * hidden_bytes, 0};
  double weights = 0;
  uint64_t linears = 0;  // of the result
  for (const auto& shard : plan.shards) {
    for (const Unit& unit : shard) {
      for (const checkpoint::LinearInfo& info : unit.linears) {
        const auto count = static_cast<double>(info.n * info.k);
        weights += count;
        const double stored = (unit.nvfp4 ? kNvfp4Bits : 0) + (unit.fp8 ? kFp8Bits : 0);
        need.unfinished += static_cast<uint64_t>(count * stored / kBitsPerByte);
      }
      linears += unit.linears.empty() ? 0 : unit.output_bytes;
    }
  }
  const auto budget = static_cast<uint64_t>(weights * bits / kBitsPerByte);
  need.result = plan.output_bytes - linears + std::max(linears, budget);
  return need;
}

Result<void> require_space(const std::string& destination, const DiskNeed& need) {
  const fs::path parent = fs::absolute(destination).parent_path();
  std::error_code error;
  fs::create_directories(parent, error);
  if (error) {
    return invalid("cannot create the directory: " + error.message(), parent.string());
  }
  const uint64_t all = need.unfinished + need.result;
  const uint64_t there = WorkFolder::bytes_at(partial_folder(destination));
  TRY(require_free(parent, all - std::min(all, there), destination));
  return is_own_disk(destination, parent) ? require_free(destination, need.result, destination)
                                          : Result<void>();
}

}  // namespace nibble::quantize
