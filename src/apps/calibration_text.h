// From a file of text to token ids, for calibration and evaluation: plain text, or chats and
// prompts as JSON lines.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "examine/eval.h"

namespace nibble::apps {

// The first max_tokens tokens of `path` by the tokenizer of `model_dir`. A file that ends in .jsonl
// has one conversation a line, {"messages": [{"role", "content"}, ...]}, rendered with the model's
// own chat template, or {"prompt": "text"}; every other file is UTF-8 text.
Result<std::vector<int32_t>> read_calibration_tokens(const std::string& path,
                                                     const std::string& model_dir,
                                                     int64_t max_tokens);

// What `nibble eval` predicts: of a text the first windows (1 by default) of `window` tokens each,
// of a .jsonl the first prompts (all by default), each by itself, up to `window` tokens of it.
Result<examine::EvalWindows> read_windows(const std::string& path,
                                          const std::string& model_dir,
                                          int64_t window,
                                          std::optional<int64_t> windows);

}  // namespace nibble::apps
