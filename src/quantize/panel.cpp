#include "quantize/panel.h"

#include "base/cpu_info.h"

namespace nibble::quantize {

const PanelKernels& panel_kernels() {
  switch (detect_cpu_isa()) {
    case CpuIsa::Avx512:
    case CpuIsa::Avx512Bf16:
      return panel_avx512;
    case CpuIsa::Avx2:
      return panel_avx2;
    case CpuIsa::Scalar:
      break;
  }
  return panel_scalar;
}

}  // namespace nibble::quantize
