#include "quantize/report_html.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "checkpoint/quantize_rules.h"

namespace nibble::quantize {

using checkpoint::layer_index;

namespace {

constexpr double kWidth = 860;
constexpr double kHeight = 240;
constexpr double kLeft = 64;    // room for numbers
constexpr double kBottom = 28;  // room for names
constexpr std::array<std::string_view, 8> kColours = {
    "#2b6cb0", "#c05621", "#2f855a", "#b83280", "#6b46c1", "#975a16", "#2c7a7b", "#718096"};

constexpr std::string_view kStyle = R"(<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 900px; color: #1a202c; padding: 0 1rem; }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums } td, th { padding: .15rem .6rem; text-align: right }
td:first-child, th:first-child { text-align: left } tr:nth-child(even) { background: #f7fafc }
svg { width: 100%; height: auto } svg text { font: 11px system-ui, sans-serif; fill: #4a5568 }
.scroll { max-height: 30rem; overflow: auto }
</style>)";

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

// "model.layers.3.mlp.experts.7.up_proj" -> "up_proj"
std::string kind_of(std::string_view module) {
  return std::string(module.substr(module.rfind('.') + 1));
}

using Value = std::function<std::optional<double>(const TensorReport&)>;

struct Point {
  double layer;
  double value;
  std::string module;
};

// Kind -> its values over the layers.
std::map<std::string, std::vector<Point>> series_of(const QuantizeReport& report,
                                                    const Value& value) {
  std::map<std::string, std::vector<Point>> series;
  for (const TensorReport& tensor : report.tensors) {
    if (const auto y = value(tensor); y && std::isfinite(*y) && *y > 0) {
      series[kind_of(tensor.module)].push_back(
          {static_cast<double>(std::max<int64_t>(layer_index(tensor.module), 0)),
           *y,
           tensor.module});
    }
  }
  return series;
}

// Dots of every matrix by layer, one colour a kind; the vertical axis is logarithmic.
std::string plot(const QuantizeReport& report, const Value& value) {
  const auto series = series_of(report, value);
  double low = 1e300;
  double high = 0;
  double layers = 1;
  for (const auto& [kind, points] : series) {
    for (const Point& point : points) {
      low = std::min(low, point.value);
      high = std::max(high, point.value);
      layers = std::max(layers, point.layer + 1);
    }
  }
  if (high <= 0) {
    return "<p>No values.</p>";
  }
  const double bottom = std::log10(low) - 0.05;
  const double top = std::log10(high) + 0.05;
  const auto x_of = [&](double layer) {
    return kLeft + (layer + 0.5) / layers * (kWidth - kLeft - 10);
  };
  const auto y_of = [&](double y) {
    return 10 + (top - std::log10(y)) / (top - bottom) * (kHeight - kBottom - 10);
  };
  std::string svg = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\">", kWidth, kHeight + 20);
  for (int i = 0; i <= 4; ++i) {
    const double y = std::pow(10.0, bottom + (top - bottom) * i / 4);
    svg += fmt::format(
        "<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#e2e8f0\"/><text x=\"{}\" "
        "y=\"{:.1f}\" text-anchor=\"end\">{:.2g}</text>",
        kLeft,
        kWidth - 10,
        y_of(y),
        y_of(y),
        kLeft - 6,
        y_of(y) + 4,
        y);
  }
  size_t colour = 0;
  double legend = kLeft;
  for (const auto& [kind, points] : series) {
    const std::string_view fill = kColours[colour++ % kColours.size()];
    for (const Point& point : points) {
      svg += fmt::format(
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"><title>{}: "
          "{:.4g}</title></circle>",
          x_of(point.layer),
          y_of(point.value),
          fill,
          escaped(point.module),
          point.value);
    }
    svg += fmt::format(
        "<circle cx=\"{0:.0f}\" cy=\"{1}\" r=\"4\" fill=\"{2}\"/><text x=\"{3:.0f}\" "
        "y=\"{4}\">{5}</text>",
        legend,
        kHeight + 8,
        fill,
        legend + 8,
        kHeight + 12,
        escaped(kind));
    legend += 24 + 7 * static_cast<double>(kind.size());
  }
  svg += fmt::format(
      "<text x=\"{}\" y=\"{}\">layer 0 .. {:.0f}</text></svg>", kLeft, kHeight - 8, layers - 1);
  return svg;
}

// Blocks by the exponent of their scale, all matrices of a kind together.
std::string histograms(const QuantizeReport& report) {
  std::map<std::string, std::array<int64_t, 16>> kinds;
  for (const TensorReport& tensor : report.tensors) {
    auto& counts = kinds[kind_of(tensor.module)];
    for (size_t i = 0; i < counts.size(); ++i) {
      counts[i] += tensor.scale_exponents[i];
    }
  }
  constexpr double kRow = 44;
  std::string svg = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\">",
                                kWidth,
                                kRow * static_cast<double>(kinds.size()) + 20);
  double y = kRow;
  for (const auto& [kind, counts] : kinds) {
    const auto most =
        static_cast<double>(std::max<int64_t>(1, *std::max_element(counts.begin(), counts.end())));
    svg += fmt::format("<text x=\"0\" y=\"{}\">{}</text>", y - 4, escaped(kind));
    for (size_t i = 0; i < counts.size(); ++i) {
      const double height = static_cast<double>(counts[i]) / most * (kRow - 10);
      svg += fmt::format(
          "<rect x=\"{}\" y=\"{:.1f}\" width=\"42\" height=\"{:.1f}\" "
          "fill=\"#2b6cb0\"><title>2^{}: {} "
          "blocks</title></rect>",
          120 + 46 * i,
          y - height,
          height,
          static_cast<int>(i) - 7,
          counts[i]);
    }
    y += kRow;
  }
  for (size_t i = 0; i < 16; ++i) {
    svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">2^{}</text>",
                       141 + 46 * i,
                       y - kRow + 16,
                       static_cast<int>(i) - 7);
  }
  return svg + "</svg>";
}

