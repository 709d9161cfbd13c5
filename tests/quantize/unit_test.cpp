#include "quantize/unit.h"

#include <algorithm>
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/number_formats.h"
#include "support/checkpoint_editor.h"
#include "support/data_dir.h"

namespace nibble::quantize {
namespace {

using checkpoint::CheckpointEditor;
using ::testing::HasSubstr;

TEST(Unit, InputsThatSawTooFewTokensFallBackToSimplerRecipes) {
  InputStatistics input;
  input.tokens = 1000;
  EXPECT_EQ(usable_method(Method::Gptq, &input, 4096), Method::Gptq);
  EXPECT_EQ(usable_method(Method::Full, &input, 16384), Method::Sweep);
  input.tokens = 31;
  EXPECT_EQ(usable_method(Method::Full, &input, 64), Method::FourOverSix);
  EXPECT_EQ(usable_method(Method::Sweep, nullptr, 64), Method::FourOverSix);
  EXPECT_EQ(usable_method(Method::Max, nullptr, 64), Method::Max);
}

// One weight of up_proj has this magnitude, all others of gate and up are zeros.
Result<UnitResult> with_magnitude(float magnitude, Method method, bool fp8) {
  CheckpointEditor editor(test::stored_golden_path("vendor/llama-base"));
  const std::string mlp = "model.layers.0.mlp.";
  for (const char* part : {"gate_proj.weight", "up_proj.weight"}) {
    auto& bytes = editor.tensor(mlp + part).bytes;
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
  }
  const uint16_t bits = float_to_bf16(magnitude);
  std::memcpy(editor.tensor(mlp + "up_proj.weight").bytes.data() + 2 * 777, &bits, sizeof bits);
  const auto source = editor.open();
  Unit unit;
  for (const char* part : {"gate_proj", "up_proj"}) {
    unit.linears.push_back(*source->linear(mlp + part, 256, 128, "x"));
  }
  unit.nvfp4 = !fp8;
  unit.fp8 = fp8;
  ThreadPool pool(2);
  return quantize_unit(*source, unit, method, nullptr, nullptr, {panel_kernels(), pool});
}

TEST(Unit, MagnitudesWhoseGlobalScaleNoReaderTakesAreRefusedByName) {
  for (const Method method : {Method::Max, Method::FourOverSix}) {
    // 64 times 2688, or times 1536; 1e-20 times those.
    const float largest = method == Method::Max ? 172032.0f : 98304.0f;
    const float smallest = largest / 64 * 1e-20f;
    for (const float magnitude : {3e38f, largest * 1.01f, smallest * 0.98f}) {
      const auto result = with_magnitude(magnitude, method, false);
      ASSERT_FALSE(result.has_value()) << magnitude;
      EXPECT_THAT(result.error().text(),
                  HasSubstr("model.layers.0.mlp.up_proj.weight: its largest magnitude is"));
    }
    for (const float magnitude : {largest, smallest * 1.02f, 0.0f}) {
      EXPECT_TRUE(with_magnitude(magnitude, method, false).has_value()) << magnitude;
    }
    EXPECT_TRUE(with_magnitude(3e38f, method, true).has_value());
  }
}

}  // namespace
}  // namespace nibble::quantize
