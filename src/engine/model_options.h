// What an EngineConfig means for loading a model: shared by the engine and by tools that run a
// model without one.
#pragma once

#include "engine/config.h"
#include "model/model.h"

namespace nibble::engine {

model::ModelOptions model_options(const EngineConfig& config);
int num_threads_of(const EngineConfig& config);

}  // namespace nibble::engine
