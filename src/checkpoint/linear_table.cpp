#include "checkpoint/linear_table.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include "checkpoint/convert.h"
#include "checkpoint/stacked_experts.h"

namespace nibble::checkpoint {

namespace {

constexpr int64_t kFp8BlockSize = 128;
constexpr int64_t kMxBlockSize = 32;

// Longest first where one is the end of another.
constexpr std::array<std::string_view, 17> kSuffixes = {
    ".weight_global_scale",
    ".input_global_scale",
    ".weight_scale_inv",
    ".weight_scale_2",
    ".weight_packed",
    ".weight_scale",
    ".pre_quant_scale",
    ".input_scale",
    "._svdquant_lora_a",
    "._svdquant_lora_b",
    ".svdquant_lora_a",
    ".svdquant_lora_b",
    ".qweight",
    ".qzeros",
    ".weight",
    ".bias",
    ".scale",
};

struct Member {
  std::string name;
  const TensorInfo* info = nullptr;
};
using Members = std::map<std::string_view, Member>;  // by suffix

// Tensor names of one module differ from the module's by a known suffix. "base_layer" is what
// adapter training leaves in names.
std::map<std::string, Members> group_by_module(const TensorTable& tensors) {
  std::map<std::string, Members> modules;
  for (const auto& [name, entry] : tensors) {
    for (std::string_view suffix : kSuffixes) {
      if (!name.ends_with(suffix)) {
        continue;
      }
      std::string module = name.substr(0, name.size() - suffix.size());
      constexpr std::string_view kQuantizerPart = ".weight_quantizer";  // where ModelOpt has it
      if (module.ends_with(kQuantizerPart)) {
        module.resize(module.size() - kQuantizerPart.size());
      }
      constexpr std::string_view kAdapterPart = ".base_layer";
      if (module.ends_with(kAdapterPart)) {
        module.resize(module.size() - kAdapterPart.size());
      }
      modules[module][suffix] = {name, &entry.second};
      break;
    }
  }
  return modules;
}

const Member* member(const Members& members, std::string_view suffix) {
  const auto found = members.find(suffix);
  return found == members.end() ? nullptr : &found->second;
}

std::string_view last_segment(std::string_view module) {
  const size_t dot = module.rfind('.');
  return dot == std::string_view::npos ? module : module.substr(dot + 1);
}

bool is_embedding(std::string_view module) {
  const std::string_view last = last_segment(module);
  return last.find("embed") != std::string_view::npos || last == "wte" || last == "wpe";
}

// "model.layers.61.x" -> 61; -1 without a layer number
int64_t layer_index(std::string_view module) {
  const size_t at = module.find("layers.");
  if (at == std::string_view::npos) {
    return -1;
  }
  int64_t index = -1;
  const std::string_view digits = module.substr(at + 7);
  std::from_chars(digits.data(), digits.data() + digits.size(), index);
  return index;
}

// Modules that exporters leave in full precision without always listing them: routers, heads, small
// projections, draft layers, towers of other modalities.
bool may_stay_unquantized(std::string_view module, const ModelConfig& config) {
  const std::string_view last = last_segment(module);
  constexpr std::array<std::string_view, 9> kNames = {"gate",
                                                      "router",
                                                      "lm_head",
                                                      "head",
                                                      "conv1d",
                                                      "in_proj_a",
                                                      "in_proj_b",
                                                      "in_proj_ba",
                                                      "shared_expert_gate"};
  if (std::find(kNames.begin(), kNames.end(), last) != kNames.end() || is_embedding(module)) {
    return true;
  }
  return module.find("router.") != std::string_view::npos || !runs_for_text(module, config);
}

std::string found_text(const TensorInfo& info) {
  return std::string(to_string(info.dtype)) + " " + to_string(info.shape);
}

// [1, n, g] is squeezed.
Shape without_leading_one(Shape shape) {
  if (shape.rank == 3 && shape[0] == 1) {
    return {shape[1], shape[2]};
  }
  return shape;
}

class Classifier {
 public:
  Classifier(const std::string& module, const Members& members)
      : module_(module), members_(members) {}

