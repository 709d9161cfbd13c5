#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(Log, LinesCarryThePhraseAndNamedFields) {
  configure_logging(LogLevel::Info, LogFormat::Text);
  ::testing::internal::CaptureStderr();
  LOG(info, "checkpoint loaded", {"tensors", 12}, {"path", "a b"}, {"seconds", 0.5});
  LOG(debug, "hidden at this level");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::EndsWith("checkpoint loaded tensors=12 path=\"a b\" seconds=0.5\n"));
}

TEST(Log, JsonLinesQuoteTextAndNotNumbers) {
  configure_logging(LogLevel::Debug, LogFormat::Json);
  ::testing::internal::CaptureStderr();
  LOG(debug, "say \"x\"", {"n", 3}, {"ok", true}, {"nan", 0.0 / 0.0}, {"s", "y"});
  const std::string line = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(line, ::testing::HasSubstr(R"("event":"say \"x\"","n":3,"ok":true)"));
  EXPECT_THAT(line, ::testing::HasSubstr(R"("s":"y"})"));
  configure_logging(LogLevel::Info, LogFormat::Text);
}

TEST(Log, ParsesLevelsAndRefusesOthers) {
  EXPECT_EQ(*parse_log_level("warning"), LogLevel::Warn);
  EXPECT_FALSE(parse_log_level("loud").has_value());
}

}  // namespace
}  // namespace nibble
