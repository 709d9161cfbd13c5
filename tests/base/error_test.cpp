#include "base/error.h"

#include <cerrno>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble {
namespace {

Result<int> half(int value) {
  if (value % 2 != 0) {
    return invalid("expected an even number, found " + std::to_string(value), "value");
  }
  return value / 2;
}

Result<int> quarter(int value) { return TRY(half(TRY(half(value)))); }

Result<void> check_quarter(int value) {
  TRY(quarter(value));
  return {};
}

Result<std::unique_ptr<int>> boxed(int value) { return std::make_unique<int>(TRY(half(value))); }

TEST(Error, TryReturnsTheValueOrTheFirstError) {
  EXPECT_EQ(*quarter(8), 2);
  EXPECT_EQ(quarter(6).error().text(), "value: expected an even number, found 3");
  EXPECT_TRUE(check_quarter(4).has_value());
  EXPECT_FALSE(check_quarter(2).has_value());
}

Result<int> unbox(int value) {
  const std::unique_ptr<int> box = TRY(boxed(value));
  return *box;
}

TEST(Error, TryMovesMoveOnlyValues) {
  EXPECT_EQ(*unbox(4), 2);
  EXPECT_FALSE(unbox(1).has_value());
}

TEST(Error, SystemErrorsNameTheCall) {
  try {
    throw_system_error("open x", ENOENT);
    FAIL() << "did not throw";
  } catch (const SystemError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("open x: No such file"));
  }
}

TEST(Error, EveryCodeHasItsOwnName) {
  EXPECT_EQ(to_string(ErrorCode::InvalidArgument), "invalid_argument");
  EXPECT_EQ(to_string(ErrorCode::Internal), "internal");
  EXPECT_NE(to_string(ErrorCode::WrongState), to_string(ErrorCode::Unsupported));
}

}  // namespace
}  // namespace nibble
