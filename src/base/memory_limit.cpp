#include "base/memory_limit.h"

#include <algorithm>
#include <fstream>

namespace nibble {

namespace {

std::optional<uint64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (file >> value) {
    return value;
  }
  return std::nullopt;  // no such file, or "max"
}

uint64_t reclaimable_bytes(const std::string& group) {
  std::ifstream file(group + "/memory.stat");
  std::string key;
  uint64_t value = 0;
  while (file >> key >> value) {
    if (key == "inactive_file") {
      return value;
    }
  }
  return 0;
}

std::string group_of_self(const std::string& membership) {
  std::ifstream file(membership);
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("0::/")) {
      return line.substr(3);
    }
  }
  return "/";
}

}  // namespace

std::optional<MemoryLimit> container_memory(const std::string& root,
                                            const std::string& membership) {
  std::optional<MemoryLimit> tightest;
  for (std::string group = group_of_self(membership);;) {
    const std::string directory = group == "/" ? root : root + group;
    const auto limit = read_number(directory + "/memory.max");
    const auto used = read_number(directory + "/memory.current");
    if (limit && used) {
      const uint64_t held = *used - std::min(*used, reclaimable_bytes(directory));
      const MemoryLimit found{*limit, *limit - std::min(*limit, held)};
      if (!tightest || found.free_bytes < tightest->free_bytes) {
        tightest = found;
      }
    }
    if (group == "/") {
      return tightest;
    }
    const size_t slash = group.rfind('/');
    group = slash == 0 || slash == std::string::npos ? "/" : group.substr(0, slash);
  }
}

}  // namespace nibble
