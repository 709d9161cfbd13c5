// nvfp4_w4a4_{vnni,avx2}: packed layout and registry entries; the kernels are in the ISA files of
// the same names.
#include <algorithm>

#include "backends/cpu/gemm_panels.h"

namespace nibble {

namespace {

using namespace nibble::cpu;  // NOLINT(google-build-using-namespace): the folder's own helpers

// A unit: [2 halves of 8 k][4 vectors][row, k % 4], low nibble for k % 8 < 4; then the scales.
template <int kLanes>
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
      const int64_t slice = i / 8 * 4 + r / kLanes;
      unit[slice * kSlice + r % kLanes * 4 + i % 4] |=
          static_cast<uint8_t>(i % 8 >= 4 ? code << 4 : code);
    }
  }
}

template <CpuIsa kIsa>
Support supports(const GemmDesc& desc) {
  if (desc.mode != kW4A4) {
    return {false, "computes w4a4 only"};
  }
  return check_desc(desc, kIsa);
}

// decode_scales() leaves 2^-8 in the accumulators.
constexpr float kAlphaFactor = 256.0f;

}  // namespace

namespace cpu {

const PanelFormat kW4a4Avx2Format{.group_rows = 32,
                                  .unit_k = 16,
                                  .unit_bytes = 32 * 9,
                                  .k_per_step = 4,
                                  .alpha_factor = kAlphaFactor,
                                  .pack_unit = pack_unit<8>};
const PanelFormat kW4a4VnniFormat{.group_rows = 64,
                                  .unit_k = 16,
                                  .unit_bytes = 64 * 9,
                                  .k_per_step = 4,
                                  .alpha_factor = kAlphaFactor,
                                  .pack_unit = pack_unit<16>};

}  // namespace cpu

extern const GemmBackend kNvfp4W4a4Avx2;
extern const GemmBackend kNvfp4W4a4Vnni;
const GemmBackend kNvfp4W4a4Avx2 =
    panel_backend<kW4a4Avx2Format, nvfp4_w4a4_avx2>("nvfp4_w4a4_avx2", supports<CpuIsa::Avx2>);
const GemmBackend kNvfp4W4a4Vnni =
    panel_backend<kW4a4VnniFormat, nvfp4_w4a4_vnni>("nvfp4_w4a4_vnni", supports<CpuIsa::Avx512>);

}  // namespace nibble
