// Every tool-call dialect, one line a name.
#include "text/parse/tool_call.h"

namespace nibble::text {
namespace {

using Parser = std::unique_ptr<ToolCallParser>;

struct Dialect {
  std::string_view name;
  std::string_view marker;
  Parser (*make)(ToolSchemas&& schemas);
};

Parser hermes(ToolSchemas&& /*schemas*/) { return make_hermes_parser(); }
Parser llama3(ToolSchemas&& /*schemas*/) { return make_llama3_parser(); }
Parser deepseek(ToolSchemas&& /*schemas*/) { return make_deepseek_parser(); }
Parser qwen3_coder(ToolSchemas&& schemas) { return make_qwen3_coder_parser(std::move(schemas)); }

constexpr Dialect kDialects[] = {
    {"hermes", kHermesMarker, hermes},
    {"qwen", kHermesMarker, hermes},
    {"qwen25", kHermesMarker, hermes},
    {"qwen3_coder", kHermesMarker, qwen3_coder},
    {"llama3", kLlama3Marker, llama3},
    {"deepseekv3", kDeepseekMarker, deepseek},
    {"deepseekv31", kDeepseekMarker, deepseek},
};
constexpr std::string_view kNames[] = {
    "hermes", "qwen", "qwen25", "qwen3_coder", "llama3", "deepseekv3", "deepseekv31"};

const Dialect* find(std::string_view name) {
  for (const Dialect& dialect : kDialects) {
    if (dialect.name == name) {
      return &dialect;
    }
  }
  return nullptr;
}

}  // namespace

std::unique_ptr<ToolCallParser> make_tool_call_parser(std::string_view name, ToolSchemas schemas) {
  const Dialect* dialect = find(name);
  return dialect == nullptr ? nullptr : dialect->make(std::move(schemas));
}

std::span<const std::string_view> tool_call_parser_names() { return kNames; }

std::string_view tool_call_marker(std::string_view name) {
  const Dialect* dialect = find(name);
  return dialect == nullptr ? std::string_view() : dialect->marker;
}

}  // namespace nibble::text
