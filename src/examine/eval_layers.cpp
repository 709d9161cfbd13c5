// nibble eval layers: what W4A4 costs in each layer.
#include <algorithm>

#include <fmt/format.h>

#include "checkpoint/checkpoint.h"
#include "examine/eval.h"

namespace nibble::examine {

namespace {

std::string layer_pattern(int64_t layer) { return fmt::format("model.layers.{}.*", layer); }

// W4A4 where the costs, from the smallest on, stay within the budget; the rest W4A16.
Nvfp4ModeRules propose(std::vector<LayerCost> layers, double kl_budget) {
  std::stable_sort(layers.begin(), layers.end(), [](const LayerCost& a, const LayerCost& b) {
    return a.kl < b.kl;
  });
  Nvfp4ModeRules rules;
  double spent = 0;
  for (const LayerCost& layer : layers) {
    spent += std::max(layer.kl, 0.0);
    rules.push_back(
        {layer_pattern(layer.layer), spent <= kl_budget ? Nvfp4Mode::W4A4 : Nvfp4Mode::W4A16});
  }
  return rules;
}

}  // namespace

Result<PerLayerReport> evaluate_per_layer(const engine::EngineConfig& model,
                                          std::span<const int32_t> tokens,
                                          const EvalOptions& options,
                                          double kl_budget,
                                          const EvalProgress& progress) {
  const auto checkpoint = TRY(checkpoint::Checkpoint::open(model.model_path));
  const int64_t layers = checkpoint.config().num_hidden_layers;
  PerLayerReport report;
  report.model_path = model.model_path;
  report.options = options;
  report.kl_budget = kl_budget;
  engine::EngineConfig base = model;
  base.nvfp4_mode = Nvfp4Mode::W4A16;
  base.nvfp4_rules.clear();
  for (int64_t layer = 0; layer < layers; ++layer) {
    engine::EngineConfig changed = base;
    changed.nvfp4_rules = {{layer_pattern(layer), Nvfp4Mode::W4A4}};
    const EvalReport scores = TRY(evaluate_divergence(changed, base, tokens, options));
    report.layers.push_back({layer, *scores.all.kl});
    if (progress) {
      progress(layer + 1, layers);
    }
  }
  report.proposal = propose(report.layers, kl_budget);
  return report;
}

boost::json::object mode_file(const Nvfp4ModeRules& rules) {
  boost::json::object object;
  for (const Nvfp4ModeRule& rule : rules) {
    object[rule.pattern] = to_string(rule.mode);
  }
  return object;
}

boost::json::value to_json(const PerLayerReport& report) {
  boost::json::array layers;
  for (const LayerCost& layer : report.layers) {
    layers.push_back(boost::json::object{{"layer", layer.layer}, {"kl", layer.kl}});
  }
  return boost::json::object{{"model", report.model_path},
                             {"window", report.options.window},
                             {"windows", report.options.windows},
                             {"kl_budget", report.kl_budget},
                             {"layers", std::move(layers)},
                             {"proposal", mode_file(report.proposal)}};
}

std::string to_text(const PerLayerReport& report) {
  std::string text = fmt::format("model      {}\nKL of one layer in w4a4 against all in w4a16\n",
                                 report.model_path);
  for (const LayerCost& layer : report.layers) {
    text += fmt::format("layer {:>4}  {:.5f}\n", layer.layer, layer.kl);
  }
  const auto w4a4 =
      std::count_if(report.proposal.begin(), report.proposal.end(), [](const Nvfp4ModeRule& rule) {
        return rule.mode == Nvfp4Mode::W4A4;
      });
  return text + fmt::format("within a budget of {}: {} of {} layers in w4a4\n",
                            report.kl_budget,
                            w4a4,
                            report.proposal.size());
}

}  // namespace nibble::examine
