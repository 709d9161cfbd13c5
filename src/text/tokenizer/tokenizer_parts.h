// What a tokenizer.json says, in the form that encode and decode use. Built once by the loader
// (tokenizer_json.h), then only read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/normalize.h"
#include "text/tokenizer/pretokenize.h"

namespace nibble::text {

struct Token {
  std::string text;
  bool present = false;  // ids may have gaps
  bool special = false;
};

struct TokenizerParts {
  std::vector<Token> tokens;                          // by id; never resized after load
  std::unordered_map<std::string_view, int32_t> ids;  // views into tokens
  // Added tokens that are searched in normalized text decode to their normalized form, where that
  // is another (so does the reference, from 0.20 on).
  std::unordered_map<int32_t, std::string> decoded_as;
  Normalizer normalizer;
  PreTokenizer pretokenizer;
  AddedTokenMatcher raw_added;         // found in the text as given
  AddedTokenMatcher normalized_added;  // found in normalized text
  BpeModel model{{}, {}, {}};
  std::vector<int32_t> prefix_ids;  // what add_special_tokens puts in front
  std::vector<int32_t> suffix_ids;  // and behind
  DecoderChain decoder;
};

}  // namespace nibble::text
