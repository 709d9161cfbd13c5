#include "checkpoint/unread_weights.h"

#include <string_view>

namespace nibble::checkpoint {

namespace {

constexpr std::string_view kLayers = "model.layers.";

// "model.layers.7." of a tensor in that layer, else empty.
std::string_view layer_of(std::string_view name) {
  return name.starts_with(kLayers) ? name.substr(0, name.find('.', kLayers.size()) + 1)
                                   : std::string_view();
}

bool is_weight(std::string_view name) {
  const std::string_view last = name.substr(name.rfind('.') + 1);
  return last == "weight" || last == "weight_packed" || last == "bias";
}

// The layer behind the last one that only drafts tokens ahead (multi-token prediction).
bool is_draft_layer(const Checkpoint& checkpoint, std::string_view layer) {
  return checkpoint.find(std::string(layer) + "eh_proj.weight") != nullptr;
}

}  // namespace

void note_tensors(const LinearInfo& info, TensorNames& read) {
  read.insert(info.weight);
  read.insert(info.bias);
}

std::optional<Error> unread_weights(const Checkpoint& checkpoint, const TensorNames& read) {
  if (!checkpoint.require_servable()) {
    return std::nullopt;  // what is wrong may be why it was not read
  }
  std::string first;
  size_t count = 0;
  for (const std::string& name : checkpoint.tensor_names()) {
    const std::string_view layer = layer_of(name);
    if (!layer.empty() && is_weight(name) && !read.contains(name) &&
        !is_draft_layer(checkpoint, layer)) {
      first = count++ == 0 ? name : first;
    }
  }
  if (count == 0) {
    return std::nullopt;
  }
  const ModelConfig& config = checkpoint.config();
  return Error{ErrorCode::InvalidArgument,
               "stored, but " + config.architecture + " with num_hidden_layers " +
                   std::to_string(config.num_hidden_layers) + " does not read it" +
                   (count > 1 ? " (nor " + std::to_string(count - 1) + " others)" : std::string()) +
                   "; the config belongs to another model",
               first};
}

}  // namespace nibble::checkpoint