  Result<LinearInfo> classify() {
    info_.module = module_;
    for (const auto& [suffix, member] : members_) {
      info_.size_bytes += member.info->size_bytes;
      if (!member.info->unusable.empty()) {
        return unsupported(member.info->unusable, member.name);
      }
    }
    if (std::any_of(members_.begin(), members_.end(), [](const auto& entry) {
          return entry.first.find("svdquant_lora") != std::string_view::npos;
        })) {
      return unsupported(
          "has a low-rank branch beside its 4-bit weight (NVFP4_SVD), which is not supported",
          module_);
    }
    if (const Member* bias = find(".bias")) {
      info_.bias = bias->name;
    }
    if (const Member* scale = find(".pre_quant_scale")) {
      info_.pre_quant_scale = scale->name;
    }
    const Member* packed = find(".weight_packed");
    const Member* weight = find(".weight");
    if (packed != nullptr && weight != nullptr) {
      return invalid("stored twice: beside " + weight->name, packed->name);
    }
    if (const Member* other = find(".qweight")) {
      return unsupported("stored in GPTQ or AWQ integer form, which is not supported", other->name);
    }
    const Member& main = packed != nullptr ? *packed : *weight;
    info_.weight = main.name;
    if (main.info->dtype == DType::U8 || packed != nullptr) {
      TRY(nvfp4(main, packed != nullptr));
    } else if (main.info->dtype == DType::E4M3) {
      TRY(fp8(main));
    } else if (is_float_dtype(main.info->dtype)) {
      info_.n = main.info->shape[0];
      info_.k = main.info->shape[1];
    } else {
      return unsupported("expected bf16, f16, f32, u8 (two 4-bit codes) or f8_e4m3, found " +
                             found_text(*main.info),
                         main.name);
    }
    if (!info_.pre_quant_scale.empty()) {
      TRY(check_pre_quant_scale());
    }
    if (const Member* bias = find(".bias");
        bias != nullptr &&
        (!is_float_dtype(bias->info->dtype) || num_elements(bias->info->shape) != info_.n)) {
      return invalid(
          "expected bf16 " + to_string(Shape{info_.n}) + ", found " + found_text(*bias->info),
          bias->name);
    }
    return info_;
  }

 private:
  const Member* find(std::string_view suffix) const { return member(members_, suffix); }

  Result<std::string> require_scalar(std::string_view suffix) const {
    const Member* scalar = find(suffix);
    if (scalar == nullptr) {
      return invalid("missing; " + info_.weight + " is stored as 4-bit codes and needs it",
                     module_ + std::string(suffix));
    }
    TRY(check_scalar(*scalar));
    return scalar->name;
  }

  static Result<void> check_scalar(const Member& scalar) {
    if (!is_float_dtype(scalar.info->dtype) || num_elements(scalar.info->shape) != 1) {
      return invalid("expected one f32 number, found " + found_text(*scalar.info), scalar.name);
    }
    return {};
  }

  Result<void> nvfp4(const Member& weight, bool packed) {
    if (weight.info->dtype != DType::U8 || weight.info->shape.rank != 2) {
      return invalid(
          "expected u8 [n, k/2] (two 4-bit codes a byte), found " + found_text(*weight.info),
          weight.name);
    }
    info_.format = LinearInfo::Format::Nvfp4;
    info_.n = weight.info->shape[0];
    info_.k = weight.info->shape[1] * 2;
    const Member* scale = find(".weight_scale");
    if (scale == nullptr) {
      return invalid("missing; " + weight.name + " is stored as 4-bit codes and needs it",
                     module_ + ".weight_scale");
    }
    info_.weight_scale = scale->name;
    const std::string_view global = packed ? ".weight_global_scale" : ".weight_scale_2";
    const bool byte_scales = scale->info->dtype == DType::U8 || scale->info->dtype == DType::E8M0;
    if (byte_scales && find(global) == nullptr) {
      return unsupported(
          "stored as MXFP4 (one power of two for 32 columns, no global scale), which "
          "is not supported",
          weight.name);
    }
    TRY(check_block_scales(*scale));
    info_.weight_scale_2 = TRY(require_scalar(global));
    info_.inverse_scales = packed;
    if (const Member* input = find(packed ? ".input_global_scale" : ".input_scale")) {
      TRY(check_scalar(*input));
      info_.input_scale = input->name;
    }
    return {};
  }

