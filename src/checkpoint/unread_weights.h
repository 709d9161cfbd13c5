// Weights that a checkpoint stores and nobody asked for: the config names another architecture or
// fewer layers than the file has, and the model would run without part of itself.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>

#include "base/error.h"
#include "checkpoint/checkpoint.h"

namespace nibble::checkpoint {

using TensorNames = std::set<std::string, std::less<>>;

// Adds the tensors of a linear.
void note_tensors(const LinearInfo& info, TensorNames& read);

// The first weight or bias of a decoder layer ("model.layers.") that is not in `read`, with the
// number of others; nullopt when there is none, or when the checkpoint has errors anyway. Scales,
// rotary tables and layers that only draft tokens are left alone.
std::optional<Error> unread_weights(const Checkpoint& checkpoint, const TensorNames& read);

}  // namespace nibble::checkpoint
