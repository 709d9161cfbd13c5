// The components of tokenizer.json other than the model: each function reads one part into a flat
// list of steps, in the order in which they run. `value` may be null (no component).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/normalize.h"
#include "text/tokenizer/pretokenize.h"

namespace nibble::text {

Result<std::vector<NormalizeStep>> read_normalizer(const boost::json::value* value,
                                                   const std::string& path);
Result<std::vector<PreTokenizeStep>> read_pretokenizer(const boost::json::value* value,
                                                       const std::string& path);
Result<std::vector<DecodeStep>> read_decoder(const boost::json::value* value,
                                             const std::string& path);

struct SpecialIds {
  std::vector<int32_t> prefix;
  std::vector<int32_t> suffix;
};
Result<SpecialIds> read_post_processor(const boost::json::value* value, const std::string& path);

}  // namespace nibble::text
