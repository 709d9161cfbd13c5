#include "quantize/kept_tensors.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/checkpoint_editor.h"
#include "support/data_dir.h"

namespace nibble::quantize {
namespace {

using checkpoint::CheckpointEditor;
using ::testing::HasSubstr;

Result<void> check(CheckpointEditor& editor) {
  const auto source = editor.open();
  EXPECT_TRUE(source.has_value()) << source.error().text();
  const auto plan = make_plan(*source, *Recipe::make({}), {uint64_t{1} << 40});
  EXPECT_TRUE(plan.has_value()) << plan.error().text();
  return require_finite_copies(*source, *plan);
}

template <typename T>
void put(CheckpointEditor& editor, const std::string& name, size_t element, T value) {
  std::memcpy(editor.tensor(name).bytes.data() + element * sizeof(T), &value, sizeof(T));
}

TEST(KeptTensors, MustBeFiniteInEveryFormat) {
  const std::string source = test::stored_golden_path("vendor/llama-base");
  CheckpointEditor sound(source);
  EXPECT_TRUE(check(sound).has_value());

  constexpr uint16_t kNanBf16 = 0x7FC0;
  constexpr uint16_t kInfinityBf16 = 0xFF80;
  for (const char* name : {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}) {
    CheckpointEditor editor(source);
    put(editor, name, 5, kNanBf16);
    EXPECT_THAT(check(editor).error().text(), HasSubstr(name));
    put(editor, name, 5, kInfinityBf16);
    EXPECT_THAT(check(editor).error().text(), HasSubstr("NaN or infinity among elements 0 to"));
  }

  constexpr uint16_t kInfinityF16 = 0x7C00;
  CheckpointEditor half(source);
  half.tensor("model.norm.weight").dtype = DType::F16;  // 0x3F80 is a number there too
  EXPECT_TRUE(check(half).has_value());
  put(half, "model.norm.weight", 0, kInfinityF16);
  EXPECT_FALSE(check(half).has_value());

  CheckpointEditor full(source);
  auto& norm = full.tensor("model.norm.weight");
  norm.dtype = DType::F32;
  norm.bytes.resize(norm.bytes.size() * 2);
  std::memset(norm.bytes.data(), 0x3F, norm.bytes.size());
  EXPECT_TRUE(check(full).has_value());
  put(full, "model.norm.weight", 100, 0x7F800000u);
  EXPECT_THAT(check(full).error().text(), HasSubstr("model.norm.weight"));
}

TEST(KeptTensors, MatricesThatAreQuantizedAreNotReadTwice) {
  CheckpointEditor editor(test::stored_golden_path("vendor/llama-base"));
  constexpr uint16_t kNan = 0x7FC0;
  put(editor, "model.layers.1.mlp.up_proj.weight", 0, kNan);
  EXPECT_TRUE(check(editor).has_value());  // found when its turn comes
}

}  // namespace
}  // namespace nibble::quantize
