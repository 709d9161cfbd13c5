// decode_step_check: the kernel of a whole step against the operations that it replaces, bit by
// bit: the residual row after all layers, and the keys and values that the step stores. Random
// weights, other ones in every layer, poisoned outputs, several steps in a row from a graph.
//
// decode_step_check [--shape NAME] [--context N]: only those

#include <cstring>
#include <string>
#include <vector>

#include "bench/gpu/step_model.cuh"

namespace nibble::bench {
namespace {

constexpr ModelShape kChecked[] = {
    {"tiny", 3, 256, 4, 2, 64, 512, 512, true},
    {"no norms of heads", 2, 512, 8, 8, 64, 768, 512, false},
    {"one kv head", 2, 1024, 8, 1, 128, 2048, 512, true},
    {"qwen3-0.6b", 3, 1024, 16, 8, 128, 3072, 512, true},
    {"uneven", 3, 1280, 10, 5, 128, 3328, 512, true},
    {"qwen3-8b", 4, 4096, 32, 8, 128, 12288, 512, true},
    {"qwen3-32b", 2, 5120, 64, 8, 128, 25600, 512, true},
    {"llama-3.1-70b", 2, 8192, 64, 8, 128, 28672, 512, false},
};
constexpr int64_t kContexts[] = {0, 1, 15, 16, 63, 127, 255, 256, 300, 1023, 5000, 33000};

int failures = 0;
int checks = 0;

std::vector<uint16_t> values_of(const Tensor& tensor) {
  std::vector<uint16_t> values(static_cast<size_t>(tensor.num_elements()));
  CUDA_CHECK(cudaMemcpy(values.data(), tensor.data, values.size() * 2, cudaMemcpyDeviceToHost));
  return values;
}

/// What a step leaves: its residual row, and its keys and values of every layer.
struct Outcome {
  std::vector<uint16_t> residual, stored;
};

Tensor stored_row(const Model& model, const Buffers& b, size_t layer, size_t which) {
  const ModelShape& s = model.shape;
  int32_t slot = 0;
  CUDA_CHECK(cudaMemcpy(&slot, b.slots.data, 4, cudaMemcpyDeviceToHost));
  Tensor row = b.kv[layer % b.kv.size()][which];
  row.shape = Shape{s.kv_heads * s.head_dim};
  row.stride = Shape{1};
  row.data = static_cast<std::byte*>(row.data) + slot * s.kv_heads * s.head_dim * 2;
  return row;
}

void poison_stored(const Model& model, const Buffers& b) {
  for (size_t l = 0; l < static_cast<size_t>(model.shape.layers); ++l) {
    for (size_t which = 0; which < 2; ++which) {
      const Tensor row = stored_row(model, b, l, which);
      CUDA_CHECK(cudaMemset(row.data, 0xFF, static_cast<size_t>(row.size_bytes())));
    }
  }
}

Outcome outcome_of(const Model& model, const Buffers& b) {
  Outcome outcome;
  outcome.residual = values_of(b.residual);
  for (size_t l = 0; l < static_cast<size_t>(model.shape.layers); ++l) {
    for (size_t which = 0; which < 2; ++which) {
      const std::vector<uint16_t> row = values_of(stored_row(model, b, l, which));
      outcome.stored.insert(outcome.stored.end(), row.begin(), row.end());
    }
  }
  return outcome;
}

void compare(const std::string& what,
             const std::vector<uint16_t>& expected,
             const std::vector<uint16_t>& found) {
  ++checks;
  size_t differ = 0;
  size_t first = 0;
  for (size_t i = expected.size(); i-- > 0;) {
    if (expected[i] != found[i]) {
      ++differ;
      first = i;
    }
  }
  if (differ > 0) {
    ++failures;
    std::printf("FAILED %s: %zu of %zu differ, first at %zu: %04x, expected %04x\n",
                what.c_str(),
                differ,
                expected.size(),
                first,
                found[first],
                expected[first]);
  }
}

void check(const Model& model, int64_t context) {
  const Step step = make_step(model, 1, 1, context, DType::BF16);
  const Buffers& b = *step.buffers;
  const SmallOps& ops = small_ops(Device::Kind::Cuda, 90);
  const auto embed = [&] {
    for (const Op& op : step.before) {
      op.run(0);
    }
  };
  poison_stored(model, b);
  embed();
  for (int64_t l = 0; l < model.shape.layers; ++l) {
    for (const Op& op : step.layer) {
      op.run(l);
    }
  }
  ops.add(b.residual, b.x, stream);
  CUDA_CHECK(cudaStreamSynchronize(native));
  const Outcome expected = outcome_of(model, b);

  const FusedStep fused = make_fused_step(model, step);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CUDA_CHECK(cudaStreamBeginCapture(native, cudaStreamCaptureModeThreadLocal));
  embed();
  fused.run();
  CUDA_CHECK(cudaStreamEndCapture(native, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  CUDA_CHECK(cudaGraphDestroy(graph));
  const std::string name = std::string(model.shape.name) + ", context " + std::to_string(context);
  for (int turn = 0; turn < 4; ++turn) {
    poison_stored(model, b);
    CUDA_CHECK(cudaMemset(b.residual.data, 0xFF, static_cast<size_t>(b.residual.size_bytes())));
    if (turn == 0) {
      embed();
      fused.run();
    } else {
      for (int i = 0; i < (turn == 3 ? 20 : 1); ++i) {
        CUDA_CHECK(cudaGraphLaunch(exec, native));
      }
    }
    CUDA_CHECK(cudaStreamSynchronize(native));
    const Outcome found = outcome_of(model, b);
    const std::string which = name + ", turn " + std::to_string(turn);
    compare(which + ", residual", expected.residual, found.residual);
    compare(which + ", keys and values", expected.stored, found.stored);
  }
  CUDA_CHECK(cudaGraphExecDestroy(exec));
}

int run(int argc, char** argv) {
  std::string only_shape;
  int64_t only_context = -1;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--shape") == 0) {
      only_shape = argv[i + 1];
    } else if (std::strcmp(argv[i], "--context") == 0) {
      only_context = std::strtoll(argv[i + 1], nullptr, 10);
    }
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("decode_step_check: skipped, no GPU\n");
    return 77;
  }
  CUDA_CHECK(cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking));
  stream = {kGpu, native};
  for (const ModelShape& shape : kChecked) {
    if (!only_shape.empty() && only_shape != shape.name) {
      continue;
    }
    const Model model = make_model(shape, 1, true);
    const size_t kept = owned.size();
    for (const int64_t context : kContexts) {
      if (only_context >= 0 && context != only_context) {
        continue;
      }
      check(model, context);
      CUDA_CHECK(cudaDeviceSynchronize());
      while (owned.size() > kept) {
        CUDA_CHECK(cudaFree(owned.back()));
        owned.pop_back();
      }
    }
    std::printf("%s: done, %d checks so far, %d failed\n", shape.name, checks, failures);
    std::fflush(stdout);
    while (!owned.empty()) {
      CUDA_CHECK(cudaFree(owned.back()));
      owned.pop_back();
    }
  }
  std::printf("decode_step_check: %d checks, %d failed\n", checks, failures);
  return failures == 0 && checks > 0 ? 0 : 1;
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) { return nibble::bench::run(argc, argv); }
