#define NIBBLE_PANEL_BYTES 16
#include "quantize/panel_body.h"

namespace nibble::quantize {

extern const PanelKernels panel_scalar;
const PanelKernels panel_scalar = {
    .accumulate = accumulate,
    .sweep = sweep,
    .gptq = gptq,
    .gradient = gradient,
    .descend = descend,
    .energy = energy,
    .dot = dot,
    .softmax = softmax,
};

}  // namespace nibble::quantize
