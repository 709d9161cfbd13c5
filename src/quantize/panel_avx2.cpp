#define NIBBLE_PANEL_BYTES 32
#include "quantize/panel_descent.h"

namespace nibble::quantize {

const PanelKernels kPanelAvx2 = {
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
