// Every reasoning dialect by upstream's name, one line a name. All of them write
// <think>...</think>; they differ in what a model does whose prompt does not say.
#include "text/parse/markers.h"
#include "text/parse/reasoning.h"

namespace nibble::text {
namespace {

struct Dialect {
  std::string_view name;
  bool begins_inside;  // the model begins by thinking, without <think>
};

constexpr Dialect kDialects[] = {
    {"deepseek-r1", true},
    {"deepseek-v3", false},
    {"glm45", false},
    {"nemotron_3", false},
    {"qwen3", false},
    {"qwen3-thinking", true},
};
constexpr std::string_view kNames[] = {
    "deepseek-r1", "deepseek-v3", "glm45", "nemotron_3", "qwen3", "qwen3-thinking"};

}  // namespace

std::span<const std::string_view> reasoning_parser_names() { return kNames; }

bool begins_with_reasoning(std::string_view dialect, std::string_view prompt_end) {
  const std::string_view prompt =
      prompt_end.substr(0, prompt_end.size() - trailing_space(prompt_end));
  if (prompt.ends_with(kThinkBegin) || prompt.ends_with(kThinkEnd)) {
    return prompt.ends_with(kThinkBegin);
  }
  for (const Dialect& known : kDialects) {
    if (known.name == dialect) {
      return known.begins_inside;
    }
  }
  return false;
}

}  // namespace nibble::text
