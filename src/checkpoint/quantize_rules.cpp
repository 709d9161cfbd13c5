#include "checkpoint/quantize_rules.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "quant/nvfp4.h"

namespace nibble::checkpoint {

namespace {

struct Default {
  std::string_view pattern;
  std::string_view reason;
};
constexpr std::string_view kHead = "output head";
// ModelOpt's default list (modelopt/torch/quantization/config.py) plus kv_b_proj, which latent
// attention absorbs into other matrices at run time and every published checkpoint keeps.
constexpr std::array<Default, 22> kDefaults = {{
    {"*lm_head", kHead},
    {"*output_layer", kHead},
    {"*proj_out", kHead},
    {"*embed*", "embedding"},
    {"*mlp.gate", "router"},
    {"*mixer.gate", "router"},
    {"*router*", "router"},
    {"*block_sparse_moe.gate", "router"},
    {"*shared_expert_gate", "gate of one number a token"},
    {"*conv1d", "convolution"},
    {"*in_proj_a", "small and sensitive"},
    {"*in_proj_b", "small and sensitive"},
    {"*in_proj_ba", "small and sensitive"},
    {"*kv_b_proj", "absorbed by latent attention"},
    {"mtp.*", "draft layer"},
    {"model.mtp.*", "draft layer"},
    {"*eh_proj", "draft layer"},
    {"*vision_tower*", "vision"},
    {"*vision_model*", "vision"},
    {"*visual*", "vision"},
    {"*multi_modal_projector*", "vision"},
    {"*mm_projector*", "vision"},
}};

struct Group {
  std::string_view name;
  std::array<std::string_view, 3> members;
};
constexpr std::array<Group, 6> kGroups = {{
    {"qkv", {"q_proj", "k_proj", "v_proj"}},
    {"gate_up", {"gate_proj", "up_proj", ""}},
    {"w13", {"w1", "w3", ""}},
    {"qkv_a", {"q_a_proj", "kv_a_proj_with_mqa", ""}},
    {"in_proj", {"in_proj_qkv", "in_proj_z", ""}},
    {"latent_q", {"wq_a", "wkv_a", ""}},
}};

}  // namespace

Result<Recipe> Recipe::make(const std::vector<std::string>& extra_excludes, bool with_head) {
  Recipe recipe;
  for (const Default& entry : kDefaults) {
    if (with_head && entry.reason == kHead) {
      continue;
    }
    recipe.exclusions_.push_back(
        {TRY(NamePattern::compile(entry.pattern)), std::string(entry.reason), {}});
  }
  for (const std::string& text : extra_excludes) {
    recipe.exclusions_.push_back({TRY(NamePattern::compile(text)), "asked for", text});
  }
  return recipe;
}

std::string Recipe::reason_to_keep(const LinearInfo& info, const ModelConfig& config) const {
  for (const Exclusion& exclusion : exclusions_) {
    if (exclusion.pattern.matches(info.module)) {
      return exclusion.reason;
    }
  }
  if (layer_index(info.module) >= config.num_hidden_layers) {
    return "draft layer";
  }
  if (info.k % quant::kBlockSize != 0) {
    return "its " + std::to_string(info.k) + " columns are not a multiple of 16";
  }
  return {};
}

Result<void> Recipe::require_matches(const std::vector<LinearInfo>& linears) const {
  for (const Exclusion& exclusion : exclusions_) {
    const bool matches = exclusion.asked.empty() ||
                         std::any_of(linears.begin(), linears.end(), [&](const LinearInfo& info) {
                           return exclusion.pattern.matches(info.module);
                         });
    if (!matches) {
      return invalid(
          "matches no linear of the model; patterns are of whole module names such as " +
              (linears.empty() ? std::string("*.mlp.down_proj") : linears.front().module),
          "exclude " + exclusion.asked);
    }
  }
  return {};
}

int64_t layer_index(std::string_view name) {
  const size_t at = name.find("layers.");
  int64_t index = -1;
  if (at != std::string_view::npos) {
    const std::string_view digits = name.substr(at + std::string_view("layers.").size());
    std::from_chars(digits.data(), digits.data() + digits.size(), index);
  }
  return index;
}

std::string scale_group(std::string_view module) {
  const size_t dot = module.rfind('.');
  const std::string_view last = dot == std::string_view::npos ? module : module.substr(dot + 1);
  const std::string parent(module.substr(0, module.size() - last.size()));
  for (const Group& group : kGroups) {
    for (std::string_view member : group.members) {
      if (!member.empty() && member == last) {
        return parent + "<" + std::string(group.name) + ">";
      }
    }
  }
  return std::string(module);
}

}  // namespace nibble::checkpoint
