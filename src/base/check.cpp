#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace nibble::detail {

void check_failed(const char* condition, const char* file, int line, const std::string& message) {
  // stdio, not the logger: the process is about to die and must not depend on other threads.
  std::fprintf(stderr,
               "nibble: check failed: %s%s%s (%s:%d)\n",
               condition,
               message.empty() ? "" : ": ",
               message.c_str(),
               file,
               line);
  std::fflush(stderr);
  std::abort();
}

}  // namespace nibble::detail
