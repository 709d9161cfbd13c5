#include "apps/report_output.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include <boost/json.hpp>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "support/temp_dir.h"

namespace nibble::apps {
namespace {

struct Numbers {
  int value = 0;
};
std::string to_text(const Numbers& numbers) { return std::to_string(numbers.value) + "\n"; }
boost::json::value to_json(const Numbers& numbers) { return {{"value", numbers.value}}; }

std::string read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(ReportOutput, PrintsTheTextAndWritesTheFileThatWasNamed) {
  const test::TempDir directory;
  const std::string path = directory.path() + "/report.json";
  testing::internal::CaptureStdout();
  EXPECT_EQ(publish(Result<Numbers>(Numbers{7}), path), 0);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "7\n");
  EXPECT_EQ(boost::json::parse(read(path)).at("value"), 7);
}

TEST(ReportOutput, AnErrorWritesNothing) {
  const test::TempDir directory;
  const std::string path = directory.path() + "/report.json";
  testing::internal::CaptureStdout();
  EXPECT_EQ(publish(Result<Numbers>(invalid("wrong", "--x")), path), 1);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(ReportOutput, APipeIsWrittenToAndNotReplaced) {
  const test::TempDir directory;
  const std::string path = directory.path() + "/pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  std::string seen;
  std::thread reader([&] { seen = read(path); });
  write_json(path, {{"value", 8}});
  reader.join();
  EXPECT_EQ(boost::json::parse(seen).at("value"), 8);
  EXPECT_TRUE(std::filesystem::is_fifo(path));
}

TEST(ReportOutput, SaysWhereItCannotWrite) {
  const test::TempDir directory;
  EXPECT_THROW(write_json(directory.path() + "/no/such/folder", 1), SystemError);
  EXPECT_THROW(write_json(directory.path(), 1), SystemError);
}

}  // namespace
}  // namespace nibble::apps
