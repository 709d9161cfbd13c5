// lt_classes: may a BF16 product through cuBLASLt take another algorithm for other numbers of rows
// and keep a row's bits? For each matrix: the library's first proposal (no splits of K) for 1, 16,
// 64, 256, 1024 and 4096 rows; its time at each number of rows, and whether its bits are those of
// the proposal for 256 rows, which is the one in use. Needs libcublasLt.so.13.

#include <algorithm>
#include <chrono>
#include <vector>

#include "backends/cuda/cublas_api.h"
#include "backends/cuda/cublas_lt_product.h"
#include "backends/cuda/cublas_lt_tune.h"
#include "bench/gpu/common.cuh"
#include "bench/gpu/w4a16_shapes.h"

int main() {
  using namespace nibble;
  using namespace nibble::bench;
  const cuda::CublasLtApi* api = cuda::cublas_lt_api();
  if (api == nullptr) {
    std::printf("skip: no cuBLASLt\n");
    return 77;
  }
  constexpr int64_t kRows[] = {1, 16, 64, 256, 1024, 4096};
  constexpr int kReference = 3;
  cudaEvent_t a, b;
  CUDA_CHECK(cudaEventCreate(&a));
  CUDA_CHECK(cudaEventCreate(&b));
  DeviceArray<float> scalars(2);
  scalars.set({1.0f, 0.0f});
  DeviceArray<uint8_t> workspace(cuda::kLtWorkspace);
  for (const NamedShape& shape : kShapes) {
    if (!shape.layer) {
      continue;
    }
    const int64_t n = shape.n, k = shape.k;
    const int copies = static_cast<int>(std::clamp<int64_t>(200000000 / (n * k * 2), 2, 16));
    DeviceArray<__nv_bfloat16> w(n * k * copies), x(4096 * k);
    DeviceArray<uint16_t> y(4096 * n);
    fill_activations<<<528, 256>>>(w.get(), w.count(), 1, false);
    fill_activations<<<528, 256>>>(x.get(), x.count(), 2, false);
    std::vector<cuda::CublasLtAlgorithm> algorithms;
    const auto problem = [&](int64_t m) {
      return cuda::LtProblem{.m = m,
                             .n = n,
                             .k = k,
                             .ldx = k,
                             .ldy = n,
                             .in = cuda::kCudaBf16,
                             .out = cuda::kCudaBf16};
    };
    for (const int64_t m : kRows) {
      cuda::CublasLtAlgorithm algorithm;
      if (!cuda::LtProduct(*api, problem(m)).first_algorithm(16, &algorithm)) {
        std::printf("%s: nothing proposed for %ld rows\n", shape.name, (long)m);
        return 1;
      }
      algorithms.push_back(algorithm);
    }
    CUDA_CHECK(cudaEventRecord(a));
    CUDA_CHECK(cudaEventSynchronize(a));
    const auto start = std::chrono::steady_clock::now();
    cuda::tune_lt(*api, problem(1), nullptr);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::printf("%s: tuned in %.0f ms\n", shape.name, took.count() * 1e3);
    for (const int64_t m : kRows) {
      algorithms.resize(6);
      algorithms.push_back(cuda::lt_algorithm(*api, problem(m)));
      const cuda::LtProduct product(*api, problem(m));
      const auto call = [&](size_t i, int copy) {
        return product.run(algorithms[i],
                           scalars.get(),
                           scalars.get() + 1,
                           w.get() + copy * n * k,
                           x.get(),
                           y.get(),
                           workspace.get(),
                           nullptr);
      };
      std::vector<uint16_t> want;
      std::printf("%-12s %5ld:", shape.name, (long)m);
      const auto bits = [&](size_t i) {
        y.poison(0xFF);
        const bool ok = call(i, 0);
        CUDA_CHECK(cudaDeviceSynchronize());
        std::vector<uint16_t> got(std::min<int64_t>(m, 256) * n);
        CUDA_CHECK(cudaMemcpy(got.data(), y.get(), got.size() * 2, cudaMemcpyDeviceToHost));
        return ok ? got : std::vector<uint16_t>();
      };
      want = bits(kReference);
      for (size_t i = 0; i < algorithms.size(); ++i) {
        const std::vector<uint16_t> got = bits(i);
        if (got.empty()) {
          std::printf("    refused");
          continue;
        }
        const int calls = m >= 1024 ? 8 : 32;
        float best = 1e9f;
        for (int round = 0; round < 3; ++round) {
          CUDA_CHECK(cudaEventRecord(a));
          for (int c = 0; c < calls; ++c) {
            (void)call(i, c % copies);
          }
          CUDA_CHECK(cudaEventRecord(b));
          CUDA_CHECK(cudaEventSynchronize(b));
          float ms = 0;
          CUDA_CHECK(cudaEventElapsedTime(&ms, a, b));
          best = std::min(best, ms * 1000 / static_cast<float>(calls));
        }
        std::printf(" %8.1f %s", best, got == want ? "=" : "!");
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
  return 0;
}
