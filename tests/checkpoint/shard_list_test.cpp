#include "checkpoint/shard_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/temp_dir.h"

namespace nibble::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string index_of(const std::string& file) {
  return R"({"metadata":{"total_size":1},"weight_map":{"a.weight":")" + file + R"("}})";
}

TEST(ShardList, TheIndexDecidesWhichFilesAreRead) {
  const test::TempDir dir;
  dir.write("model.safetensors", "");
  dir.write("consolidated.safetensors", "");
  dir.write("golden.safetensors", "");
  EXPECT_THAT(list_shards(dir.path())->files, ElementsAre("model.safetensors"));
  dir.write("model.safetensors.index.json",
            R"({"weight_map":{"b":"model-2.safetensors","a":"model-1.safetensors"}})");
  const auto shards = list_shards(dir.path());
  EXPECT_THAT(shards->files, ElementsAre("model-1.safetensors", "model-2.safetensors"));
  EXPECT_EQ(shards->weight_map.at("a"), "model-1.safetensors");
}

TEST(ShardList, FindsConsolidatedFilesAndNumberedShardsWithoutAnIndex) {
  const test::TempDir consolidated;
  consolidated.write("consolidated.safetensors.index.json",
                     index_of("consolidated-00001-of-00001.safetensors"));
  EXPECT_EQ(list_shards(consolidated.path())->index, "consolidated.safetensors.index.json");

  const test::TempDir numbered;
  numbered.write("model-00001-of-00002.safetensors", "");
  EXPECT_THAT(list_shards(numbered.path()).error().text(),
              HasSubstr("of 2 shards only 1 are here"));
  numbered.write("model-00002-of-00002.safetensors", "");
  EXPECT_EQ(list_shards(numbered.path())->files.size(), 2u);
}

TEST(ShardList, RefusesFileNamesThatLeaveTheDirectory) {
  for (const char* name : {"../model.safetensors",
                           "/etc/passwd",
                           "a/b.safetensors",
                           "..\\\\m.safetensors",
                           ".hidden.safetensors",
                           "model.bin",
                           "",
                           "m\\u0000.safetensors"}) {
    const test::TempDir dir;
    dir.write("model.safetensors.index.json", index_of(name));
    const auto shards = list_shards(dir.path());
    ASSERT_FALSE(shards.has_value()) << name;
    EXPECT_THAT(shards.error().text(), HasSubstr("a.weight: '")) << name;
  }
}

TEST(ShardList, RefusesABrokenIndex) {
  const test::TempDir dir;
  for (const char* text : {"{",
                           "[]",
                           "{}",
                           R"({"weight_map":[]})",
                           R"({"weight_map":{"a":7}})",
                           R"({"weight_map":{}})"}) {
    dir.write("model.safetensors.index.json", text);
    const auto shards = list_shards(dir.path());
    ASSERT_FALSE(shards.has_value()) << text;
    EXPECT_THAT(shards.error().text(), HasSubstr("model.safetensors.index.json")) << text;
  }
}

TEST(ShardList, RefusesAnIndexOfVeryManyFiles) {
  const auto index = [](int files) {
    std::string text = R"({"weight_map":{)";
    for (int i = 0; i < files; ++i) {
      text += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":\"" + std::to_string(i) +
              ".safetensors\"";
    }
    return text + "}}";
  };
  const test::TempDir dir;
  dir.write("model.safetensors.index.json", index(16384));
  EXPECT_TRUE(list_shards(dir.path()).has_value());
  dir.write("model.safetensors.index.json", index(16385));
  EXPECT_EQ(list_shards(dir.path()).error().text(),
            "model.safetensors.index.json.weight_map: names more than 16384 files");
}

}  // namespace
}  // namespace nibble::checkpoint
