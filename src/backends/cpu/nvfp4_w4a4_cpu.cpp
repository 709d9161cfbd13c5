// nvfp4_w4a4_{vnni,avx2}: packed layout and registry entries; the kernels are in the ISA files of
// the same names.
#include "backends/cpu/gemm_panels.h"
#include "backends/cpu/nvfp4_units.h"

namespace nibble {

namespace {

using namespace nibble::cpu;  // NOLINT(google-build-using-namespace): the folder's own helpers

template <CpuIsa kIsa>
Support supports(const GemmDesc& desc) {
  if (desc.mode != kW4A4) {
    return {false, "computes w4a4 only"};
  }
  return check_desc(desc, kIsa);
}

// Block scales come times 64 (kScaleUnits in gemm_w4a4_kernel.h).
constexpr float kAlphaFactor = 1.0f / 64.0f;

}  // namespace

namespace cpu {

const PanelFormat kW4a4Avx2Format{.group_rows = 32,
                                  .unit_k = 16,
                                  .unit_bytes = 32 * 9,
                                  .activations = Activations::E2m1,
                                  .lane_blocks = 2,
                                  .alpha_factor = kAlphaFactor,
                                  .pack_unit = pack_nvfp4_unit<8, place_bytes>};
const PanelFormat kW4a4VnniFormat{.group_rows = 64,
                                  .unit_k = 16,
                                  .unit_bytes = 64 * 9,
                                  .activations = Activations::E2m1,
                                  .lane_blocks = 1,
                                  .alpha_factor = kAlphaFactor,
                                  .pack_unit = pack_nvfp4_unit<16, place_bytes>};

}  // namespace cpu

extern const GemmBackend kNvfp4W4a4Avx2;
extern const GemmBackend kNvfp4W4a4Vnni;
const GemmBackend kNvfp4W4a4Avx2 =
    panel_backend<kW4a4Avx2Format, nvfp4_w4a4_avx2>("nvfp4_w4a4_avx2", supports<CpuIsa::Avx2>);
const GemmBackend kNvfp4W4a4Vnni =
    panel_backend<kW4a4VnniFormat, nvfp4_w4a4_vnni>("nvfp4_w4a4_vnni", supports<CpuIsa::Avx512>);

}  // namespace nibble
