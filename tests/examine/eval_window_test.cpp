#include "examine/eval_window.h"

#include <cmath>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::examine {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Optional;

TEST(EvalWindow, APredictionIsScoredAgainstTheReferencesDistribution) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.25f), std::log(0.25f)};
  const std::vector<float> other = {std::log(0.1f), std::log(0.2f), std::log(0.7f)};
  ReferenceRows rows;
  rows.add(logits);
  rows.add(other);
  Sums same;
  add_prediction(logits, 0, &rows, 0, same);
  EXPECT_NEAR(same.nll, std::log(2.0), 1e-6);
  EXPECT_NEAR(same.kl, 0.0, 1e-9);
  EXPECT_EQ(same.same, 1);
  Sums sums;
  add_prediction(logits, 2, &rows, 1, sums);
  const double expected =
      0.1 * std::log(0.1 / 0.5) + 0.2 * std::log(0.2 / 0.25) + 0.7 * std::log(0.7 / 0.25);
  EXPECT_NEAR(sums.kl, expected, 1e-6);
  EXPECT_NEAR(sums.reference_nll, -std::log(0.7), 1e-6);
  EXPECT_EQ(sums.same, 0);

  same.add(sums);
  const WindowScores scores = same.scores(true);
  EXPECT_EQ(scores.predictions, 2);
  EXPECT_THAT(scores.kl, Optional(DoubleNear(expected / 2, 1e-6)));
  EXPECT_NEAR(scores.perplexity, std::exp((std::log(2.0) + std::log(4.0)) / 2), 1e-5);
  EXPECT_EQ(scores.top1, 0.5);
  EXPECT_FALSE(same.scores(false).kl.has_value());
}

TEST(EvalWindow, WindowsAreCutFromTheStartOfTextsThatHaveEnoughTokens) {
  std::vector<int32_t> tokens(100);
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto windows = cut_windows(tokens, {.window = 40, .windows = 2});
  ASSERT_TRUE(windows.has_value()) << windows.error().text();
  ASSERT_EQ(windows->size(), 2u);
  EXPECT_EQ((*windows)[1].front(), 40);
  EXPECT_EQ((*windows)[1].back(), 79);
  EXPECT_EQ(longest({{1, 2}, {1, 2, 3}}), 3);
  EXPECT_THAT(cut_windows(tokens, {.window = 51, .windows = 2}).error().text(),
              HasSubstr("the text has 100"));
  EXPECT_THAT(cut_windows(tokens, {.window = 1, .windows = 2}).error().text(), HasSubstr("window"));
  EXPECT_THAT(cut_windows(tokens, {.window = 2, .windows = 0}).error().text(),
              HasSubstr("windows"));
}

}  // namespace
}  // namespace nibble::examine
