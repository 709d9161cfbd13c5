// The tensors that a Llama-shaped decoder (Llama, Qwen2, Qwen3, Qwen3-MoE, Mixtral) needs by its
// config, looked up in a checkpoint. For `nibble inspect`, which names all that is missing or of
// the wrong size; a model that is loaded asks for its tensors itself and stops at the first.
#pragma once

#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/unread_weights.h"

namespace nibble::examine {

struct ExpectedTensors {
  std::vector<Error> errors;
  checkpoint::TensorNames names;  // what the model reads
};

// Empty for architectures that are not known here.
ExpectedTensors expected_tensors(const checkpoint::Checkpoint& checkpoint);

}  // namespace nibble::examine
