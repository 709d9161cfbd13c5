// The CPU's limits: streaming reads of a fresh buffer and register-only multiply-adds, all threads
// of the pool at once.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>

#include "backends/cpu/gemm_shared.h"
#include "backends/cpu/isa_abi.h"
#include "base/cpu_info.h"
#include "ops/probe.h"
#include "tensor/device_api.h"

namespace nibble {

namespace {

using namespace nibble::cpu;  // NOLINT(google-build-using-namespace): the folder's own helpers

// Twice the last cache, which may have hundreds of MB, within these borders.
constexpr int64_t kLeastReadBytes = int64_t{128} << 20;
constexpr int64_t kMostReadBytes = int64_t{1} << 30;
constexpr int kReadPasses = 4;
constexpr int64_t kRounds = 1 << 19;
constexpr int kPeakPasses = 3;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// As weights are allocated: in 2 MiB pages where the system has them.
struct FreeMemory {
  void operator()(void* memory) const { device_api(Device{}).release(Device{}, memory); }
};

// Results go here so that no pass is optimized away.
std::atomic<uint64_t> sink{0};

double read_gbps(Stream stream) {
  if (detect_cpu_isa() < CpuIsa::Avx2) {
    return 0.0;
  }
  constexpr int64_t kGrain = 4096;
  const int64_t bytes =
      std::clamp(2 * largest_cache_bytes(), kLeastReadBytes, kMostReadBytes) / kGrain * kGrain;
  const std::unique_ptr<void, FreeMemory> memory(
      device_api(Device{}).allocate(Device{}, static_cast<size_t>(bytes)));
  if (memory == nullptr) {
    return 0.0;
  }
  std::memset(memory.get(), 1, static_cast<size_t>(bytes));
  double best = 0.0;
  for (int pass = 0; pass < kReadPasses; ++pass) {
    const auto start = Clock::now();
    pool_of(stream).parallel_for(bytes, kGrain, [&](int64_t begin, int64_t end, int) {
      sink += probe_read_avx2(static_cast<const char*>(memory.get()) + begin, end - begin);
    });
    best = std::max(best, static_cast<double>(bytes) / seconds_since(start) / 1e9);
  }
  return best;
}

struct Peak {
  double operations;  // of one multiply-add of a vector
  void (*run)(int64_t rounds);
};

template <auto kProbe>
void run_probe(int64_t rounds) {
  sink += static_cast<uint64_t>(kProbe(rounds) != 0);
}

Peak peak_of(CpuIsa isa, QuantMode mode) {
  const bool integer = mode == kW4A4;
  if (isa >= CpuIsa::Avx512 && integer) {
    return {128, run_probe<probe_int8_vnni>};
  }
  if (isa >= CpuIsa::Avx512Bf16) {
    return {64, run_probe<probe_dot_avx512bf16>};
  }
  if (isa >= CpuIsa::Avx512) {
    return {32, run_probe<probe_fma_avx512>};
  }
  if (isa >= CpuIsa::Avx2) {
    return integer ? Peak{64, run_probe<probe_int8_avx2>} : Peak{16, run_probe<probe_fma_avx2>};
  }
  return {0, nullptr};
}

double peak_gflops(Stream stream, int isa, QuantMode mode) {
  const Peak peak = peak_of(std::min(static_cast<CpuIsa>(isa), detect_cpu_isa()), mode);
  if (peak.run == nullptr) {
    return 0.0;
  }
  const int threads = pool_of(stream).num_threads();
  double best = 0.0;
  for (int pass = 0; pass < kPeakPasses; ++pass) {
    const auto start = Clock::now();
    pool_of(stream).parallel_for(threads, 1, [&](int64_t, int64_t, int) { peak.run(kRounds); });
    const double operations =
        static_cast<double>(kRounds) * kProbeChains * peak.operations * threads;
    best = std::max(best, operations / seconds_since(start) / 1e9);
  }
  return best;
}

}  // namespace

extern const MachineProbe kCpuProbe;
const MachineProbe kCpuProbe{
    .device = Device::Kind::Cpu, .read_gbps = read_gbps, .peak_gflops = peak_gflops};

}  // namespace nibble
