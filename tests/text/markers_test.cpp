#include "text/parse/markers.h"

#include <gtest/gtest.h>

namespace nibble::text {
namespace {

TEST(Markers, OnlyABeginningOfTheMarkerAtTheEndCounts) {
  EXPECT_EQ(partial_marker("a</th", "</think>"), 4U);
  EXPECT_EQ(partial_marker("a<", "</think>"), 1U);
  EXPECT_EQ(partial_marker("</think>", "</think>"), 0U);  // the whole is no part
  EXPECT_EQ(partial_marker("</x", "</think>"), 0U);
  EXPECT_EQ(partial_marker("", "</think>"), 0U);
}

TEST(Markers, SpaceIsCountedAtBothEnds) {
  EXPECT_EQ(trailing_space("a \n"), 2U);
  EXPECT_EQ(trailing_space(" \n"), 2U);
  EXPECT_EQ(trailing_space("a"), 0U);
  EXPECT_EQ(without_leading_space("\n a "), "a ");
}

TEST(Markers, TrimmedTextKeepsTheSpaceInside) {
  EXPECT_EQ(trimmed(" \r\n a b\t"), "a b");
  EXPECT_EQ(trimmed("a"), "a");
  EXPECT_EQ(trimmed(" \n"), "");
}

}  // namespace
}  // namespace nibble::text
