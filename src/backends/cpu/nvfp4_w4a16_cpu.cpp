// nvfp4_w4a16_{avx2,avx512,avx512bf16}: packed layouts and registry entries; the kernels are in the
// ISA files of the same names.
#include <algorithm>

#include "backends/cpu/gemm_panels.h"

namespace nibble {

namespace {

using namespace nibble::cpu;  // NOLINT(google-build-using-namespace): the folder's own helpers

// Where (row, k) of a vector's 8-k slice sits: byte and whether in its high nibble. See decode() in
// simd_avx2.h and simd_avx512.h.
struct Place {
  int64_t byte;
  bool high;
};

Place place_avx2(int64_t row, int64_t k) {
  return {row / 4 * 16 + k % 4 / 2 * 8 + row % 4 * 2 + k % 2, k >= 4};
}

Place place_avx512(int64_t row, int64_t k) { return {row * 4 + k % 2 * 2 + k / 4, k / 2 % 2 == 1}; }

// A unit: [2 halves of 8 k][4 vectors][slice], then the scales of the group's rows.
template <int kLanes, Place (*kPlace)(int64_t, int64_t)>
void pack_unit(
    const GemmDesc& desc, const LinearPart& part, int64_t row, int64_t k, uint8_t* unit) {
  constexpr int64_t kRows = 4 * kLanes;
  constexpr int64_t kSlice = kLanes * 4;
  uint8_t* scales = unit + kRows * 8;
  std::fill(unit, scales + kRows, static_cast<uint8_t>(0));
  const int64_t rows = std::min<int64_t>(kRows, part.weight.shape[0] - row);
  for (int64_t r = 0; r < rows; ++r) {
    const uint8_t* codes =
        static_cast<const uint8_t*>(part.weight.data) + (row + r) * (desc.k / 2) + k / 2;
    scales[r] =
        static_cast<const uint8_t*>(part.weight_scale.data)[(row + r) * (desc.k / 16) + k / 16];
    for (int64_t i = 0; i < 16; ++i) {
      const auto code = static_cast<uint8_t>(i % 2 == 0 ? codes[i / 2] & 0xF : codes[i / 2] >> 4);
      const Place place = kPlace(r % kLanes, i % 8);
      const int64_t slice = i / 8 * 4 + r / kLanes;
      unit[slice * kSlice + place.byte] |= static_cast<uint8_t>(place.high ? code << 4 : code);
    }
  }
}

template <CpuIsa kIsa>
Support supports(const GemmDesc& desc) {
  if (desc.mode != kW4A16) {
    return {false, "computes w4a16 only"};
  }
  return check_desc(desc, kIsa);
}

// decode_scales() leaves 2^-8 in the accumulators.
constexpr float kAlphaFactor = 256.0f;

}  // namespace

namespace cpu {

const PanelFormat kW4a16Avx2Format{.group_rows = 32,
                                   .unit_k = 16,
                                   .unit_bytes = 32 * 9,
                                   .k_per_step = 1,
                                   .alpha_factor = kAlphaFactor,
                                   .pack_unit = pack_unit<8, place_avx2>};
const PanelFormat kW4a16Avx512Format{.group_rows = 64,
                                     .unit_k = 16,
                                     .unit_bytes = 64 * 9,
                                     .k_per_step = 1,
                                     .alpha_factor = kAlphaFactor,
                                     .pack_unit = pack_unit<16, place_avx512>};
const PanelFormat kW4a16Avx512Bf16Format{.group_rows = 64,
                                         .unit_k = 16,
                                         .unit_bytes = 64 * 9,
                                         .k_per_step = 2,
                                         .alpha_factor = kAlphaFactor,
                                         .pack_unit = pack_unit<16, place_avx512>};

}  // namespace cpu

extern const GemmBackend kNvfp4W4a16Avx2;
extern const GemmBackend kNvfp4W4a16Avx512;
extern const GemmBackend kNvfp4W4a16Avx512Bf16;
const GemmBackend kNvfp4W4a16Avx2 =
    panel_backend<kW4a16Avx2Format, nvfp4_w4a16_avx2>("nvfp4_w4a16_avx2", supports<CpuIsa::Avx2>);
const GemmBackend kNvfp4W4a16Avx512 = panel_backend<kW4a16Avx512Format, nvfp4_w4a16_avx512>(
    "nvfp4_w4a16_avx512", supports<CpuIsa::Avx512>);
const GemmBackend kNvfp4W4a16Avx512Bf16 =
    panel_backend<kW4a16Avx512Bf16Format, nvfp4_w4a16_avx512bf16>("nvfp4_w4a16_avx512bf16",
                                                                  supports<CpuIsa::Avx512Bf16>);

}  // namespace nibble
