#include "base/file.h"

#include <array>
#include <cstdio>
#include <filesystem>
#include <string>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace nibble {
namespace {

using ::testing::HasSubstr;

class FileTest : public ::testing::Test {
 protected:
  std::string path_ = ::testing::TempDir() + "nibble_file_test_" + std::to_string(::getpid());
  void TearDown() override { std::filesystem::remove(path_); }
};

TEST_F(FileTest, WritesWholeFilesAndReadsThemBackAtAnyOffset) {
  write_file_atomically(path_, "0123456789");
  EXPECT_EQ(*read_text_file(path_, 100), "0123456789");
  const auto file = ReadFile::open(path_);
  ASSERT_TRUE(file.has_value());
  EXPECT_EQ(file->size_bytes(), 10u);
  std::array<std::byte, 3> piece{};
  ASSERT_TRUE(file->read_at(4, piece).has_value());
  EXPECT_EQ(static_cast<char>(piece[0]), '4');
  EXPECT_EQ(static_cast<char>(piece[2]), '6');
}

TEST_F(FileTest, SaysWhereATruncatedFileEnds) {
  write_file_atomically(path_, "0123456789");
  const auto file = ReadFile::open(path_);
  ASSERT_EQ(::truncate(path_.c_str(), 5), 0);
  std::array<std::byte, 8> piece{};
  const auto result = file->read_at(0, piece);
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().where, path_);
  EXPECT_THAT(result.error().message, HasSubstr("ends at byte 5"));
}

TEST_F(FileTest, KnowsWhetherTheOpenFileWasWrittenTo) {
  write_file_atomically(path_, "0123456789");
  const timespec long_ago[2] = {{1'700'000'000, 0}, {1'700'000'000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path_.c_str(), long_ago, 0), 0);
  const auto file = ReadFile::open(path_);
  const FileStamp before = file->stamp();
  EXPECT_TRUE(file->require_unchanged().has_value());
  write_file_atomically(path_, "abcdefghij");  // another file under the same name
  EXPECT_TRUE(file->require_unchanged().has_value());
  EXPECT_FALSE(ReadFile::open(path_)->stamp() == before);

  const auto second = ReadFile::open(path_);
  ASSERT_EQ(::truncate(path_.c_str(), 5), 0);
  const auto result = second->require_unchanged();
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().where, path_);
  EXPECT_THAT(result.error().message, HasSubstr("written to"));
}

TEST_F(FileTest, RefusesMissingFilesDirectoriesAndOversizedText) {
  EXPECT_EQ(ReadFile::open(path_).error().code, ErrorCode::NotFound);
  EXPECT_EQ(ReadFile::open("/tmp").error().message, "not a regular file");
  write_file_atomically(path_, "0123456789");
  EXPECT_EQ(read_text_file(path_, 9).error().code, ErrorCode::TooLarge);
  EXPECT_TRUE(file_exists(path_));
  EXPECT_FALSE(file_exists("/tmp"));
  EXPECT_TRUE(directory_exists("/tmp"));
  EXPECT_FALSE(directory_exists(path_));
}

TEST_F(FileTest, RefusesAPipeInsteadOfWaitingForItsWriter) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(ReadFile::open(path_).error().message, "not a regular file");
}

TEST_F(FileTest, AFailedWriteThrowsAndLeavesNothing) {
  EXPECT_THROW(write_file_atomically("/nonexistent-folder/x", "y"), SystemError);
  EXPECT_FALSE(file_exists("/nonexistent-folder/x"));
}

}  // namespace
}  // namespace nibble
