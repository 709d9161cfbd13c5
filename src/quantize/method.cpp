#include "quantize/method.h"

#include <array>
#include <string>
#include <utility>

namespace nibble::quantize {

namespace {
constexpr std::array<std::pair<Method, std::string_view>, 5> kNames = {{
    {Method::Max, "max"},
    {Method::FourOverSix, "four-over-six"},
    {Method::Sweep, "sweep"},
    {Method::Gptq, "gptq"},
    {Method::Full, "full"},
}};
}  // namespace

std::string_view to_string(Method method) {
  for (const auto& [value, name] : kNames) {
    if (value == method) {
      return name;
    }
  }
  return "";
}

std::string_view to_string(Precision precision) {
  return precision == Precision::Fp8 ? "fp8" : "nvfp4";
}

Result<Precision> parse_precision(std::string_view text) {
  for (const Precision precision : {Precision::Nvfp4, Precision::Fp8}) {
    if (text == to_string(precision)) {
      return precision;
    }
  }
  return invalid("expected nvfp4 or fp8, found " + std::string(text), "precision");
}

Result<Method> parse_method(std::string_view text) {
  std::string known;
  for (const auto& [value, name] : kNames) {
    if (name == text) {
      return value;
    }
    known += (known.empty() ? "" : ", ") + std::string(name);
  }
  return invalid("expected one of " + known + ", found " + std::string(text), "recipe");
}

}  // namespace nibble::quantize
