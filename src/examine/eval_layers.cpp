// nibble eval layers: what W4A4 costs in each layer.
#include <algorithm>

#include <fmt/format.h>

#include "checkpoint/checkpoint.h"
#include "examine/eval.h"
#include "examine/eval_window.h"

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

// The logits of all layers in W4A16 over some windows, so that they are computed once.
Result<std::vector<ReferenceRows>> reference_rows(const engine::EngineConfig& base,
                                                  std::span<const int32_t> tokens,
                                                  int64_t window) {
  const std::unique_ptr<Fed> fed = TRY(Fed::load(base, window));
  TRY(check_vocabulary(*fed, tokens));
  std::vector<ReferenceRows> windows;
  for (; !tokens.empty(); tokens = tokens.subspan(static_cast<size_t>(window))) {
    ReferenceRows& rows = windows.emplace_back();
    fed->begin(tokens.first(static_cast<size_t>(window)));
    while (!fed->done()) {
      fed->step([&](int64_t /*position*/, std::span<const float> logits) { rows.add(logits); });
    }
  }
  return windows;
}

// Adds what `changed` scores over the windows whose reference is kept.
Result<void> add_scores(const engine::EngineConfig& changed,
                        std::span<const int32_t> tokens,
                        int64_t window,
                        const std::vector<ReferenceRows>& reference,
                        Sums& sums) {
  const std::unique_ptr<Fed> fed = TRY(Fed::load(changed, window));
  for (const ReferenceRows& rows : reference) {
    const auto ids = tokens.first(static_cast<size_t>(window));
    tokens = tokens.subspan(ids.size());
    Sums one;
    fed->begin(ids);
    while (!fed->done()) {
      fed->step([&](int64_t position, std::span<const float> logits) {
        const auto at = static_cast<size_t>(position);
        add_prediction(logits, ids[at + 1], &rows, at, one);
      });
    }
    sums.add(one);
  }
  return {};
}

}  // namespace

int64_t windows_at_once(const EvalOptions& options, int64_t vocab_size, uint64_t kept_bytes) {
  const auto bytes = static_cast<uint64_t>(options.window * vocab_size) * sizeof(float);
  const auto fit = static_cast<int64_t>(kept_bytes / std::max<uint64_t>(bytes, 1));
  return std::clamp<int64_t>(fit, 1, options.windows);
}

Result<PerLayerReport> evaluate_per_layer(const engine::EngineConfig& model,
                                          std::span<const int32_t> tokens,
                                          const EvalOptions& options,
                                          double kl_budget,
                                          const EvalProgress& progress,
                                          uint64_t kept_bytes) {
  TRY(check_input(tokens, options));
  const auto checkpoint = TRY(checkpoint::Checkpoint::open(model.model_path));
  const int64_t layers = checkpoint.config().num_hidden_layers;
  PerLayerReport report;
  report.model_path = model.model_path;
  report.options = options;
  report.kl_budget = kl_budget;
  engine::EngineConfig base = model;
  base.nvfp4_mode = Nvfp4Mode::W4A16;
  base.nvfp4_rules.clear();
  const int64_t at_once = windows_at_once(options, checkpoint.config().vocab_size, kept_bytes);
  const int64_t rounds = (options.windows + at_once - 1) / at_once;
  std::vector<Sums> sums(static_cast<size_t>(layers));
  for (int64_t round = 0; round < rounds; ++round) {
    const int64_t begin = round * at_once;
    const int64_t count = std::min(at_once, options.windows - begin);
    const auto ids = tokens.subspan(static_cast<size_t>(begin * options.window),
                                    static_cast<size_t>(count * options.window));
    const std::vector<ReferenceRows> reference = TRY(reference_rows(base, ids, options.window));
    for (int64_t layer = 0; layer < layers; ++layer) {
      engine::EngineConfig changed = base;
      changed.nvfp4_rules = {{layer_pattern(layer), Nvfp4Mode::W4A4}};
      TRY(add_scores(changed, ids, options.window, reference, sums[static_cast<size_t>(layer)]));
      if (progress) {
        progress(round * layers + layer + 1, rounds * layers);
      }
    }
  }
  for (int64_t layer = 0; layer < layers; ++layer) {
    report.layers.push_back({layer, sums[static_cast<size_t>(layer)].scores(true).kl.value_or(0)});
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