  Result<void> check_block_scales(const Member& scale) {
    const Shape shape = without_leading_one(scale.info->shape);
    const bool bytes = scale.info->dtype == DType::E4M3 || scale.info->dtype == DType::U8;
    for (int64_t group : {int64_t{16}, int64_t{32}}) {
      if (bytes && info_.k % group == 0 && shape == Shape{info_.n, info_.k / group}) {
        info_.group_size = group;
        return {};
      }
    }
    std::string hint;
    const int64_t padded_n = (info_.n + 127) / 128 * 128;
    const int64_t padded_groups = (info_.k / 16 + 3) / 4 * 4;
    const bool in_order = shape == Shape{info_.n, info_.k / 16};
    if (!in_order && num_elements(shape) == padded_n * padded_groups) {
      hint = "; the scales may be in the swizzled 128x4 layout of a kernel instead of row order";
    } else if (!in_order && shape.rank == 2 && shape[0] == info_.n && shape[1] > 0 &&
               info_.k % shape[1] == 0) {
      hint = "; the checkpoint may use group size " + std::to_string(info_.k / shape[1]) +
             ", 16 and 32 are supported";
    }
    return invalid("expected f8_e4m3 " + to_string(Shape{info_.n, info_.k / 16}) + " (or " +
                       to_string(Shape{info_.n, info_.k / 32}) + " for group size 32) beside " +
                       info_.weight + ", found " + found_text(*scale.info) + hint,
                   scale.name);
  }

  Result<void> fp8(const Member& weight) {
    info_.n = weight.info->shape[0];
    info_.k = weight.info->shape[1];
    const Member* scale = find(".weight_scale");
    if (scale == nullptr) {
      scale = find(".weight_scale_inv");
    }
    if (scale == nullptr) {
      scale = find(".scale");
    }
    if (scale == nullptr) {
      return invalid("missing; " + weight.name + " is stored as f8_e4m3 and needs it",
                     module_ + ".weight_scale");
    }
    info_.weight_scale = scale->name;
    if (const Member* input = find(".input_scale")) {
      info_.input_scale = input->name;
    }
    const Shape& shape = scale->info->shape;
    const bool floats = is_float_dtype(scale->info->dtype);
    const bool powers = scale->info->dtype == DType::U8 || scale->info->dtype == DType::E8M0;
    const Shape blocks = {(info_.n + kFp8BlockSize - 1) / kFp8BlockSize,
                          (info_.k + kFp8BlockSize - 1) / kFp8BlockSize};
    if (floats && num_elements(shape) == 1) {
      info_.format = LinearInfo::Format::Fp8;
    } else if (floats && (shape == Shape{info_.n} || shape == Shape{info_.n, 1})) {
      info_.stored = LinearInfo::Stored::Fp8PerChannel;
    } else if ((floats || powers) && shape == blocks) {
      info_.stored = LinearInfo::Stored::Fp8Block;
    } else if (powers && info_.k % kMxBlockSize == 0 &&
               shape == Shape{info_.n, info_.k / kMxBlockSize}) {
      info_.stored = LinearInfo::Stored::Mxfp8;
    } else {
      return invalid("expected one f32 number, f32 " + to_string(Shape{info_.n, 1}) + " or f32 " +
                         to_string(blocks) + " beside " + weight.name + ", found " +
                         found_text(*scale->info),
                     scale->name);
    }
    return {};
  }

  Result<void> check_pre_quant_scale() const {
    const Member& scale = *find(".pre_quant_scale");
    if (!is_float_dtype(scale.info->dtype) || num_elements(scale.info->shape) != info_.k) {
      return invalid("expected " + to_string(Shape{info_.k}) + ", one factor a column of " +
                         info_.weight + ", found " + found_text(*scale.info),
                     scale.name);
    }
    return {};
  }

