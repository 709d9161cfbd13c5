// Turns a sequence's tokens into text while they are generated. Never gives half a UTF-8 character;
// all pieces and finish() together are exactly Tokenizer::decode of all the ids.
// One object a sequence, one thread at a time; the tokenizer must outlive it.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer/decoder.h"
#include "text/tokenizer/tokenizer.h"

namespace nibble::text {

class StreamDecoder {
 public:
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens);

  std::string push(int32_t id);  // the text that became final, maybe empty
  std::string finish();          // the rest; bytes of an unfinished character become U+FFFD

 private:
  const Tokenizer* tokenizer_;
  DecoderRun run_;
  bool skip_special_tokens_;
};

}  // namespace nibble::text
