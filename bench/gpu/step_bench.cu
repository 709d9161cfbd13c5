// step_bench: what a decode step or a prefill of a dense model costs, op by op.
//
// The step (step_model.cuh) needs no checkpoint. It is captured in a graph, as the engine does it,
// and replayed. Then every op alone: a graph of its calls of all layers, one after another (weights
// of one layer are never in L2 when they are asked for again). A row has the time of a call, what
// the op cannot be faster than (bytes over this run's read speed, or operations over --tflops) and
// (--without) what the step gets shorter by when the op is left out.
//
// step_bench [--shape NAME, of kShapes] [--batch 1,64] [--context 128,1024]
//   [--prefill 2048] [--ops] [--without] [--tflops 790] [--kv bf16|e4m3]
//   [--fused]: also the step with its layers in one kernel (decode_step_sm90), one sequence

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "backends/cuda/probe_cuda.h"
#include "bench/gpu/step_model.cuh"

namespace nibble::bench {
namespace {

// ---- time ----

double median(std::vector<double> values) {
  std::nth_element(
      values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

/// Microseconds of what `enqueue` enqueues, as a graph.
double time_us(const std::function<void()>& enqueue) {
  enqueue();
  CUDA_CHECK(cudaStreamSynchronize(native));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CUDA_CHECK(cudaStreamBeginCapture(native, cudaStreamCaptureModeThreadLocal));
  enqueue();
  CUDA_CHECK(cudaStreamEndCapture(native, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  CUDA_CHECK(cudaGraphDestroy(graph));
  cudaEvent_t a, b;
  CUDA_CHECK(cudaEventCreate(&a));
  CUDA_CHECK(cudaEventCreate(&b));
  std::vector<double> times;
  double spent = 0;
  for (int i = 0; i < 60 && (i < 7 || spent < 250000); ++i) {
    CUDA_CHECK(cudaEventRecord(a, native));
    CUDA_CHECK(cudaGraphLaunch(exec, native));
    CUDA_CHECK(cudaEventRecord(b, native));
    CUDA_CHECK(cudaEventSynchronize(b));
    float ms = 0;
    CUDA_CHECK(cudaEventElapsedTime(&ms, a, b));
    spent += ms * 1000.0;
    if (i >= 3) {
      times.push_back(ms * 1000.0);
    }
  }
  CUDA_CHECK(cudaEventDestroy(a));
  CUDA_CHECK(cudaEventDestroy(b));
  CUDA_CHECK(cudaGraphExecDestroy(exec));
  return median(times);
}

void enqueue_step(const Model& model, const Step& step, const std::string& without) {
  const auto run = [&](const Op& op, int64_t layer) {
    if (op.name != without) {
      op.run(layer);
    }
  };
  for (const Op& op : step.before) {
    run(op, 0);
  }
  for (int64_t l = 0; l < model.shape.layers; ++l) {
    for (const Op& op : step.layer) {
      run(op, l);
    }
  }
  for (const Op& op : step.after) {
    run(op, 0);
  }
}

/// Bytes a second that a kernel reads which does nothing else.
double read_speed() { return cuda::measure_read_gbps(native, 0) * 1e9; }

struct Options {
  std::string shape = "qwen3-8b";
  std::vector<int64_t> batch{1}, context{128};
  int64_t prefill = 0;
  bool ops = false, without = false, fused = false;
  double tflops = 790;
  DType kv = DType::BF16;
};

void report(const Model& model,
            const Step& step,
            const Options& options,
            double speed,
            const std::string& title,
            int64_t rows) {
  const double all = time_us([&] { enqueue_step(model, step, ""); });
  const double floor_us = static_cast<double>(model.linear_bytes()) / speed * 1e6;
  std::printf("%-28s step %9.1f us  %9.1f tokens/s  weights alone %7.1f us (%.1f %%)\n",
              title.c_str(),
              all,
              static_cast<double>(rows) / all * 1e6,
              floor_us,
              100 * floor_us / all);
  std::fflush(stdout);
  if (!options.ops) {
    return;
  }
  std::printf("  %-22s %10s %10s %8s %10s\n",
              "op",
              "us a call",
              "limit us",
              "of limit",
              options.without ? "exposed us" : "");
  double sum = 0;
  double limits = 0;
  for (const std::vector<Op>* ops : {&step.before, &step.layer, &step.after}) {
    for (const Op& op : *ops) {
      const int64_t repeats = op.calls > 1 ? op.calls : 4;
      const double us = time_us([&] {
                          for (int64_t l = 0; l < repeats; ++l) {
                            op.run(op.calls > 1 ? l : 0);
                          }
                        }) /
                        static_cast<double>(repeats);
      const double limit = std::max(op.bytes / speed * 1e6, op.flops / options.tflops * 1e-6);
      double exposed = 0;
      if (options.without) {
        exposed = (all - time_us([&] { enqueue_step(model, step, op.name); })) /
                  static_cast<double>(op.calls);
      }
      std::printf("  %-22s %10.2f %10.2f %6.0f %% %10.2f\n",
                  op.name.c_str(),
                  us,
                  limit,
                  100 * limit / us,
                  exposed);
      std::fflush(stdout);
      sum += us * static_cast<double>(op.calls);
      limits += limit * static_cast<double>(op.calls);
    }
  }
  std::printf("  %-22s %10.1f %10.1f %6.0f %%   (%.1f %% of the step)\n",
              "sum of a step",
              sum,
              limits,
              100 * limits / all,
              100 * sum / all);
}

/// The same step with its layers in one kernel, in a graph and alone.
void report_fused(const Model& model, const Step& step, double speed, int64_t context) {
  const FusedStep fused = make_fused_step(model, step);
  const auto whole = [&] {
    for (const Op& op : step.before) {
      op.run(0);
    }
    fused.run();
    for (const Op& op : step.after) {
      op.run(0);  // one addition more than needed
    }
  };
  const double all = time_us(whole);
  const double layers = time_us([&] { fused.run(); });
  const double floor_us = static_cast<double>(model.linear_bytes()) / speed * 1e6;
  std::printf(
      "%-28s step %9.1f us  %9.1f tokens/s  weights alone %7.1f us (%.1f %%), layers %.1f us (%.2f "
      "each)\n",
      ("fused, context " + std::to_string(context)).c_str(),
      all,
      1e6 / all,
      floor_us,
      100 * floor_us / all,
      layers,
      layers / static_cast<double>(model.shape.layers));
  std::fflush(stdout);
}

std::vector<int64_t> list_of(const char* text) {
  std::vector<int64_t> values;
  for (const char* at = text; *at != 0;) {
    char* end = nullptr;
    values.push_back(std::strtoll(at, &end, 10));
    at = *end == ',' ? end + 1 : end;
  }
  return values;
}

int run(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto value = [&] { return i + 1 < argc ? argv[++i] : ""; };
    if (flag == "--shape") {
      options.shape = value();
    } else if (flag == "--batch") {
      options.batch = list_of(value());
    } else if (flag == "--context") {
      options.context = list_of(value());
    } else if (flag == "--prefill") {
      options.prefill = list_of(value()).front();
    } else if (flag == "--tflops") {
      options.tflops = std::strtod(value(), nullptr);
    } else if (flag == "--kv") {
      options.kv = std::string(value()) == "e4m3" ? DType::E4M3 : DType::BF16;
    } else if (flag == "--ops") {
      options.ops = true;
    } else if (flag == "--fused") {
      options.fused = true;
    } else if (flag == "--without") {
      options.ops = options.without = true;
    } else {
      std::fprintf(stderr,
                   "step_bench: unknown flag %s; the flags are at the top of its source\n",
                   flag.c_str());
      return 2;
    }
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("step_bench: skipped, no GPU\n");
    return 77;
  }
  const auto shape = std::find_if(std::begin(kShapes), std::end(kShapes), [&](const ModelShape& s) {
    return options.shape == s.name;
  });
  if (shape == std::end(kShapes)) {
    std::fprintf(stderr, "step_bench: unknown shape %s\n", options.shape.c_str());
    return 2;
  }
  CUDA_CHECK(cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking));
  stream = {kGpu, native};
  const double speed = read_speed();
  const int64_t most_rows =
      std::max(options.prefill, *std::max_element(options.batch.begin(), options.batch.end()));
  const Model model = make_model(*shape, most_rows);
  CUDA_CHECK(cudaDeviceSynchronize());
  std::printf("%s, %ld layers, %.2f GB read a step, read speed %.2f TB/s\n",
              shape->name,
              static_cast<long>(shape->layers),
              static_cast<double>(model.linear_bytes()) * 1e-9,
              speed * 1e-12);
  const size_t kept = owned.size();
  const auto free_rest = [&] {
    while (owned.size() > kept) {
      CUDA_CHECK(cudaFree(owned.back()));
      owned.pop_back();
    }
  };
  for (const int64_t batch : options.batch) {
    for (const int64_t context : options.context) {
      const Step step = make_step(model, batch, batch, context, options.kv);
      report(model,
             step,
             options,
             speed,
             "batch " + std::to_string(batch) + ", context " + std::to_string(context),
             batch);
      if (options.fused && batch == 1) {
        report_fused(model, step, speed, context);
      }
      CUDA_CHECK(cudaDeviceSynchronize());
      free_rest();
    }
  }
  if (options.prefill > 0) {
    const Step step = make_step(model, 1, options.prefill, 0, options.kv);
    report(
        model, step, options, speed, "prefill " + std::to_string(options.prefill), options.prefill);
  }
  return 0;
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) { return nibble::bench::run(argc, argv); }
