#include "examine/eval.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/data_dir.h"
#include "support/engine_harness.h"

namespace nibble::examine {
namespace {

using testing::DoubleNear;
using testing::Gt;
using testing::HasSubstr;
using testing::Lt;
using testing::Optional;

std::vector<int32_t> text(int32_t count) {
  std::vector<int32_t> tokens;
  tokens.reserve(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) {
    tokens.push_back((i * i * 7 + 3) % 512);
  }
  return tokens;
}

EvalWindows windows(const std::vector<int32_t>& tokens, const EvalOptions& options) {
  return cut_windows(tokens, options).value();
}

engine::EngineConfig model(Nvfp4Mode mode = Nvfp4Mode::W4A16) {
  engine::EngineConfig config = test::tiny_config(test::data_path("golden/llama-nvfp4"));
  config.nvfp4_mode = mode;
  return config;
}

// The engine's own prompt logprobs are another way to the same mean.
double nll_from_prompt_logprobs(const std::vector<int32_t>& window) {
  const auto engine = test::start_engine(model());
  engine::Request request = test::greedy_request(window, 0);
  request.logprobs.prompt_start = 1;
  const test::Answer answer = test::generate(*engine, std::move(request));
  double sum = 0;
  for (const engine::PositionLogprobs& position : answer.prompt_logprobs) {
    if (!position.token) {
      ADD_FAILURE() << "a position without its token's logprob";
      continue;
    }
    sum -= static_cast<double>(position.token->logprob);
  }
  return sum / static_cast<double>(answer.prompt_logprobs.size());
}

TEST(Eval, PerplexityIsThatOfThePromptLogprobsAndWindowsAreIndependent) {
  const std::vector<int32_t> tokens = text(300);
  const EvalReport report =
      evaluate_perplexity(model(), windows(tokens, {.window = 150, .windows = 2})).value();
  ASSERT_EQ(report.windows.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const std::vector<int32_t> window(tokens.begin() + static_cast<std::ptrdiff_t>(150 * i),
                                      tokens.begin() + static_cast<std::ptrdiff_t>(150 * (i + 1)));
    EXPECT_EQ(report.windows[i].predictions, 149);
    EXPECT_NEAR(report.windows[i].nll, nll_from_prompt_logprobs(window), 1e-5);
    EXPECT_NEAR(report.windows[i].perplexity, std::exp(report.windows[i].nll), 1e-9);
    EXPECT_FALSE(report.windows[i].kl.has_value());
  }
  EXPECT_NEAR(report.all.nll, (report.windows[0].nll + report.windows[1].nll) / 2, 1e-12);
}

TEST(Eval, AModelDoesNotDivergeFromItselfButFromAnotherMode) {
  const EvalWindows tokens = {text(100)};
  const EvalReport same = evaluate_divergence(model(), model(), tokens).value();
  EXPECT_THAT(same.all.kl, Optional(DoubleNear(0.0, 1e-12)));
  EXPECT_EQ(same.all.top1, 1.0);
  const EvalReport other = evaluate_divergence(model(Nvfp4Mode::W4A4), model(), tokens).value();
  EXPECT_THAT(other.all.kl, Optional(Gt(1e-3)));
  EXPECT_THAT(other.all.top1, Optional(Lt(1.0)));
  EXPECT_THAT(same.all.reference_perplexity, Optional(DoubleNear(same.all.perplexity, 1e-9)));
  EXPECT_THAT(other.all.reference_perplexity, Optional(DoubleNear(same.all.perplexity, 1e-9)));
  EXPECT_GT(std::fabs(other.all.perplexity - same.all.perplexity), 1e-6);
  EXPECT_EQ(other.quantization, "nvfp4 (w4a4)");
  EXPECT_EQ(other.reference_quantization, "nvfp4 (w4a16)");
  const boost::json::value json = to_json(other);
  EXPECT_EQ(json.at("windows").as_array().size(), 1u);
  EXPECT_GT(json.at("all").at("kl").as_double(), 0);
  EXPECT_THAT(to_text(other), HasSubstr("same top-1"));
}

TEST(Eval, SequencesOfAnyLengthsAreScoredByThemselves) {
  const std::vector<int32_t> tokens = text(90);
  const EvalWindows both = {{tokens.begin(), tokens.begin() + 20},
                            {tokens.begin() + 20, tokens.end()}};
  const EvalReport report = evaluate_perplexity(model(), both).value();
  ASSERT_EQ(report.windows.size(), 2u);
  EXPECT_EQ(report.window, 70);
  double sum = 0;
  for (size_t i = 0; i < 2; ++i) {
    const EvalReport alone = evaluate_perplexity(model(), {both[i]}).value();
    EXPECT_EQ(report.windows[i].predictions, static_cast<int64_t>(both[i].size()) - 1);
    EXPECT_EQ(report.windows[i].nll, alone.all.nll);
    sum += alone.all.nll * static_cast<double>(alone.all.predictions);
  }
  EXPECT_NEAR(report.all.nll, sum / 88, 1e-12);
}

TEST(Eval, RefusesWhatCannotBeScored) {
  const auto refusal = [](const EvalWindows& windows) {
    const auto report = evaluate_perplexity(model(), windows);
    return report ? std::string("accepted") : report.error().text();
  };
  EXPECT_THAT(refusal({}), HasSubstr("nothing to predict"));
  EXPECT_THAT(refusal({{1, 2}, {3}}), HasSubstr("sequence 2 has 1 tokens"));
  EXPECT_THAT(refusal({text(3000)}), HasSubstr("context length"));
  EXPECT_THAT(refusal({{1, 2, 600}}), HasSubstr("vocabulary"));
  EXPECT_EQ(refusal({{1, 2}}), "accepted");
  const auto early = [](const EvalWindows& windows) {  // without loading the model
    const auto checked = check_evaluation(model().model_path, windows);
    return checked ? std::string("accepted") : checked.error().text();
  };
  for (const EvalWindows& windows :
       {EvalWindows{}, {{1, 2}, {3}}, {text(3000)}, {{1, 2, 600}}, {{1, 2}}}) {
    EXPECT_EQ(early(windows), refusal(windows));
  }
}

}  // namespace
}  // namespace nibble::examine
