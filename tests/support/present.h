// Reading an optional that a test expects to have something.
#pragma once

#include <optional>

#include <gtest/gtest.h>

namespace nibble::test {

// What it has; else the test fails here and goes on with the type's empty value.
template <typename T>
T present(const std::optional<T>& found) {
  EXPECT_TRUE(found.has_value()) << "expected a value, found none";
  return found.value_or(T{});
}

}  // namespace nibble::test
