// w4a16_bench: times a W4A16 kernel (default: sm90) beside BF16 cuBLAS and a cold read of the same
// weights, in one run.
//
// Method: a CUDA graph of R calls rotates over enough weight copies to exceed the L2 several times;
// warm replays, then the median of 30 replays over R. Random data. cuBLAS: the better of
// cublasGemmEx and the first cublasLt heuristic, loaded with dlopen.
//
// w4a16_bench [--kernel sm90|sm80] [--shapes a,b] [--m 1,8] [--tiles auto,t8,...] [--no-cublas]
// [--dequant] [--pause MS]
// [--sustained S] [--json FILE]

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include <cublasLt.h>
#include <cublas_v2.h>
#include <dlfcn.h>

#include "backends/cuda/nvfp4_layout.h"
#include "backends/cuda/nvfp4_pack.h"
#include "backends/cuda/nvfp4_w4a16_sm90.h"
#include "bench/gpu/common.cuh"
#include "bench/gpu/w4a16_kernels.h"
#include "bench/gpu/w4a16_shapes.h"

namespace nibble::bench {
namespace {

using cuda::W4A16Args;
using cuda::W4A16Plan;
using cuda::W4A16Tile;

__global__ void __launch_bounds__(512) read_kernel(const uint4* from, int64_t count, uint4* sink) {
  uint4 sum = make_uint4(0, 0, 0, 0);
  const int64_t step = gridDim.x * 512ll;
  int64_t i = blockIdx.x * 512ll + threadIdx.x;
  for (; i + 3 * step < count; i += 4 * step) {
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(v[j].x), "=r"(v[j].y), "=r"(v[j].z), "=r"(v[j].w)
                   : "l"(from + i + j * step));
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      sum.x ^= v[j].x;
      sum.y ^= v[j].y;
      sum.z ^= v[j].z;
      sum.w ^= v[j].w;
    }
  }
  for (; i < count; i += step) {
    const uint4 v = from[i];
    sum.x ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 0x12345677u) {
    *sink = sum;
  }
}

cudaStream_t stream;
const W4A16Kernel* kernel = &kSm90Kernel;
int pause_ms = 0;

/// Microseconds a call of `call(i)`, i-th in a rotation over copies.
double time_us(const std::function<void(int)>& call,
               int copies,
               double guess_us,
               double sustained_s = 0) {
  int calls = static_cast<int>(std::ceil(700.0 / guess_us));
  calls = std::max(std::min(calls, 400), copies);
  call(0);  // loads the kernel
  CUDA_CHECK(cudaStreamSynchronize(stream));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < calls; ++i) {
    call(i % copies);
  }
  CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t a, b;
  cudaEventCreate(&a);
  cudaEventCreate(&b);
  auto replay = [&] {
    cudaEventRecord(a, stream);
    CUDA_CHECK(cudaGraphLaunch(exec, stream));
    cudaEventRecord(b, stream);
    CUDA_CHECK(cudaEventSynchronize(b));
    float ms = 0;
    cudaEventElapsedTime(&ms, a, b);
    return ms * 1000.0 / calls;
  };
  // From the same state for everyone: the power limiter remembers the load before.
  std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
  double warm = 0;
  while (warm < 8000) {
    warm += replay() * calls;
  }
  if (sustained_s > 0) {
    const auto start = std::chrono::steady_clock::now();
    while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() <
           sustained_s) {
      replay();
    }
  }
  const int repeats = 30;
  std::vector<double> times;
  double spent = 0;
  for (int i = 0; i < repeats && (i < 7 || spent < 150000); ++i) {
    times.push_back(replay());
    spent += times.back() * calls;
  }
  std::sort(times.begin(), times.end());
  cudaEventDestroy(a);
  cudaEventDestroy(b);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  return times[times.size() / 2];
}

struct Blas {
  cublasHandle_t handle = nullptr;
  cublasLtHandle_t lt = nullptr;
  void* workspace = nullptr;
  using GemmEx = cublasStatus_t (*)(cublasHandle_t,
                                    cublasOperation_t,
                                    cublasOperation_t,
                                    int,
                                    int,
                                    int,
                                    const void*,
                                    const void*,
                                    cudaDataType,
                                    int,
                                    const void*,
                                    cudaDataType,
                                    int,
                                    const void*,
                                    void*,
                                    cudaDataType,
                                    int,
                                    cublasComputeType_t,
                                    cublasGemmAlgo_t);
  GemmEx gemm = nullptr;
  decltype(&cublasLtMatmul) lt_matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  static constexpr size_t kWorkspace = 64ull << 20;

