#include "text/template/text_tools.h"

#include <gtest/gtest.h>

namespace nibble::text::jinja {
namespace {

using Views = std::vector<std::string_view>;

TEST(TextTools, SplitsKeepOrDropEmptyPartsByTheSeparator) {
  const std::string comma = ",";
  EXPECT_EQ(split(",a,,b", &comma, -1, false), (Views{"", "a", "", "b"}));
  EXPECT_EQ(split("a,b,c", &comma, 1, true), (Views{"a,b", "c"}));
  EXPECT_EQ(split(" a b  c  ", nullptr, 1, false), (Views{"a", "b  c  "}));
  EXPECT_EQ(split(" a b  c  ", nullptr, 1, true), (Views{" a b", "c"}));
  EXPECT_EQ(split("", nullptr, -1, false), Views{});
}

TEST(TextTools, StripTakesASetOfCharacters) {
  const std::string set = "a\xC3\xA9";
  EXPECT_EQ(strip("a\xC3\xA9xa", &set, StripSide::Both), "x");
  EXPECT_EQ(strip(" x\xE3\x80\x80", nullptr, StripSide::Right), " x");
}

TEST(TextTools, ReplaceCountsAndChargesTheBudget) {
  Budget budget(0);
  EXPECT_EQ(replace("aaa", "a", "bb", 2, budget), "bbbba");
  EXPECT_EQ(replace("\xC3\xA9z", "", "-", -1, budget), "-\xC3\xA9-z-");
  const std::string many(100'000, 'a');
  EXPECT_THROW(replace(many, "a", many, -1, budget), TemplateError);
}

TEST(TextTools, LinesEndWherePythonEndsThem) {
  EXPECT_EQ(split_lines("a\r\nb\x0b"
                        "c\xE2\x80\xA8",
                        true),
            (Views{"a\r\n", "b\x0b", "c\xE2\x80\xA8"}));
}

}  // namespace
}  // namespace nibble::text::jinja
