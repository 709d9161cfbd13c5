// The "normalizer" part of tokenizer.json: a list of text -> text steps (Sequences are flattened).
// Immutable after construction; apply is thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/tokenizer/regex.h"

namespace nibble::text {

struct UnicodeForm {  // NFC, NFD, NFKC, NFKD
  bool compose = true;
  bool compatibility = false;
};
struct Lowercase {};
struct StripAccents {};  // drops every character of general category M
struct StripEnds {
  bool left = true;
  bool right = true;
};
struct PrependText {  // not to empty text
  std::string prefix;
};
struct ReplaceText {  // every match becomes `content`, taken literally
  Regex pattern;
  std::string content;
};
struct ByteAlphabetText {};  // every byte becomes its character of the byte alphabet

using NormalizeStep = std::variant<UnicodeForm,
                                   Lowercase,
                                   StripAccents,
                                   StripEnds,
                                   PrependText,
                                   ReplaceText,
                                   ByteAlphabetText>;

class Normalizer {
 public:
  explicit Normalizer(std::vector<NormalizeStep> steps = {}) : steps_(std::move(steps)) {}

  bool empty() const { return steps_.empty(); }
  // `text` and the result are valid UTF-8.
  std::string apply(std::string text) const;

 private:
  std::vector<NormalizeStep> steps_;
};

std::string replace_matches(const Regex& pattern, std::string_view text, std::string_view content);

}  // namespace nibble::text
