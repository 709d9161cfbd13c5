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

}  // namespace
}  // namespace nibble
