#include "checkpoint/online.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/checkpoint_editor.h"
#include "support/data_dir.h"

namespace nibble::checkpoint {
namespace {

using ::testing::HasSubstr;

const std::string kLayer = "model.layers.0.";

TEST(Online, ShowsTheLinearsOfTheLayersAsNvfp4AndKeepsTheHead) {
  const std::string path = test::stored_golden_path("vendor/llama-base");
  const auto online = Checkpoint::open_online(path);
  ASSERT_TRUE(online.has_value()) << online.error().text();
  const auto up = online->linear(kLayer + "mlp.up_proj", 256, 128, "x");
  EXPECT_EQ(up->format, LinearInfo::Format::Nvfp4);
  EXPECT_TRUE(up->online);
  EXPECT_EQ(source_of(*up).format, LinearInfo::Format::Bf16);
  const auto plain = Checkpoint::open(path);
  for (const LinearInfo& info : plain->linears()) {
    if (info.module == "lm_head") {
      EXPECT_EQ(online->linear("lm_head", info.n, info.k, "x")->format, LinearInfo::Format::Bf16);
    }
  }
  // As numbers it is what the file stores.
  EXPECT_EQ(*online->read_weight(*up),
            *plain->read_weight(*plain->linear(kLayer + "mlp.up_proj", 256, 128, "x")));
}

TEST(Online, MatricesOfAGroupShareTheGlobalScaleOfTheLargest) {
  CheckpointEditor editor(test::stored_golden_path("vendor/llama-base"));
  auto& gate = editor.tensor(kLayer + "mlp.gate_proj.weight");
  const uint16_t large = 0x4100;  // 8.0
  std::memcpy(gate.bytes.data(), &large, sizeof large);
  editor.write();
  const auto online = Checkpoint::open_online(editor.directory().path());
  const auto read = [&](const std::string& name, int64_t n, int64_t k) {
    return *online->read_linear(*online->linear(kLayer + name, n, k, "x"));
  };
  const LinearData up = read("mlp.up_proj", 256, 128);
  EXPECT_EQ(up.weight_scale_2, 8.0f / 1536.0f);
  EXPECT_EQ(read("mlp.gate_proj", 256, 128).weight_scale_2, up.weight_scale_2);
  EXPECT_LT(read("mlp.down_proj", 128, 256).weight_scale_2, up.weight_scale_2);
  EXPECT_EQ(up.weight.size(), 256u * 64u);
  EXPECT_EQ(up.weight_scale.size(), 256u * 8u);
  EXPECT_FALSE(up.input_scale.has_value());
}

TEST(Online, RefusesWhatIsNvfp4AlreadyAndValuesThatAreNotFinite) {
  const auto done = Checkpoint::open_online(test::stored_golden_path("llama-nvfp4"));
  ASSERT_FALSE(done.has_value());
  EXPECT_THAT(done.error().text(), HasSubstr("is NVFP4 already"));
  CheckpointEditor editor(test::stored_golden_path("vendor/llama-base"));
  const uint16_t nan = 0x7FC0;
  std::memcpy(editor.tensor(kLayer + "mlp.up_proj.weight").bytes.data(), &nan, sizeof nan);
  editor.write();
  const auto online = Checkpoint::open_online(editor.directory().path());
  const auto read = online->read_linear(*online->linear(kLayer + "mlp.gate_proj", 256, 128, "x"));
  ASSERT_FALSE(read.has_value());
  EXPECT_THAT(read.error().text(), HasSubstr("mlp.up_proj.weight"));
}

}  // namespace
}  // namespace nibble::checkpoint
