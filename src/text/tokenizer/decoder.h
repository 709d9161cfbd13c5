// The "decoder" part of tokenizer.json as a pipeline that works token by token: what can no longer
// change is handed on at once, the rest waits for more tokens or for finish. Decoding a whole list
// is the same pipeline run to its end, so streamed and whole text cannot differ.
// DecoderChain is immutable; a DecoderRun is one sequence's state.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/tokenizer/regex.h"

namespace nibble::text {

struct ByteLevelDecoder {};     // byte alphabet -> bytes -> text, invalid parts become U+FFFD
struct ByteFallbackDecoder {};  // runs of <0xXX> tokens -> text, or one U+FFFD a byte
struct FuseDecoder {};          // everything after it sees one long token
struct ReplaceDecoder {
  Regex pattern;
  std::string content;
  std::string literal;  // the pattern's text when it is plain text, else empty
};
struct StripDecoder {
  std::string content;  // one character
  size_t start = 0;     // at most so many at the beginning of each token
  size_t stop = 0;      // and at its end
};
struct MetaspaceDecoder {
  std::string replacement;
  bool drop_first = true;  // replacements in the first token disappear instead of becoming spaces
};
struct WordSuffixDecoder {  // BPEDecoder: the end-of-word suffix becomes a space, nothing at the
                            // end
  std::string suffix;
};

using DecodeStep = std::variant<ByteLevelDecoder,
                                ByteFallbackDecoder,
                                FuseDecoder,
                                ReplaceDecoder,
                                StripDecoder,
                                MetaspaceDecoder,
                                WordSuffixDecoder>;

// separator: put between tokens when there are no steps (a tokenizer without a decoder).
struct DecoderChain {
  std::vector<DecodeStep> steps;
  std::string separator;
};

class DecodeStage;  // decoder.cpp

class DecoderRun {
 public:
  explicit DecoderRun(const DecoderChain& chain);  // the chain must outlive the run
  ~DecoderRun();
  DecoderRun(DecoderRun&&) noexcept;
  DecoderRun& operator=(DecoderRun&&) noexcept;

  // Appends to `out` the text that became final.
  void push(std::string_view token, std::string& out);
  void finish(std::string& out);

 private:
  void feed(size_t stage, std::string token, std::string& out);

  std::vector<std::unique_ptr<DecodeStage>> stages_;
  std::string separator_;
  bool first_ = true;
};

// The bytes one token stands for, outside of any sequence.
std::string bytes_of_token(const DecoderChain& chain, std::string_view token);

}  // namespace nibble::text