  static void* open(const char* name) {
    const char* folders[] = {"",
                             "/usr/local/cuda/lib64/",
                             "/usr/local/cuda-13.0/lib/",
                             "/opt/torch/.venv/lib/python3.12/site-packages/nvidia/cu13/lib/"};
    for (const char* folder : folders) {
      if (void* library = dlopen((std::string(folder) + name).c_str(), RTLD_NOW | RTLD_GLOBAL)) {
        return library;
      }
    }
    return nullptr;
  }

  bool load() {
    void* l = open("libcublasLt.so.13");
    void* c = open("libcublas.so.13");
    if (l == nullptr || c == nullptr) {
      std::printf("cuBLAS not found: %s\n", dlerror());
      return false;
    }
    auto get = [](void* library, const char* name, auto& pointer) {
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(dlsym(library, name));
    };
    decltype(&cublasCreate_v2) create = nullptr;
    decltype(&cublasSetStream_v2) set_stream = nullptr;
    decltype(&cublasSetWorkspace_v2) set_workspace = nullptr;
    decltype(&cublasLtCreate) lt_create = nullptr;
    get(c, "cublasCreate_v2", create);
    get(c, "cublasSetStream_v2", set_stream);
    get(c, "cublasSetWorkspace_v2", set_workspace);
    get(c, "cublasGemmEx", gemm);
    get(l, "cublasLtCreate", lt_create);
    get(l, "cublasLtMatmul", lt_matmul);
    get(l, "cublasLtMatmulAlgoGetHeuristic", heuristic);
    get(l, "cublasLtMatmulDescCreate", desc_create);
    get(l, "cublasLtMatmulDescSetAttribute", desc_set);
    get(l, "cublasLtMatrixLayoutCreate", layout_create);
    get(l, "cublasLtMatmulPreferenceCreate", preference_create);
    get(l, "cublasLtMatmulPreferenceSetAttribute", preference_set);
    CUDA_CHECK(cudaMalloc(&workspace, kWorkspace));
    if (create(&handle) != CUBLAS_STATUS_SUCCESS || lt_create(&lt) != CUBLAS_STATUS_SUCCESS) {
      return false;
    }
    set_stream(handle, stream);
    set_workspace(handle, workspace, kWorkspace);
    return true;
  }

