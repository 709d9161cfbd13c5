#include "quantize/plan.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/check.h"
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

void add_entries(Unit& unit) {
  unit.entries.clear();
  for (const LinearInfo& info : unit.linears) {
    if (unit.nvfp4) {
      unit.entries.push_back({info.module + ".weight", DType::U8, {info.n, info.k / 2}});
      unit.entries.push_back(
          {info.module + ".weight_scale", DType::E4M3, {info.n, info.k / quant::kBlockSize}});
      unit.entries.push_back({info.module + ".weight_scale_2", DType::F32, {}});
    } else {
      unit.entries.push_back({info.module + ".weight", DType::E4M3, {info.n, info.k}});
      unit.entries.push_back({info.module + ".weight_scale", DType::F32, {}});
    }
  }
}

void finish_sizes(const Checkpoint& source, Unit& unit) {
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
    if (!unit.linears.empty()) {
      add_entries(unit);
    }
    unit.output_bytes = 0;
    for (const SafetensorsWriter::Entry& entry : unit.entries) {
      unit.output_bytes += bytes_of(entry);
    }
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

// The head of a model with tied embeddings, as a linear of its own: the embedding stays beside it.
Result<LinearInfo> tied_head(const Checkpoint& source, Precision precision) {
  constexpr const char* kEmbedding = "model.embed_tokens.weight";
  const checkpoint::TensorInfo* table = source.find(kEmbedding);
  const bool plain =
      table != nullptr && table->shape.rank == 2 &&
      (table->dtype == DType::BF16 || table->dtype == DType::F16 || table->dtype == DType::F32);
  if (!source.config().tie_word_embeddings || !plain) {
    return invalid("the model stores no output head and has no plain embedding that is tied to it",
                   "lm-head");
  }
  LinearInfo info;
  info.module = "lm_head";
  info.weight = kEmbedding;
  info.n = table->shape[0];
  info.k = table->shape[1];
  info.size_bytes = table->size_bytes;
  if (precision == Precision::Nvfp4 && info.k % quant::kBlockSize != 0) {
    return invalid("cannot quantize the tied head: its " + std::to_string(info.k) +
                       " columns are not a multiple of 16",
                   "lm-head");
  }
  return info;
}

// Sets the forms of every group of linears.
Result<void> choose_forms(const PlanOptions& options, std::map<std::string, Unit>& units) {
  for (auto& [key, unit] : units) {
    unit.fp8 = options.candidates && !unit.linears.empty();
  }
  const auto only_fp8 = [](Unit& unit) {
    unit.nvfp4 = false;
    unit.fp8 = true;
  };
  for (const std::string& text : options.fp8) {
    const auto pattern = TRY(checkpoint::NamePattern::compile(text));
    std::set<std::string> groups;
    for (const auto& [key, unit] : units) {
      for (const LinearInfo& info : unit.linears) {
        if (pattern.matches(info.module)) {
          groups.insert(form_group(unit));
        }
      }
    }
    if (groups.empty()) {
      return invalid("matches no linear that is quantized", "fp8 " + text);
    }
    for (auto& [key, unit] : units) {
      if (!unit.linears.empty() && groups.contains(form_group(unit))) {
        only_fp8(unit);
      }
    }
  }
  if (options.head) {
    const auto head = units.find("lm_head");
    CHECK(head != units.end(), "make_plan() adds the head that is asked for");
    head->second.nvfp4 = *options.head == Precision::Nvfp4;
    head->second.fp8 = !head->second.nvfp4;
  }
  return {};
}

}  // namespace

Result<Plan> make_plan(const Checkpoint& source, const Recipe& recipe, const PlanOptions& options) {
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
      ++plan.num_quantized;
    } else {
      if (options.head && info.module == "lm_head") {
        return invalid("cannot quantize lm_head, it is kept: " + reason, "lm-head");
      }
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
  if (options.head && !source.stores_linear("lm_head")) {
    units["lm_head"].linears.push_back(TRY(tied_head(source, *options.head)));
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
  TRY(choose_forms(options, units));
  std::vector<Unit> ordered;
  ordered.reserve(units.size());
  for (auto& [key, unit] : units) {
    finish_sizes(source, unit);
    ordered.push_back(std::move(unit));
  }
  place(std::move(ordered), options.max_shard_bytes, plan);
  return plan;
}

std::string form_group(const Unit& unit) {
  constexpr std::string_view kExperts = ".experts.";
  const std::string& module = unit.linears.front().module;
  const size_t at = module.find(kExperts);
  return at == std::string::npos ? scale_group(module) : module.substr(0, at + kExperts.size());
}

void lay_out_again(uint64_t max_shard_bytes, Plan& plan) {
  std::vector<Unit> units;
  for (std::vector<Unit>& shard : plan.shards) {
    for (Unit& unit : shard) {
      units.push_back(std::move(unit));
    }
  }
  plan.shards.clear();
  plan.source_bytes = 0;
  plan.output_bytes = 0;
  place(std::move(units), max_shard_bytes, plan);
}

}  // namespace nibble::quantize
