// One group of matrices with a common global scale, from source values to the tensors that are
// stored. What was chosen for the layer (folds, statistics) comes in; nothing is written here.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "quantize/folds.h"
#include "quantize/layer_statistics.h"
#include "quantize/method.h"
#include "quantize/panel.h"
#include "quantize/plan.h"
#include "quantize/report.h"

namespace nibble::quantize {

struct StoredTensor {
  checkpoint::SafetensorsWriter::Entry entry;
  std::vector<std::byte> bytes;
};

struct UnitResult {
  std::vector<StoredTensor> tensors;
  std::vector<TensorReport> reports;
};

// What a unit is really done with: an input that saw too few tokens has no usable Hessian, and none
// at all no weights either.
Method usable_method(Method wanted, const InputStatistics* input, int64_t k);

// statistics and folds may be null for the methods that need none.
Result<UnitResult> quantize_unit(const checkpoint::Checkpoint& source,
                                 const Unit& unit,
                                 Method method,
                                 const LayerStatistics* statistics,
                                 const LayerFolds* folds,
                                 const Compute& compute);

}  // namespace nibble::quantize
