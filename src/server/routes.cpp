#include "server/routes.h"

#include "server/endpoints/endpoints.h"

namespace nibble::server {

namespace {

// clang-format off
constexpr Route kRoutes[] = {
    {"GET",      "/",                     Access::Open,  handle_page},
    {"GET",      "/health",               Access::Open,  handle_health},
    {"GET",      "/ping",                 Access::Open,  handle_health},
    {"GET",      "/health_generate",      Access::Open,  handle_health_generate},
    {"GET",      "/metrics",              Access::Open,  handle_metrics},
    {"GET",      "/model_info",           Access::Key,   handle_model_info},
    {"GET",      "/get_model_info",       Access::Key,   handle_model_info},
    {"GET",      "/server_info",          Access::Key,   handle_server_info},
    {"GET",      "/get_server_info",      Access::Key,   handle_server_info},
    {"GET",      "/v1/loads",             Access::Key,   handle_loads},
    {"GET",      "/v1/models",            Access::Key,   handle_models},
    {"GET",      "/v1/models/*",          Access::Key,   handle_model},
    {"POST",     "/v1/chat/completions",  Access::Key,   handle_chat_completions},
    {"POST",     "/v1/completions",       Access::Key,   handle_completions},
    {"POST PUT", "/generate",             Access::Key,   handle_generate},
    {"POST",     "/tokenize",             Access::Key,   handle_tokenize},
    {"POST",     "/v1/tokenize",          Access::Key,   handle_tokenize},
    {"POST",     "/detokenize",           Access::Key,   handle_detokenize},
    {"POST",     "/v1/detokenize",        Access::Key,   handle_detokenize},
    {"POST",     "/abort_request",        Access::Admin, handle_abort_request},
    {"POST",     "/update_weights_from_disk", Access::Admin, handle_update_weights_from_disk, true},
    {"POST",     "/update_weight_version", Access::Admin, handle_update_weight_version, true},
    {"POST",     "/pause_generation",     Access::Admin, handle_pause_generation, true},
    {"POST",     "/continue_generation",  Access::Admin, handle_continue_generation, true},
    {"GET POST", "/flush_cache",          Access::Admin, handle_flush_cache, true},
    {"GET POST", "/release_memory_occupation", Access::Admin, handle_release_memory, true},
    {"GET POST", "/resume_memory_occupation", Access::Admin, handle_resume_memory, true},
    {"GET POST", "/weights_checker",      Access::Admin, handle_weights_checker, true},
    {"GET POST", "/get_weights_by_name",  Access::Admin, handle_get_weights_by_name, true},
};
// clang-format on

bool path_matches(std::string_view pattern, std::string_view path) {
  if (!pattern.ends_with('*')) {
    return pattern == path;
  }
  pattern.remove_suffix(1);
  return path.size() > pattern.size() && path.starts_with(pattern);
}

bool lists(std::string_view methods, std::string_view method) {
  while (!methods.empty()) {
    const size_t space = std::min(methods.find(' '), methods.size());
    if (methods.substr(0, space) == method) {
      return true;
    }
    methods.remove_prefix(std::min(space + 1, methods.size()));
  }
  return false;
}

}  // namespace

std::span<const Route> routes() { return kRoutes; }

Match find_route(std::string_view method, std::string_view path) {
  if (path.size() > 1 && path.ends_with('/')) {
    path.remove_suffix(1);
  }
  Match match;
  for (const Route& route : kRoutes) {
    if (!path_matches(route.path, path)) {
      continue;
    }
    match.allowed = route.methods;
    if (lists(route.methods, method == "HEAD" ? "GET" : method)) {
      match.route = &route;
      return match;
    }
  }
  return match;
}

}  // namespace nibble::server
