#include "quantize/panel.h"

#include "base/cpu_info.h"

namespace nibble::quantize {

const PanelKernels& panel_kernels() {
  switch (detect_cpu_isa()) {
    case CpuIsa::Avx512:
    case CpuIsa::Avx512Bf16:
      return kPanelAvx512;
    case CpuIsa::Avx2:
      return kPanelAvx2;
    case CpuIsa::Scalar:
      break;
  }
  return kPanelScalar;
}

}  // namespace nibble::quantize
