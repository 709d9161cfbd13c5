#include "base/memory_nodes.h"

#include <cstdio>
#include <fstream>

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(MemoryNodes, CountsThemAndTakesOneWhereNothingIsKnown) {
  const std::string path = testing::TempDir() + "nibble_nodes";
  const auto nodes = [&](const char* list) {
    std::ofstream(path) << list;
    return num_memory_nodes(path);
  };
  EXPECT_EQ(nodes("0\n"), 1);
  EXPECT_EQ(nodes("0-1\n"), 2);
  EXPECT_EQ(nodes("0,2-4,7\n"), 5);
  EXPECT_EQ(nodes(""), 1);
  EXPECT_EQ(nodes("none\n"), 1);
  EXPECT_EQ(nodes("0-\n"), 1);
  std::remove(path.c_str());
  EXPECT_EQ(num_memory_nodes(path), 1);
  EXPECT_GE(num_memory_nodes(), 1);
}

}  // namespace
}  // namespace nibble
