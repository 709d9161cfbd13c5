#include "text/template/lexer.h"

#include <gtest/gtest.h>

#include "text/template/template_error.h"
#include "text/template_support.h"

namespace nibble::text::jinja {
namespace {

TEST(Lexer, TrimBlocksDropsTheNewlineAfterABlockOrCommentOnly) {
  EXPECT_EQ(rendered("{% if true %}\na\n{% endif %}\nb"), "a\nb");
  EXPECT_EQ(rendered("{# c #}\nb"), "b");
  EXPECT_EQ(rendered("{{ 1 }}\nb"), "1\nb");
  EXPECT_EQ(rendered("{% if true +%}\na{% endif %}"), "\na");
}

TEST(Lexer, LstripBlocksDropsTheSpaceBeforeATagThatStartsALine) {
  EXPECT_EQ(rendered("  {% if true %}x{% endif %}"), "x");
  EXPECT_EQ(rendered("a  {% if true %}x{% endif %}"), "a  x");
  EXPECT_EQ(rendered("  {%+ if true %}x{% endif %}"), "  x");
  EXPECT_EQ(rendered("  {{ 1 }}"), "  1");
}

TEST(Lexer, AMinusStripsAllSpaceOnItsSide) {
  EXPECT_EQ(rendered("a \n {{- 1 -}} \n b"), "a1b");
  EXPECT_EQ(rendered("a \n {#- c -#} \n b"), "ab");
}

TEST(Lexer, RawBlocksAreText) {
  EXPECT_EQ(rendered("{% raw %}{{ x }}{% if %}{% endraw %}!"), "{{ x }}{% if %}!");
  EXPECT_TRUE(is_error(rendered("{% raw %}{{ x }}")));
}

TEST(Lexer, OneFinalNewlineGoesAndLineEndsAreUnified) {
  EXPECT_EQ(rendered("a\r\nb\rc\n\n"), "a\nb\nc\n");
}

TEST(Lexer, StringsUnderstandEscapes) {
  EXPECT_EQ(shown(R"('a\n\t\'\"\\\x41\u00e9\101\q')"),
            "a\n\t'\"\\A\xC3\xA9"
            "A\\q");
  EXPECT_TRUE(is_error(shown(R"('\ud800')")));
  EXPECT_TRUE(is_error(shown("'open")));
}

TEST(Lexer, NumbersHaveUnderscoresBasesAndExponents) {
  EXPECT_EQ(shown("[1_000, 0x1F, 0b11, 0o17, 1.5, 2e3, 1.5e-3]"),
            "[1000, 31, 3, 15, 1.5, 2000.0, 0.0015]");
  EXPECT_EQ(shown("a.0.1", R"({"a": [[1, 2]]})"), "2");
}

TEST(Lexer, ErrorsNameTheLine) {
  EXPECT_THROW(tokenize("{{ ? }}"), TemplateError);
  EXPECT_EQ(rendered("a\n\n{{ ? }}"), "error: line 3: unexpected char '?'");
  EXPECT_EQ(rendered("{{ ) }}"), "error: line 1: unexpected ')'");
  EXPECT_TRUE(is_error(rendered("{# open")));
}

}  // namespace
}  // namespace nibble::text::jinja
