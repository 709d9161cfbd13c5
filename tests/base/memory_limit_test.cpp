#include "base/memory_limit.h"

#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "support/present.h"
#include "support/temp_dir.h"

namespace nibble {
namespace {

using test::present;

class MemoryLimitTest : public ::testing::Test {
 protected:
  void group(const std::string& path, const std::string& max, const std::string& used) {
    std::filesystem::create_directories(root_.path() + path);
    root_.write(path + "/memory.max", max);
    root_.write(path + "/memory.current", used);
  }
  std::optional<MemoryLimit> limit(const std::string& self) {
    root_.write("self", "1:name=systemd:/old\n0::" + self + "\n");
    return container_memory(root_.path(), root_.file("self"));
  }
  test::TempDir root_;
};

TEST_F(MemoryLimitTest, IsTheTightestOfTheGroupAndThoseAboveIt) {
  group("/a", "1000", "900");
  group("/a/b", "5000", "100");
  const MemoryLimit found = present(limit("/a/b"));
  EXPECT_EQ(found.limit_bytes, 1000u);
  EXPECT_EQ(found.free_bytes, 100u);
}

TEST_F(MemoryLimitTest, CountsPageCacheAsFreeAndNeverGoesBelowZero) {
  group("/a", "1000", "900");
  root_.write("/a/memory.stat", "anon 5\ninactive_file 300\nactive_file 50\n");
  EXPECT_EQ(present(limit("/a")).free_bytes, 400u);
  group("/a", "1000", "1500");
  EXPECT_EQ(present(limit("/a")).free_bytes, 0u);
}

TEST_F(MemoryLimitTest, IsAbsentWithoutALimitOrWithoutGroups) {
  group("/a", "max\n", "900");
  EXPECT_FALSE(limit("/a").has_value());
  EXPECT_FALSE(limit("/elsewhere").has_value());
  EXPECT_FALSE(container_memory("/does/not/exist", "/does/not/exist").has_value());
}

TEST_F(MemoryLimitTest, TheRootOfAContainerIsItsOwnGroup) {
  root_.write("memory.max", "1000");
  root_.write("memory.current", "250");
  EXPECT_EQ(present(limit("/")).free_bytes, 750u);
}

}  // namespace
}  // namespace nibble
