// w4a16_check: is a W4A16 kernel right? One self-contained program for a machine with a GPU (of
// Hopper for nvfp4_w4a16_sm90, which is the default).
//
// Against float64 products of the same codes: rel_l2 <= 4e-3 for bf16 output, 1e-5 for f32. Every
// tile shape gives the same bits, also when run twice, and a row's bits do not depend on the rows
// beside it. Outputs are poisoned and fenced. Wrong inputs (swapped nibbles, shifted scales, no
// multiplier) must be noticed. Exit code 0 means all passed.
//
// nvfp4_w4a16_sm80 is also checked with the short ring of small devices and, on Hopper, against the
// bits of its neighbour.
//
// w4a16_check [--quick] [--kernel sm90|sm80] [--shapes tiny|small|layers|all]; tiny is for
// compute-sanitizer

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "backends/cuda/nvfp4_layout.h"
#include "backends/cuda/nvfp4_pack.h"
#include "backends/cuda/nvfp4_w4a16_sm90.h"
#include "bench/gpu/common.cuh"
#include "bench/gpu/w4a16_kernels.h"

namespace nibble::bench {
namespace {

using cuda::W4A16Args;
using cuda::W4A16Plan;
using cuda::W4A16Tile;

const W4A16Kernel* kernel = &kSm90Kernel;
bool on_hopper = false;
int failures = 0;
int64_t checks = 0;

void expect(bool ok, const char* what, int64_t m, int64_t n, int64_t k, const char* detail) {
  ++checks;
  if (!ok) {
    ++failures;
    if (failures < 60) {
      std::printf("FAILED %s: m %ld n %ld k %ld %s\n", what, (long)m, (long)n, (long)k, detail);
      std::fflush(stdout);
    }
  }
}

constexpr int64_t kGuard = 4096;  // elements on either side of y

struct Problem {
  int64_t m, n, k;
  bool wild;
  DeviceArray<uint8_t> codes, scales, packed;
  DeviceArray<float> multiplier, global;
  DeviceArray<__nv_bfloat16> x;
  DeviceArray<uint32_t> counters;
  int64_t parts[3];

  Problem(int64_t rows, int64_t features, int64_t depth, bool use_wild, uint64_t seed)
      : m(rows),
        n(features),
        k(depth),
        wild(use_wild),
        codes(n * k / 2),
        scales(n * k / 16),
        packed(cuda::packed_bytes(n, k)),
        multiplier(cuda::padded_rows(n)),
        global(n),
        x(m * k),
        counters(cuda::w4a16_num_counters(n)) {
    counters.poison(0);
    fill_codes<<<528, 256>>>(codes.get(), codes.count(), seed * 1000003);
    fill_scales<<<528, 256>>>(scales.get(), scales.count(), seed * 1000033 + (1ull << 40), wild);
    fill_activations<<<528, 256>>>(x.get(), x.count(), seed * 1000037 + (1ull << 41), wild);
    CUDA_CHECK(cudaGetLastError());
    parts[0] = n / 2;
    parts[1] = n / 3;
    parts[2] = n - parts[0] - parts[1];
    pack(codes.get(), scales.get(), packed.get(), multiplier.get());
    std::vector<float> g(n);
    for (int64_t i = 0; i < n; ++i) {
      g[i] = part_scale(i < parts[0] ? 0 : i < parts[0] + parts[1] ? 1 : 2);
    }
    global.set(g);
  }
  static float part_scale(int part) { return 0.0173f * static_cast<float>(part + 1); }

  void pack(const uint8_t* c, const uint8_t* s, uint8_t* to, float* multipliers) const {
    CUDA_CHECK(cudaMemset(to, 0xEE, cuda::packed_bytes(n, k)));
    CUDA_CHECK(cudaMemset(multipliers, 0xFF, cuda::padded_rows(n) * 4));
    int64_t row = 0;
    for (int part = 0; part < 3; ++part) {
      cuda::Nvfp4Source source{
          c + row * (k / 2), s + row * (k / 16), parts[part], k, part_scale(part)};
      if (parts[part] > 0) {
        cuda::pack_nvfp4(source, row, n, to, multipliers, nullptr);
      }
      row += parts[part];
    }
  }

