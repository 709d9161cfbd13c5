// What a container may still take. The kernel ends a process that takes more, so whoever is about
// to allocate much asks first. Control groups, version 2.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace nibble {

struct MemoryLimit {
  uint64_t limit_bytes = 0;
  uint64_t free_bytes = 0;  // page cache that the kernel would give up counts as free
};

// The tightest limit of this process's group and those above it; nullopt when there is none.
// `root` and `membership` are other places in tests.
std::optional<MemoryLimit> container_memory(const std::string& root = "/sys/fs/cgroup",
                                            const std::string& membership = "/proc/self/cgroup");

}  // namespace nibble
