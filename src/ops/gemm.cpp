#include "ops/gemm.h"

#include "base/cpu_info.h"
#include "ops/selection.h"

namespace nibble {

std::string describe(const GemmDesc& desc) {
  std::string text =
      to_string(desc.mode) + " " + std::to_string(desc.n) + "x" + std::to_string(desc.k);
  if (desc.num_parts > 1) {
    text += " (";
    for (int part = 0; part < desc.num_parts; ++part) {
      text += (part > 0 ? "+" : "") + std::to_string(desc.part_rows[static_cast<size_t>(part)]);
    }
    text += ")";
  }
  text += " " + std::string(to_string(desc.out)) + " on " + describe_device(desc.device, desc.isa);
  return text;
}

Result<const GemmBackend*> select_gemm(const GemmDesc& desc, std::string_view wanted) {
  return select_backend(gemm_backends(), desc, wanted, describe(desc));
}

}  // namespace nibble
