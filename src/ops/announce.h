// A hint ahead of a product: idle threads may begin to fetch its weights.
#pragma once

#include <span>

#include "tensor/device_api.h"
#include "tensor/tensor.h"

namespace nibble {

// A product of few rows with these packed slots (slot 0: weights) comes soon on the stream. To be
// called before the small operations ahead of it. Does nothing where it is of no use.
void announce_weights(std::span<const Tensor> packed, Stream stream);

}  // namespace nibble
