#include "quantize/report_html.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::quantize {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

QuantizeReport sample() {
  QuantizeReport report;
  report.source = "models/<tiny>";
  report.method = Method::Gptq;
  for (int layer = 0; layer < 3; ++layer) {
    TensorReport tensor;
    tensor.module = "model.layers." + std::to_string(layer) + ".mlp.up_proj";
    tensor.n = 32;
    tensor.k = 16;
    tensor.relative_error = 0.1;
    tensor.relative_objective = 0.001 * (layer + 1);
    tensor.scale_exponents[9] = 32;
    report.tensors.push_back(tensor);
  }
  report.kept.emplace_back("lm_head", "output head");
  return report;
}

size_t count(const std::string& text, const std::string& piece) {
  size_t found = 0;
  for (size_t at = text.find(piece); at != std::string::npos; at = text.find(piece, at + 1)) {
    ++found;
  }
  return found;
}

TEST(ReportHtml, IsOnePageThatNeedsNothingElse) {
  const std::string page = to_html(sample());
  EXPECT_THAT(page, HasSubstr("<!doctype html>"));
  EXPECT_THAT(page, HasSubstr("models/&lt;tiny&gt;"));
  EXPECT_THAT(page, Not(HasSubstr("<tiny>")));
  EXPECT_THAT(page, Not(HasSubstr("http")));
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_EQ(count(page, "<svg"), 3u);
  EXPECT_EQ(count(page, "<svg"), count(page, "</svg>"));
  EXPECT_EQ(count(page, "<table"), count(page, "</table>"));
}

TEST(ReportHtml, ShowsWhatTheModelPredictsBeforeAndAfterWhereThatWasAsked) {
  QuantizeReport report = sample();
  EXPECT_THAT(to_html(report), Not(HasSubstr("Before and after")));
  report.evaluation_text = "a<b>.txt";
  report.evaluations = {{"source", 12.5, 0, 1}, {"result", 13.25, 0.0421, 0.875}};
  EXPECT_THAT(to_html(report), HasSubstr("a&lt;b&gt;.txt"));
  EXPECT_THAT(to_html(report),
              HasSubstr("<td>result</td><td>13.250</td><td>0.0421</td><td>0.875</td>"));
}

TEST(ReportHtml, ShowsEveryMatrixAndWhatStays) {
  const std::string page = to_html(sample());
  EXPECT_THAT(page, HasSubstr("<title>model.layers.2.mlp.up_proj: 0.003</title>"));
  EXPECT_THAT(page, HasSubstr("<td>lm_head</td><td>output head</td>"));
  EXPECT_THAT(page, HasSubstr("<title>2^2: 96 blocks</title>"));
  QuantizeReport plain = sample();
  for (TensorReport& tensor : plain.tensors) {
    tensor.relative_objective.reset();
  }
  EXPECT_EQ(count(to_html(plain), "<svg"), 2u);
}

}  // namespace
}  // namespace nibble::quantize
