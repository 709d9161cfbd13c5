#include "quantize/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::quantize {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TensorReport tensor(const std::string& module, double error) {
  TensorReport report;
  report.module = module;
  report.n = 2;
  report.k = 16;
  report.relative_error = error;
  return report;
}

QuantizeReport sample() {
  QuantizeReport report;
  report.tensors.push_back(tensor("a", 0.09));
  report.tensors.push_back(tensor("b", 0.21));
  report.kept.emplace_back("lm_head", "output head");
  report.num_shards = 1;
  return report;
}

TEST(QuantizeReport, AveragesAndPointsAtTheWorst) {
  const QuantizeReport report = sample();
  EXPECT_DOUBLE_EQ(report.mean_relative_error(), 0.15);
  EXPECT_EQ(QuantizeReport{}.mean_relative_error(), 0.0);
  const std::string text = summary_text(report);
  EXPECT_THAT(text, HasSubstr("2 linears to NVFP4 (max), 1 kept"));
  EXPECT_THAT(text, HasSubstr("0.2100  b  (unusually large)"));
  EXPECT_THAT(text, Not(HasSubstr("a  (unusually")));
  EXPECT_LT(text.find("0.2100  b"), text.find("0.0900  a"));
  EXPECT_THAT(text, HasSubstr("kept 1: output head"));
}

TEST(QuantizeReport, HasTheSameFactsAsJson) {
  const auto object = to_json(sample());
  EXPECT_EQ(object.at("tensors").as_array().size(), 2u);
  EXPECT_EQ(object.at("tensors").at(1).at("module").as_string(), "b");
  EXPECT_EQ(object.at("kept").at(0).at("reason").as_string(), "output head");
}

TEST(QuantizeReport, ATensorsReportReadsBack) {
  TensorReport before = tensor("m", 0.125);
  before.method = Method::Full;
  before.descent_gain = 0.5;
  before.input_scale = 0.25f;
  before.calibration_tokens = 7;
  before.scale_exponents[15] = 3;
  const auto after = parse_tensor_report(to_json(before), "x");
  ASSERT_TRUE(after.has_value()) << after.error().text();
  EXPECT_EQ(to_json(*after), to_json(before));
  EXPECT_FALSE(after->alpha.has_value());
  auto broken = to_json(before);
  broken["recipe"] = "magic";
  EXPECT_FALSE(parse_tensor_report(broken, "x").has_value());
}

TEST(QuantizeReport, SaysHowManyTensorsFellBack) {
  QuantizeReport report = sample();
  report.method = Method::Full;
  report.tensors[0].method = Method::Full;
  report.tensors[1].method = Method::FourOverSix;
  EXPECT_THAT(summary_text(report), HasSubstr("1 took four-over-six for want"));
}

}  // namespace
}  // namespace nibble::quantize
