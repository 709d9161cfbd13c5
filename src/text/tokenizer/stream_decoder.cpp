#include "text/tokenizer/stream_decoder.h"

#include "text/tokenizer/tokenizer_parts.h"

namespace nibble::text {

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens)
    : tokenizer_(&tokenizer),
      run_(tokenizer.parts_->decoder),
      skip_special_tokens_(skip_special_tokens) {}

std::string StreamDecoder::push(int32_t id) {
  std::string text;
  if (const auto token = tokenizer_->decodable(id, skip_special_tokens_)) {
    run_.push(*token, text);
  }
  return text;
}

std::string StreamDecoder::finish() {
  std::string text;
  run_.finish(text);
  return text;
}

}  // namespace nibble::text
