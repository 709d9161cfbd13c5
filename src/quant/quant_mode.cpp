#include "quant/quant_mode.h"

namespace nibble {

std::string to_string(QuantMode mode) {
  switch (mode.weight) {
    case QuantMode::Weight::Bf16:
      return "bf16";
    case QuantMode::Weight::Nvfp4:
      return mode.act == QuantMode::Act::Nvfp4 ? "w4a4" : "w4a16";
    case QuantMode::Weight::Fp8:
      return mode.act == QuantMode::Act::Fp8 ? "fp8_w8a8" : "fp8";
  }
  return "unknown";
}

Result<Nvfp4Mode> parse_nvfp4_mode(std::string_view text) {
  for (Nvfp4Mode mode : {Nvfp4Mode::Auto, Nvfp4Mode::W4A16, Nvfp4Mode::W4A4}) {
    if (text == to_string(mode)) {
      return mode;
    }
  }
  return invalid("expected auto, w4a16 or w4a4, found \"" + std::string(text) + "\"",
                 "--nvfp4-mode");
}

std::string_view to_string(Nvfp4Mode mode) {
  switch (mode) {
    case Nvfp4Mode::Auto:
      return "auto";
    case Nvfp4Mode::W4A16:
      return "w4a16";
    case Nvfp4Mode::W4A4:
      return "w4a4";
  }
  return "unknown";
}

}  // namespace nibble
