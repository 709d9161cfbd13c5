#include "examine/eval.h"

#include <memory>

#include <fmt/format.h>

#include "checkpoint/checkpoint.h"
#include "examine/eval_window.h"

namespace nibble::examine {

namespace {

// reference may be null.
Sums run_window(Fed& model,
                Fed* reference,
                std::span<const int32_t> window,
                const std::function<void(int64_t)>& progress) {
  Sums sums;
  ReferenceRows expected;  // of one chunk
  model.begin(window);
  if (reference != nullptr) {
    reference->begin(window);
  }
  while (!model.done()) {
    const int64_t chunk_begin = model.computed();
    expected.clear();
    if (reference != nullptr) {
      reference->step(
          [&](int64_t /*position*/, std::span<const float> logits) { expected.add(logits); });
    }
    model.step([&](int64_t position, std::span<const float> logits) {
      add_prediction(logits,
                     window[static_cast<size_t>(position) + 1],
                     reference == nullptr ? nullptr : &expected,
                     static_cast<size_t>(position - chunk_begin),
                     sums);
    });
    progress(model.computed());
  }
  return sums;
}

Result<EvalReport> evaluate(const engine::EngineConfig& model_config,
                            const engine::EngineConfig* reference_config,
                            const EvalWindows& windows,
                            const EvalProgress& progress) {
  TRY(check_windows(windows));
  EvalReport report;
  report.window = longest(windows);
  const std::unique_ptr<Fed> model = TRY(Fed::load(model_config, report.window));
  std::unique_ptr<Fed> reference;
  report.model_path = model_config.model_path;
  report.quantization = model->facts().quantization;
  TRY(check_vocabulary(model->facts().vocab_size, windows));
  if (reference_config != nullptr) {
    reference = TRY(Fed::load(*reference_config, report.window));
    report.reference_path = reference_config->model_path;
    report.reference_quantization = reference->facts().quantization;
    if (reference->facts().vocab_size != model->facts().vocab_size) {
      return invalid(fmt::format("expected the model's vocabulary of {} tokens, found {}",
                                 model->facts().vocab_size,
                                 reference->facts().vocab_size),
                     "reference");
    }
  }
  int64_t total = 0;
  for (const std::vector<int32_t>& window : windows) {
    total += static_cast<int64_t>(window.size());
  }
  Sums all;
  int64_t before = 0;
  for (const std::vector<int32_t>& window : windows) {
    const Sums sums = run_window(*model, reference.get(), window, [&](int64_t done) {
      if (progress) {
        progress(before + done, total);
      }
    });
    before += static_cast<int64_t>(window.size());
    report.windows.push_back(sums.scores(reference != nullptr));
    all.add(sums);
  }
  report.all = all.scores(reference != nullptr);
  return report;
}

boost::json::object scores_json(const WindowScores& scores) {
  boost::json::object object;
  object["predictions"] = scores.predictions;
  object["nll"] = scores.nll;
  object["ppl"] = scores.perplexity;
  if (scores.kl && scores.top1) {
    object["kl"] = *scores.kl;
    object["top1"] = *scores.top1;
    object["reference_ppl"] = scores.reference_perplexity.value_or(0);
  }
  return object;
}

std::string scores_text(const std::string& name, const WindowScores& scores) {
  std::string line = fmt::format("{:<10} {:>7} predictions  ppl {:9.4f}  nll {:.4f}",
                                 name,
                                 scores.predictions,
                                 scores.perplexity,
                                 scores.nll);
  if (scores.kl && scores.top1) {
    line += fmt::format("  kl {:.4f}  same top-1 {:.3f}", *scores.kl, *scores.top1);
  }
  return line + "\n";
}

}  // namespace

Result<void> check_evaluation(const std::string& model_path, const EvalWindows& windows) {
  TRY(check_windows(windows));
  const auto checkpoint = TRY(checkpoint::Checkpoint::open(model_path));
  TRY(check_context(checkpoint.config().max_position_embeddings, longest(windows)));
  return check_vocabulary(checkpoint.config().vocab_size, windows);
}

Result<EvalReport> evaluate_perplexity(const engine::EngineConfig& model,
                                       const EvalWindows& windows,
                                       const EvalProgress& progress) {
  return evaluate(model, nullptr, windows, progress);
}

Result<EvalReport> evaluate_divergence(const engine::EngineConfig& model,
                                       const engine::EngineConfig& reference,
                                       const EvalWindows& windows,
                                       const EvalProgress& progress) {
  return evaluate(model, &reference, windows, progress);
}

boost::json::value to_json(const EvalReport& report) {
  boost::json::object object;
  object["model"] = report.model_path;
  object["quantization"] = report.quantization;
  if (!report.reference_path.empty()) {
    object["reference"] = report.reference_path;
    object["reference_quantization"] = report.reference_quantization;
  }
  object["window"] = report.window;
  boost::json::array windows;
  for (const WindowScores& scores : report.windows) {
    windows.push_back(scores_json(scores));
  }
  object["windows"] = std::move(windows);
  object["all"] = scores_json(report.all);
  return object;
}

std::string to_text(const EvalReport& report) {
  std::string text = fmt::format("model      {} ({})\n", report.model_path, report.quantization);
  if (!report.reference_path.empty()) {
    text +=
        fmt::format("reference  {} ({})\n", report.reference_path, report.reference_quantization);
  }
  for (size_t i = 0; i < report.windows.size(); ++i) {
    text += scores_text(fmt::format("window {}", i), report.windows[i]);
  }
  if (report.windows.size() > 1) {
    text += scores_text("all", report.all);
  }
  return text;
}

}  // namespace nibble::examine
