// From a calibration file to token ids: plain text, or chats as JSON lines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"

namespace nibble::apps {

// The first max_tokens tokens of `path` by the tokenizer of `model_dir`. A file that ends in .jsonl
// has one conversation a line, {"messages": [{"role", "content"}, ...]}, rendered with the model's
// own chat template; every other file is UTF-8 text.
Result<std::vector<int32_t>> read_calibration_tokens(const std::string& path,
                                                     const std::string& model_dir,
                                                     int64_t max_tokens);

}  // namespace nibble::apps
