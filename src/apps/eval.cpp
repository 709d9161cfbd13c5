// nibble eval ppl, nibble eval kl: joins text, tokenizer and examine/eval.
#include "examine/eval.h"

#include <cstdio>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "apps/commands.h"
#include "apps/engine_flags.h"
#include "base/file.h"
#include "quantize/write.h"
#include "text/tokenizer/tokenizer.h"

namespace nibble::apps {

namespace {

struct EvalFlags {
  EngineFlags engine;
  std::string text_path;
  std::string json_path;
  std::string reference_path;
  std::string reference_mode = "auto";
  examine::EvalOptions options;
};

Result<std::vector<int32_t>> read_tokens(const EvalFlags& flags) {
  const std::string& folder =
      flags.engine.tokenizer_path.empty() ? flags.engine.model_path : flags.engine.tokenizer_path;
  const auto tokenizer = TRY(text::Tokenizer::from_file(folder + "/tokenizer.json"));
  const std::string content = TRY(read_text_file(flags.text_path, size_t{1} << 30));
  return tokenizer.encode(content, false);
}

Result<examine::EvalReport> evaluate(const EvalFlags& flags) {
  const engine::EngineConfig config = TRY(resolve_engine_config(flags.engine));
  const std::vector<int32_t> tokens = TRY(read_tokens(flags));
  const auto progress = [](int64_t done, int64_t total) {
    fmt::print(stderr, "\r{} of {} tokens", done, total);
    if (done == total) {
      fmt::print(stderr, "\n");
    }
  };
  if (flags.reference_path.empty()) {
    return examine::evaluate_perplexity(config, tokens, flags.options, progress);
  }
  engine::EngineConfig reference = config;
  reference.model_path = flags.reference_path;
  reference.nvfp4_mode = TRY(parse_nvfp4_mode(flags.reference_mode));
  return examine::evaluate_divergence(config, reference, tokens, flags.options, progress);
}

int run_eval(const EvalFlags& flags) {
  const auto report = evaluate(flags);
  if (!report) {
    return report_error(report.error());
  }
  fmt::print("{}", examine::to_text(*report));
  if (!flags.json_path.empty()) {
    write_file_atomically(flags.json_path, quantize::pretty_json(examine::to_json(*report)));
  }
  return 0;
}

void add_eval_flags(CLI::App& command, EvalFlags& flags) {
  command.add_option("--text", flags.text_path, "UTF-8 text to predict")->required();
  command.add_option("--window", flags.options.window, "tokens of one independent window")
      ->capture_default_str();
  command.add_option("--windows", flags.options.windows, "how many, from the start of the text")
      ->capture_default_str();
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
  kl->add_option("--reference", flags->reference_path, "checkpoint to compare with")->required();
  kl->add_option(
        "--reference-nvfp4-mode", flags->reference_mode, "as --nvfp4-mode, of the reference")
      ->capture_default_str();
}

}  // namespace nibble::apps
