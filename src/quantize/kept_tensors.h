// Tensors that go into the result as they are.
#pragma once

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "quantize/plan.h"

namespace nibble::quantize {

// Fails when one of them holds NaN or infinity: what is written must load. Matrices that are
// quantized are looked at when their turn comes.
Result<void> require_finite_copies(const checkpoint::Checkpoint& source, const Plan& plan);

}  // namespace nibble::quantize
