// How many memory nodes (NUMA) the machine has: with several, threads that read weights must stay
// where they wrote them.
#pragma once

#include <string>

namespace nibble {

// Counts the kernel's list ("0" or "0-1,4"); 1 where there is none.
int num_memory_nodes(const std::string& list_file = "/sys/devices/system/node/has_memory");

}  // namespace nibble
