#include "server/utf8.h"

#include <gtest/gtest.h>

namespace nibble::server {
namespace {

TEST(ToValidUtf8, KeepsCharactersAndReplacesTheRestByteByByte) {
  const std::string replacement = "\xEF\xBF\xBD";
  for (const char* text :
       {"", "abc", "é", "漢字", "\xF0\x9F\x98\x80", "\xED\x9F\xBF", "\xEE\x80\x80"}) {
    EXPECT_EQ(to_valid_utf8(text), text);
  }
  EXPECT_EQ(to_valid_utf8("a\xC3"), "a" + replacement);             // cut short
  EXPECT_EQ(to_valid_utf8("\xA9z"), replacement + "z");             // no beginning
  EXPECT_EQ(to_valid_utf8("\xC0\x80"), replacement + replacement);  // overlong
  EXPECT_EQ(to_valid_utf8("\xE0\x80\x80"), replacement + replacement + replacement);
  EXPECT_EQ(to_valid_utf8("\xED\xA0\x80"), replacement + replacement + replacement);  // surrogate
  EXPECT_EQ(to_valid_utf8("\xF4\x90\x80\x80").size(), 12u);                           // too large
  EXPECT_EQ(to_valid_utf8("\xFF"), replacement);
}

}  // namespace
}  // namespace nibble::server
