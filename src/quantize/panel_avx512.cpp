#define NIBBLE_PANEL_BYTES 64
#include "quantize/panel_descent.h"

namespace nibble::quantize {

const PanelKernels kPanelAvx512 = {
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
