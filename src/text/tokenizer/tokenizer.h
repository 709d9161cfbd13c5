// Text <-> token ids by a Hugging Face tokenizer.json (BPE models). What the file asks for and this
// code does not know is refused at load, by name and JSON path; nothing is guessed.
// A Tokenizer is immutable after load and its const methods are thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace nibble::text {

struct TokenizerParts;  // tokenizer_parts.h
class DecoderRun;

class Tokenizer {
 public:
  // Reads tokenizer.json, and the added tokens of a tokenizer_config.json beside it.
  static Result<Tokenizer> from_file(const std::string& tokenizer_json_path);
  static Result<Tokenizer> from_json(std::string_view json);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Bytes of `text` that are not UTF-8 count as U+FFFD. add_special_tokens: what the file's
  // post-processor puts around a text (mostly a beginning-of-sequence token).
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens) const;
  // Always valid UTF-8. Ids outside the vocabulary are skipped.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  std::string_view token_text(int32_t id) const;  // the vocabulary's string; empty: no such id
  std::string token_bytes(int32_t id) const;      // the bytes it stands for, maybe not whole UTF-8
  std::optional<int32_t> token_id(std::string_view token) const;
  bool is_special(int32_t id) const;
  int32_t vocab_size() const;  // largest id + 1, added tokens included

 private:
  friend class StreamDecoder;
  explicit Tokenizer(std::unique_ptr<const TokenizerParts> parts);
  // The string to decode, nullopt when the id is to be skipped.
  std::optional<std::string_view> decodable(int32_t id, bool skip_special_tokens) const;

  std::unique_ptr<const TokenizerParts> parts_;
};

}  // namespace nibble::text
