// `nibble bench` and its subcommand gemm: see examine/bench_gemm.h.
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/bench_latency.h"
#include "apps/commands.h"
#include "apps/number_range.h"
#include "apps/report_output.h"
#include "examine/bench_gemm.h"

namespace nibble::apps {

namespace {

struct BenchGemmFlags {
  examine::BenchGemmOptions options;
  std::string device = "cpu";
  std::vector<std::string> shapes{"q8"};
  std::vector<std::string> ops{"w4a16"};
  std::string json;
  std::string peer;
};

Result<examine::BenchGemmOptions> resolve(const BenchGemmFlags& flags) {
  examine::BenchGemmOptions options = flags.options;
  if (flags.device != "cpu" && flags.device != "cuda") {
    return invalid("expected cpu or cuda, found \"" + flags.device + "\"", "--device");
  }
  options.device.kind = flags.device == "cpu" ? Device::Kind::Cpu : Device::Kind::Cuda;
  for (const std::string& text : flags.shapes) {
    for (examine::GemmShape& shape : TRY(examine::parse_gemm_shapes(text))) {
      options.shapes.push_back(std::move(shape));
    }
  }
  options.modes.clear();
  for (const std::string& text : flags.ops) {
    options.modes.push_back(TRY(examine::parse_bench_mode(text)));
  }
  if (!flags.peer.empty()) {
    options.peer = TRY(examine::read_peer_gemms(flags.peer));
  }
  for (int64_t m : options.m) {
    if (m < 1 || m > 65536) {
      return invalid("expected rows from 1 to 65536, found " + std::to_string(m), "--m");
    }
  }
  return options;
}

int run_bench_gemm(const BenchGemmFlags& flags) {
  const auto options = resolve(flags);
  if (!options) {
    return report_error(options.error());
  }
  return publish(examine::bench_gemm(*options), flags.json);
}

void add_gemm(CLI::App& bench, Action& action) {
  CLI::App* command = bench.add_subcommand(
      "gemm", "time of one matrix product beside the limits of this machine, measured with it");
  auto flags = std::make_shared<BenchGemmFlags>();  // shared: the action outlives this function
  command->add_option("--device", flags->device, "cpu or cuda")->capture_default_str();
  command->add_option("--threads", flags->options.num_threads, "CPU threads; 0: all usable")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command
      ->add_option("--shapes",
                   flags->shapes,
                   "NxK, a family (q8, l70, q30, q06, smol) or a layer (q8.qkv), by commas")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--m", flags->options.m, "rows of x, by commas")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--ops", flags->ops, "w4a16, w4a4, bf16, fp8, by commas")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--fp4-gemm-backend", flags->options.backend, "as in serve")
      ->capture_default_str();
  command->add_option("--cpu-isa", flags->options.cpu_isa, "as in serve")->capture_default_str();
  command->add_option("--seconds", flags->options.seconds, "of measuring, each row")
      ->check(number_range(0, 60))
      ->capture_default_str();
  command->add_option("--json", flags->json, "also write the rows to this file");
  command->add_option(
      "--peer",
      flags->peer,
      "a JSON file with another program's times on this machine, shown beside ours: "
      "{\"name\", \"rows\": [{\"op\", \"n\", \"k\", \"m\", \"us\"}]}");
  command->callback([&action, flags] { action = [flags] { return run_bench_gemm(*flags); }; });
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("bench", "measurements; see the subcommands");
  command->require_subcommand(1);
  add_gemm(*command, action);
  add_bench_latency(*command, action);
}

}  // namespace nibble::apps
