// gemm_bf16_{avx2,avx512,avx512bf16}: packed layouts and registry entries; the kernels are in the
// ISA files of the same names. FP8 weights take the same path: E4M3 is exact in BF16, so they are
// widened when packed (twice the memory; they are few in mixed checkpoints).
#include <algorithm>

#include "backends/cpu/gemm_panels.h"
#include "base/number_formats.h"

namespace nibble {

namespace {

using namespace nibble::cpu;  // NOLINT(google-build-using-namespace): the folder's own helpers

uint16_t weight_at(const GemmDesc& desc, const LinearPart& part, int64_t row, int64_t k) {
  if (desc.mode.weight == QuantMode::Weight::Fp8) {
    const auto code = static_cast<const uint8_t*>(part.weight.data)[row * desc.k + k];
    return float_to_bf16(e4m3_to_float(code));
  }
  return part.weight.as<uint16_t>()[row * desc.k + k];
}

// A unit: two k's of 4 vectors of rows, a row's pair in its 32-bit lane.
template <int kLanes>
void pack_unit(
    const GemmDesc& desc, const LinearPart& part, int64_t row, int64_t k, uint8_t* unit) {
  constexpr int64_t kRows = 4 * kLanes;
  auto* words = reinterpret_cast<uint16_t*>(unit);
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t i = 0; i < 2; ++i) {
      const bool inside = row + r < part.weight.shape[0] && k + i < desc.k;
      words[2 * r + i] = inside ? weight_at(desc, part, row + r, k + i) : static_cast<uint16_t>(0);
    }
  }
}

template <CpuIsa kIsa>
Support supports(const GemmDesc& desc) {
  if (desc.mode != kBf16 && desc.mode != kFp8) {
    return {false, "computes bf16 and fp8 weights only"};
  }
  return check_desc(desc, kIsa);
}

}  // namespace

namespace cpu {

const PanelFormat kBf16Avx2Format{.group_rows = 32,
                                  .unit_k = 2,
                                  .unit_bytes = 32 * 4,
                                  .activations = Activations::F32,
                                  .lane_blocks = 1,
                                  .alpha_factor = 1.0f,
                                  .pack_unit = pack_unit<8>};
const PanelFormat kBf16Avx512Format{.group_rows = 64,
                                    .unit_k = 2,
                                    .unit_bytes = 64 * 4,
                                    .activations = Activations::F32,
                                    .lane_blocks = 1,
                                    .alpha_factor = 1.0f,
                                    .pack_unit = pack_unit<16>};
const PanelFormat kBf16Avx512Bf16Format{.group_rows = 64,
                                        .unit_k = 2,
                                        .unit_bytes = 64 * 4,
                                        .activations = Activations::Bf16Pairs,
                                        .lane_blocks = 1,
                                        .alpha_factor = 1.0f,
                                        .pack_unit = pack_unit<16>};

}  // namespace cpu

extern const GemmBackend kGemmBf16Avx2;
extern const GemmBackend kGemmBf16Avx512;
extern const GemmBackend kGemmBf16Avx512Bf16;
const GemmBackend kGemmBf16Avx2 =
    panel_backend<kBf16Avx2Format, gemm_bf16_avx2>("gemm_bf16_avx2", supports<CpuIsa::Avx2>);
const GemmBackend kGemmBf16Avx512 = panel_backend<kBf16Avx512Format, gemm_bf16_avx512>(
    "gemm_bf16_avx512", supports<CpuIsa::Avx512>);
const GemmBackend kGemmBf16Avx512Bf16 = panel_backend<kBf16Avx512Bf16Format, gemm_bf16_avx512bf16>(
    "gemm_bf16_avx512bf16", supports<CpuIsa::Avx512Bf16>);

}  // namespace nibble
