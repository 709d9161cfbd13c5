// The one rule by which a backend is taken from an ordered list: "auto" is the first that supports
// the desc and is not opt-in; a family or a registry name is the first of that name that supports
// it.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "ops/gemm.h"
#include "tensor/device.h"

namespace nibble {

// "cpu avx2", "cuda sm_90"
std::string describe_device(Device::Kind kind, int isa);

namespace detail {

// Not every kind of backend has families or opt-in members.
template <typename Backend>
bool is_named(const Backend& backend, std::string_view wanted) {
  if constexpr (requires { backend.family; }) {
    return wanted == backend.name || wanted == backend.family;
  } else {
    return wanted == backend.name;
  }
}
template <typename Backend>
bool is_opt_in(const Backend& backend) {
  if constexpr (requires { backend.opt_in; }) {
    return backend.opt_in;
  } else {
    return false;
  }
}

// Appends "name (why not)".
void add_refusal(std::string& refused, std::string_view name, std::string_view why_not);
tl::unexpected<Error> no_backend(std::string_view what,
                                 std::string_view wanted,
                                 bool name_known,
                                 const std::string& refused,
                                 const std::string& would_work);

}  // namespace detail

template <typename Backend, typename Desc>
Result<const Backend*> select_backend(std::span<const Backend* const> list,
                                      const Desc& desc,
                                      std::string_view wanted,
                                      std::string_view what) {
  std::string refused;
  std::string would_work;
  bool name_known = wanted == "auto";
  for (const Backend* backend : list) {
    const Support support = backend->supports(desc);
    const bool named = detail::is_named(*backend, wanted);
    name_known = name_known || named;
    if (named || (wanted == "auto" && !detail::is_opt_in(*backend))) {
      if (support.ok) {
        return backend;
      }
      detail::add_refusal(refused, backend->name, support.why_not);
    } else if (support.ok) {
      would_work += (would_work.empty() ? "" : ", ") + std::string(backend->name);
    }
  }
  return detail::no_backend(what, wanted, name_known, refused, would_work);
}

}  // namespace nibble
