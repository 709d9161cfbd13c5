#include "quantize/destination.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/data_dir.h"
#include "support/temp_dir.h"

namespace nibble::quantize {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kNoLimit = uint64_t{1} << 40;

Plan plan_with(const PlanOptions& options) {
  const auto source = checkpoint::Checkpoint::open(test::stored_golden_path("vendor/llama-base"));
  auto plan = make_plan(*source, *Recipe::make({}), options);
  EXPECT_TRUE(plan.has_value());
  return *std::move(plan);
}

int64_t quantized_weights(const Plan& plan) {
  int64_t weights = 0;
  for (const auto& shard : plan.shards) {
    for (const Unit& unit : shard) {
      for (const auto& info : unit.linears) {
        weights += info.n * info.k;
      }
    }
  }
  return weights;
}

TEST(Destination, FinishedLayersLieBesideTheResultInEachOfTheirForms) {
  const Plan plain = plan_with({kNoLimit});
  const auto weights = static_cast<uint64_t>(quantized_weights(plain));
  const DiskNeed one = disk_need(plain, 0, 0);
  EXPECT_EQ(one.unfinished, weights * 9 / 16);
  EXPECT_EQ(one.result, plain.output_bytes);
  EXPECT_EQ(disk_need(plain, 0, 1000).unfinished, one.unfinished + 2000);

  PlanOptions options{kNoLimit};
  options.candidates = true;  // a budget of six bits: made in NVFP4 and FP8, kept in one of them
  const DiskNeed both = disk_need(plan_with(options), 6, 0);
  EXPECT_EQ(both.unfinished, weights * 25 / 16);
  EXPECT_NEAR(static_cast<double>(both.result - one.result),
              static_cast<double>(weights) * (6 - 4.5) / 8,
              500);  // global scales
}

TEST(Destination, ADiskThatIsTooSmallIsRefusedButForWhatLiesThereAlready) {
  const test::TempDir dir;
  const std::string destination = dir.file("deep/out");
  const uint64_t free = std::filesystem::space(dir.path()).available;
  EXPECT_TRUE(require_space(destination, {1, 1}).has_value());
  EXPECT_TRUE(std::filesystem::is_directory(dir.file("deep")));
  constexpr uint64_t kSlack = uint64_t{64} << 30;  // others write to this disk too
  const auto refused = require_space(destination, {free, kSlack});
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().text(), HasSubstr("no space left: needs "));
  // A sparse file stands for layers of an earlier start.
  std::filesystem::create_directories(partial_folder(destination));
  dir.write("deep/out.partial/step", "");
  std::filesystem::resize_file(dir.file("deep/out.partial/step"), 2 * kSlack);
  EXPECT_TRUE(require_space(destination, {free, kSlack}).has_value());
}

TEST(Destination, ADetourThroughAFolderThatIsNotThereIsLeftOut) {
  const test::TempDir dir;
  std::filesystem::create_directory(dir.file("a"));
  const std::string real = std::filesystem::canonical(dir.path());
  EXPECT_EQ(plain_destination(dir.file("a/e/../f")), real + "/a/f");
  EXPECT_EQ(plain_destination(dir.file("a/e/../../f//")), real + "/f");
  std::filesystem::create_directory_symlink("/", dir.file("a/e"));  // one that is there counts
  EXPECT_EQ(plain_destination(dir.file("a/e/../f")), "/f");
  for (const char* plain : {"", ".", "/", "a/f", "a..b/..c", "/tmp/f"}) {
    EXPECT_EQ(plain_destination(plain), plain);
  }
  EXPECT_EQ(plain_destination("a/f//"), "a/f");
}

TEST(Destination, MustBeVacant) {
  const test::TempDir dir;
  EXPECT_TRUE(require_vacant(dir.path()).has_value());
  EXPECT_TRUE(require_vacant(dir.file("new")).has_value());
  EXPECT_THAT(require_vacant("").error().text(), HasSubstr("empty name"));
  dir.write("file", "");
  EXPECT_THAT(require_vacant(dir.file("file")).error().text(), HasSubstr("no directory"));
  dir.write("model.safetensors.index.json", "{}");
  EXPECT_THAT(require_vacant(dir.path()).error().text(),
              HasSubstr("there is a model.safetensors.index.json already"));
  const test::TempDir other;  // its files would not be the manifest's
  other.write("weights_manifest.json", "{}");
  EXPECT_THAT(require_vacant(other.path()).error().text(), HasSubstr("weights_manifest.json"));
}

}  // namespace
}  // namespace nibble::quantize
