// Any text as the quantization config: as config.json, as hf_quant_config.json beside it, and as
// the block inside of config.json, which is where most mutations should land.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/json.h"
#include "checkpoint/quant_config.h"

namespace {

void read(const boost::json::value& config, const boost::json::value* side) {
  const auto quant = nibble::checkpoint::parse_quant_config(config, side);
  if (!quant) {
    CHECK(!quant.error().text().empty(), "a refusal needs words");
    return;
  }
  // Patterns of the file meet names: must end, whatever they are.
  for (const char* name : {"model.layers.0.self_attn.q_proj", "lm_head", ""}) {
    static_cast<void>(nibble::checkpoint::claimed_algo(*quant, name));
    static_cast<void>(nibble::checkpoint::is_excluded(*quant, name));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto value = nibble::parse_json(text, "config.json");
  if (!value) {
    return 0;
  }
  read(*value, nullptr);
  read(*value, &*value);
  read(boost::json::object{{"quantization_config", *value}}, nullptr);
  return 0;
}
