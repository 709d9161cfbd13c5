// Errors as clients see them: the one place where an ErrorCode becomes an HTTP status. The path
// alone decides the shape (http/error_body.h): OpenAI's flat object under /v1, both shapes
// elsewhere.
#pragma once

#include <optional>
#include <string>

#include "base/error.h"
#include "server/http/message.h"

namespace nibble::server {

enum class ApiStyle : uint8_t { OpenAi, Native };

int http_status(ErrorCode code);

// status: HTTP's own refusals (401, 405) have no ErrorCode and name it; default: the code's.
http::Response error_response(const Error& error,
                              ApiStyle style,
                              std::optional<int> status = std::nullopt);
// The event of a stream that failed after it began.
std::string error_event(const Error& error, ApiStyle style);

// `style` of a path: /v1/... is OpenAI's.
ApiStyle style_of(const std::string& path);

}  // namespace nibble::server
