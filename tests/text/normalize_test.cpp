#include "text/tokenizer/normalize.h"

#include <gtest/gtest.h>

namespace nibble::text {
namespace {

std::string normalized(NormalizeStep step, std::string text) {
  return Normalizer({std::move(step)}).apply(std::move(text));
}

TEST(Normalize, TheFourUnicodeFormsDiffer) {
  const std::string composed = "\xC3\xA9\xEF\xAC\x81";     // e acute, fi ligature
  const std::string decomposed = "e\xCC\x81\xEF\xAC\x81";  // e, acute, fi ligature
  EXPECT_EQ(normalized(UnicodeForm{true, false}, decomposed), composed);
  EXPECT_EQ(normalized(UnicodeForm{false, false}, composed), decomposed);
  EXPECT_EQ(normalized(UnicodeForm{true, true}, decomposed),
            "\xC3\xA9"
            "fi");
  EXPECT_EQ(normalized(UnicodeForm{false, true}, composed),
            "e\xCC\x81"
            "fi");
}

TEST(Normalize, AnOldHangulVowelBehindASyllableIsNotLost) {
  const std::string text = "\xEA\xBC\xAC\xE1\x86\xA7\xE1\x86\x9C";
  EXPECT_EQ(normalized(UnicodeForm{true, true}, text), text);
}

TEST(Normalize, TextWithZeroBytesKeepsThem) {
  const std::string text("a\0e\xCC\x81", 5);
  EXPECT_EQ(normalized(UnicodeForm{true, false}, text), std::string("a\0\xC3\xA9", 4));
}

TEST(Normalize, LowercaseAndAccentsWorkOnUnicode) {
  EXPECT_EQ(normalized(Lowercase{}, "\xC3\x84\xC4\xB0X"), "\xC3\xA4i\xCC\x87x");
  EXPECT_EQ(normalized(StripAccents{}, "e\xCC\x81x"), "ex");
  EXPECT_EQ(normalized(StripAccents{}, "\xC3\xA9"), "\xC3\xA9");  // composed: not a mark of its own
}

TEST(Normalize, StripPrependAndReplace) {
  EXPECT_EQ(normalized(StripEnds{true, false}, " \xE3\x80\x80x "), "x ");
  EXPECT_EQ(normalized(StripEnds{false, true}, " x \n"), " x");
  EXPECT_EQ(normalized(PrependText{"_"}, "x"), "_x");
  EXPECT_EQ(normalized(PrependText{"_"}, ""), "");
  EXPECT_EQ(normalized(ReplaceText{*Regex::literal(" ", ""), "$1"}, "a b "), "a$1b$1");
}

TEST(Normalize, StepsRunInOrder) {
  const Normalizer normalizer({PrependText{" "}, ReplaceText{*Regex::literal(" ", ""), "_"}});
  EXPECT_EQ(normalizer.apply("a b"), "_a_b");
  EXPECT_TRUE(Normalizer().empty());
  EXPECT_FALSE(normalizer.empty());
}

}  // namespace
}  // namespace nibble::text
