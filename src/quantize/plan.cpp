#include "quantize/plan.h"

#include <algorithm>
#include <map>
#include <set>

#include "quant/nvfp4.h"

namespace nibble::quantize {

using checkpoint::Checkpoint;
using checkpoint::LinearInfo;
using checkpoint::SafetensorsWriter;

namespace {

uint64_t bytes_of(const SafetensorsWriter::Entry& entry) {
  return static_cast<uint64_t>(num_elements(entry.shape) * size_of(entry.dtype));
}

bool is_plain(const LinearInfo& info) {
  return info.format == LinearInfo::Format::Bf16 && info.stored == LinearInfo::Stored::AsFormat;
}

void add_entries(const LinearInfo& info, Unit& unit) {
  unit.entries.push_back({info.module + ".weight", DType::U8, {info.n, info.k / 2}});
  unit.entries.push_back(
      {info.module + ".weight_scale", DType::E4M3, {info.n, info.k / quant::kBlockSize}});
  unit.entries.push_back({info.module + ".weight_scale_2", DType::F32, {}});
}

void finish_sizes(const Checkpoint& source, Unit& unit) {
  for (const SafetensorsWriter::Entry& entry : unit.entries) {
    unit.output_bytes += bytes_of(entry);
  }
  for (const LinearInfo& info : unit.linears) {
    unit.source_bytes +=
        info.expert >= 0 ? info.size_bytes : source.find(info.weight)->size_bytes;  // of a stack
  }
  if (unit.linears.empty()) {
    unit.source_bytes = source.find(unit.tensor)->size_bytes;
  }
}

void place(std::vector<Unit> units, uint64_t max_shard_bytes, Plan& plan) {
  uint64_t in_shard = 0;
  for (Unit& unit : units) {
    if (plan.shards.empty() || (in_shard > 0 && in_shard + unit.output_bytes > max_shard_bytes)) {
      plan.shards.emplace_back();
      in_shard = 0;
    }
    in_shard += unit.output_bytes;
    plan.source_bytes += unit.source_bytes;
    plan.output_bytes += unit.output_bytes;
    plan.shards.back().push_back(std::move(unit));
  }
}

}  // namespace

Result<Plan> make_plan(const Checkpoint& source, const Recipe& recipe, uint64_t max_shard_bytes) {
  TRY(recipe.require_matches(source.linears()));
  Plan plan;
  std::map<std::string, Unit> units;  // by the first tensor or the group, so the order is fixed
  std::set<std::string> written_elsewhere;  // tensors that no copy unit may take
  for (const LinearInfo& info : source.linears()) {
    if (info.format == LinearInfo::Format::Nvfp4) {
      const std::string& config = source.quant().source;
      return invalid("the source is NVFP4 already" +
                         (config.empty() ? std::string() : " (" + config + ")") +
                         "; quantize the model it was made from",
                     info.weight);
    }
    const std::string reason = recipe.reason_to_keep(info, source.config());
    if (reason.empty()) {
      Unit& unit = units[scale_group(info.module)];
      unit.linears.push_back(info);
      add_entries(info, unit);
      ++plan.num_quantized;
    } else {
      plan.kept.emplace_back(info.module, reason);
      if (is_plain(info)) {
        continue;  // copied below like any other tensor
      }
      Unit& unit = units[info.weight];
      unit.tensor = info.weight;
      unit.convert = info;
      unit.entries.push_back({info.weight, DType::BF16, {info.n, info.k}});
    }
    for (const std::string& name : {info.weight, info.weight_scale, info.input_scale}) {
      written_elsewhere.insert(name);
    }
  }
  if (plan.num_quantized == 0) {
    return invalid("no linear to quantize: " + std::to_string(plan.kept.size()) +
                       " linears, all of them excluded",
                   source.directory());
  }
  for (const std::string& name : source.tensor_names()) {
    if (written_elsewhere.contains(name)) {
      continue;
    }
    const checkpoint::TensorInfo& info = *source.find(name);
    if (!info.unusable.empty()) {
      return unsupported(info.unusable, name);
    }
    Unit& unit = units[name];
    unit.tensor = name;
    unit.entries.push_back({name, info.dtype, info.shape});
  }
  std::vector<Unit> ordered;
  ordered.reserve(units.size());
  for (auto& [key, unit] : units) {
    finish_sizes(source, unit);
    ordered.push_back(std::move(unit));
  }
  place(std::move(ordered), max_shard_bytes, plan);
  return plan;
}

}  // namespace nibble::quantize
