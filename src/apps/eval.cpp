// nibble eval ppl, nibble eval kl: joins text, tokenizer and examine/eval.
#include "examine/eval.h"

#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "apps/calibration_text.h"
#include "apps/commands.h"
#include "apps/engine_flags.h"
#include "apps/number_range.h"
#include "apps/report_output.h"

namespace nibble::apps {

namespace {

struct EvalFlags {
  EngineFlags engine;
  std::string text_path;
  std::string json_path;
  std::string reference_path;
  std::string reference_mode = "auto";
  int64_t window = examine::EvalOptions().window;
  std::optional<int64_t> windows;
  bool needs_reference = false;
  bool per_layer = false;
  double kl_budget = 0.02;
  std::string mode_file_path;
};

Result<examine::EvalWindows> windows_of(const EvalFlags& flags) {
  return read_windows(
      flags.text_path,
      flags.engine.tokenizer_path.empty() ? flags.engine.model_path : flags.engine.tokenizer_path,
      flags.window,
      flags.windows);
}

Result<examine::EvalReport> evaluate(const EvalFlags& flags) {
  const engine::EngineConfig config = TRY(resolve_engine_config(flags.engine));
  const examine::EvalWindows windows = TRY(windows_of(flags));
  const auto progress = [](int64_t done, int64_t total) {
    fmt::print(stderr, "\r{} of {} tokens", done, total);
    if (done == total) {
      fmt::print(stderr, "\n");
    }
  };
  if (flags.reference_path.empty()) {
    return examine::evaluate_perplexity(config, windows, progress);
  }
  engine::EngineConfig reference = config;
  reference.model_path = flags.reference_path;
  reference.online_nvfp4 = false;
  reference.nvfp4_mode = TRY(parse_nvfp4_mode(flags.reference_mode));
  reference.nvfp4_rules.clear();  // they are the model's, as nvfp4_mode is
  reference.kv_dtype = resolve_kv_dtype(flags.engine.kv_cache_dtype, reference.model_path);
  return examine::evaluate_divergence(config, reference, windows, progress);
}

int run_layers(const EvalFlags& flags) {
  const auto evaluated = [&]() -> Result<examine::PerLayerReport> {
    const engine::EngineConfig config = TRY(resolve_engine_config(flags.engine));
    const examine::EvalWindows windows = TRY(windows_of(flags));
    return examine::evaluate_per_layer(
        config, windows, flags.kl_budget, [](int64_t done, int64_t total) {
          fmt::print(
              stderr, "\r{} of {} passes over the text{}", done, total, done == total ? "\n" : "");
        });
  }();
  const int code = publish(evaluated, flags.json_path);
  if (code == 0 && !flags.mode_file_path.empty()) {
    write_json(flags.mode_file_path, examine::mode_file(evaluated->proposal));
  }
  return code;
}

int run_eval(const EvalFlags& flags) {
  if (flags.per_layer) {
    return run_layers(flags);
  }
  if (flags.needs_reference && flags.reference_path.empty()) {
    return report_error(
        {ErrorCode::InvalidArgument, "required: the checkpoint to compare with", "--reference"});
  }
  return publish(evaluate(flags), flags.json_path);
}

void add_eval_flags(CLI::App& command, EvalFlags& flags) {
  command
      .add_option("--text",
                  flags.text_path,
                  "UTF-8 text to predict, or .jsonl: a {\"messages\": [...]} or {\"prompt\": "
                  "\"...\"} a line")
      ->required();
  command
      .add_option(
          "--window", flags.window, "tokens of one independent window, or at most of one prompt")
      ->capture_default_str();
  command.add_option(
      "--windows", flags.windows, "how many, from the start: 1 of a text, all prompts of a .jsonl");
  command.add_option("--json", flags.json_path, "also write the scores to this file");
  flags.engine.log_level = "warn";  // the result is what people want to see
  add_engine_flags(command, flags.engine);
}

}  // namespace

void add_eval(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("eval", "perplexity, and divergence from another model");
  command->require_subcommand(1);
  const auto add = [&](const char* name, const char* help) {
    CLI::App* sub = command->add_subcommand(name, help);
    auto flags = std::make_shared<EvalFlags>();  // shared: the action outlives this function
    add_eval_flags(*sub, *flags);
    sub->callback([flags, &action] { action = [flags] { return run_eval(*flags); }; });
    return std::pair(sub, flags);
  };
  add("ppl", "perplexity over the windows of a text");
  const auto [kl, flags] = add("kl", "perplexity, KL(reference || model) and same top-1");
  flags->needs_reference = true;
  auto* per_layer = kl->add_flag(
      "--per-layer", flags->per_layer, "instead: what each layer costs in w4a4 against w4a16");
  kl->add_option("--kl-budget", flags->kl_budget, "of --per-layer's proposal: sum of the costs")
      ->check(finite_from_zero())
      ->capture_default_str();
  kl->add_option("--write-mode-file",
                 flags->mode_file_path,
                 "where --per-layer writes its proposal for --nvfp4-mode-file");
  auto* reference =
      kl->add_option("--reference", flags->reference_path, "checkpoint to compare with");
  reference->excludes(per_layer);
  kl->add_option(
        "--reference-nvfp4-mode", flags->reference_mode, "as --nvfp4-mode, of the reference")
      ->capture_default_str();
}

}  // namespace nibble::apps
