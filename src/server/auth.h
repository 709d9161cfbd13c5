// API keys: Authorization: Bearer KEY.
#pragma once

#include "server/config.h"
#include "server/http/message.h"
#include "server/routes.h"

namespace nibble::server {

// Admin routes need the admin key where one is configured (the normal key is then refused there),
// else the normal one.
bool is_authorized(const ServerConfig& config, Access access, const http::Request& request);

}  // namespace nibble::server
