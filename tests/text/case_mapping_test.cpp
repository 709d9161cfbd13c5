#include "text/template/case_mapping.h"

#include <gtest/gtest.h>

namespace nibble::text::jinja {
namespace {

TEST(CaseMapping, MapsWholeStringsAsPythonDoes) {
  EXPECT_EQ(to_upper("a\xC3\x9F\xC3\xA9"), "ASS\xC3\x89");
  EXPECT_EQ(to_lower("\xC4\xB0X"), "i\xCC\x87x");
  EXPECT_EQ(case_folded("Stra\xC3\x9F"
                        "e"),
            "strasse");
  EXPECT_EQ(capitalized("hELLO wORLD"), "Hello world");
  EXPECT_EQ(title_cased("it's a1b"), "It'S A1B");
  EXPECT_EQ(swap_case("aB"), "Ab");
}

TEST(CaseMapping, CaseTestsNeedALetter) {
  EXPECT_TRUE(is_upper_text("A1"));
  EXPECT_FALSE(is_upper_text("11"));
  EXPECT_FALSE(is_lower_text("aB"));
  EXPECT_TRUE(is_letter(0x4E00));
  EXPECT_FALSE(is_letter('1'));
}

}  // namespace
}  // namespace nibble::text::jinja
