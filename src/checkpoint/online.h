// Quantization while loading: what a linear that is shown as NVFP4 is in the file.
#pragma once

#include "checkpoint/checkpoint.h"

namespace nibble::checkpoint {

LinearInfo source_of(const LinearInfo& info);

}  // namespace nibble::checkpoint
