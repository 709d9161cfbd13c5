// Checkpoint: quantization while loading.
#include "checkpoint/online.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/quantize_rules.h"
#include "quant/nvfp4.h"

namespace nibble::checkpoint {

LinearInfo source_of(const LinearInfo& info) {
  LinearInfo source = info;
  source.format = info.source_format;
  source.online = false;
  return source;
}

Result<Checkpoint> Checkpoint::open_online(const std::string& directory) {
  Checkpoint checkpoint = TRY(open(directory));
  TRY(checkpoint.mark_online());
  return checkpoint;
}

Result<void> Checkpoint::mark_online() {
  const Recipe recipe = TRY(Recipe::make({}));
  for (LinearInfo& info : linears_) {
    if (info.format == LinearInfo::Format::Nvfp4) {
      return invalid("is NVFP4 already: serve it without nvfp4_online", info.weight);
    }
    if (info.stored == LinearInfo::Stored::Mxfp8) {
      return unsupported("MXFP8 weights cannot be quantized while loading", info.weight);
    }
    if (recipe.reason_to_keep(info, config_).empty()) {
      info.online = true;
      info.source_format = info.format;
      info.format = LinearInfo::Format::Nvfp4;
      info.input_scale.clear();  // of FP8 activations, if anything
    }
  }
  return {};
}

Result<void> Checkpoint::encode_online(const LinearInfo& info, LinearData& data) const {
  // The matrices of a group share the global scale, so the others are looked at too.
  const std::string group = scale_group(info.module);
  std::vector<float> values;
  float amax = 0.0f;
  const std::string parent = info.module.substr(0, info.module.rfind('.') + 1);
  auto at = std::lower_bound(
      linears_.begin(),
      linears_.end(),
      parent,
      [](const LinearInfo& one, const std::string& wanted) { return one.module < wanted; });
  for (; at != linears_.end() && at->module.starts_with(parent); ++at) {
    const LinearInfo& member = *at;
    if (!member.online || scale_group(member.module) != group) {
      continue;
    }
    std::vector<float> read = TRY(read_weight(member));
    Result<float> largest = quant::finite_amax(read);
    if (!largest) {
      Error error = largest.error();
      error.where = member.weight;
      return tl::unexpected<Error>(std::move(error));
    }
    amax = std::max(amax, *largest);
    if (member.module == info.module) {
      values = std::move(read);
    }
  }
  const float global = quant::four_over_six_global_scale(amax);
  const quant::Nvfp4Matrix matrix = quant::encode_four_over_six(values, info.n, info.k, global);
  const auto codes = std::as_bytes(std::span(matrix.codes));
  const auto scales = std::as_bytes(std::span(matrix.block_scales));
  data.weight.assign(codes.begin(), codes.end());
  data.weight_dtype = DType::U8;
  data.weight_scale.assign(scales.begin(), scales.end());
  data.weight_scale_2 = global;
  return {};
}

}  // namespace nibble::checkpoint
