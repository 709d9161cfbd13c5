// Loading with threads that read ahead, on the CPU: the same bits and words as one after another.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/model.h"
#include "support/checkpoint_editor.h"
#include "support/data_dir.h"
#include "support/forward_harness.h"
#include "tensor/device_api.h"

namespace nibble::model {
namespace {

using testing::HasSubstr;

class ParameterLoad : public testing::Test {
 protected:
  Result<std::unique_ptr<Model>> load(const std::string& directory, int threads) {
    ModelOptions options;
    options.isa = test::best_isa();
    options.read_threads = threads;
    return load_model(directory, options, stream_.get());
  }
  // What load() says with threads and without, which must be the same.
  std::string refusal(const std::string& directory) {
    const auto ahead = load(directory, 3);
    const auto plain = load(directory, 0);
    if (ahead.has_value() || plain.has_value()) {
      return "loaded";
    }
    EXPECT_EQ(ahead.error().text(), plain.error().text());
    return ahead.error().text();
  }
  void expect_same_bits(const Model& a, const Model& b) {
    const auto left = a.parameters().checksums(stream_.get());
    const auto right = b.parameters().checksums(stream_.get());
    ASSERT_EQ(left.size(), right.size());
    for (size_t i = 0; i < left.size(); ++i) {
      EXPECT_EQ(left[i].value, right[i].value) << left[i].name;
    }
  }
  StreamOwner stream_{Device{}, 2};
};

class EverySet : public ParameterLoad, public testing::WithParamInterface<const char*> {};

TEST_P(EverySet, GetsTheSameBitsByStreaming) {
  const auto path = test::any_golden_path(GetParam());
  if (!path) {
    GTEST_SKIP() << "no golden set " << GetParam();
  }
  const auto plain = load(*path, 0);
  const auto ahead = load(*path, 3);
  ASSERT_TRUE(plain.has_value() && ahead.has_value());
  const LoadReport& report = (*ahead)->load_times().weights;
  EXPECT_EQ((*plain)->load_times().weights.streamed_bytes, 0u);
  EXPECT_GT(report.streamed_bytes, 0u);
  EXPECT_GT(report.pinned_bytes, 0u);
  EXPECT_EQ(report.tensors_read, (*plain)->load_times().weights.tensors_read);
  EXPECT_EQ(report.unused, (*plain)->load_times().weights.unused);
  expect_same_bits(**ahead, **plain);
  // A reload goes the same way.
  const auto staged = (*ahead)->stage(*path, stream_.get());
  ASSERT_TRUE(staged.has_value()) << staged.error().text();
  EXPECT_EQ(staged->staged.report().streamed_bytes, report.streamed_bytes);
  (*ahead)->parameters().commit(staged->staged, stream_.get());
  expect_same_bits(**ahead, **plain);
}

INSTANTIATE_TEST_SUITE_P(Golden,
                         EverySet,
                         testing::Values("llama",
                                         "smollm2",
                                         "llama-nvfp4",
                                         "qwen2-nvfp4",
                                         "qwen3-nvfp4",
                                         "llama-nvfp4-awq",
                                         "vendor/llama-ct-nvfp4",
                                         "vendor/llama-modelopt-mlp-weight-only"));

TEST_F(ParameterLoad, DamageIsNamedAsWithoutStreaming) {
  const std::string directory = test::stored_golden_path("llama-nvfp4");
  const std::string scale = "model.layers.1.mlp.down_proj.weight_scale";
  {
    checkpoint::CheckpointEditor editor(directory);
    editor.tensor(scale).bytes[7] = std::byte{0x7F};
    editor.write();
    EXPECT_THAT(refusal(editor.directory().path()), HasSubstr(scale));
  }
  {
    checkpoint::CheckpointEditor editor(directory);
    auto& bytes = editor.tensor("model.embed_tokens.weight").bytes;
    bytes[bytes.size() - 1] = std::byte{0x7F};
    bytes[bytes.size() - 2] = std::byte{0xC0};
    editor.write();
    EXPECT_THAT(refusal(editor.directory().path()), HasSubstr("model.embed_tokens.weight"));
  }
  {
    checkpoint::CheckpointEditor editor(directory);
    auto& bytes = editor.tensor("model.layers.1.input_layernorm.weight").bytes;
    bytes[0] = std::byte{0x80};
    bytes[1] = std::byte{0xFF};  // minus infinity
    editor.write();
    EXPECT_THAT(refusal(editor.directory().path()), HasSubstr("layers.1.input_layernorm.weight"));
  }
}

TEST_F(ParameterLoad, AScaleThatOnlyLooksBadIsReadInFull) {
  checkpoint::CheckpointEditor editor(test::stored_golden_path("llama-nvfp4"));
  // A NaN over a block of zeros is what old exporters wrote; it counts as zero.
  editor.tensor("model.layers.0.mlp.gate_proj.weight_scale").bytes[0] = std::byte{0x7F};
  auto& codes = editor.tensor("model.layers.0.mlp.gate_proj.weight").bytes;
  std::fill_n(codes.begin(), 8, std::byte{0x80});
  editor.write();
  const std::string directory = editor.directory().path();
  const auto plain = load(directory, 0);
  const auto ahead = load(directory, 3);
  ASSERT_TRUE(plain.has_value() && ahead.has_value());
  expect_same_bits(**ahead, **plain);
}

}  // namespace
}  // namespace nibble::model
