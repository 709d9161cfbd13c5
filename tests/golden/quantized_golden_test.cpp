// Tiny models through every recipe and layout of the quantizer, loaded again and run: logits
// against those of the same weights written out as numbers.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/number_formats.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/quantize_rules.h"
#include "quantize/pipeline.h"
#include "support/checkpoint_editor.h"
#include "support/data_dir.h"
#include "support/forward_harness.h"

namespace nibble {
namespace {

using checkpoint::Checkpoint;
using checkpoint::CheckpointEditor;
using checkpoint::LinearInfo;
using quantize::Layout;
using quantize::Method;

std::vector<int32_t> some_tokens(size_t count, int32_t from) {
  std::vector<int32_t> tokens;
  tokens.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>((i * 37 + i / 5) % 90) + from);
  }
  return tokens;
}

quantize::QuantizeOptions options_for(const std::string& source, Method method) {
  quantize::QuantizeOptions options;
  options.source = source;
  options.method = method;
  if (quantize::needs_calibration(method)) {
    options.calibration = some_tokens(512, 3);
  }
  options.num_threads = 2;
  options.show_progress = false;
  return options;
}

// The checkpoint in `directory` with every quantized linear as bf16.
void write_numbers(const std::string& directory, CheckpointEditor& editor) {
  const auto written = Checkpoint::open(directory);
  ASSERT_TRUE(written.has_value()) << written.error().text();
  for (const LinearInfo& info : written->linears()) {
    if (info.format == LinearInfo::Format::Bf16) {
      continue;
    }
    const std::vector<float> values = *written->read_weight(info);
    std::vector<uint16_t> bits(values.size());
    std::transform(values.begin(), values.end(), bits.begin(), float_to_bf16);
    for (const std::string& name :
         {info.weight, info.weight_scale, info.weight_scale_2, info.input_scale}) {
      editor.tensors().erase(name);
    }
    CheckpointEditor::Stored stored{
        DType::BF16, {info.n, info.k}, std::vector<std::byte>(bits.size() * sizeof(uint16_t))};
    std::memcpy(stored.bytes.data(), bits.data(), stored.bytes.size());
    editor.tensors()[info.module + ".weight"] = std::move(stored);
  }
  editor.tensors().erase("");
  for (auto at = editor.tensors().begin(); at != editor.tensors().end();) {
    at = at->first.ends_with(".input_scale") || at->first.ends_with(".input_global_scale")
             ? editor.tensors().erase(at)
             : std::next(at);
  }
  editor.config().erase("quantization_config");
  editor.side() = nullptr;
  editor.write();
}

constexpr size_t kPrompt = 48;

std::vector<float> logits_of(const std::string& directory) {
  test::HarnessOptions options;
  options.mode = Nvfp4Mode::W4A16;
  auto harness = test::ForwardHarness::load(directory, options);
  EXPECT_TRUE(harness.has_value()) << harness.error().text();
  return harness ? (*harness)->logits(some_tokens(kPrompt, 5)) : std::vector<float>();
}

// ||a - b|| / ||b||
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0;
  double size = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    size += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / size);
}

// The median over positions: a router's near tie may go the other way at a few of them.
double median_distance(const std::vector<float>& a, const std::vector<float>& b) {
  const auto vocab = static_cast<std::ptrdiff_t>(b.size() / kPrompt);
  std::vector<double> distances;
  for (size_t t = 0; t < kPrompt; ++t) {
    const auto at = static_cast<std::ptrdiff_t>(t) * vocab;
    distances.push_back(distance({a.begin() + at, a.begin() + at + vocab},
                                 {b.begin() + at, b.begin() + at + vocab}));
  }
  std::sort(distances.begin(), distances.end());
  return distances[kPrompt / 2];
}

// Rounding the numbers to bf16 moves each weight by at most 2^-9, a hundred times less than NVFP4
// does; the products' sums differ in their last bits.
constexpr double kSameWeights = 0.03;

