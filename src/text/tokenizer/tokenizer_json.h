// Reads tokenizer.json into TokenizerParts. Every size that the file states is limited; an unknown
// component, a contradiction or a wrong type is an error that names the JSON path.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "base/error.h"
#include "text/tokenizer/tokenizer_parts.h"

namespace nibble::text {

// The largest published files have about 35 MB.
constexpr size_t kMaxTokenizerJsonBytes = size_t{256} << 20;

// `config_json`: tokenizer_config.json, whose added_tokens_decoder may name tokens that
// tokenizer.json lacks; empty when there is none.
Result<std::unique_ptr<const TokenizerParts>> parse_tokenizer_json(std::string_view json,
                                                                   std::string_view config_json);

}  // namespace nibble::text
