// ParameterStore: loading the experts of a layer, one expert's matrices in memory at a time.
#include <array>

#include "model/parameter_store.h"
#include "tensor/device_api.h"

namespace nibble::model {

namespace {

using checkpoint::Checkpoint;
using checkpoint::LinearData;
using checkpoint::LinearInfo;

// NOLINTNEXTLINE(readability-identifier-naming): indices, used as the constants they are
enum Part : size_t { kGate, kUp, kDown, kNumParts };

struct ExpertInfos {
  std::array<LinearInfo, kNumParts> part;
};

size_t first_part(const ExpertsDesc& desc) {
  return desc.activation == ExpertActivation::SwiGlu ? kGate : kUp;
}

Result<ExpertInfos> find_expert(const Checkpoint& source,
                                const ExpertsDesc& desc,
                                const ExpertSpec& spec) {
  const std::array<const PartSpec*, kNumParts> parts{&spec.gate, &spec.up, &spec.down};
  ExpertInfos infos;
  for (size_t i = first_part(desc); i < kNumParts; ++i) {
    infos.part[i] = TRY(find_part(source, *parts[i], i == kDown ? desc.ffn : desc.hidden));
    TRY(check_format(desc.mode.weight, infos.part[i]));
    if (!infos.part[i].bias.empty()) {
      return unsupported("experts with biases are not supported", infos.part[i].bias);
    }
    if (!infos.part[i].pre_quant_scale.empty() && !desc.pre_quant_scale) {
      return invalid("found a pre_quant_scale, expected none", infos.part[i].pre_quant_scale);
    }
  }
  return infos;
}

Result<std::vector<ExpertInfos>> find_experts(const ExpertsSpec& spec,
                                              const Checkpoint& source,
                                              std::set<std::string, std::less<>>& used) {
  std::vector<ExpertInfos> infos;
  infos.reserve(spec.experts.size());
  const LinearInfo* calibrated = nullptr;
  for (const ExpertSpec& expert : spec.experts) {
    infos.push_back(TRY(find_expert(source, spec.desc, expert)));
    for (const LinearInfo& info : infos.back().part) {
      add_names(info, used);
      calibrated = info.input_scale.empty() ? calibrated : &info;
    }
  }
  // Declared per token because nothing was calibrated: scales that came since would be ignored.
  if (spec.desc.mode.act == QuantMode::Act::Nvfp4 && !spec.desc.static_input_scale &&
      calibrated != nullptr) {
    return invalid(
        "found an input_scale, expected none; another scheme needs a restart of the "
        "server",
        calibrated->input_scale);
  }
  return infos;
}

}  // namespace

Result<void> ParameterStore::check_experts(const Entry& entry, const Checkpoint& source) {
  Names names;
  TRY(find_experts(entry.experts, source, names));
  return {};
}

Result<void> ParameterStore::fill_experts(
    const Entry& entry, const Checkpoint& source, void* base, Stream stream, Names& used) const {
  const ExpertsSpec& spec = entry.experts;
  const std::vector<ExpertInfos> infos = TRY(find_experts(spec, source, used));
  const std::vector<Tensor> slots = slots_at(entry, base);
  for (size_t e = 0; e < spec.experts.size(); ++e) {
    const ExpertSpec& expert = spec.experts[e];
    const std::array<const PartSpec*, kNumParts> specs{&expert.gate, &expert.up, &expert.down};
    std::array<LinearData, kNumParts> data;
    std::array<float, kNumParts> input_scales{};
    ExpertParts parts;
    const std::array<LinearPart*, kNumParts> views{&parts.gate, &parts.up, &parts.down};
    for (size_t i = first_part(spec.desc); i < kNumParts; ++i) {
      data[i] = TRY(read_part(source, *specs[i], infos[e].part[i]));
      input_scales[i] = data[i].input_scale.value_or(0.0f);
      *views[i] = view_of(infos[e].part[i], data[i], input_scales[i]);
    }
    spec.backend->pack(spec.desc, static_cast<int64_t>(e), parts, slots, stream);
    device_api(stream.device).synchronize(stream);
  }
  return {};
}

}  // namespace nibble::model