  W4A16Args args(void* y) const {
    W4A16Args a;
    a.x = x.get();
    a.packed = packed.get();
    a.row_multiplier = multiplier.get();
    a.counters = counters.get();
    a.y = y;
    a.m = m;
    a.n = n;
    a.k = k;
    a.ldx = k;
    a.ldy = n;
    a.ldr = n;
    return a;
  }
};

/// Runs into a poisoned, fenced buffer and returns y's bits.
std::vector<uint16_t> run(const Problem& p,
                          const W4A16Plan& plan,
                          const W4A16Args& base,
                          const char* what) {
  const int64_t count = base.m * base.n;
  DeviceArray<uint16_t> y(count + 2 * kGuard);
  y.poison(0xFF);
  W4A16Args a = base;
  a.y = y.get() + kGuard;
  DeviceArray<uint8_t> workspace(plan.workspace_bytes + 2 * kGuard);
  workspace.poison(0xFF);
  a.workspace = workspace.get() + kGuard;
  expect(plan.workspace_bytes <=
             cuda::w4a16_workspace_bytes(std::max<int64_t>(base.m, 8 * plan.tokens), p.n, p.k),
         "workspace bound",
         base.m,
         p.n,
         p.k,
         what);
  kernel->launch(plan, a, nullptr);
  CUDA_CHECK(cudaDeviceSynchronize());
  std::vector<uint8_t> guard(2 * kGuard);
  CUDA_CHECK(cudaMemcpy(guard.data(), workspace.get(), kGuard, cudaMemcpyDeviceToHost));
  CUDA_CHECK(cudaMemcpy(guard.data() + kGuard,
                        workspace.get() + kGuard + plan.workspace_bytes,
                        kGuard,
                        cudaMemcpyDeviceToHost));
  expect(std::all_of(guard.begin(), guard.end(), [](uint8_t v) { return v == 0xFF; }),
         "workspace guard",
         base.m,
         p.n,
         p.k,
         what);
  for (const uint32_t counter : p.counters.host()) {
    if (counter != 0) {
      expect(false, "counters left at zero", base.m, p.n, p.k, what);
      break;
    }
  }
  std::vector<uint16_t> all = y.host();
  bool fence = true;
  for (int64_t i = 0; i < kGuard; ++i) {
    fence = fence && all[i] == 0xFFFF && all[kGuard + count + i] == 0xFFFF;
  }
  expect(fence, "guard bands", base.m, p.n, p.k, what);
  return {all.begin() + kGuard, all.begin() + kGuard + count};
}

struct Samples {
  std::vector<int2> where;
  std::vector<double> values;
};

Samples reference(const Problem& p, int64_t limit, uint64_t seed) {
  Samples s;
  if (p.m * p.n <= limit) {
    for (int64_t t = 0; t < p.m; ++t) {
      for (int64_t r = 0; r < p.n; ++r) {
        s.where.push_back(make_int2(static_cast<int>(r), static_cast<int>(t)));
      }
    }
  } else {
    std::mt19937_64 random(seed);
    for (int64_t i = 0; i < limit; ++i) {
      s.where.push_back(
          make_int2(static_cast<int>(random() % p.n), static_cast<int>(random() % p.m)));
    }
  }
  DeviceArray<int2> where(s.where.size());
  where.set(s.where);
  DeviceArray<double> out(s.where.size());
  reference_kernel<<<static_cast<unsigned>(s.where.size()), 128>>>(
      p.x.get(), p.k, p.codes.get(), p.scales.get(), p.k, p.global.get(), where.get(), out.get());
  CUDA_CHECK(cudaDeviceSynchronize());
  s.values = out.host();
  return s;
}

double rel_l2(const Samples& s, const std::vector<uint16_t>& y, int64_t n) {
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < s.where.size(); ++i) {
    const double v = bf16_to_float(y[s.where[i].y * n + s.where[i].x]);
    error += (v - s.values[i]) * (v - s.values[i]);
    norm += s.values[i] * s.values[i];
  }
  return std::sqrt(error / (norm + 1e-300));
}

double worst = 0;

void check_problem(int64_t m, int64_t n, int64_t k, bool wild, int64_t samples, bool all_tiles) {
  Problem p(m, n, k, wild, 17 + m * 31 + n * 7 + k);
  const Samples s = reference(p, samples, 5);
  const W4A16Plan chosen = kernel->plan(m, n, k, 132);
  const W4A16Args a = p.args(nullptr);
  const std::vector<uint16_t> y = run(p, chosen, a, "auto");
  const double error = rel_l2(s, y, n);
  worst = error > worst ? error : worst;
  char detail[160];
  std::snprintf(detail, sizeof detail, "%s rel_l2 %.3e", to_string(chosen.tile), error);
  expect(error <= 4e-3, "rel_l2", m, n, k, detail);
  expect(run(p, chosen, a, "again") == y, "two runs differ", m, n, k, to_string(chosen.tile));
  for (int tile = 0; all_tiles && tile < cuda::kNumW4A16Tiles; ++tile) {
    W4A16Plan plan;
    if (!kernel->plan_as(static_cast<W4A16Tile>(tile), m, n, k, 132, &plan)) {
      continue;
    }
    std::snprintf(detail, sizeof detail, "%s", to_string(plan.tile));
    const std::vector<uint16_t> other = run(p, plan, a, detail);
    if (other != y) {
      std::snprintf(
          detail, sizeof detail, "%s rel_l2 %.3e", to_string(plan.tile), rel_l2(s, other, n));
    }
    expect(other == y, "tiles differ", m, n, k, detail);
  }
  if (kernel != &kSm90Kernel) {
    W4A16Plan few = chosen;
    few.few_stages = true;
    expect(run(p, few, a, "few stages") == y, "few stages differ", m, n, k, to_string(few.tile));
    if (on_hopper) {
      const W4A16Kernel* const own = kernel;
      kernel = &kSm90Kernel;
      expect(run(p, kernel->plan(m, n, k, 132), a, "sm90") == y, "sm90 differs", m, n, k, "");
      kernel = own;
    }
  }
  // A row alone has the bits it has among others.
  if (m > 1) {
    W4A16Args one = a;
    one.m = 1;
    const int64_t row = m - 1;
    one.x = p.x.get() + row * k;
    const std::vector<uint16_t> alone = run(p, kernel->plan(1, n, k, 132), one, "alone");
    expect(std::memcmp(alone.data(), y.data() + row * n, n * 2) == 0,
           "row alone differs",
           m,
           n,
           k,
           "");
  }
}

void check_negatives() {
  const int64_t m = 40, n = 384, k = 512;
  Problem p(m, n, k, false, 99);
  const Samples s = reference(p, 1 << 20, 1);
  const W4A16Plan plan = kernel->plan(m, n, k, 132);
  W4A16Args a = p.args(nullptr);
  expect(rel_l2(s, run(p, plan, a, "sound"), n) <= 4e-3, "sound input", m, n, k, "");
  DeviceArray<uint8_t> packed(cuda::packed_bytes(n, k));
  DeviceArray<float> multiplier(cuda::padded_rows(n));
  a.packed = packed.get();
  a.row_multiplier = multiplier.get();
  {
    std::vector<uint8_t> c = p.codes.host();
    for (uint8_t& byte : c) {
      byte = static_cast<uint8_t>(byte << 4 | byte >> 4);
    }
    DeviceArray<uint8_t> swapped(c.size());
    swapped.set(c);
    p.pack(swapped.get(), p.scales.get(), packed.get(), multiplier.get());
    expect(
        rel_l2(s, run(p, plan, a, "swapped"), n) > 0.1, "swapped nibbles unnoticed", m, n, k, "");
  }
  {
    std::vector<uint8_t> sc = p.scales.host();
    std::rotate(sc.begin(), sc.begin() + 1, sc.end());
    DeviceArray<uint8_t> shifted(sc.size());
    shifted.set(sc);
    p.pack(p.codes.get(), shifted.get(), packed.get(), multiplier.get());
    expect(rel_l2(s, run(p, plan, a, "shifted"), n) > 0.1, "shifted scales unnoticed", m, n, k, "");
  }
  {
    p.pack(p.codes.get(), p.scales.get(), packed.get(), multiplier.get());
    std::vector<float> ones(cuda::padded_rows(n), 128.0f);
    multiplier.set(ones);
    expect(rel_l2(s, run(p, plan, a, "no multiplier"), n) > 0.1,
           "dropped multiplier unnoticed",
           m,
           n,
           k,
           "");
  }
}

/// Zero weights of both signs: every tile gives zeros, and zeros of the same sign.
void check_zeros(int64_t m) {
  const int64_t n = 256, k = 2048;
  Problem p(m, n, k, false, 7);
  std::vector<uint8_t> c = p.codes.host();
  for (uint8_t& byte : c) {
    byte &= 0x88;
  }
  p.codes.set(c);
  p.pack(p.codes.get(), p.scales.get(), p.packed.get(), p.multiplier.get());
  std::vector<uint16_t> first;
  for (int tile = 0; tile < cuda::kNumW4A16Tiles; ++tile) {
    W4A16Plan plan;
    if (!kernel->plan_as(static_cast<W4A16Tile>(tile), m, n, k, 132, &plan)) {
      continue;
    }
    const std::vector<uint16_t> y = run(p, plan, p.args(nullptr), to_string(plan.tile));
    expect(std::all_of(y.begin(), y.end(), [](uint16_t v) { return (v & 0x7FFF) == 0; }),
           "zeros",
           m,
           n,
           k,
           to_string(plan.tile));
    first = first.empty() ? y : first;
    expect(y == first, "signs of zeros differ", m, n, k, to_string(plan.tile));
  }
}

/// Every scale byte with every code byte through pack and decode equals the codec's value.
void check_all_pairs() {
  const int64_t n = 256, k = 512;
  std::vector<uint8_t> c(n * k / 2), sc(n * k / 16);
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t i = 0; i < 256; ++i) {
      c[r * 256 + i] = static_cast<uint8_t>(i);
    }
    for (int64_t g = 0; g < 32; ++g) {
      sc[r * 32 + g] = static_cast<uint8_t>(r);
    }
  }
  DeviceArray<uint8_t> codes(c.size()), scales(sc.size()), packed(cuda::packed_bytes(n, k));
  DeviceArray<float> multiplier(cuda::padded_rows(n));
  DeviceArray<uint16_t> out(n * k);
  codes.set(c);
  scales.set(sc);
  packed.poison(0xEE);
  out.poison(0xFF);
  cuda::pack_nvfp4(
      {codes.get(), scales.get(), n, k, 1.0f}, 0, n, packed.get(), multiplier.get(), nullptr);
  cuda::unpack_nvfp4(packed.get(), nullptr, n, k, out.get(), nullptr);
  CUDA_CHECK(cudaDeviceSynchronize());
  const std::vector<uint16_t> y = out.host();
  int64_t wrong = 0;
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t i = 0; i < k; ++i) {
      const uint32_t byte = c[r * 256 + i / 2];
      const double want =
          e2m1_value(i % 2 == 0 ? byte & 15 : byte >> 4) * e4m3_value(sc[r * 32 + i / 16]);
      const double got = bf16_to_float(y[r * k + i]);
      const bool same = std::isnan(want) ? std::isnan(got)
                                         : got == want && std::signbit(got) == std::signbit(want);
      wrong += same ? 0 : 1;
    }
  }
  char detail[64];
  std::snprintf(detail, sizeof detail, "%ld of %ld wrong", (long)wrong, (long)(n * k));
  expect(wrong == 0, "pack and decode of all byte pairs", 0, n, k, detail);
}

