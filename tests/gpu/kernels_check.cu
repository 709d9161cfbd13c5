// kernels_check: the CUDA kernels around the NVFP4 product, one self-contained program.
//
// Activation quantizers bit-equal to the CPU's W4A4 arithmetic (quantize_row) on codes, scales and
// values, on random rows, every tie and boundary, zeros, subnormal scales and infinities; fused
// forms bit-equal to two passes; W4A4 and fused SwiGLU products against float64 and bit-equal for
// every tile and row count. Prints times of fused forms beside what they replace. Exit code 0: all
// passed.
//
// kernels_check [--no-timing | --small]; --small is for compute-sanitizer

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>

#include "backends/cpu/gemm_shared.h"
#include "backends/cuda/nvfp4_layout.h"
#include "backends/cuda/nvfp4_pack.h"
#include "backends/cuda/nvfp4_w4a16_sm90.h"
#include "backends/cuda/quantize_act.h"
#include "base/number_formats.h"
#include "bench/gpu/common.cuh"
#include "bench/gpu/w4a16_kernels.h"
#include "quant/nvfp4.h"

namespace nibble::bench {
namespace {

using cuda::ActInput;
using cuda::QuantizeActArgs;
using cuda::W4A16Args;
using cuda::W4A16Plan;
using cuda::W4A16Tile;

int failures = 0;
int64_t checks = 0;
bool small = false;

void expect(bool ok, const std::string& what) {
  ++checks;
  if (!ok && ++failures < 40) {
    std::printf("FAILED %s\n", what.c_str());
    std::fflush(stdout);
  }
}

std::string sizes(int64_t m, int64_t n, int64_t k) {
  return " m " + std::to_string(m) + " n " + std::to_string(n) + " k " + std::to_string(k);
}

float from_bits(uint16_t bits) { return nibble::bf16_to_float(bits); }

// ---- quantizer ----

struct Quantized {
  std::vector<uint8_t> codes, scales;
  std::vector<uint16_t> values;
  std::vector<float> token_scale;
};

/// The CPU's own arithmetic.
Quantized quantize_on_cpu(const std::vector<uint16_t>& x, int64_t m, int64_t k, float input_scale) {
  Quantized q;
  q.codes.resize(m * k / 2);
  q.scales.resize(m * k / 16);
  q.values.resize(m * k);
  std::vector<float> row(k), scales(k / 16);
  std::vector<uint8_t> codes(k);
  for (int64_t t = 0; t < m; ++t) {
    cpu::load_row(x.data() + t * k, nullptr, k, row.data());
    q.token_scale.push_back(
        cpu::quantize_row(row.data(), input_scale, k, codes.data(), scales.data()));
    for (int64_t i = 0; i < k; ++i) {
      q.codes[(t * k + i) / 2] |= static_cast<uint8_t>(codes[i] << (i % 2 * 4));
      q.values[t * k + i] = nibble::float_to_bf16(nibble::e2m1_to_float(codes[i]) * scales[i / 16]);
    }
    for (int64_t b = 0; b < k / 16; ++b) {
      q.scales[t * (k / 16) + b] = nibble::float_to_e4m3(scales[b]);
    }
  }
  return q;
}

Quantized quantize_on_gpu(QuantizeActArgs args, float input_scale, bool tiled) {
  const int64_t m = args.m, k = args.k;
  const int64_t scale_bytes =
      tiled ? quant::scale_layout_bytes(quant::ScaleLayout::Tile128x4, m, k / 16) : m * k / 16;
  DeviceArray<uint8_t> codes(m * k / 2), scales(scale_bytes);
  DeviceArray<uint16_t> values(m * k);
  DeviceArray<float> token_scale(m), input(1);
  codes.poison(0xAA);
  scales.poison(0xAA);
  values.poison(0xFF);
  token_scale.poison(0xFF);
  input.set({input_scale});
  args.input_scale = input_scale > 0 ? input.get() : nullptr;
  args.values = values.get();
  args.codes = codes.get();
  args.scales = scales.get();
  args.tiled_scales = tiled;
  args.token_scale = token_scale.get();
  cuda::quantize_act(args, nullptr);
  CUDA_CHECK(cudaDeviceSynchronize());
  return {codes.host(), scales.host(), values.host(), token_scale.host()};
}

void compare(const Quantized& want, const Quantized& got, const std::string& what) {
  expect(want.token_scale == got.token_scale, "global scale, " + what);
  expect(want.scales == got.scales, "block scales, " + what);
  expect(want.codes == got.codes, "codes, " + what);
  expect(want.values == got.values, "values, " + what);
}

std::vector<uint16_t> random_rows(int64_t m, int64_t k, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> x(m * k);
  for (int64_t t = 0; t < m; ++t) {
    const float size = std::ldexp(1.0f, static_cast<int>(random() % 60) - 40);
    for (int64_t i = 0; i < k; ++i) {
      float v = normal(random) * size;
      v *= random() % 300 == 0 ? 64.0f : 1.0f;                // outliers
      v = (i / 16) % 7 == 3 ? v * std::ldexp(1.0f, -14) : v;  // blocks with subnormal scales
      v = (i / 16) % 11 == 5 ? 0.0f : v;
      x[t * k + i] = nibble::float_to_bf16(random() % 50 == 0 ? -0.0f : v);
    }
  }
  return x;
}

/// Rows whose quotients are every midpoint and its neighbours, scaled through the range of E4M3.
std::vector<uint16_t> boundary_rows(int64_t m, int64_t k) {
  const float points[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  std::vector<uint16_t> x(m * k);
  for (int64_t t = 0; t < m; ++t) {
    for (int64_t b = 0; b < k / 16; ++b) {
      const float size =
          std::ldexp(1.0f + static_cast<float>(b % 8) / 8, static_cast<int>(t % 24) - 12);
      for (int64_t i = 0; i < 16; ++i) {
        float v = i == 0 ? 6.0f : points[i % 7];
        uint16_t word = nibble::float_to_bf16(v * size);
        word = static_cast<uint16_t>(word + (i == 0 ? 0 : (t + b) % 3 - 1));
        x[t * k + b * 16 + i] = static_cast<uint16_t>(i % 2 == 1 ? word | 0x8000 : word);
      }
    }
  }
  return x;
}

void check_quantizer() {
  for (const auto& [m, k] : {std::pair<int64_t, int64_t>{1, 16},
                             {3, 48},
                             {17, 576},
                             {64, 1936},
                             {130, 4096},
                             {9, 14336},
                             {9, 28672},
                             {3, 40016}}) {
    if (small && m * k > 130000) {
      continue;
    }
    for (const float input_scale : {0.0f, 0.0015f, 1e-6f, 30.0f}) {
      for (int kind = 0; kind < 2; ++kind) {
        const std::vector<uint16_t> x = kind == 0 ? random_rows(m, k, m + k) : boundary_rows(m, k);
        DeviceArray<uint16_t> device_x(m * k);
        device_x.set(x);
        QuantizeActArgs args;
        args.x = device_x.get();
        args.m = m;
        args.k = k;
        args.ldx = k;
        const std::string what = sizes(m, 0, k) + " input scale " + std::to_string(input_scale) +
                                 " kind " + std::to_string(kind);
        Quantized want = quantize_on_cpu(x, m, k, input_scale);
        compare(want, quantize_on_gpu(args, input_scale, false), "linear" + what);
        want.scales = quant::to_scale_layout(quant::ScaleLayout::Tile128x4, want.scales, m, k / 16);
        compare(want, quantize_on_gpu(args, input_scale, true), "128x4" + what);
      }
    }
  }
  // Zeros, infinity, one value; and a wrong scale is noticed.
  for (const float top : {0.0f, 1e-38f, 3e38f, std::numeric_limits<float>::infinity()}) {
    std::vector<uint16_t> x(64, 0);
    x[5] = nibble::float_to_bf16(top);
    x[6] = nibble::float_to_bf16(-1.0f);
    x[6] = top == 0.0f ? 0 : x[6];
    DeviceArray<uint16_t> device_x(64);
    device_x.set(x);
    QuantizeActArgs args;
    args.x = device_x.get();
    args.m = 1;
    args.k = 64;
    args.ldx = 64;
    for (const float input_scale : {0.0f, 0.25f}) {
      // An infinite row has no global scale per token: 0 * infinity.
      if (std::isinf(top) && input_scale == 0.0f) {
        continue;
      }
      compare(quantize_on_cpu(x, 1, 64, input_scale),
              quantize_on_gpu(args, input_scale, false),
              "top " + std::to_string(top));
    }
  }
  const std::vector<uint16_t> x = random_rows(4, 256, 3);
  DeviceArray<uint16_t> device_x(4 * 256);
  device_x.set(x);
  QuantizeActArgs args;
  args.x = device_x.get();
  args.m = 4;
  args.k = 256;
  args.ldx = 256;
  expect(quantize_on_cpu(x, 4, 256, 0.01f).codes != quantize_on_gpu(args, 0.013f, false).codes,
         "another input scale unnoticed");
}

void check_fused_quantizers() {
  for (const auto& [m, k] :
       {std::pair<int64_t, int64_t>{1, 576}, {5, 1936}, {33, 4096}, {3, 14336}, {2, 40016}}) {
    DeviceArray<uint16_t> x(m * k * 2), weight(k), plain(m * k), again(m * k);
    std::vector<uint16_t> host_x = random_rows(m, 2 * k, 5 + k), host_w = random_rows(1, k, 6);
    for (uint16_t& v : host_x) {  // of a size that norms and gates see
      std::mt19937 random(v);
      v = nibble::float_to_bf16(static_cast<float>(random() % 4001) / 500.0f - 4.0f);
    }
    x.set(host_x);
    for (uint16_t& v : host_w) {
      v = nibble::float_to_bf16(0.5f + static_cast<float>(v % 100) / 100.0f);
    }
    weight.set(host_w);
    for (const ActInput input : {ActInput::RmsNorm, ActInput::SiluMul}) {
      const std::string what = (input == ActInput::RmsNorm ? "norm" : "silu") + sizes(m, 0, k);
      QuantizeActArgs args;
      args.input = input;
      args.x = x.get();
      args.m = m;
      args.k = k;
      args.ldx = 2 * k;
      args.norm_weight = weight.get();
      args.eps = 1e-6f;
      args.unquantized = plain.get();
      plain.poison(0xFF);
      cuda::quantize_act(args, nullptr);
      CUDA_CHECK(cudaDeviceSynchronize());
      const std::vector<uint16_t> first = plain.host();
      double error = 0, norm = 0;
      for (int64_t t = 0; t < m; ++t) {
        const uint16_t* row = host_x.data() + t * 2 * k;
        double squares = 0;
        for (int64_t i = 0; i < k; ++i) {
          squares += static_cast<double>(from_bits(row[i])) * from_bits(row[i]);
        }
        for (int64_t i = 0; i < k; ++i) {
          const double a = from_bits(row[i]);
          const double want =
              input == ActInput::RmsNorm
                  ? a / std::sqrt(squares / static_cast<double>(k) + 1e-6) * from_bits(host_w[i])
                  : a / (1 + std::exp(-a)) * from_bits(row[k + i]);
          const double d = from_bits(first[t * k + i]) - want;
          error += d * d;
          norm += want * want;
        }
      }
      expect(std::sqrt(error / norm) < 3e-3, "unquantized " + what);
      // Fused equals the two passes.
      args.unquantized = again.get();
      QuantizeActArgs second;
      second.x = plain.get();
      second.m = m;
      second.k = k;
      second.ldx = k;
      for (const float input_scale : {0.0f, 0.002f}) {
        const Quantized fused = quantize_on_gpu(args, input_scale, false);
        compare(quantize_on_gpu(second, input_scale, false), fused, "fused " + what);
        compare(quantize_on_cpu(first, m, k, input_scale), fused, "fused against the CPU " + what);
      }
      expect(again.host() == first, "unquantized beside codes " + what);
    }
  }
}

// ---- products ----

struct Weights {
  int64_t n, k;
  DeviceArray<uint8_t> codes, scales, packed;
  DeviceArray<float> multiplier, global;
  DeviceArray<uint32_t> counters;
  /// Two halves with a global scale each; interleaved: gate and up in turn.
  Weights(int64_t rows, int64_t depth, bool interleaved)
      : n(rows),
        k(depth),
        codes(n * k / 2),
        scales(n * k / 16),
        packed(cuda::packed_bytes(n, k)),
        multiplier(cuda::padded_rows(n)),
        global(n),
        counters(cuda::w4a16_num_counters(n)) {
    counters.poison(0);
    packed.poison(0xEE);
    multiplier.poison(0xFF);
    fill_codes<<<528, 256>>>(codes.get(), codes.count(), 11 + n);
    fill_scales<<<528, 256>>>(scales.get(), scales.count(), 12 + k, false);
    std::vector<float> g(n);
    const float factor = 1.0f / std::sqrt(static_cast<float>(k)) / 64;
    for (int part = 0; part < 2; ++part) {
      const int64_t first = part == 0 ? 0 : n / 2;
      const int64_t count = part == 0 ? n / 2 : n - n / 2;
      const float scale = factor * static_cast<float>(part + 1);
      cuda::pack_nvfp4(
          {codes.get() + first * k / 2, scales.get() + first * k / 16, count, k, scale},
          interleaved ? part : first,
          n,
          packed.get(),
          multiplier.get(),
          nullptr,
          interleaved ? 2 : 1);
      std::fill(g.begin() + first, g.begin() + first + count, scale);
    }
    global.set(g);
    CUDA_CHECK(cudaDeviceSynchronize());
  }
};

/// float64 products [m, n] of x (bf16) with the checkpoint's rows.
std::vector<double> exact(const Weights& w, const __nv_bfloat16* x, int64_t m) {
  std::vector<int2> where;
  for (int64_t t = 0; t < m; ++t) {
    for (int64_t r = 0; r < w.n; ++r) {
      where.push_back(make_int2(static_cast<int>(r), static_cast<int>(t)));
    }
  }
  DeviceArray<int2> at(where.size());
  at.set(where);
  DeviceArray<double> out(where.size());
  reference_kernel<<<static_cast<unsigned>(where.size()), 128>>>(
      x, w.k, w.codes.get(), w.scales.get(), w.k, w.global.get(), at.get(), out.get());
  CUDA_CHECK(cudaDeviceSynchronize());
  return out.host();
}

W4A16Args make_args(const Weights& w, const void* x, int64_t m, void* y, int64_t ldy) {
  W4A16Args a;
  a.x = x;
  a.packed = w.packed.get();
  a.row_multiplier = w.multiplier.get();
  a.counters = w.counters.get();
  a.y = y;
  a.m = m;
  a.n = w.n;
  a.k = w.k;
  a.ldx = w.k;
  a.ldy = ldy;
  a.ldr = ldy;
  return a;
}

std::vector<uint16_t> run(W4A16Args a,
                          const W4A16Plan& plan,
                          int64_t columns,
                          const W4A16Kernel& kernel = kSm90Kernel) {
  constexpr int64_t kGuard = 1024;
  DeviceArray<uint16_t> y(a.m * columns + 2 * kGuard);
  y.poison(0xFF);
  DeviceArray<uint8_t> workspace(plan.workspace_bytes + 16);
  workspace.poison(0xFF);
  a.y = y.get() + kGuard;
  a.workspace = workspace.get();
  kernel.launch(plan, a, nullptr);
  CUDA_CHECK(cudaDeviceSynchronize());
  const std::vector<uint16_t> all = y.host();
  bool fence = true;
  for (int64_t i = 0; i < kGuard; ++i) {
    fence = fence && all[i] == 0xFFFF && all[kGuard + a.m * columns + i] == 0xFFFF;
  }
  expect(fence, "guard bands" + sizes(a.m, a.n, a.k));
  return {all.begin() + kGuard, all.begin() + kGuard + a.m * columns};
}

double rel_l2(const std::vector<double>& want, const std::vector<uint16_t>& got) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double d = from_bits(got[i]) - want[i];
    error += d * d;
    norm += want[i] * want[i];
  }
  return std::sqrt(error / norm);
}

/// Every tile that takes m rows gives y; a row alone too.
void check_tiles(const W4A16Args& a,
                 int64_t columns,
                 const std::vector<uint16_t>& y,
                 const std::string& what) {
  for (int tile = 0; tile < cuda::kNumW4A16Tiles; ++tile) {
    W4A16Plan plan;
    if (cuda::plan_w4a16_as(static_cast<W4A16Tile>(tile), a.m, a.n, a.k, 132, &plan)) {
      expect(run(a, plan, columns) == y, what + " " + to_string(plan.tile));
    }
    if (a.token_multiplier == nullptr &&
        kSm80Kernel.plan_as(static_cast<W4A16Tile>(tile), a.m, a.n, a.k, 132, &plan)) {
      expect(run(a, plan, columns, kSm80Kernel) == y, what + " sm80 " + to_string(plan.tile));
    }
  }
  W4A16Args one = a;
  one.m = 1;
  one.x = static_cast<const uint16_t*>(a.x) + (a.m - 1) * a.ldx;
  if (one.token_multiplier != nullptr) {
    one.token_multiplier += a.m - 1;
  }
  const std::vector<uint16_t> alone = run(one, cuda::plan_w4a16(1, a.n, a.k, 132), columns);
  expect(std::equal(alone.begin(), alone.end(), y.end() - columns), what + " alone");
}

void check_products() {
  for (const auto& [n, k] :
       {std::pair<int64_t, int64_t>{256, 512}, {96, 4096}, {1000, 1936}, {4096, 1024}}) {
    const Weights plain(n, k, false), gated(n, k, true);
    for (const int64_t m : {1, 7, 16, 30, 64, 100, 200}) {
      if (small && (n * k > 500000 || m % 50 > 16)) {
        continue;
      }
      DeviceArray<__nv_bfloat16> x(m * k);
      fill_activations<<<528, 256>>>(x.get(), x.count(), 21 + m, false);
      CUDA_CHECK(cudaDeviceSynchronize());
      // W4A4: quantized activations, exactly multiplied.
      DeviceArray<__nv_bfloat16> values(m * k);
      DeviceArray<float> token_scale(m);
      QuantizeActArgs q;
      q.x = x.get();
      q.m = m;
      q.k = k;
      q.ldx = k;
      q.values = values.get();
      q.token_scale = token_scale.get();
      cuda::quantize_act(q, nullptr);
      CUDA_CHECK(cudaDeviceSynchronize());
      W4A16Args a = make_args(plain, values.get(), m, nullptr, n);
      a.token_multiplier = token_scale.get();
      const std::vector<uint16_t> y = run(a, cuda::plan_w4a16(m, n, k, 132), n);
      std::vector<double> want = exact(plain, values.get(), m);
      const std::vector<float> by = token_scale.host();
      for (int64_t i = 0; i < m * n; ++i) {
        want[i] *= by[i / n];
      }
      expect(rel_l2(want, y) <= 4e-3, "w4a4" + sizes(m, n, k));
      expect(rel_l2(exact(plain, x.get(), m), y) > 0.02, "w4a4 equals w4a16" + sizes(m, n, k));
      check_tiles(a, n, y, "w4a4 tiles" + sizes(m, n, k));

      // SwiGLU: bit-equal to the plain product of the same matrix and the activation after it.
      for (const float limit : {0.0f, 0.5f}) {
        W4A16Args pair = make_args(gated, x.get(), m, nullptr, n);
        const std::vector<uint16_t> both = run(pair, cuda::plan_w4a16(m, n, k, 132), n);
        W4A16Args fused = make_args(gated, x.get(), m, nullptr, n / 2);
        fused.swiglu = true;
        fused.swiglu_limit = limit;
        const std::vector<uint16_t> out = run(fused, cuda::plan_w4a16(m, n, k, 132), n / 2);
        check_tiles(fused, n / 2, out, "swiglu tiles" + sizes(m, n, k));
        const std::vector<double> products = exact(plain, x.get(), m);
        std::vector<double> expected(m * n / 2);
        for (int64_t t = 0; t < m; ++t) {
          for (int64_t i = 0; i < n / 2; ++i) {
            double gate = products[t * n + i];
            double up = products[t * n + n / 2 + i];
            if (limit > 0) {
              gate = std::min<double>(gate, limit);
              up = std::clamp<double>(up, -limit, limit);
            }
            expected[t * n / 2 + i] = gate / (1 + std::exp(-gate)) * up;
          }
        }
        expect(rel_l2(expected, out) <= 6e-3, "swiglu" + sizes(m, n, k));
        if (limit > 0) {
          continue;
        }
        // The unfused pair: [m, n] with gate and up apart, then the activation.
        std::vector<uint16_t> apart(m * n);
        for (int64_t i = 0; i < m * n / 2; ++i) {
          apart[i / (n / 2) * n + i % (n / 2)] = both[2 * i];
          apart[i / (n / 2) * n + n / 2 + i % (n / 2)] = both[2 * i + 1];
        }
        if (n / 2 % 16 == 0) {
          DeviceArray<uint16_t> device_apart(m * n), unfused(m * n / 2);
          device_apart.set(apart);
          QuantizeActArgs s;
          s.input = ActInput::SiluMul;
          s.x = device_apart.get();
          s.m = m;
          s.k = n / 2;
          s.ldx = n;
          s.unquantized = unfused.get();
          cuda::quantize_act(s, nullptr);
          CUDA_CHECK(cudaDeviceSynchronize());
          expect(unfused.host() == out, "swiglu against the pair" + sizes(m, n, k));
        }
      }
    }
  }
}

#include "tests/gpu/kernels_times.cuh"  // inside the namespace: a part of this file

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  using namespace nibble::bench;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skip: no CUDA device\n");
    return 77;
  }
  small = argc > 1 && std::strcmp(argv[1], "--small") == 0;
  try {
    check_quantizer();
    std::printf("quantizer done, %d failures\n", failures);
    check_fused_quantizers();
    std::printf("fused quantizers done, %d failures\n", failures);
    std::fflush(stdout);
    check_products();
    if (failures == 0 && argc == 1) {
      print_times();
    }
  } catch (const std::exception& error) {
    std::printf("FAILED with %s\n", error.what());
    return 2;
  }
  std::printf(
      "%s: %ld checks, %d failures\n", failures == 0 ? "passed" : "FAILED", (long)checks, failures);
  return failures == 0 ? 0 : 1;
}