  /// y[m, n] = x[m, k] w[n, k]^T, all bf16. With `before`, each call is before(i), which writes
  /// the weights into w, and the product.
  double time(const __nv_bfloat16* x,
              const __nv_bfloat16* w,
              __nv_bfloat16* y,
              int64_t m,
              int64_t n,
              int64_t k,
              int copies,
              double guess,
              double sustained,
              const std::function<void(int)>& before = nullptr) {
    const float one = 1.0f, zero = 0.0f;
    bool ok = true;
    const auto weights = [&](int i) {
      if (before != nullptr) {
        before(i);
        return w;
      }
      return w + i * n * k;
    };
    auto plain = [&](int i) {
      ok = ok && gemm(handle,
                      CUBLAS_OP_T,
                      CUBLAS_OP_N,
                      (int)n,
                      (int)m,
                      (int)k,
                      &one,
                      weights(i),
                      CUDA_R_16BF,
                      (int)k,
                      x,
                      CUDA_R_16BF,
                      (int)k,
                      &zero,
                      y,
                      CUDA_R_16BF,
                      (int)n,
                      CUBLAS_COMPUTE_32F,
                      CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS;
    };
    plain(0);
    CUDA_CHECK(cudaStreamSynchronize(stream));
    double best = time_us(plain, copies, guess);
    std::function<void(int)> better = plain;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulPreference_t preference;
    desc_create(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const cublasOperation_t t = CUBLAS_OP_T;
    desc_set(desc, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t);
    layout_create(&a, CUDA_R_16BF, k, n, k);
    layout_create(&b, CUDA_R_16BF, k, m, k);
    layout_create(&d, CUDA_R_16BF, n, m, n);
    preference_create(&preference);
    const size_t bytes = kWorkspace;
    preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes);
    cublasLtMatmulHeuristicResult_t found[1];
    int count = 0;
    if (heuristic(lt, desc, a, b, d, d, preference, 1, found, &count) == CUBLAS_STATUS_SUCCESS &&
        count > 0) {
      const auto with_lt = [&](int i) {
        ok = ok && lt_matmul(lt,
                             desc,
                             &one,
                             weights(i),
                             a,
                             x,
                             b,
                             &zero,
                             y,
                             d,
                             y,
                             d,
                             &found[0].algo,
                             workspace,
                             kWorkspace,
                             stream) == CUBLAS_STATUS_SUCCESS;
      };
      with_lt(0);
      CUDA_CHECK(cudaStreamSynchronize(stream));
      const double lt_us = time_us(with_lt, copies, guess);
      if (lt_us < best) {
        best = lt_us;
        better = with_lt;
      }
    }
    if (sustained > 0) {
      best = time_us(better, copies, guess, sustained);
    }
    return ok ? best : -1;
  }
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  using namespace nibble;
  using namespace nibble::bench;
  std::vector<std::string> names, tiles = {"auto"};
  std::vector<std::string> ms = {
      "1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1024", "2048", "4096"};
  bool use_cublas = true;
  bool use_dequant = false;
  double sustained = 0;
  const char* json = nullptr;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (flag == "--shapes") {
      names = split(value);
    }
    if (flag == "--m") {
      ms = split(value);
    }
    if (flag == "--tiles") {
      tiles = split(value);
    }
    if (flag == "--kernel") {
      kernel = w4a16_kernel(value);
      if (kernel == nullptr) {
        std::printf("--kernel takes sm90 or sm80\n");
        return 2;
      }
    }
    if (flag == "--no-cublas") {
      use_cublas = false;
    }
    if (flag == "--dequant") {
      use_dequant = true;
    }
    if (flag == "--sustained") {
      sustained = std::atof(value);
    }
    if (flag == "--pause") {
      pause_ms = std::atoi(value);
    }
    if (flag == "--json") {
      json = value;
    }
  }
  try {
    CUDA_CHECK(cudaStreamCreate(&stream));
    Blas blas;
    use_cublas = use_cublas && blas.load();
    FILE* out = json != nullptr ? std::fopen(json, "w") : nullptr;
    const double kPeak = 793, kRead = 4.59;
    if (out != nullptr) {
      std::fprintf(out,
                   "{\"machine\": {\"name\": \"NVIDIA H200\", \"read_gbps\": 4590, "
                   "\"peak_tflops\": 793}, \"rows\": [");
    }
    bool first = true;
    DeviceArray<uint8_t> sink(64);
    std::printf("%-12s %5s %-9s %9s %9s %9s %9s %7s %7s %7s %7s\n",
                "shape",
                "m",
                "tile",
                "us",
                "floor",
                "cublas",
                "dequant",
                "read",
                "TB/s",
                "TFLOP/s",
                "x floor");
    for (const NamedShape& shape : kShapes) {
      const auto named = [&](const char* name) {
        return std::find(names.begin(), names.end(), name) != names.end();
      };
      if (names.empty() ? !shape.layer : !named(shape.name) && !named("all")) {
        continue;
      }
      const int64_t n = shape.n, k = shape.k;
      const int64_t bytes = cuda::packed_bytes(n, k);
      const int copies = static_cast<int>(std::max<int64_t>(2, (220000000 + bytes - 1) / bytes));
      const int wide_copies =
          static_cast<int>(std::max<int64_t>(2, (220000000 + n * k * 2 - 1) / (n * k * 2)));
      int64_t max_m = 1;
      for (const std::string& m : ms) {
        max_m = std::max<int64_t>(max_m, std::atoll(m.c_str()));
      }
      DeviceArray<uint8_t> codes(n * k / 2), scales(n * k / 16), packed(bytes * copies);
      DeviceArray<float> multiplier(cuda::padded_rows(n));
      DeviceArray<uint32_t> counters(cuda::w4a16_num_counters(n));
      counters.poison(0);
      DeviceArray<uint8_t> workspace(cuda::w4a16_workspace_bytes(max_m < 512 ? 512 : max_m, n, k));
      DeviceArray<__nv_bfloat16> x(max_m * k), y(max_m * n);
      fill_codes<<<528, 256, 0, stream>>>(codes.get(), codes.count(), 1);
      fill_scales<<<528, 256, 0, stream>>>(scales.get(), scales.count(), 2, false);
      fill_activations<<<528, 256, 0, stream>>>(x.get(), x.count(), 3, false);
      cuda::pack_nvfp4(
          {codes.get(), scales.get(), n, k, 0.01f}, 0, n, packed.get(), multiplier.get(), stream);
      for (int i = 1; i < copies; ++i) {
        CUDA_CHECK(cudaMemcpyAsync(
            packed.get() + i * bytes, packed.get(), bytes, cudaMemcpyDeviceToDevice, stream));
      }
      std::unique_ptr<DeviceArray<__nv_bfloat16>> wide;
      if (use_cublas) {
        wide = std::make_unique<DeviceArray<__nv_bfloat16>>(n * k * wide_copies);
        for (int i = 0; i < wide_copies; ++i) {
          cuda::unpack_nvfp4(packed.get(), multiplier.get(), n, k, wide->get() + i * n * k, stream);
        }
      }
      CUDA_CHECK(cudaStreamSynchronize(stream));
      auto read = [&](int i, int blocks) {
        read_kernel<<<blocks, 512, 0, stream>>>(
            reinterpret_cast<const uint4*>(packed.get() + i * bytes),
            bytes / 16,
            reinterpret_cast<uint4*>(sink.get()));
      };
      const double read_guess = 2.1 + bytes / 4.6e6;
      // A quarter second of load first: the clock ramps up from idle.
      const auto start = std::chrono::steady_clock::now();
      while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() <
             0.25) {
        read(0, 528);
        CUDA_CHECK(cudaStreamSynchronize(stream));
      }
      const double read_us = std::min(time_us([&](int i) { read(i, 264); }, copies, read_guess),
                                      time_us([&](int i) { read(i, 528); }, copies, read_guess));
      for (const std::string& m_text : ms) {
        const int64_t m = std::atoll(m_text.c_str());
        const double moved = n * k * 0.5625 + 2.0 * m * k + 2.0 * m * n;
        const double flops = 2.0 * m * n * k;
        const double floor_us = std::max(moved / (kRead * 1e6), flops / (kPeak * 1e6));
        const double guess = std::max(floor_us * 1.5, 4.0);
        double cublas_us = -1;
        if (use_cublas) {
          cublas_us = blas.time(x.get(),
                                wide->get(),
                                y.get(),
                                m,
                                n,
                                k,
                                wide_copies,
                                std::max(guess, n * k * 2 / 4.6e6),
                                sustained);
        }
        double dequant_us = -1;
        if (use_cublas && use_dequant && m >= 512) {
          dequant_us = blas.time(
              x.get(),
              wide->get(),
              y.get(),
              m,
              n,
              k,
              copies,
              std::max(guess, n * k * 2 / 2e6),
              sustained,
              [&](int i) {
                cuda::unpack_nvfp4(
                    packed.get() + i * bytes, multiplier.get(), n, k, wide->get(), stream);
              });
        }
        if (tiles == std::vector<std::string>{"all"}) {
          tiles.clear();
          for (int t = 0; t < cuda::kNumW4A16Tiles; ++t) {
            tiles.push_back(to_string(static_cast<W4A16Tile>(t)));
          }
        }
        for (const std::string& tile : tiles) {
          W4A16Plan plan = kernel->plan(m, n, k, 132);
          if (tile != "auto") {
            const std::string base = tile;
            bool known = false;
            for (int t = 0; t < cuda::kNumW4A16Tiles; ++t) {
              if (base == to_string(static_cast<W4A16Tile>(t))) {
                known = kernel->plan_as(static_cast<W4A16Tile>(t), m, n, k, 132, &plan);
              }
            }
            const int64_t token_tiles = cuda::ceil_div(m, plan.tokens);
            if (!known || (token_tiles > 2 && plan.tokens < 128 && !cuda::is_whole(plan.tile)) ||
                plan.tokens >= m * 4 + 8) {
              continue;
            }
          }
          W4A16Args a;
          a.x = x.get();
          a.row_multiplier = multiplier.get();
          a.counters = counters.get();
          a.workspace = workspace.get();
          a.y = y.get();
          a.m = m;
          a.n = n;
          a.k = k;
          a.ldx = k;
          a.ldy = n;
          a.ldr = n;
          const double us = time_us(
              [&](int i) {
                a.packed = packed.get() + i * bytes;
                kernel->launch(plan, a, stream);
              },
              copies,
              guess,
              sustained);
          char label[32];
          std::snprintf(label, sizeof label, "%s", describe(plan).c_str());
          std::printf("%-12s %5ld %-11s %9.2f %9.2f %9.2f %9.2f %7.2f %7.2f %7.0f %7.2f\n",
                      shape.name,
                      (long)m,
                      label,
                      us,
                      floor_us,
                      cublas_us,
                      dequant_us,
                      read_us,
                      moved / us / 1e6,
                      flops / us / 1e6,
                      us / floor_us);
          std::fflush(stdout);
          if (out != nullptr) {
            std::fprintf(out,
                         "%s\n{\"op\": \"gemm\", \"shape\": \"%s\", \"n\": %ld, \"k\": %ld, \"m\": "
                         "%ld, \"threads\": null, "
                         "\"kernel\": \"%s:%s\", \"us\": %.3f, \"floor_us\": %.3f, "
                         "\"read_us\": %.3f, \"cublas_us\": %.3f, \"dequant_us\": %.3f, "
                         "\"gbps\": %.1f, \"tflops\": %.2f, \"sustained_s\": %.2f}",
                         first ? "" : ",",
                         shape.name,
                         (long)n,
                         (long)k,
                         (long)m,
                         kernel->name,
                         label,
                         us,
                         floor_us,
                         read_us,
                         cublas_us,
                         dequant_us,
                         moved / us / 1e3,
                         flops / us / 1e6,
                         sustained);
            std::fflush(out);
            first = false;
          }
        }
      }
    }
    if (out != nullptr) {
      std::fprintf(out, "\n]}\n");
      std::fclose(out);
    }
  } catch (const std::exception& error) {
    std::printf("failed: %s\n", error.what());
    return 2;
  }
  return 0;
}
