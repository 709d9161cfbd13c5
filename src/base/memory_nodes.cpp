#include "base/memory_nodes.h"

#include <algorithm>
#include <fstream>

namespace nibble {

int num_memory_nodes(const std::string& list_file) {
  std::ifstream file(list_file);
  int count = 0;
  int first = 0;
  while (file >> first) {
    int last = first;
    if (file.peek() == '-') {
      file.get();
      if (!(file >> last)) {
        return 1;
      }
    }
    count += std::max(0, last - first + 1);
    if (file.peek() == ',') {
      file.get();
    }
  }
  return std::max(1, count);
}

}  // namespace nibble
