#include "base/manifest.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/present.h"
#include "support/temp_dir.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

const std::string kHash(64, 'a');

Result<std::optional<Manifest>> read(const std::string& text) {
  const test::TempDir directory;
  directory.write(std::string(kManifestName), text);
  return read_manifest(directory.path());
}

std::string refusal(const std::string& text) {
  const auto result = read(text);
  return result ? "accepted" : result.error().text();
}

TEST(Manifest, ListsFilesWithSizesAndHashes) {
  const auto found = read(R"({"format":1,"weight_version":"step-7","files":{
      "model-2.safetensors":{"size":5},
      "config.json":{"size":12,"sha256":")" +
                          kHash + R"("}}})");
  ASSERT_TRUE(found.has_value()) << found.error().text();
  const Manifest manifest = test::present(*found);
  EXPECT_EQ(manifest.weight_version, "step-7");
  ASSERT_EQ(manifest.files.size(), 2u);
  EXPECT_EQ(manifest.find("config.json")->size_bytes, 12u);
  EXPECT_EQ(manifest.find("config.json")->sha256, kHash);
  EXPECT_EQ(manifest.find("model-2.safetensors")->sha256, "");
  EXPECT_EQ(manifest.find("model-1.safetensors"), nullptr);
}

TEST(Manifest, IsNotThereWhereThereIsNoFile) {
  const test::TempDir directory;
  const auto manifest = read_manifest(directory.path());
  ASSERT_TRUE(manifest.has_value());
  EXPECT_FALSE(manifest->has_value());
}

TEST(Manifest, SaysWhatIsWrongAndWhere) {
  EXPECT_THAT(refusal("{"), HasSubstr("weights_manifest.json"));
  EXPECT_THAT(refusal("[]"), HasSubstr("object"));
  EXPECT_THAT(refusal("{}"), HasSubstr("files"));
  EXPECT_THAT(refusal(R"({"files":{}})"), HasSubstr("names no files"));
  EXPECT_THAT(refusal(R"({"format":2,"files":{"a":{"size":1}}})"), HasSubstr("format"));
  EXPECT_THAT(refusal(R"({"files":{"a":{}}})"), HasSubstr("files.a.size"));
  EXPECT_THAT(refusal(R"({"files":{"a":{"size":-1}}})"), HasSubstr("files.a.size"));
  EXPECT_THAT(refusal(R"({"files":{"a":{"size":1,"sha256":"AB"}}})"), HasSubstr("files.a.sha256"));
  for (const char* name : {"../a", "/etc/passwd", "a/b", ".a", ""}) {
    EXPECT_THAT(refusal(std::string(R"({"files":{")") + name + R"(":{"size":1}}})"),
                HasSubstr("plain name"));
  }
}

}  // namespace
}  // namespace nibble
