// Any text as a chat template, rendered on a conversation with a tool: text or an error, in bounded
// time and memory.
#include <cstddef>
#include <cstdint>
#include <string>

#include <boost/json.hpp>

#include "base/check.h"
#include "text/template/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const boost::json::value kMessages = boost::json::parse(
      R"([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <b>"},
          {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f",
           "arguments": {"x": 1.5, "y": [true, "z"]}}}]}, {"role": "tool", "content": "ok"}])");
  static const boost::json::value kTools = boost::json::parse(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])");
  const auto parsed = nibble::text::ChatTemplate::parse(
      std::string(reinterpret_cast<const char*>(data), size), "<s>", "</s>");
  if (!parsed) {
    CHECK(!parsed.error().text().empty(), "a refusal needs words");
    return 0;
  }
  for (const bool generate : {false, true}) {
    const auto text = parsed->render(kMessages, &kTools, generate, {});
    if (!text) {
      CHECK(!text.error().text().empty(), "a refusal needs words");
    }
  }
  return 0;
}
