#include "quant/quant_mode.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(QuantMode, EveryNamedModeHasItsOwnName) {
  EXPECT_EQ(to_string(kBf16), "bf16");
  EXPECT_EQ(to_string(kW4A16), "w4a16");
  EXPECT_EQ(to_string(kW4A4), "w4a4");
  EXPECT_EQ(to_string(kFp8), "fp8");
}

TEST(QuantMode, ParsesWhatItPrintsAndNothingElse) {
  for (Nvfp4Mode mode : {Nvfp4Mode::Auto, Nvfp4Mode::W4A16, Nvfp4Mode::W4A4}) {
    const auto parsed = parse_nvfp4_mode(to_string(mode));
    ASSERT_TRUE(parsed.has_value());
    EXPECT_EQ(*parsed, mode);
  }
  const auto refused = parse_nvfp4_mode("W4A16");
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::InvalidArgument);
  EXPECT_NE(refused.error().message.find("w4a16"), std::string::npos);
}

}  // namespace
}  // namespace nibble
