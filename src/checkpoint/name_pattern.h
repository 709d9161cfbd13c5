// Patterns over module names, as quantization configs write them. One meaning for all dialects:
//   "lm_head", "model.layers.1"   the module itself and everything below it (never layers.10)
//   "model.layers.0.self_attn*"   shell wildcards over the whole name or a whole ancestor; *
//   crosses
//                                 dots; "p.*" also means p
//   "re:.*mlp\.gate$"             a regular expression, anchored at the start, not at the end
// A trailing ".weight" or "." is ignored; "language_model" segments at the start are ignored on
// both sides (exporters disagree about them). Names are those of the checkpoint, never fused ones.
// Immutable, thread-safe, cheap to copy.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"

namespace nibble::checkpoint {

class NamePattern {
 public:
  // Fails for an invalid regular expression, which the error quotes.
  static Result<NamePattern> compile(std::string_view text);
  bool matches(std::string_view module) const;
  const std::string& text() const { return text_; }

 private:
  NamePattern() = default;
  std::string text_;                   // as written
  std::string glob_;                   // normalised; empty for a regular expression
  bool has_wildcard_ = false;          // in glob_
  std::shared_ptr<const void> regex_;  // compiled code, shared by copies: it is never written
};

// Shell wildcards * and ? over the whole text.
bool glob_matches(std::string_view pattern, std::string_view text);

// Drops "language_model" segments at the start: "model.language_model.layers.0" ->
// "model.layers.0".
std::string without_wrapper(std::string_view name);

}  // namespace nibble::checkpoint
