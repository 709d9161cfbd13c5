#include <gtest/gtest.h>

#include "text/tool_call_support.h"

namespace nibble::text {
namespace {

TEST(Llama3, EveryTranscriptParsesTheSameInPiecesOfAnySize) {
  const struct {
    const char* text;
    const char* expected;
  } kCases[] = {
      {"Just text {\"name\": \"f\", \"parameters\": {}}",
       "Just text {\"name\": \"f\", \"parameters\": {}}"},
      {"{\"name\": \"f\", \"parameters\": {\"q\": \"a } \\\" b\"}}", "|f({\"q\": \"a } \\\" b\"})"},
      {"<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}",
       "|f({})|g({})"},
      {"\n{\"name\": \"f\", \"parameters\": {}}\n", "|f({})"},
      {"{\"a\": 1}", "{\"a\": 1}"},
      {"{\"name\": \"f\", \"parameters\"", "{\"name\": \"f\", \"parameters\""},
      {"{\"name\": \"f\", \"parameters\": {}} and more", "and more|f({})"},
      {"", ""},
  };
  for (const auto& test : kCases) {
    for (const size_t size : {size_t{1}, size_t{3}, size_t{8}, size_t{1000}}) {
      std::string found = parsed_calls("llama3", test.text, size);
      if (found.starts_with(" ")) {
        found.erase(0, 1);
      }
      EXPECT_EQ(found, test.expected) << test.text << size;
    }
  }
}

}  // namespace
}  // namespace nibble::text
