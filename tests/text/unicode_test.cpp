#include "text/tokenizer/unicode.h"

#include <gtest/gtest.h>

namespace nibble::text {
namespace {

TEST(Unicode, EveryScalarValueSurvivesEncodingAndDecoding) {
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) {
      continue;
    }
    std::string text;
    append_utf8(text, code);
    const Utf8Step step = utf8_step(text, 0);
    ASSERT_EQ(step.status, Utf8Status::Valid) << static_cast<uint32_t>(code);
    ASSERT_TRUE(step.code == code);
    ASSERT_EQ(step.length, text.size());
  }
}

TEST(Unicode, EachIllFormedPartBecomesOneReplacementCharacter) {
  const std::string r(kReplacementCharacter);
  EXPECT_EQ(replace_invalid_utf8("a\xFFz"), "a" + r + "z");
  EXPECT_EQ(replace_invalid_utf8("\xE2\x82"), r);                      // unfinished: one part
  EXPECT_EQ(replace_invalid_utf8("\xE2\x82x"), r + "x");               // broken off
  EXPECT_EQ(replace_invalid_utf8("\xC0\x80"), r + r);                  // overlong
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), r + r + r);          // surrogate
  EXPECT_EQ(replace_invalid_utf8("\xF4\x90\x80\x80"), r + r + r + r);  // beyond U+10FFFF
  EXPECT_EQ(replace_invalid_utf8("\xE2\x82\xAC"), "\xE2\x82\xAC");
}

TEST(Unicode, OnlyATailThatMayStillBeCompletedIsHeldBack) {
  EXPECT_EQ(incomplete_utf8_tail("a\xE2\x82"), 2U);
  EXPECT_EQ(incomplete_utf8_tail("a\xF0\x9F\x99"), 3U);
  EXPECT_EQ(incomplete_utf8_tail("a\xC3"), 1U);
  EXPECT_EQ(incomplete_utf8_tail("a\xE2\x82\xAC"), 0U);
  EXPECT_EQ(incomplete_utf8_tail("a\xFF"), 0U);
  EXPECT_EQ(incomplete_utf8_tail("a\x80"), 0U);
  EXPECT_EQ(incomplete_utf8_tail(""), 0U);
}

TEST(Unicode, CharacterClassesFollowTheUnicodeProperties) {
  EXPECT_TRUE(is_unicode_space(0x3000));
  EXPECT_TRUE(is_unicode_space(0x85));
  EXPECT_FALSE(is_unicode_space(0x200B));
  EXPECT_FALSE(is_unicode_space(0x180E));
  EXPECT_TRUE(is_unicode_number(0xBD));   // one half
  EXPECT_TRUE(is_unicode_number(0x663));  // Arabic three
  EXPECT_FALSE(is_unicode_number('a'));
  EXPECT_TRUE(is_unicode_mark(0x301));
  EXPECT_FALSE(is_unicode_mark('e'));
  EXPECT_TRUE(is_unicode_punctuation('$'));  // ASCII symbols count
  EXPECT_TRUE(is_unicode_punctuation(0x3002));
  EXPECT_FALSE(is_unicode_punctuation(0x20AC));  // a symbol beyond ASCII does not
  // The reference's table is Unicode 8's, in which these are not (yet) punctuation, or still are.
  for (const char32_t later : {0x61D, 0x2E43, 0x2E4F, 0x2E52, 0x1B7E, 0x1E95F}) {
    EXPECT_FALSE(is_unicode_punctuation(later)) << static_cast<uint32_t>(later);
  }
  for (const char32_t known : {0x61B, 0x2E42, 0x166D, 0x111C9, 0xBF}) {
    EXPECT_TRUE(is_unicode_punctuation(known)) << static_cast<uint32_t>(known);
  }
  EXPECT_TRUE(is_unicode_word('_'));
  EXPECT_TRUE(is_unicode_word(0x200D));
  EXPECT_FALSE(is_unicode_word('-'));
}

TEST(Unicode, LengthsAndStepsCountCharacters) {
  const std::string text = "a\xC3\xA9\xF0\x9F\x99\x82";
  EXPECT_EQ(utf8_length(text), 3U);
  EXPECT_EQ(previous_utf8(text, text.size()), 3U);
  EXPECT_TRUE(is_ascii("0123456789"));
  EXPECT_FALSE(is_ascii("01234567\xC3\xA9"));
  EXPECT_TRUE(is_valid_utf8(text));
  EXPECT_FALSE(is_valid_utf8(text.substr(0, 2)));
}

TEST(Unicode, SpaceAtTheEndsIsMeasuredInWholeCharacters) {
  const std::string text = "\xE3\x80\x80 a b\xC2\x85";  // ideographic space ... next line
  EXPECT_EQ(length_of_leading_space(text), 4U);
  EXPECT_EQ(begin_of_trailing_space(text), 7U);
  EXPECT_EQ(length_of_leading_space("a "), 0U);
  EXPECT_EQ(begin_of_trailing_space(" a"), 2U);
  EXPECT_EQ(length_of_leading_space(" \t"), 2U);
  EXPECT_EQ(begin_of_trailing_space(" \t"), 0U);
}

}  // namespace
}  // namespace nibble::text
