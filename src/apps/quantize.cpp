#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "apps/calibration_text.h"
#include "apps/commands.h"
#include "apps/engine_flags.h"
#include "apps/number_range.h"
#include "examine/eval.h"
#include "quantize/budget.h"
#include "quantize/destination.h"
#include "quantize/pipeline.h"
#include "quantize/report.h"
#include "quantize/write.h"

namespace nibble::apps {

namespace {

constexpr double kBytesPerGigabyte = 1e9;
constexpr double kMinShardGigabytes = 1 / kBytesPerGigabyte;
constexpr double kMaxShardGigabytes = 1e9;  // in bytes still a uint64_t

struct QuantizeFlags {
  quantize::QuantizeOptions options;
  std::string recipe;
  std::optional<std::string> calibration_path;
  int64_t calibration_tokens = 16384;
  std::string layout = "modelopt";
  std::string head = "keep";
  double max_shard_gb = 4.0;
  bool json = false;
  std::string evaluation_path;
  int64_t evaluation_window = examine::EvalOptions().window;
  std::optional<int64_t> evaluation_windows;
};

// Perplexity and divergence of the source, of its data-free form and of the result, into the
// report.
Result<void> evaluate(const QuantizeFlags& flags,
                      const examine::EvalWindows& windows,
                      quantize::QuantizeReport& report) {
  EngineFlags engine;
  engine.device = "cpu";
  engine.num_threads = flags.options.num_threads;
  engine.log_level = "warn";
  engine.model_path = flags.options.source;
  const engine::EngineConfig source = TRY(resolve_engine_config(engine));
  const auto compare = [&](const std::string& name,
                           const engine::EngineConfig& config) -> Result<void> {
    const auto scores = TRY(examine::evaluate_divergence(config, source, windows)).all;
    if (report.evaluations.empty()) {
      report.evaluations.push_back({"source", scores.reference_perplexity.value_or(0), 0, 1});
    }
    report.evaluations.push_back(
        {name, scores.perplexity, scores.kl.value_or(0), scores.top1.value_or(0)});
    return {};
  };
  if (flags.options.method != quantize::Method::FourOverSix) {
    engine::EngineConfig online = source;
    online.online_nvfp4 = true;
    TRY(compare("four-over-six while loading", online));
  }
  engine::EngineConfig result = source;
  result.model_path = flags.options.destination;
  result.kv_dtype = resolve_kv_dtype(engine.kv_cache_dtype, result.model_path);
  TRY(compare("result", result));
  report.evaluation_text = flags.evaluation_path;
  for (const std::vector<int32_t>& window : windows) {
    report.evaluation_tokens += static_cast<int64_t>(window.size());
  }
  quantize::write_report(report, flags.options.destination);
  return {};
}

// What --eval names, before any other work: it can be wrong too.
Result<examine::EvalWindows> evaluation_windows(const QuantizeFlags& flags) {
  examine::EvalWindows windows = TRY(read_windows(flags.evaluation_path,
                                                  flags.options.source,
                                                  flags.evaluation_window,
                                                  flags.evaluation_windows));
  TRY(examine::check_evaluation(flags.options.source, windows));
  return windows;
}

Result<quantize::QuantizeReport> quantize_with(const QuantizeFlags& flags) {
  quantize::QuantizeOptions options = flags.options;
  options.destination = quantize::plain_destination(options.destination);
  options.max_shard_bytes = static_cast<uint64_t>(flags.max_shard_gb * kBytesPerGigabyte);
  options.layout = TRY(quantize::parse_layout(flags.layout));
  if (flags.head != "keep") {
    const auto head = quantize::parse_precision(flags.head);
    if (!head) {
      return invalid("expected keep, nvfp4 or fp8, found " + flags.head, "--lm-head");
    }
    options.head = *head;
  }
  if (!flags.recipe.empty()) {
    options.method = TRY(quantize::parse_method(flags.recipe));
  } else if (flags.calibration_path) {
    options.method = quantize::Method::Full;
  }
  if (flags.calibration_path) {
    if (!quantize::needs_calibration(options.method)) {
      return invalid("the recipe takes no calibration text", "--calib");
    }
    options.calibration = TRY(
        read_calibration_tokens(*flags.calibration_path, options.source, flags.calibration_tokens));
    if (static_cast<int64_t>(options.calibration.size()) < flags.calibration_tokens) {
      fmt::print(
          stderr,
          "nibble: notice: the calibration text has {} tokens, fewer than the {} asked for\n",
          options.calibration.size(),
          flags.calibration_tokens);
    }
  }
  examine::EvalWindows windows;
  if (!flags.evaluation_path.empty()) {
    windows = TRY(evaluation_windows(flags));
  }
  quantize::QuantizeReport report = TRY(quantize::quantize(options));
  if (!flags.evaluation_path.empty()) {
    QuantizeFlags used = flags;
    used.options.method = options.method;
    used.options.destination = options.destination;
    TRY(evaluate(used, windows, report));
  }
  return report;
}

int run_quantize(const QuantizeFlags& flags) {
  const auto report = quantize_with(flags);
  if (!report) {
    return report_error(report.error());
  }
  const std::string text = flags.json ? quantize::pretty_json(quantize::to_json(*report))
                                      : quantize::summary_text(*report);
  fmt::print("{}", text);
  return 0;
}

}  // namespace

void add_quantize(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("quantize", "make an NVFP4 checkpoint from a BF16 or FP8 one");
  auto flags = std::make_shared<QuantizeFlags>();  // shared: the action outlives this function
  command->add_option("source", flags->options.source, "directory of the model to quantize")
      ->required();
  command
      ->add_option(
          "destination", flags->options.destination, "directory to write; made when absent")
      ->required();
  command->add_option("--recipe",
                      flags->recipe,
                      "max, four-over-six (the default), or with --calib sweep, gptq, full (the "
                      "default there)");
  command->add_option("--calib",
                      flags->calibration_path,
                      "calibration text: plain, or .jsonl with a {\"messages\": [...]} or "
                      "{\"prompt\": \"...\"} a line");
  command->add_option("--calib-tokens", flags->calibration_tokens, "tokens of it that are used")
      ->check(CLI::Range(int64_t{32}, int64_t{1} << 24))
      ->needs("--calib")
      ->capture_default_str();
  command->add_option("--layout", flags->layout, "modelopt or compressed-tensors")
      ->capture_default_str();
  command->add_flag("--weight-only",
                    flags->options.weight_only,
                    "store no input scales: the checkpoint asks for W4A16");
  command
      ->add_option("--exclude",
                   flags->options.exclude,
                   "keep modules in full precision: names, wildcards, or re:EXPRESSION (several)")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command
      ->add_option("--fp8",
                   flags->options.fp8,
                   "store modules in FP8, with the group they belong to: patterns as above")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command
      ->add_option("--bits",
                   flags->options.bits,
                   "mean bits a weight, 4.5 to 8: the most sensitive matrices become FP8")
      ->check(number_range(quantize::kNvfp4Bits, quantize::kFp8Bits));
  command->add_option("--lm-head", flags->head, "the output head: keep, nvfp4 or fp8")
      ->capture_default_str();
  command->add_option("--eval",
                      flags->evaluation_path,
                      "text to predict before and after: perplexity and KL go into the report");
  command->add_option("--eval-window", flags->evaluation_window, "tokens of one window of it")
      ->needs("--eval")
      ->capture_default_str();
  command
      ->add_option("--eval-windows",
                   flags->evaluation_windows,
                   "how many windows: 1 of a text, all prompts of a .jsonl")
      ->needs("--eval");
  command->add_option("--max-shard-gb", flags->max_shard_gb, "start a new file past this many GB")
      ->check(number_range(kMinShardGigabytes, kMaxShardGigabytes))
      ->capture_default_str();
  command->add_option("--threads", flags->options.num_threads, "CPU threads; 0: all")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_flag("--json", flags->json, "print the whole report as JSON");
  command->callback([flags, &action] { action = [flags] { return run_quantize(*flags); }; });
}

}  // namespace nibble::apps
