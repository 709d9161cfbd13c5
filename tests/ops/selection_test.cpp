#include "ops/selection.h"

#include <array>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble {
namespace {

using testing::HasSubstr;

GemmBackend backend(std::string_view name, std::string_view family, bool opt_in) {
  GemmBackend made{};
  made.name = name;
  made.family = family;
  made.opt_in = opt_in;
  // Takes k up to 64 in the first, any in the others.
  made.supports = [](const GemmDesc& desc) -> Support {
    if (desc.k > 64) {
      return {false, "k is above 64"};
    }
    return {true, {}};
  };
  return made;
}

class Selection : public testing::Test {
 protected:
  Selection() {
    any_k_.supports = [](const GemmDesc&) -> Support { return {true, {}}; };
    opt_in_.supports = any_k_.supports;
  }
  Result<const GemmBackend*> select(int64_t k, std::string_view wanted) {
    GemmDesc desc;
    desc.k = k;
    const std::array<const GemmBackend*, 3> list{&opt_in_, &small_k_, &any_k_};
    return select_backend<GemmBackend, GemmDesc>(list, desc, wanted, "a test");
  }
  GemmBackend opt_in_ = backend("odd", "exotic", true);
  GemmBackend small_k_ = backend("fast", "cpu", false);
  GemmBackend any_k_ = backend("slow", "cpu", false);
};

TEST_F(Selection, AutoTakesTheFirstThatSupportsAndSkipsOptIn) {
  EXPECT_EQ(select(64, "auto").value(), &small_k_);
  EXPECT_EQ(select(80, "auto").value(), &any_k_);
}

TEST_F(Selection, AFamilyTakesItsFirstThatSupports) {
  EXPECT_EQ(select(64, "cpu").value(), &small_k_);
  EXPECT_EQ(select(80, "cpu").value(), &any_k_);
  EXPECT_EQ(select(80, "exotic").value(), &opt_in_);
}

TEST_F(Selection, ANameThatRefusesSaysWhyAndWhatWouldWork) {
  const auto refused = select(80, "fast");
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::Unsupported);
  EXPECT_THAT(refused.error().message, HasSubstr("fast (k is above 64)"));
  EXPECT_THAT(refused.error().message, HasSubstr("would work: odd, slow"));
}

TEST_F(Selection, AnUnknownNameIsAnInvalidArgument) {
  const auto refused = select(64, "fastest");
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::InvalidArgument);
  EXPECT_THAT(refused.error().message, HasSubstr("no backend of that name"));
}

}  // namespace
}  // namespace nibble
