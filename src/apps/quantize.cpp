#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "apps/commands.h"
#include "quantize/pipeline.h"
#include "quantize/report.h"
#include "quantize/write.h"

namespace nibble::apps {

namespace {

constexpr double kBytesPerGigabyte = 1e9;

struct QuantizeFlags {
  quantize::QuantizeOptions options;
  double max_shard_gb = 4.0;
  bool json = false;
};

int run_quantize(const QuantizeFlags& flags) {
  quantize::QuantizeOptions options = flags.options;
  options.max_shard_bytes = static_cast<uint64_t>(flags.max_shard_gb * kBytesPerGigabyte);
  const auto report = quantize::quantize(options);
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
  command
      ->add_option("--exclude",
                   flags->options.exclude,
                   "keep modules in full precision: names, wildcards, or re:EXPRESSION (several)")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--max-shard-gb", flags->max_shard_gb, "start a new file past this many GB")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--threads", flags->options.num_threads, "CPU threads; 0: all")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_flag("--json", flags->json, "print the whole report as JSON");
  command->callback([flags, &action] { action = [flags] { return run_quantize(*flags); }; });
}

}  // namespace nibble::apps
