#include "quantize/kept_tensors.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "checkpoint/convert.h"
#include "model/linear_source.h"
#include "quant/nvfp4.h"

namespace nibble::quantize {

using checkpoint::Checkpoint;
using checkpoint::TensorInfo;

namespace {

constexpr uint64_t kPartBytes = uint64_t{16} << 20;

Result<void> require_finite_copy(const Checkpoint& source, const std::string& name) {
  const TensorInfo& info = *source.find(name);
  if (!checkpoint::is_float_dtype(info.dtype)) {
    return {};
  }
  const auto element = static_cast<uint64_t>(size_of(info.dtype));
  for (uint64_t offset = 0; offset < info.size_bytes; offset += kPartBytes) {
    std::vector<std::byte> part(std::min(kPartBytes, info.size_bytes - offset));
    TRY(source.read_part(name, offset, part));
    if (info.dtype == DType::F16) {
      part = TRY(checkpoint::convert_floats(std::move(part), DType::F16, DType::BF16, name));
    }
    const DType dtype = info.dtype == DType::F16 ? DType::BF16 : info.dtype;
    if (!model::require_finite(dtype, part, name)) {
      const uint64_t first = offset / element;
      const uint64_t end = std::min(offset + kPartBytes, info.size_bytes) / element;
      return invalid(fmt::format("expected finite values, found NaN or infinity among elements {} "
                                 "to {}; the source is damaged",
                                 first,
                                 end - 1),
                     name);
    }
  }
  return {};
}

}  // namespace

Result<void> require_finite_copies(const Checkpoint& source, const Plan& plan) {
  for (const auto& shard : plan.shards) {
    for (const Unit& unit : shard) {
      if (!unit.linears.empty()) {
        continue;
      }
      if (!unit.convert) {
        TRY(require_finite_copy(source, unit.tensor));
        continue;
      }
      const std::vector<float> values = TRY(source.read_weight(*unit.convert));
      if (const auto amax = quant::finite_amax(values); !amax) {
        return invalid(amax.error().message, unit.tensor);
      }
    }
  }
  return {};
}

}  // namespace nibble::quantize
