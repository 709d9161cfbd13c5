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
                                                  const EvalWindows& all,
                                                  std::span<const std::vector<int32_t>> windows) {
  const std::unique_ptr<Fed> fed = TRY(Fed::load(base, longest(all)));
  TRY(check_vocabulary(fed->facts().vocab_size, all));
  std::vector<ReferenceRows> kept;
  for (const std::vector<int32_t>& window : windows) {
    ReferenceRows& rows = kept.emplace_back();
    fed->begin(window);
    while (!fed->done()) {
      fed->step([&](int64_t /*position*/, std::span<const float> logits) { rows.add(logits); });
    }
  }
  return kept;
}

// Adds what `changed` scores over the windows whose reference is kept.
Result<void> add_scores(const engine::EngineConfig& changed,
                        std::span<const std::vector<int32_t>> windows,
                        int64_t window,
                        const std::vector<ReferenceRows>& reference,
                        Sums& sums) {
  const std::unique_ptr<Fed> fed = TRY(Fed::load(changed, window));
  for (size_t i = 0; i < windows.size(); ++i) {
    Sums one;
    fed->begin(windows[i]);
    while (!fed->done()) {
      fed->step([&](int64_t position, std::span<const float> logits) {
        const auto at = static_cast<size_t>(position);
        add_prediction(logits, windows[i][at + 1], &reference[i], at, one);
      });
    }
    sums.add(one);
  }
  return {};
}

}  // namespace

size_t windows_at_once(const EvalWindows& windows,
                       size_t begin,
                       int64_t vocab_size,
                       uint64_t kept_bytes) {
  uint64_t bytes = 0;
  size_t count = 0;
  while (begin + count < windows.size()) {
    bytes += windows[begin + count].size() * static_cast<uint64_t>(vocab_size) * sizeof(float);
    if (count > 0 && bytes > kept_bytes) {
      break;
    }
    ++count;
  }
  return count;
}

Result<PerLayerReport> evaluate_per_layer(const engine::EngineConfig& model,
                                          const EvalWindows& windows,
                                          double kl_budget,
                                          const EvalProgress& progress,
                                          uint64_t kept_bytes) {
  TRY(check_windows(windows));
  const auto checkpoint = TRY(checkpoint::Checkpoint::open(model.model_path));
  const int64_t layers = checkpoint.config().num_hidden_layers;
  const int64_t vocab_size = checkpoint.config().vocab_size;
  PerLayerReport report;
  report.model_path = model.model_path;
  report.window = longest(windows);
  report.windows = static_cast<int64_t>(windows.size());
  report.kl_budget = kl_budget;
  engine::EngineConfig base = model;
  base.nvfp4_mode = Nvfp4Mode::W4A16;
  base.nvfp4_rules.clear();
  int64_t rounds = 0;
  for (size_t begin = 0; begin < windows.size(); ++rounds) {
    begin += windows_at_once(windows, begin, vocab_size, kept_bytes);
  }
  std::vector<Sums> sums(static_cast<size_t>(layers));
  int64_t done = 0;
  for (size_t begin = 0; begin < windows.size();) {
    const auto some = std::span<const std::vector<int32_t>>(windows).subspan(
        begin, windows_at_once(windows, begin, vocab_size, kept_bytes));
    begin += some.size();
    const std::vector<ReferenceRows> reference = TRY(reference_rows(base, windows, some));
    for (int64_t layer = 0; layer < layers; ++layer) {
      engine::EngineConfig changed = base;
      changed.nvfp4_rules = {{layer_pattern(layer), Nvfp4Mode::W4A4}};
      TRY(add_scores(changed, some, report.window, reference, sums[static_cast<size_t>(layer)]));
      if (progress) {
        progress(++done, rounds * layers);
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
                             {"window", report.window},
                             {"windows", report.windows},
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
