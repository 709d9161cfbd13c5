// Any text as config.json and as hf_quant_config.json: the model's part and the quantization's part
// are read or refused.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/json.h"
#include "checkpoint/model_config.h"
#include "checkpoint/quant_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto value = nibble::parse_json(text, "config.json");
  if (!value) {
    return 0;
  }
  const auto model = nibble::checkpoint::parse_model_config(*value, nullptr, "config.json");
  if (!model) {
    CHECK(!model.error().text().empty(), "a refusal needs words");
  }
  static_cast<void>(nibble::checkpoint::parse_quant_config(*value, &*value));
  const auto quant = nibble::checkpoint::parse_quant_config(*value, nullptr);
  if (quant) {
    // Patterns of the file meet a name: must end, whatever they are.
    static_cast<void>(nibble::checkpoint::claimed_algo(*quant, "model.layers.0.self_attn.q_proj"));
    static_cast<void>(nibble::checkpoint::is_excluded(*quant, "model.layers.10.mlp.down_proj"));
  }
  return 0;
}
