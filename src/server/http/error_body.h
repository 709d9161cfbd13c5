// The bodies of error answers, in the two shapes of the API: OpenAI's flat object alone, or with
// the message beside it as SGLang's native {"error": {"message"}}. Who asks outside /v1, or before
// the path was read, gets both: clients of upstream read the one for some statuses, the other for
// others.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace nibble::server::http {

enum class ErrorShape : uint8_t { Flat, Both };

// param: the field's path, "" for none. Texts must be UTF-8.
std::string error_body(int status,
                       std::string_view message,
                       std::string_view param,
                       ErrorShape shape);

}  // namespace nibble::server::http
