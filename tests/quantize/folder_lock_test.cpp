#include "quantize/folder_lock.h"

#include <filesystem>
#include <optional>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/temp_dir.h"

namespace nibble::quantize {
namespace {

using ::testing::HasSubstr;

TEST(FolderLock, IsHeldByOneAtATimeAndByTheNextAfterIt) {
  const test::TempDir dir;
  const std::string path = dir.file("a/b");
  std::optional<Result<FolderLock>> first = FolderLock::take(path);
  ASSERT_TRUE(first->has_value()) << first->error().text();
  const auto second = FolderLock::take(path);
  ASSERT_FALSE(second.has_value());
  EXPECT_THAT(second.error().text(), HasSubstr("a/b: another run is making this result"));
  {
    const FolderLock moved = *std::move(*first);
    EXPECT_FALSE(FolderLock::take(path).has_value());
  }
  EXPECT_TRUE(FolderLock::take(path).has_value());
}

TEST(FolderLock, EndsWithTheProcessThatHoldsIt) {
  const test::TempDir dir;
  const std::string path = dir.file("held");
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto lock = FolderLock::take(path);
    const char said = lock ? 'y' : 'n';
    (void)!::write(ready[1], &said, 1);
    ::pause();
    ::_exit(0);
  }
  char said = 0;
  ASSERT_EQ(::read(ready[0], &said, 1), 1);
  EXPECT_EQ(said, 'y');
  EXPECT_FALSE(FolderLock::take(path).has_value());
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(FolderLock::take(path).has_value());
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(FolderLock, AFolderThatWasRemovedIsMadeAgainAndOneOfAFileIsRefused) {
  const test::TempDir dir;
  const std::string path = dir.file("gone");
  const auto before = FolderLock::take(path);
  std::filesystem::remove_all(path);
  const auto after = FolderLock::take(path);  // another folder of that name
  ASSERT_TRUE(after.has_value()) << after.error().text();
  EXPECT_TRUE(std::filesystem::is_directory(path));
  dir.write("file", "keep me");
  EXPECT_THAT(FolderLock::take(dir.file("file")).error().text(), HasSubstr("no directory"));
  EXPECT_EQ(dir.read("file"), "keep me");
}

}  // namespace
}  // namespace nibble::quantize
