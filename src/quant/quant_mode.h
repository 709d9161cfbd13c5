// QuantMode of a linear: resolved once at load from what is stored, the flags and the device, then
// only read. Nothing after start asks "is this NVFP4?" again.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace nibble {

struct QuantMode {
  enum class Weight : uint8_t { Bf16, Nvfp4, Fp8 };
  enum class Act : uint8_t { Bf16, Nvfp4, Fp8 };
  Weight weight = Weight::Bf16;
  Act act = Act::Bf16;
  bool operator==(const QuantMode&) const = default;
};

inline constexpr QuantMode kBf16{};
inline constexpr QuantMode kW4A16{QuantMode::Weight::Nvfp4, QuantMode::Act::Bf16};
inline constexpr QuantMode kW4A4{QuantMode::Weight::Nvfp4, QuantMode::Act::Nvfp4};
inline constexpr QuantMode kFp8{QuantMode::Weight::Fp8, QuantMode::Act::Bf16};

std::string to_string(QuantMode mode);  // "bf16", "w4a16", "w4a4", "fp8"

// --nvfp4-mode: what to do with NVFP4 linears. Auto: w4a16 wherever there are no FP4 tensor cores.
enum class Nvfp4Mode : uint8_t { Auto, W4A16, W4A4 };
Result<Nvfp4Mode> parse_nvfp4_mode(std::string_view text);
std::string_view to_string(Nvfp4Mode mode);

}  // namespace nibble
