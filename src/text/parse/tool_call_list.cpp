// Every tool-call dialect, one line a name.
#include "text/parse/tool_call.h"

namespace nibble::text {
namespace {

struct Dialect {
  std::string_view name;
  std::unique_ptr<ToolCallParser> (*make)();
};

constexpr Dialect kDialects[] = {
    {"hermes", make_hermes_parser},
    {"qwen", make_hermes_parser},
    {"qwen25", make_hermes_parser},
    {"llama3", make_llama3_parser},
};
constexpr std::string_view kNames[] = {"hermes", "qwen", "qwen25", "llama3"};

}  // namespace

std::unique_ptr<ToolCallParser> make_tool_call_parser(std::string_view name) {
  for (const Dialect& dialect : kDialects) {
    if (dialect.name == name) {
      return dialect.make();
    }
  }
  return nullptr;
}

std::span<const std::string_view> tool_call_parser_names() { return kNames; }

}  // namespace nibble::text