struct Mean {
  double sum = 0;
  double count = 0;
  void add(double value) {
    sum += value;
    ++count;
  }
  std::string text(const char* format) const {
    return count > 0 ? fmt::format(fmt::runtime(format), sum / count) : std::string("-");
  }
};

std::string kind_table(const QuantizeReport& report) {
  struct Row {
    Mean error, objective, gain;
    int64_t weights = 0;
  };
  std::map<std::string, Row> rows;
  for (const TensorReport& tensor : report.tensors) {
    Row& row = rows[kind_of(tensor.module)];
    row.error.add(tensor.relative_error);
    if (tensor.relative_objective) {
      row.objective.add(*tensor.relative_objective);
    }
    if (tensor.descent_gain) {
      row.gain.add(*tensor.descent_gain);
    }
    row.weights += tensor.n * tensor.k;
  }
  std::string html =
      "<table><tr><th>kind</th><th>weights</th><th>relative error</th><th>relative objective</th>"
      "<th>after / before descent</th></tr>";
  for (const auto& [kind, row] : rows) {
    html += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                        escaped(kind),
                        row.weights,
                        row.error.text("{:.4f}"),
                        row.objective.text("{:.2e}"),
                        row.gain.text("{:.3f}"));
  }
  return html + "</table>";
}

std::string tensor_table(const QuantizeReport& report) {
  std::string html =
      "<div "
      "class=\"scroll\"><table><tr><th>module</th><th>recipe</th><th>error</th><th>objective</th>"
      "<th>alpha</th><th>tokens</th></tr>";
  for (const TensorReport& tensor : report.tensors) {
    html += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{:.4f}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
        escaped(tensor.module),
        to_string(tensor.method),
        tensor.relative_error,
        tensor.relative_objective ? fmt::format("{:.2e}", *tensor.relative_objective) : "-",
        tensor.alpha ? fmt::format("{:.2f}", *tensor.alpha) : "-",
        tensor.calibration_tokens);
  }
  return html + "</table></div>";
}

std::string evaluation_table(const QuantizeReport& report) {
  std::string html = fmt::format(
      "<p>{} tokens of {}.</p><table><tr><th>model</th><th>perplexity</th><th>KL to the source</th>"
      "<th>same top-1</th></tr>",
      report.evaluation_tokens,
      escaped(report.evaluation_text));
  for (const Evaluation& one : report.evaluations) {
    html += fmt::format("<tr><td>{}</td><td>{:.3f}</td><td>{:.4f}</td><td>{:.3f}</td></tr>",
                        escaped(one.model),
                        one.perplexity,
                        one.kl,
                        one.top1);
  }
  return html + "</table>";
}

std::string kept_table(const QuantizeReport& report) {
  std::string html = "<table><tr><th>module</th><th>why it stays</th></tr>";
  for (const auto& [module, reason] : report.kept) {
    html += fmt::format("<tr><td>{}</td><td>{}</td></tr>", escaped(module), escaped(reason));
  }
  return html + "</table>";
}

}  // namespace

std::string to_html(const QuantizeReport& report) {
  constexpr double kMegabyte = 1e6;
  std::string html = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>NVFP4 report: "
      "{0}</title>{1}"
      "</head><body>\n<h1>{0}</h1>\n<p>Recipe <b>{2}</b>, {3} calibration tokens; {4} matrices to "
      "NVFP4, {5} kept; {6:.1f} MB &rarr; {7:.1f} MB.</p>\n",
      escaped(report.source),
      kStyle,
      to_string(report.method),
      report.calibration_tokens,
      report.tensors.size(),
      report.kept.size(),
      static_cast<double>(report.source_bytes) / kMegabyte,
      static_cast<double>(report.output_bytes) / kMegabyte);
  if (!report.evaluations.empty()) {
    html += "<h2>Before and after</h2>\n" + evaluation_table(report);
  }
  html += "<h2>By kind</h2>\n" + kind_table(report);
  const bool calibrated =
      std::any_of(report.tensors.begin(), report.tensors.end(), [](const TensorReport& tensor) {
        return tensor.relative_objective.has_value();
      });
  if (calibrated) {
    html += "<h2>Relative objective, e<sup>T</sup> H e / tr(W H W<sup>T</sup>)</h2>\n" +
            plot(report, [](const TensorReport& tensor) { return tensor.relative_objective; });
  }
  html += "<h2>Relative error of the weights</h2>\n" + plot(report, [](const TensorReport& tensor) {
            return std::optional<double>(tensor.relative_error);
          });
  html += "<h2>Block scales by exponent</h2>\n" + histograms(report);
  html += "<h2>Matrices</h2>\n" + tensor_table(report);
  html += "<h2>Kept</h2>\n" + kept_table(report);
  return html + "\n</body></html>\n";
}

}  // namespace nibble::quantize
