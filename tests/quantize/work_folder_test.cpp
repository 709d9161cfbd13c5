#include "quantize/work_folder.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/temp_dir.h"

namespace nibble::quantize {
namespace {

using ::testing::HasSubstr;

UnitResult sample() {
  UnitResult result;
  result.tensors.push_back(
      {{"a.weight", DType::U8, {2, 2}}, std::vector<std::byte>(4, std::byte{7})});
  TensorReport report;
  report.module = "a";
  report.method = Method::Gptq;
  report.relative_objective = 0.25;
  report.alpha = 0.5f;
  report.scale_exponents[3] = 9;
  result.reports.push_back(report);
  return result;
}

TEST(WorkFolder, KeepsFinishedStepsForTheSameRunOnly) {
  const test::TempDir dir;
  const std::string path = dir.file("x.partial");
  {
    const auto work = WorkFolder::open(path, "run 1");
    ASSERT_TRUE(work.has_value());
    work->store(3, sample());
    work->store_hidden(3, std::vector<uint16_t>{1, 2, 3});
  }
  dir.write("x.partial/step-00004.safetensors.tmp77", "cut off");
  {
    const auto work = WorkFolder::open(path, "run 1");
    EXPECT_TRUE(work->has(3));
    EXPECT_FALSE(work->has(4));
    EXPECT_FALSE(std::filesystem::exists(path + "/step-00004.safetensors.tmp77"));
    const auto step = work->read(3);
    ASSERT_TRUE(step.has_value()) << step.error().text();
    EXPECT_EQ(step->file.tensors().at("a.weight").size_bytes, 4u);
    ASSERT_EQ(step->reports.size(), 1u);
    EXPECT_EQ(step->reports[0].module, "a");
    EXPECT_EQ(step->reports[0].method, Method::Gptq);
    EXPECT_EQ(step->reports[0].relative_objective, 0.25);
    EXPECT_EQ(step->reports[0].alpha, 0.5f);
    EXPECT_FALSE(step->reports[0].input_scale.has_value());
    EXPECT_EQ(step->reports[0].scale_exponents[3], 9);
    EXPECT_EQ(*work->read_hidden(3), (std::vector<uint16_t>{1, 2, 3}));
    work->store_hidden(4, std::vector<uint16_t>{4});
    EXPECT_FALSE(work->has_hidden(3));
  }
  const auto other = WorkFolder::open(path, "run 2");
  ASSERT_TRUE(other.has_value());
  EXPECT_FALSE(other->has(3));
  EXPECT_FALSE(other->has_hidden(4));
}

TEST(WorkFolder, LeavesFoldersAloneThatItDidNotMake) {
  const test::TempDir dir;
  dir.write("letter.txt", "keep me");
  const auto work = WorkFolder::open(dir.path(), "run");
  ASSERT_FALSE(work.has_value());
  EXPECT_THAT(work.error().text(), HasSubstr("nibble did not make it"));
  EXPECT_EQ(dir.read("letter.txt"), "keep me");
}

TEST(WorkFolder, ADamagedFileIsNamedWithWhatToDo) {
  const test::TempDir dir;
  const auto work = WorkFolder::open(dir.file("w"), "run");
  work->store(2, sample());
  work->store_hidden(2, std::vector<uint16_t>{1, 2, 3});
  EXPECT_TRUE(work->read(2).has_value());
  const std::string whole = dir.read("w/step-00002.safetensors");
  const std::string advice =
      "the unfinished run is damaged: remove " + dir.file("w") + " and start again";
  for (const std::string& content : {std::string("short"), whole.substr(0, whole.size() - 1)}) {
    dir.write("w/step-00001.safetensors", content);
    EXPECT_THAT(work->read(1).error().text(),
                AllOf(HasSubstr("step-00001.safetensors"), HasSubstr(advice)));
  }
  dir.write("w/hidden-00002.safetensors", whole);  // another tensor than expected
  EXPECT_THAT(work->read_hidden(2).error().text(),
              AllOf(HasSubstr("hidden-00002.safetensors"), HasSubstr(advice)));
}

TEST(WorkFolder, BelongsToOneRunAtATimeEvenWhileItIsEmptied) {
  const test::TempDir dir;
  const std::string path = dir.file("w");
  {
    const auto first = WorkFolder::open(path, "run 1");
    ASSERT_TRUE(first.has_value());
    first->store(1, sample());
    for (const char* run : {"run 1", "run 2"}) {
      const auto second = WorkFolder::open(path, run);
      ASSERT_FALSE(second.has_value());
      EXPECT_THAT(second.error().text(), HasSubstr("another run is making this result"));
    }
    EXPECT_TRUE(first->has(1));
  }
  const auto other = WorkFolder::open(path, "run 2");  // emptied, under the same lock
  ASSERT_TRUE(other.has_value());
  EXPECT_FALSE(other->has(1));
  EXPECT_FALSE(WorkFolder::open(path, "run 2").has_value());
  other->remove();
  EXPECT_TRUE(WorkFolder::open(path, "run 2").has_value());
}

TEST(WorkFolder, CountsItsBytes) {
  const test::TempDir dir;
  EXPECT_EQ(WorkFolder::bytes_at(dir.file("absent")), 0u);
  std::filesystem::create_directories(dir.file("w/output"));
  dir.write("w/a", "12345");
  dir.write("w/output/b", "123");
  EXPECT_EQ(WorkFolder::bytes_at(dir.file("w")), 8u);
}

}  // namespace
}  // namespace nibble::quantize
