#include "examine/inspect.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "apps/commands.h"
#include "apps/load_text.h"
#include "base/file.h"
#include "quantize/write.h"

namespace nibble::apps {

namespace {

struct InspectFlags {
  examine::InspectOptions options;
  bool json = false;
  bool no_scan = false;
  bool skip_tokenizer_init = false;
  std::string device = "cpu";
};

// Before the warnings; what the checkpoint's own reading found already is not said twice.
void add_error(examine::Inspection& inspection, Error error) {
  std::vector<checkpoint::Problem>& problems = inspection.problems;
  const std::string text = error.text();
  if (std::any_of(problems.begin(), problems.end(), [&](const checkpoint::Problem& known) {
        return known.error.text() == text;
      })) {
    return;
  }
  const auto warnings =
      std::find_if(problems.begin(), problems.end(), [](const checkpoint::Problem& known) {
        return known.severity == checkpoint::Problem::Severity::Warning;
      });
  problems.insert(warnings, {checkpoint::Problem::Severity::Error, std::move(error)});
}

int run_inspect(const InspectFlags& flags) {
  examine::InspectOptions options = flags.options;
  options.scan_scales = !flags.no_scan;
  options.device = flags.device == "cpu" ? Device::Kind::Cpu : Device::Kind::Cuda;
  auto inspection = examine::inspect(options);
  if (!inspection) {
    return report_error(inspection.error());
  }
  for (Error& error : text_problems(options.directory, !flags.skip_tokenizer_init)) {
    add_error(*inspection, std::move(error));
  }
  if (const std::string path = options.directory + "/tokenizer.json";
      !flags.skip_tokenizer_init && !file_exists(path)) {
    inspection->problems.push_back(
        {checkpoint::Problem::Severity::Warning,
         {ErrorCode::NotFound,
          "not found; serve will need --tokenizer-path or --skip-tokenizer-init",
          path}});
  }
  fmt::print("{}",
             flags.json ? quantize::pretty_json(examine::to_json(*inspection))
                        : examine::to_text(*inspection));
  return inspection->servable() ? 0 : 1;
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "inspect", "what is in a checkpoint and all that is wrong with it; exit code 0: servable");
  auto flags = std::make_shared<InspectFlags>();  // shared: the action outlives this function
  command->add_option("directory", flags->options.directory, "directory of the model")->required();
  command
      ->add_option(
          "--device", flags->device, "whose kernels are named: cpu or cuda; no GPU is needed")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command->add_flag("--json", flags->json, "print everything as JSON");
  command->add_flag("--skip-tokenizer-init",
                    flags->skip_tokenizer_init,
                    "do not check tokenizer and chat template, as serve with this flag");
  command->add_flag("--no-scan", flags->no_scan, "read headers only, not the values");
  command->callback([flags, &action] { action = [flags] { return run_inspect(*flags); }; });
}

}  // namespace nibble::apps