  const std::string& module_;
  const Members& members_;
  LinearInfo info_;
};

// A linear has a weight of two dimensions; embeddings and norms count only when they are quantized.
bool looks_like_linear(const std::string& module, const Members& members) {
  if (member(members, ".weight_packed") != nullptr || member(members, ".qweight") != nullptr) {
    return true;
  }
  const Member* weight = member(members, ".weight");
  if (weight == nullptr || weight->info->shape.rank != 2) {
    return false;
  }
  const bool table_or_norm =
      is_embedding(module) || last_segment(module).find("norm") != std::string_view::npos;
  return !table_or_norm || member(members, ".weight_scale") != nullptr;
}

// A scale or code tensor whose weight is not there: the weight's name is wrong or it was lost.
std::optional<Error> orphan(const std::string& module, const Members& members) {
  if (member(members, ".weight") != nullptr) {
    return std::nullopt;
  }
  for (std::string_view suffix : {".weight_scale", ".weight_scale_2", ".weight_global_scale"}) {
    if (const Member* scale = member(members, suffix)) {
      return invalid("missing, although " + scale->name + " is stored", module + ".weight").value();
    }
  }
  return std::nullopt;
}

// The config's claim against what is stored. Errors stop the model, warnings do not.
void check_claim(const LinearInfo& info,
                 const QuantConfig& quant,
                 const ModelConfig& config,
                 LinearTable& table) {
  using Format = LinearInfo::Format;
  const bool stored_nvfp4 = info.format == Format::Nvfp4;
  const bool stored_plain =
      info.format == Format::Bf16 && info.stored == LinearInfo::Stored::AsFormat;
  const std::string source = quant.source.empty() ? "config.json" : quant.source;
  if (info.claim == QuantAlgo::None) {
    if (!stored_plain && quant.dialect != QuantConfig::Dialect::None) {
      table.warnings.push_back(
          {ErrorCode::InvalidArgument,
           "stored quantized although " + source + " leaves it out; the stored tensors decide",
           info.module});
    }
    return;
  }
  const std::string claim = std::string(to_string(info.claim));
  if (stored_plain) {
    if (!may_stay_unquantized(info.module, config)) {
      table.errors.emplace(
          info.module,
          Error{ErrorCode::InvalidArgument,
                "stored in full precision, but " + source + " says " + claim +
                    "; if that is meant, add the module to its list of excluded modules",
                info.weight});
    }
    return;
  }
  if (stored_nvfp4 != is_nvfp4(info.claim)) {
    table.errors.emplace(info.module,
                         Error{ErrorCode::InvalidArgument,
                               "stored as " + std::string(stored_nvfp4 ? "NVFP4" : "FP8") +
                                   ", but " + source + " says " + claim,
                               info.weight});
  }
}

}  // namespace

bool is_embedding_table(std::string_view tensor) {
  return tensor.ends_with(".weight") && is_embedding(tensor.substr(0, tensor.rfind('.')));
}

bool runs_for_text(std::string_view module, const ModelConfig& config) {
  constexpr std::array<std::string_view, 5> kElsewhere = {
      "mtp.", "visual", "vision", "audio", "projector"};
  const bool elsewhere =
      std::any_of(kElsewhere.begin(), kElsewhere.end(), [&](std::string_view part) {
        return module.find(part) != std::string_view::npos;
      });
  const bool past_the_end =
      config.num_hidden_layers > 0 && layer_index(module) >= config.num_hidden_layers;
  return !elsewhere && !past_the_end;
}

std::string_view to_string(LinearInfo::Format format) {
  switch (format) {
    case LinearInfo::Format::Bf16:
      return "bf16";
    case LinearInfo::Format::Nvfp4:
      return "nvfp4";
    case LinearInfo::Format::Fp8:
      return "fp8";
  }
  return "unknown";
}

namespace {

// Scales that belong to no linear: those of the KV cache, which is kept in bf16 here, and what
// calibration leaves behind.
bool is_known_scale(std::string_view name) {
  constexpr std::array<std::string_view, 8> kKnown = {".k_scale",
                                                      ".v_scale",
                                                      ".kv_scale",
                                                      ".output_scale",
                                                      ".k_global_scale",
                                                      ".v_global_scale",
                                                      ".q_scale",
                                                      ".logit_scale"};
  const auto ends = [&](std::string_view ending) { return name.ends_with(ending); };
  constexpr std::array<std::string_view, 3> kStacked = {
      "_proj_weight_scale", "_proj_weight_scale_2", "_proj_input_scale"};  // stacked_experts.h
  return std::any_of(kSuffixes.begin(), kSuffixes.end(), ends) ||
         std::any_of(kStacked.begin(), kStacked.end(), ends) ||
         std::any_of(kKnown.begin(), kKnown.end(), ends) ||
         name.find("_quantizer.") != std::string_view::npos;
}

// Names that one warning is about: the first of them and how many there are.
class Named {
 public:
  void add(const std::string& name) { first_ = count_++ == 0 ? name : first_; }
  bool any() const { return count_ > 0; }
  const std::string& first() const { return first_; }
  size_t num_others() const { return count_ - 1; }
  std::string and_others() const {
    return num_others() > 0 ? " (and " + std::to_string(num_others()) + " others)" : std::string();
  }

