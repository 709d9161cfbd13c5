// nvfp4_w4a16_{avx2,avx512,avx512bf16}: packed layouts and registry entries; the kernels are in the
// ISA files of the same names.
#include "backends/cpu/gemm_grid.h"
#include "backends/cpu/gemm_panels.h"
#include "backends/cpu/nvfp4_units.h"

namespace nibble {

namespace {

using namespace nibble::cpu;  // NOLINT(google-build-using-namespace): the folder's own helpers

template <CpuIsa kIsa>
Support supports(const GemmDesc& desc) {
  if (desc.mode != kW4A16) {
    return {false, "computes w4a16 only"};
  }
  return check_desc(desc, kIsa);
}

// What the kernels leave in their accumulators: 2^-8 from block_scales(); on the grid
// 2^(kGridShift - 117), and weights are twice their value.
constexpr float kAlphaFactor = 256.0f;
constexpr float kGridAlphaFactor = 0x1p56f;
static_assert(kGridShift - 117 == -57);

}  // namespace

namespace cpu {

const PanelFormat kW4a16Avx2Format{.group_rows = 32,
                                   .unit_k = 16,
                                   .unit_bytes = 32 * 9,
                                   .activations = Activations::Grid,
                                   .lane_blocks = 1,
                                   .alpha_factor = kGridAlphaFactor,
                                   .pack_unit = pack_nvfp4_unit<8, place_bytes>};
const PanelFormat kW4a16Avx512Format{.group_rows = 64,
                                     .unit_k = 16,
                                     .unit_bytes = 64 * 9,
                                     .activations = Activations::Grid,
                                     .lane_blocks = 1,
                                     .alpha_factor = kGridAlphaFactor,
                                     .pack_unit = pack_nvfp4_unit<16, place_bytes>};
const PanelFormat kW4a16Avx512Bf16Format{.group_rows = 64,
                                         .unit_k = 16,
                                         .unit_bytes = 64 * 9,
                                         .activations = Activations::Bf16Pairs,
                                         .lane_blocks = 1,
                                         .alpha_factor = kAlphaFactor,
                                         .pack_unit = pack_nvfp4_unit<16, place_words>};

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