void check_epilogue(int64_t m) {
  for (const int64_t n : {256, 250, 253}) {
    const int64_t k = 1024;
    Problem p(m, n, k, false, 3);
    const Samples s = reference(p, 1 << 20, 1);
    DeviceArray<__nv_bfloat16> bias(n), residual(m * n);
    fill_activations<<<32, 256>>>(bias.get(), n, 77, false);
    fill_activations<<<32, 256>>>(residual.get(), m * n, 78, false);
    const std::vector<__nv_bfloat16> b = bias.host(), r = residual.host();
    W4A16Args a = p.args(nullptr);
    a.bias = bias.get();
    a.residual = residual.get();
    Samples with = s;
    for (size_t i = 0; i < s.where.size(); ++i) {
      with.values[i] +=
          __bfloat162float(b[s.where[i].x]) + __bfloat162float(r[s.where[i].y * n + s.where[i].x]);
    }
    for (int tile = 0; tile < cuda::kNumW4A16Tiles; ++tile) {
      W4A16Plan plan;
      if (!kernel->plan_as(static_cast<W4A16Tile>(tile), m, n, k, 132, &plan)) {
        continue;
      }
      const double error = rel_l2(with, run(p, plan, a, "bias and residual"), n);
      expect(error <= 4e-3, "bias and residual", m, n, k, to_string(plan.tile));
      // f32 output
      DeviceArray<float> y(m * n);
      y.poison(0xFF);
      W4A16Args f = p.args(y.get());
      f.y_is_f32 = true;
      DeviceArray<uint8_t> workspace(plan.workspace_bytes);
      f.workspace = workspace.get();
      kernel->launch(plan, f, nullptr);
      CUDA_CHECK(cudaDeviceSynchronize());
      const std::vector<float> h = y.host();
      double e = 0, norm = 0;
      for (size_t i = 0; i < s.where.size(); ++i) {
        const double d = h[s.where[i].y * n + s.where[i].x] - s.values[i];
        e += d * d;
        norm += s.values[i] * s.values[i];
      }
      char detail[80];
      std::snprintf(
          detail, sizeof detail, "%s rel_l2 %.2e", to_string(plan.tile), std::sqrt(e / norm));
      expect(std::sqrt(e / norm) <= 1e-5, "f32 output", m, n, k, detail);
    }
  }
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  using namespace nibble::bench;
  bool quick = false;
  std::string which = "all";
  for (int i = 1; i < argc; ++i) {
    quick = quick || std::strcmp(argv[i], "--quick") == 0;
    if (std::strcmp(argv[i], "--shapes") == 0 && i + 1 < argc) {
      which = argv[i + 1];
    }
    if (std::strcmp(argv[i], "--kernel") == 0 && i + 1 < argc) {
      kernel = w4a16_kernel(argv[i + 1]);
      if (kernel == nullptr) {
        std::printf("--kernel takes sm90 or sm80\n");
        return 2;
      }
    }
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skip: no CUDA device\n");
    return 77;
  }
  cudaDeviceProp device{};
  if (cudaGetDeviceProperties(&device, 0) == cudaSuccess) {
    on_hopper = device.major == 9;
  }
  if (kernel == &kSm90Kernel && !on_hopper) {
    std::printf("skip: %s is no Hopper GPU\n", device.name);
    return 77;
  }
  try {
    check_all_pairs();
    std::printf("pairs done, %d failures\n", failures);
    std::fflush(stdout);
    check_problem(1, 128, 64, false, 1 << 16, true);
    std::printf("smallest done, %d failures\n", failures);
    std::fflush(stdout);
    check_negatives();
    for (const int64_t m : {5, 37}) {  // some tiles take few rows only
      check_zeros(m);
      check_epilogue(m);
    }
    std::printf("negatives and epilogue done, %d failures\n", failures);
    std::fflush(stdout);
    if (which == "tiny") {
      for (const int64_t m : {1, 7, 12, 30, 64, 100, 200}) {
        check_problem(m, 384, 1936, true, 2000, true);
        check_problem(m, 250, 4096, false, 2000, true);
      }
      check_problem(600, 4224, 1024, false, 2000, true);  // whole tiles and then shared ones
    } else if (which != "layers") {
      const int64_t small[][2] = {
          {128, 64},    {64, 16},     {1, 16},     {8, 48},     {100, 80},   {128, 112},
          {130, 256},   {192, 320},   {200, 400},  {256, 512},  {255, 528},  {257, 1040},
          {384, 768},   {512, 2048},  {513, 1936}, {640, 1024}, {777, 4096}, {1000, 1008},
          {1024, 4096}, {1536, 2048}, {2048, 768}, {3, 32},     {17, 64},    {129, 1024},
          {383, 2064},  {1111, 16},   {2, 8192},   {4095, 272}, {6656, 48}};
      for (const auto& shape : small) {
        for (const int64_t m :
             {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 100, 128, 129, 200, 256, 257, 300}) {
          check_problem(
              m, shape[0], shape[1], (m + shape[0]) % 3 == 0, 20000, !quick || m % 8 == 1);
        }
        if (failures > 50) {
          break;
        }
      }
      std::printf("small done, %d failures, worst rel_l2 %.2e\n", failures, worst);
      std::fflush(stdout);
    }
    if (which != "small" && which != "tiny" && failures < 50) {
      const int64_t layers[][2] = {{6144, 4096},   {4096, 4096},  {24576, 4096}, {4096, 12288},
                                   {10240, 8192},  {8192, 8192},  {57344, 8192}, {8192, 28672},
                                   {5120, 2048},   {2048, 4096},  {6656, 19968}, {19968, 6656},
                                   {151936, 4096}, {3072, 3072},  {9216, 7168},  {18944, 3584},
                                   {3584, 18944},  {11008, 4096}, {4096, 11008}, {32000, 4096},
                                   {14336, 4096},  {4096, 14336}, {1536, 8960},  {5120, 17408}};
      for (const auto& shape : layers) {
        for (const int64_t m : {1, 8, 16, 32, 64, 128, 256, 512}) {
          check_problem(m, shape[0], shape[1], m == 32, 4000, !quick && m <= 256);
        }
      }
      for (const int64_t m : {1024, 2048, 4096, 8192}) {
        check_problem(m, 4096, 4096, false, 4000, true);
        check_problem(m, 5120, 2048, true, 4000, true);
      }
    }
  } catch (const std::exception& error) {
    std::printf("FAILED with %s\n", error.what());
    return 2;
  }
  std::printf("%s: %ld checks, %d failures, worst rel_l2 %.2e\n",
              failures == 0 ? "passed" : "FAILED",
              (long)checks,
              failures,
              worst);
  return failures == 0 ? 0 : 1;
}
