#include "server/auth.h"

#include <algorithm>
#include <string>
#include <string_view>

namespace nibble::server {

namespace {

// Time depends on the lengths only.
bool equal_in_constant_time(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^
                  static_cast<unsigned char>(b.empty() ? '\0' : b[i % b.size()]);
  }
  return difference == 0;
}

// Letters of ASCII only.
bool equal_in_any_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  return std::equal(
      a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return lower(x) == lower(y); });
}

}  // namespace

bool is_authorized(const ServerConfig& config, Access access, const http::Request& request) {
  if (access == Access::Open) {
    return true;
  }
  const bool admin = access == Access::Admin && !config.admin_api_key.empty();
  const std::string& key = admin ? config.admin_api_key : config.api_key;
  if (key.empty()) {
    return true;
  }
  constexpr std::string_view kPrefix = "Bearer ";  // in any case: RFC 9110, section 11.1
  const std::string_view given = request.header("Authorization");
  return equal_in_any_case(given.substr(0, kPrefix.size()), kPrefix) &&
         equal_in_constant_time(given.substr(kPrefix.size()), key);
}

}  // namespace nibble::server