 private:
  std::string first_;
  size_t count_ = 0;
};

// One warning for all tensors that are named like scales and that nothing reads.
void warn_about_unknown_scales(const TensorTable& tensors, LinearTable& table) {
  Named named;
  for (const auto& [name, entry] : tensors) {
    const size_t dot = name.rfind('.');
    const bool scale = name.find("scale", dot == std::string::npos ? 0 : dot) != std::string::npos;
    if (scale && !is_known_scale(name)) {
      named.add(name);
    }
  }
  if (named.any()) {
    table.warnings.push_back({ErrorCode::InvalidArgument,
                              "named like a scale, but nothing reads it" + named.and_others(),
                              named.first()});
  }
}

void warn_about_activations_of_8_bits(LinearTable& table) {
  Named named;
  for (const LinearInfo& info : table.linears) {
    if (info.format == LinearInfo::Format::Nvfp4 && info.claim == QuantAlgo::W4A8Nvfp4Fp8) {
      named.add(info.module);
    }
  }
  if (named.any()) {
    table.warnings.push_back({ErrorCode::InvalidArgument,
                              "claims W4A8_NVFP4_FP8" + named.and_others() +
                                  "; the weights are served exactly, with activations in bf16 "
                                  "instead of FP8 (as W4A16)",
                              named.first()});
  }
}

void warn_about_absent_input_scales(LinearTable& table) {
  Named named;
  for (const LinearInfo& info : table.linears) {
    const bool activations = info.claim == QuantAlgo::Nvfp4 || info.claim == QuantAlgo::Nvfp4Awq;
    if (info.format == LinearInfo::Format::Nvfp4 && activations && info.input_scale.empty()) {
      named.add(info.module);
    }
  }
  if (named.any()) {
    table.warnings.push_back(
        {ErrorCode::InvalidArgument,
         (named.num_others() == 0
              ? std::string("missing")
              : "missing here and for " + std::to_string(named.num_others()) + " other linears") +
             "; weights are not affected, and activations are scaled by token where they are "
             "quantized",
         named.first() + ".input_scale"});
  }
}

}  // namespace

namespace {

void add_linear(LinearInfo info,
                const QuantConfig& quant,
                const ModelConfig& config,
                LinearTable& table) {
  info.claim = claimed_algo(quant, info.module);
  // Weight-only claims make stored activation scales meaningless (those of W4A8 are for 8 bits).
  if (info.format == LinearInfo::Format::Nvfp4 &&
      (info.claim == QuantAlgo::W4A16Nvfp4 || info.claim == QuantAlgo::W4A8Nvfp4Fp8)) {
    info.input_scale.clear();
  }
  check_claim(info, quant, config, table);
  table.linears.push_back(std::move(info));
}

// After the linears of two dimensions; the whole is sorted again.
void add_stacked_experts(const TensorTable& tensors,
                         const QuantConfig& quant,
                         const ModelConfig& config,
                         LinearTable& table) {
  const auto by_module = [](const LinearInfo& a, const LinearInfo& b) {
    return a.module < b.module;
  };
  StackedExperts stacked = find_stacked_experts(tensors, config);
  for (Error& error : stacked.errors) {
    std::string module = error.where;
    table.errors.emplace(std::move(module), std::move(error));
  }
  const auto apart_end = static_cast<std::ptrdiff_t>(table.linears.size());
  for (LinearInfo& info : stacked.linears) {
    const auto begin = table.linears.begin();
    const auto same = std::lower_bound(begin, begin + apart_end, info, by_module);
    if (same != begin + apart_end && same->module == info.module) {
      table.errors.emplace(
          info.module,
          Error{ErrorCode::InvalidArgument,
                "stored twice: beside " + info.weight + ", which stacks all experts",
                same->weight});
      continue;
    }
    add_linear(std::move(info), quant, config, table);
  }
  std::sort(table.linears.begin(), table.linears.end(), by_module);
}

}  // namespace

LinearTable build_linear_table(const TensorTable& tensors,
                               const QuantConfig& quant,
                               const ModelConfig& config) {
  LinearTable table;
  for (const auto& [module, members] : group_by_module(tensors)) {
    if (!looks_like_linear(module, members)) {
      if (auto error = orphan(module, members)) {
        table.errors.emplace(module, std::move(*error));
      }
      continue;
    }
    auto info = Classifier(module, members).classify();
    if (!info) {
      table.errors.emplace(module, std::move(info).error());
      continue;
    }
    add_linear(std::move(*info), quant, config, table);
  }
  add_stacked_experts(tensors, quant, config, table);
  warn_about_activations_of_8_bits(table);
  warn_about_absent_input_scales(table);
  warn_about_unknown_scales(tensors, table);
  return table;
}

}  // namespace nibble::checkpoint
