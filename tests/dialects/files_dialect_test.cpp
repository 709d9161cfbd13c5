// Which files count: indexes, stray copies, shards.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dialects/dialect_harness.h"
#include "support/data_dir.h"

namespace nibble::checkpoint {
namespace {

using ::testing::HasSubstr;

constexpr const char* kIndex = "model.safetensors.index.json";

Weights original() {
  return weights_of(*Checkpoint::open(test::stored_golden_path("llama-nvfp4")));
}

Weights weights_in(const CheckpointEditor& editor) {
  const auto checkpoint = Checkpoint::open(editor.directory().path());
  EXPECT_TRUE(checkpoint.has_value()) << checkpoint.error().text();
  EXPECT_EQ(errors_of(editor.directory().path()), "");
  return checkpoint ? weights_of(*checkpoint) : Weights{};
}

TEST(FilesDialect, ShardsWithAndWithoutAnIndexAreOneModel) {
  CheckpointEditor editor = golden("llama-nvfp4");
  editor.write_shards(3);
  EXPECT_TRUE(weights_in(editor) == original());
  std::filesystem::remove(editor.directory().file(kIndex));
  EXPECT_TRUE(weights_in(editor) == original());
}

TEST(FilesDialect, OtherFilesBesideTheShardsAreNotRead) {
  CheckpointEditor editor = golden("llama-nvfp4");
  editor.write_shards(2);
  editor.directory().write("model.safetensors", "not even a safetensors file");
  editor.directory().write("consolidated.safetensors", "");
  EXPECT_TRUE(weights_in(editor) == original());
}

TEST(FilesDialect, AConsolidatedIndexIsFound) {
  CheckpointEditor editor = golden("llama-nvfp4");
  editor.write_shards(2);
  std::filesystem::rename(editor.directory().file(kIndex),
                          editor.directory().file("consolidated.safetensors.index.json"));
  EXPECT_TRUE(weights_in(editor) == original());
}

// Writes a second file with one tensor, as llama-nvfp4 split in two would have it.
void write_stray(const CheckpointEditor& editor, const std::string& name, std::byte fill) {
  auto writer =
      SafetensorsWriter::create(editor.directory().file("model-00003-of-00003.safetensors"),
                                {{name, DType::U8, {128, 128}}},
                                {});
  writer->append(name, std::vector<std::byte>(128 * 128, fill));
  writer->finish();
}

void add_to_index(const CheckpointEditor& editor,
                  const std::string& tensor,
                  const std::string& file) {
  boost::json::value index = json_of(editor.directory().read(kIndex));
  index.at("weight_map").as_object()[tensor] = file;
  editor.directory().write(kIndex, boost::json::serialize(index));
}

TEST(FilesDialect, TheIndexSaysWhichOfTwoCopiesCounts) {
  CheckpointEditor editor = golden("llama-nvfp4");
  editor.write_shards(2);
  write_stray(editor, kDown + ".weight", std::byte{0x11});
  add_to_index(editor, "unused.weight", "model-00003-of-00003.safetensors");
  // The stray file is listed for another tensor only, which it lacks.
  EXPECT_EQ(errors_of(editor.directory().path()),
            "unused.weight: model.safetensors.index.json says it is in "
            "model-00003-of-00003.safetensors, which does not have it\n");
  const auto checkpoint = Checkpoint::open(editor.directory().path());
  EXPECT_THAT(problem_texts(*checkpoint, Problem::Severity::Warning),
              HasSubstr("model-00003-of-00003.safetensors: 1 tensors are skipped"));
  EXPECT_TRUE(weights_of(*checkpoint) == original());
}

TEST(FilesDialect, TensorsThatTheIndexForgotAreFound) {
  CheckpointEditor editor = golden("llama-nvfp4");
  editor.write_shards(2);
  boost::json::value index = json_of(editor.directory().read(kIndex));
  auto& map = index.at("weight_map").as_object();
  for (const char* suffix : {".weight_scale", ".weight_scale_2", ".input_scale"}) {
    map.erase(kDown + suffix);
  }
  editor.directory().write(kIndex, boost::json::serialize(index));
  EXPECT_TRUE(weights_in(editor) == original());
}

TEST(FilesDialect, EqualCopiesOfAnUnlistedTensorAreFineAndDifferentOnesAreNot) {
  for (bool equal : {true, false}) {
    CheckpointEditor editor = golden("llama-nvfp4");
    editor.write_shards(2);
    boost::json::value index = json_of(editor.directory().read(kIndex));
    index.at("weight_map").as_object().erase(kDown + ".weight");
    editor.directory().write(kIndex, boost::json::serialize(index));
    auto writer = SafetensorsWriter::create(
        editor.directory().file("model-00003-of-00003.safetensors"),
        {{kDown + ".weight", DType::U8, {128, 128}}, {"extra", DType::U8, {1}}},
        {});
    auto bytes = editor.tensor(kDown + ".weight").bytes;
    bytes[77] ^= equal ? std::byte{0} : std::byte{1};
    writer->append(kDown + ".weight", bytes);
    writer->append("extra", std::vector<std::byte>(1));
    writer->finish();
    add_to_index(editor, "extra", "model-00003-of-00003.safetensors");
    const std::string errors = errors_of(editor.directory().path());
    if (equal) {
      EXPECT_EQ(errors, "");
    } else {
      EXPECT_THAT(errors,
                  HasSubstr(kDown + ".weight: stored in two files with different contents"));
    }
  }
}

TEST(FilesDialect, EveryMissingShardIsListed) {
  CheckpointEditor editor = golden("llama-nvfp4");
  editor.write_shards(4);
  std::filesystem::remove(editor.directory().file("model-00002-of-00004.safetensors"));
  std::filesystem::remove(editor.directory().file("model-00004-of-00004.safetensors"));
  const auto checkpoint = Checkpoint::open(editor.directory().path());
  const std::string text = problem_texts(*checkpoint, Problem::Severity::Error);
  EXPECT_THAT(text,
              HasSubstr("model-00002-of-00004.safetensors: cannot open: No such file or "
                        "directory; the index says it holds "));
  EXPECT_THAT(text, HasSubstr("model-00004-of-00004.safetensors: cannot open"));
  EXPECT_FALSE(checkpoint->require_servable().has_value());
}

TEST(FilesDialect, FilesMayBeSymbolicLinks) {
  CheckpointEditor editor = golden("llama-nvfp4");
  editor.write();
  const test::TempDir links;
  for (const char* name : {"config.json", "hf_quant_config.json", "model.safetensors"}) {
    std::filesystem::create_symlink(editor.directory().file(name), links.file(name));
  }
  EXPECT_EQ(errors_of(links.path()), "");
}

}  // namespace
}  // namespace nibble::checkpoint
