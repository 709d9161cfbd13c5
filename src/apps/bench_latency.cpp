// `nibble bench latency`: see examine/bench_latency.h.
#include "apps/bench_latency.h"

#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "apps/engine_flags.h"
#include "apps/report_output.h"
#include "base/cpu_info.h"
#include "base/thread_pool.h"
#include "engine/engine.h"
#include "examine/bench_latency.h"
#include "ops/probe.h"
#include "tensor/buffer.h"

namespace nibble::apps {

namespace {

struct BenchLatencyFlags {
  EngineFlags engine;
  examine::BenchLatencyOptions options;
  std::string json;
};

Result<examine::BenchLatencyReport> measure(const BenchLatencyFlags& flags) {
  engine::EngineConfig config = TRY(resolve_engine_config(flags.engine));
  const std::unique_ptr<engine::Engine> engine = TRY(engine::Engine::create(config));
  const MachineProbe* probe = machine_probe(config.device.kind);
  const StreamOwner stream(config.device, config.num_threads);
  auto report = TRY(examine::bench_latency(*engine, flags.options, [&] {
    return probe != nullptr ? probe->read_gbps(stream.get()) : 0.0;
  }));
  if (config.device.kind == Device::Kind::Cpu) {
    report.machine = cpu_model_name();
    report.num_threads = static_cast<ThreadPool*>(stream.get().native)->num_threads();
  } else {
    report.machine = "cuda";
  }
  return report;
}

}  // namespace

void add_bench_latency(CLI::App& bench, Action& action) {
  CLI::App* command = bench.add_subcommand(
      "latency",
      "tokens/s of a checkpoint's prefill and decode, beside this machine's reading speed");
  auto flags = std::make_shared<BenchLatencyFlags>();  // shared: the action outlives this function
  command->add_option("--prefill", flags->options.prefill, "prompt lengths, by commas")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--decode", flags->options.decode, "tokens generated after each prompt")
      ->capture_default_str();
  command->add_option("--batch", flags->options.batch, "requests at once, by commas")
      ->delimiter(',')
      ->capture_default_str();
  command
      ->add_option("--repeats", flags->options.repeats, "measured runs of each row; medians count")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--json", flags->json, "also write the rows to this file");
  flags->engine.log_level = "warn";
  add_engine_flags(*command, flags->engine);
  command->callback(
      [&action, flags] { action = [flags] { return publish(measure(*flags), flags->json); }; });
}

}  // namespace nibble::apps
