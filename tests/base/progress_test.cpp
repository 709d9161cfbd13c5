#include "base/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(Progress, OffATerminalItPrintsOneFinalLine) {
  ::testing::internal::CaptureStderr();
  {
    Progress progress("packing", 4, "tensors");
    progress.advance(3);
    progress.advance(1);
    progress.finish();
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::MatchesRegex("packing: 4/4 tensors .100%, [0-9.]+s.\n"));
}

TEST(Progress, SaysWhatIsLeftAtTheSpeedSoFarWhereThatIsKnown) {
  EXPECT_EQ(progress_times(10, 0.25), "10.0s, about 30s left");
  EXPECT_EQ(progress_times(100, 0.1), "100.0s, about 15 min left");
  EXPECT_EQ(progress_times(3600, 0.1), "3600.0s, about 9 h left");
  EXPECT_EQ(progress_times(0.5, 0.001), "0.5s");  // too early to say
  EXPECT_EQ(progress_times(12.34, 1.0), "12.3s");
}

TEST(Progress, AmountsWithoutAUnitAreNotPrinted) {
  ::testing::internal::CaptureStderr();
  {
    Progress progress("quantizing", 600, "");
    progress.advance(600);
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::MatchesRegex("quantizing .100%, [0-9.]+s.\n"));
}

}  // namespace
}  // namespace nibble
