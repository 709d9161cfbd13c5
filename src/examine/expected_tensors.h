// The tensors that a Llama-shaped decoder (Llama, Qwen2, Qwen3, Qwen3-MoE, Mixtral) needs by its
// config, looked up in a checkpoint. For `nibble inspect`, which names all that is missing or of
// the wrong size; a model that is loaded asks for its tensors itself and stops at the first.
#pragma once

#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"

namespace nibble::examine {

// Empty for architectures that are not known here.
std::vector<Error> missing_tensors(const checkpoint::Checkpoint& checkpoint);

}  // namespace nibble::examine