void expect_logits_of_its_own_numbers(const std::string& directory,
                                      double from_source_at_least,
                                      const std::vector<float>& source_logits) {
  CheckpointEditor numbers(directory);
  write_numbers(directory, numbers);
  const std::vector<float> found = logits_of(directory);
  const std::vector<float> expected = logits_of(numbers.directory().path());
  const double distant = distance(found, source_logits);
  EXPECT_LT(median_distance(found, expected), std::min(kSameWeights, distant / 2));
  EXPECT_GT(distant, from_source_at_least);  // it is quantized, after all
  EXPECT_LT(distant, 0.6);
}

class QuantizedGolden : public testing::TestWithParam<const char*> {};

TEST_P(QuantizedGolden, EveryRecipeAndLayoutLoadsAndGivesTheLogitsOfItsNumbers) {
  const auto source = test::any_golden_path(GetParam());
  if (!source) {
    GTEST_SKIP() << "golden set " << GetParam() << " is not here";
  }
  const std::vector<float> source_logits = logits_of(*source);
  for (const Method method :
       {Method::Max, Method::FourOverSix, Method::Sweep, Method::Gptq, Method::Full}) {
    for (const Layout layout : {Layout::ModelOpt, Layout::CompressedTensors}) {
      SCOPED_TRACE(std::string(to_string(method)) +
                   (layout == Layout::ModelOpt ? " modelopt" : " compressed-tensors"));
      const test::TempDir dir;
      quantize::QuantizeOptions options = options_for(*source, method);
      options.destination = dir.file("out");
      options.layout = layout;
      const auto report = quantize::quantize(options);
      ASSERT_TRUE(report.has_value()) << report.error().text();
      const auto written = Checkpoint::open(dir.file("out"));
      ASSERT_TRUE(written->require_servable().has_value());
      EXPECT_EQ(written->problems().size(), 0u);
      expect_logits_of_its_own_numbers(dir.file("out"), 0.02, source_logits);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models,
                         QuantizedGolden,
                         testing::Values("vendor/llama-base",
                                         "vendor/qwen3-base",
                                         "vendor/qwen3_moe-base",
                                         "vendor/mixtral-base"));

int64_t count_format(const Checkpoint& checkpoint, LinearInfo::Format format) {
  return std::count_if(checkpoint.linears().begin(),
                       checkpoint.linears().end(),
                       [&](const LinearInfo& info) { return info.format == format; });
}

TEST(MixedGolden, PatternsAndBudgetsGiveEightBitsToSomeAndLoad) {
  const std::string source = test::stored_golden_path("vendor/llama-base");
  const std::vector<float> source_logits = logits_of(source);
  for (const Layout layout : {Layout::ModelOpt, Layout::CompressedTensors}) {
    for (const bool budget : {false, true}) {
      SCOPED_TRACE(testing::Message()
                   << "layout " << static_cast<int>(layout) << " budget " << budget);
      const test::TempDir dir;
      quantize::QuantizeOptions options = options_for(source, Method::Full);
      options.destination = dir.file("out");
      options.layout = layout;
      options.exclude = {"model.layers.0.mlp.down_proj"};
      if (budget) {
        options.bits = 5.0;
      } else {
        options.fp8 = {"*.v_proj"};
      }
      const auto report = quantize::quantize(options);
      ASSERT_TRUE(report.has_value()) << report.error().text();
      const auto written = Checkpoint::open(dir.file("out"));
      ASSERT_TRUE(written->require_servable().has_value())
          << written->require_servable().error().text();
      EXPECT_EQ(written->problems().size(), 0u)
          << checkpoint::problem_texts(*written, checkpoint::Problem::Severity::Warning);
      const auto fp8 = count_format(*written, LinearInfo::Format::Fp8);
      const auto fp4 = count_format(*written, LinearInfo::Format::Nvfp4);
      EXPECT_EQ(fp8 + fp4, 13);
      double bits = 0;
      double weights = 0;
      for (const quantize::TensorReport& tensor : report->tensors) {
        const auto size = static_cast<double>(tensor.n * tensor.k);
        bits += size * (tensor.precision == quantize::Precision::Fp8 ? 8 : 4.5);
        weights += size;
        const auto info = written->linear(tensor.module, tensor.n, tensor.k, "x");
        ASSERT_TRUE(info.has_value()) << info.error().text();
        EXPECT_EQ(info->format == LinearInfo::Format::Fp8,
                  tensor.precision == quantize::Precision::Fp8)
            << tensor.module;
        EXPECT_FALSE(info->input_scale.empty()) << tensor.module;
        const bool eight = tensor.precision == quantize::Precision::Fp8;
        EXPECT_GT(tensor.relative_error, eight ? 0.015 : 0.08) << tensor.module;
        EXPECT_LT(tensor.relative_error, eight ? 0.035 : 0.2) << tensor.module;
      }
      if (budget) {
        EXPECT_GT(fp8, 0);
        EXPECT_LE(bits / weights, 5.0);
        EXPECT_GT(bits / weights, 4.6);
      } else {
        EXPECT_EQ(fp8, 6);  // q, k and v of two layers go together
      }
      expect_logits_of_its_own_numbers(dir.file("out"), 0.01, source_logits);
    }
  }
}

TEST(MixedGolden, TheBudgetPicksTheSameMatricesAfterAResume) {
  const std::string source = test::stored_golden_path("vendor/llama-base");
  const test::TempDir dir;
  quantize::QuantizeOptions options = options_for(source, Method::Sweep);
  options.bits = 5.5;
  options.destination = dir.file("a");
  ASSERT_TRUE(quantize::quantize(options).has_value());
  options.destination = dir.file("b");
  std::stop_source stop;
  stop.request_stop();
  options.stop = stop.get_token();
  ASSERT_FALSE(quantize::quantize(options).has_value());
  options.stop = {};
  options.num_threads = 3;
  ASSERT_TRUE(quantize::quantize(options).has_value());
  EXPECT_TRUE(dir.read("a/model.safetensors") == dir.read("b/model.safetensors"));
}

TEST(MixedGolden, AHeadIsQuantizedOnRequestAndUntied) {
  for (const char* name : {"vendor/llama-base", "smollm2"}) {
    const std::string source = test::stored_golden_path(name);
    if (!std::filesystem::exists(source + "/model.safetensors")) {
      continue;
    }
    const std::vector<float> source_logits = logits_of(source);
    for (const auto precision : {quantize::Precision::Nvfp4, quantize::Precision::Fp8}) {
      const test::TempDir dir;
      quantize::QuantizeOptions options = options_for(source, Method::FourOverSix);
      options.destination = dir.file("out");
      options.head = precision;
      const auto report = quantize::quantize(options);
      ASSERT_TRUE(report.has_value()) << report.error().text();
      const auto written = Checkpoint::open(dir.file("out"));
      ASSERT_TRUE(written->require_servable().has_value());
      EXPECT_EQ(written->problems().size(), 0u);
      EXPECT_FALSE(written->config().tie_word_embeddings);
      ASSERT_TRUE(written->stores_linear("lm_head"));
      const auto& linears = written->linears();
      const auto head = std::find_if(linears.begin(), linears.end(), [](const LinearInfo& info) {
        return info.module == "lm_head";
      });
      EXPECT_EQ(head->format,
                precision == quantize::Precision::Fp8 ? LinearInfo::Format::Fp8
                                                      : LinearInfo::Format::Nvfp4);
      EXPECT_NE(written->find("model.embed_tokens.weight"), nullptr);
      expect_logits_of_its_own_numbers(dir.file("out"), 0.02, source_logits);
    }
  }
}

TEST(MixedGolden, PatternsAndBudgetsThatFitNothingAreRefused) {
  const test::TempDir dir;
  quantize::QuantizeOptions options =
      options_for(test::stored_golden_path("vendor/llama-base"), Method::Max);
  options.destination = dir.file("out");
  options.fp8 = {"*.no_such_proj"};
  EXPECT_EQ(quantize::quantize(options).error().where, "fp8 *.no_such_proj");
  options.fp8.clear();
  options.bits = 4.0;
  EXPECT_EQ(quantize::quantize(options).error().where, "bits");
  EXPECT_FALSE(std::filesystem::exists(dir.file("out.partial")));
}

}  // namespace
}  // namespace nibble
