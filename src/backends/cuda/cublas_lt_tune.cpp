#include "backends/cuda/cublas_lt_tune.h"

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include <cuda_runtime_api.h>

#include "backends/cuda/cublas_api.h"
#include "backends/cuda/cuda_check.h"
#include "base/number_formats.h"

namespace nibble::cuda {

namespace {

constexpr int kCalls = 3;  // timed, of which the fastest counts
constexpr int64_t kComparedRows = 64;
constexpr int64_t kMostOutputs = int64_t{1} << 26;  // elements of y
constexpr int64_t kPattern = int64_t{1} << 20;      // random elements, repeated

// Device memory, or none.
class Memory {
 public:
  explicit Memory(int64_t size_bytes) {
    if (cudaMalloc(&data_, static_cast<size_t>(size_bytes)) != cudaSuccess) {
      (void)cudaGetLastError();
      data_ = nullptr;
    }
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { (void)cudaFree(data_); }
  uint8_t* get() const { return static_cast<uint8_t*>(data_); }

 private:
  void* data_ = nullptr;
};

class Event {
 public:
  Event() { CUDA_CHECK(cudaEventCreate(&event_)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { (void)cudaEventDestroy(event_); }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

void fill(uint8_t* to,
          int64_t elements,
          const std::vector<uint16_t>& pattern,
          cudaStream_t stream) {
  const auto size = static_cast<int64_t>(pattern.size());
  for (int64_t at = 0; at < elements; at += size) {
    CUDA_CHECK(cudaMemcpyAsync(to + at * 2,
                               pattern.data(),
                               static_cast<size_t>(std::min(size, elements - at)) * 2,
                               cudaMemcpyHostToDevice,
                               stream));
  }
}

std::vector<uint16_t> random_pattern(uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> pattern(kPattern - 24);  // rows of a power of two are not all the same
  for (uint16_t& v : pattern) {
    v = float_to_bf16(normal(random));
  }
  return pattern;
}

// One matrix with random operands.
class Trial {
 public:
  Trial(const CublasLtApi& api, const LtProblem& problem, cudaStream_t stream)
      : api_(api),
        problem_(problem),
        stream_(stream),
        most_rows_(std::clamp<int64_t>(kMostOutputs / problem.n, 1, kLtRowClasses.back())),
        w_(problem.n * problem.k * 2),
        x_(most_rows_ * problem.k * 2),
        y_(most_rows_ * problem.n * 4),
        bias_(problem.n * 2),
        workspace_(static_cast<int64_t>(kLtWorkspace)),
        scalars_(8) {
    problem_.ldx = problem.k;
    problem_.ldy = problem.n;
    problem_.bias = problem.bias != nullptr ? bias_.get() : nullptr;
  }
  bool has_memory() const {
    for (const Memory* memory : {&w_, &x_, &y_, &bias_, &workspace_, &scalars_}) {
      if (memory->get() == nullptr) {
        return false;
      }
    }
    return true;
  }
  void fill_operands() {
    const std::vector<uint16_t> patterns[] = {random_pattern(1), random_pattern(2)};
    fill(w_.get(), problem_.n * problem_.k, patterns[0], stream_);
    fill(x_.get(), most_rows_ * problem_.k, patterns[1], stream_);
    fill(bias_.get(), problem_.n, patterns[1], stream_);
    const float scalars[2] = {1.0f, 0.0f};
    CUDA_CHECK(
        cudaMemcpyAsync(scalars_.get(), scalars, sizeof scalars, cudaMemcpyHostToDevice, stream_));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
  }
  LtProblem with_rows(int64_t rows) const {
    LtProblem problem = problem_;
    problem.m = std::min(rows, most_rows_);
    return problem;
  }
  // The bits of the first rows of y; empty when refused.
  std::vector<uint8_t> bits(const CublasLtAlgorithm& algorithm, int64_t rows) {
    const LtProblem problem = with_rows(rows);
    const int64_t size = problem.out == kCudaF32 ? 4 : 2;
    std::vector<uint8_t> y(
        static_cast<size_t>(std::min(problem.m, kComparedRows) * problem.n * size));
    CUDA_CHECK(cudaMemsetAsync(y_.get(), 0xFF, y.size(), stream_));
    if (!run(algorithm, problem)) {
      return {};
    }
    CUDA_CHECK(cudaMemcpyAsync(y.data(), y_.get(), y.size(), cudaMemcpyDeviceToHost, stream_));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    return y;
  }
  float milliseconds(const CublasLtAlgorithm& algorithm, int64_t rows) {
    const LtProblem problem = with_rows(rows);
    float best = std::numeric_limits<float>::max();
    for (int call = 0; call < kCalls; ++call) {
      CUDA_CHECK(cudaEventRecord(begin_.get(), stream_));
      (void)run(algorithm, problem);
      CUDA_CHECK(cudaEventRecord(end_.get(), stream_));
      CUDA_CHECK(cudaEventSynchronize(end_.get()));
      float took = 0;
      CUDA_CHECK(cudaEventElapsedTime(&took, begin_.get(), end_.get()));
      best = std::min(best, took);
    }
    return best;
  }

 private:
  bool run(const CublasLtAlgorithm& algorithm, const LtProblem& problem) {
    const auto* scalars = reinterpret_cast<const float*>(scalars_.get());
    return LtProduct(api_, problem)
        .run(algorithm,
             scalars,
             scalars + 1,
             w_.get(),
             x_.get(),
             y_.get(),
             workspace_.get(),
             stream_);
  }

  const CublasLtApi& api_;
  LtProblem problem_;
  cudaStream_t stream_;
  int64_t most_rows_;
  Memory w_, x_, y_, bias_, workspace_, scalars_;
  Event begin_, end_;
};

}  // namespace

void tune_lt(const CublasLtApi& api, const LtProblem& problem, CUstream_st* stream) {
  if (has_lt_algorithms(problem)) {
    return;
  }
  Trial trial(api, problem, stream);
  if (!trial.has_memory()) {
    return;
  }
  trial.fill_operands();
  LtAlgorithms proposed;
  for (size_t c = 0; c < kLtRowClasses.size(); ++c) {
    if (!LtProduct(api, trial.with_rows(kLtRowClasses[c])).first_algorithm(16, &proposed[c])) {
      return;
    }
  }
  const CublasLtAlgorithm reference = proposed[kLtReferenceClass];
  LtAlgorithms chosen;
  chosen.fill(reference);
  for (size_t c = 0; c < kLtRowClasses.size(); ++c) {
    const int64_t rows = kLtRowClasses[c];
    const std::vector<uint8_t> want = trial.bits(reference, rows);
    float best = trial.milliseconds(reference, rows);
    // Proposals for far fewer rows are far too slow to try.
    for (size_t i = c == 0 ? 0 : c - 1; i <= std::min(c + 1, kLtRowClasses.size() - 1); ++i) {
      if (i == kLtReferenceClass || trial.bits(proposed[i], rows) != want) {
        continue;
      }
      const float took = trial.milliseconds(proposed[i], rows);
      if (took < best) {
        best = took;
        chosen[c] = proposed[i];
      }
    }
  }
  set_lt_algorithms(problem, chosen);
}

}  // namespace nibble::cuda
