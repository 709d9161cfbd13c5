// Any text as config.json, and as generation_config.json beside it: the model's part is read or
// refused in words.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/json.h"
#include "checkpoint/model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto value = nibble::parse_json(text, "config.json");
  if (!value) {
    CHECK(!value.error().text().empty(), "a refusal needs words");
    return 0;
  }
  for (const auto* generation : {static_cast<const boost::json::value*>(nullptr), &*value}) {
    const auto model = nibble::checkpoint::parse_model_config(*value, generation, "config.json");
    if (!model) {
      CHECK(!model.error().text().empty(), "a refusal needs words");
    }
  }
  return 0;
}
