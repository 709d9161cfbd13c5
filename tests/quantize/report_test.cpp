#include "quantize/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::quantize {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

QuantizeReport sample() {
  QuantizeReport report;
  report.tensors.push_back({.module = "a", .n = 2, .k = 16, .relative_error = 0.09});
  report.tensors.push_back({.module = "b", .n = 2, .k = 16, .relative_error = 0.21});
  report.kept.emplace_back("lm_head", "output head");
  report.num_shards = 1;
  return report;
}

TEST(QuantizeReport, AveragesAndPointsAtTheWorst) {
  const QuantizeReport report = sample();
  EXPECT_DOUBLE_EQ(report.mean_relative_error(), 0.15);
  EXPECT_EQ(QuantizeReport{}.mean_relative_error(), 0.0);
  const std::string text = summary_text(report);
  EXPECT_THAT(text, HasSubstr("2 linears to NVFP4, 1 kept"));
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

}  // namespace
}  // namespace nibble::quantize
