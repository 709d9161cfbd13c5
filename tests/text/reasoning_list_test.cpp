#include <gtest/gtest.h>

#include "text/parse/reasoning.h"

namespace nibble::text {
namespace {

TEST(ReasoningList, ThePromptSaysWhereAnAnswerBeginsAndElseTheDialect) {
  for (const std::string_view name : reasoning_parser_names()) {
    EXPECT_TRUE(begins_with_reasoning(name, "<|assistant|>\n<think>\n")) << name;
    EXPECT_FALSE(begins_with_reasoning(name, "<|assistant|>\n<think>\n\n</think>\n\n")) << name;
  }
  EXPECT_FALSE(begins_with_reasoning("qwen3", "What does <think> mean?\n<|assistant|>\n"));
  EXPECT_TRUE(begins_with_reasoning("qwen3-thinking", "<|assistant|>\n"));
  EXPECT_TRUE(begins_with_reasoning("deepseek-r1", ""));
  EXPECT_FALSE(begins_with_reasoning("", ""));
}

}  // namespace
}  // namespace nibble::text
