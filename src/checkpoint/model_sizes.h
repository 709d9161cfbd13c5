// The part of config.json that decides the names and shapes of the tensors, and nothing else:
// sizes, heads, experts, tying and biases. It says what a checkpoint should hold even where the
// rest of the config cannot be run.
#pragma once

#include <string>

#include <boost/json/value.hpp>

#include "base/error.h"
#include "checkpoint/model_config.h"

namespace nibble::checkpoint {

// `where` names the file in errors. Everything else of the result is default.
Result<ModelConfig> parse_model_sizes(const boost::json::value& config, const std::string& where);

}  // namespace nibble::checkpoint
