// Bytes that may not be UTF-8 (half a token, a path a client sent) made fit for JSON.
#pragma once

#include <string>
#include <string_view>

namespace nibble::server {

// Every byte that is not part of a character becomes U+FFFD.
std::string to_valid_utf8(std::string_view bytes);

}  // namespace nibble::server
