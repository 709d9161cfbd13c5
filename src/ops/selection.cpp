#include "ops/selection.h"

#include "base/cpu_info.h"

namespace nibble {

std::string describe_device(Device::Kind kind, int isa) {
  if (kind == Device::Kind::Cpu) {
    return "cpu " + std::string(to_string(static_cast<CpuIsa>(isa)));
  }
  return "cuda sm_" + std::to_string(isa);
}

namespace detail {

void add_refusal(std::string& refused, std::string_view name, std::string_view why_not) {
  refused += (refused.empty() ? "" : "; ") + std::string(name) + " (" + std::string(why_not) + ")";
}

tl::unexpected<Error> no_backend(std::string_view what,
                                 std::string_view wanted,
                                 bool name_known,
                                 const std::string& refused,
                                 const std::string& would_work) {
  std::string message = "no backend \"" + std::string(wanted) + "\" for " + std::string(what);
  if (!name_known) {
    message += ": this build has no backend of that name";
  } else if (!refused.empty()) {
    message += ": " + refused;
  }
  message += would_work.empty() ? "; nothing else in this build would work"
                                : "; would work: " + would_work;
  return tl::unexpected<Error>(
      Error{name_known ? ErrorCode::Unsupported : ErrorCode::InvalidArgument, message, {}});
}

}  // namespace detail
}  // namespace nibble
