// Builder: mixtures of experts. Everything that a kernel or router could not do is refused here, by
// the config key that asks for it.
#include <algorithm>
#include <array>

#include "base/check.h"
#include "model/builder.h"

namespace nibble::model {

namespace {

using checkpoint::LinearInfo;

// A choice of more experts than are eligible would take one twice.
Result<void> check_router(const RouterDesc& router) {
  if (router.experts < 1 || router.topk < 1 || router.topk > router.experts) {
    return invalid("expected 1 to num_experts (" + std::to_string(router.experts) + "), found " +
                       std::to_string(router.topk),
                   "config.json: num_experts_per_tok");
  }
  if (router.groups < 1 || router.experts % router.groups != 0) {
    return invalid("expected a divisor of the number of experts (" +
                       std::to_string(router.experts) + "), found " + std::to_string(router.groups),
                   "config.json: n_group");
  }
  if (router.topk_groups < 1 || router.topk_groups > router.groups) {
    return invalid("expected 1 to n_group (" + std::to_string(router.groups) + "), found " +
                       std::to_string(router.topk_groups),
                   "config.json: topk_group");
  }
  const int64_t eligible = router.topk_groups * (router.experts / router.groups);
  if (router.topk > eligible) {
    return invalid("found " + std::to_string(router.topk) + ", but topk_group (" +
                       std::to_string(router.topk_groups) + ") of n_group (" +
                       std::to_string(router.groups) + ") leave " + std::to_string(eligible) +
                       " experts to choose from",
                   "config.json: num_experts_per_tok");
  }
  return {};
}

}  // namespace

Result<Experts> Builder::resolve_experts(const std::string& name, const MoeTraits& traits) {
  const int64_t hidden = config().hidden_size;
  const bool gated = traits.activation == ExpertActivation::SwiGlu;
  const std::string in_from = std::string(traits.ffn_key) + " x hidden_size";
  const std::string out_from = "hidden_size x " + std::string(traits.ffn_key);
  ExpertsSpec spec;
  spec.name = name;
  spec.desc.device = options_.device.kind;
  spec.desc.isa = options_.isa;
  spec.desc.experts = traits.router.experts;
  spec.desc.topk = traits.router.topk;
  spec.desc.hidden = hidden;
  spec.desc.ffn = traits.ffn;
  spec.desc.activation = traits.activation;
  std::optional<LinearInfo> first;
  int64_t scaled = 0;
  int64_t matrices = 0;
  for (int64_t e = 0; e < traits.router.experts; ++e) {
    const std::string prefix = name + "." + std::to_string(e) + ".";
    ExpertSpec expert{{prefix + std::string(traits.gate), traits.ffn, in_from},
                      {prefix + std::string(traits.up), traits.ffn, in_from},
                      {prefix + std::string(traits.down), hidden, out_from}};
    for (const PartSpec* part : {&expert.gate, &expert.up, &expert.down}) {
      if (part == &expert.gate && !gated) {
        continue;
      }
      const LinearInfo info =
          TRY(find_part(checkpoint_, *part, part == &expert.down ? traits.ffn : hidden));
      checkpoint::note_tensors(info, read_);
      first = first ? first : info;
      if (info.format != first->format) {
        return unsupported(
            "stored unlike " + first->module + "; the experts of a layer are run as one product",
            info.module);
      }
      if (!info.bias.empty()) {
        return unsupported("experts with biases are not supported", info.bias);
      }
      spec.desc.pre_quant_scale = spec.desc.pre_quant_scale || !info.pre_quant_scale.empty();
      scaled += info.input_scale.empty() ? 0 : 1;
      ++matrices;
    }
    spec.experts.push_back(std::move(expert));
  }
  const ModeChoice choice = choose_mode(first->format, wanted_mode(name));
  spec.desc.mode = choice.mode;
  const bool quantized_input = choice.mode.act != QuantMode::Act::Bf16;
  spec.desc.static_input_scale = quantized_input && scaled > 0;

  const bool nvfp4 = choice.mode.weight == QuantMode::Weight::Nvfp4;
  const std::string wanted = nvfp4 ? options_.moe_runner_backend : "auto";
  Result<const ExpertsBackend*> backend = select_experts(spec.desc, wanted);
  if (!backend) {
    Error error = backend.error();
    error.where = name;
    return tl::unexpected<Error>(std::move(error));
  }
  spec.backend = *backend;
  note_kernel(Op::Experts, spec.backend->name);
  std::string why = (first->online ? "quantized while loading, " : "") + choice.why;
  why += wanted == "auto" ? ", first kernel that takes them" : ", moe-runner-backend " + wanted;
  if (quantized_input && scaled < matrices) {
    why += ", " + std::to_string(matrices - scaled) + " of " + std::to_string(matrices) +
           " matrices without input_scale are quantized per token";
  }
  add_row({pattern_of(name),
           std::string(to_string(first->format)),
           to_string(choice.mode),
           std::string(spec.backend->name),
           std::move(why),
           1});
  const ExpertsDesc desc = spec.desc;
  const ExpertsBackend* resolved = spec.backend;
  return Experts(*store_, store_->declare_experts(std::move(spec)), desc, resolved);
}

MoeBlock Builder::moe(const std::string& layer, const MoeTraits& traits) {
  MoeBlock block;
  if (error_) {
    return block;
  }
  if (auto checked = check_router(traits.router); !checked) {
    fail(checked.error());
    return block;
  }
  block.router_desc = traits.router;
  block.router = find_router(options_.device.kind);
  const std::string prefix = layer + "." + std::string(traits.block);
  if (block.router == nullptr) {
    fail(Error{ErrorCode::Unsupported,
               "this build has no router of experts for " +
                   std::string(to_string(options_.device.kind)) + "; use --device cpu",
               prefix + ".gate"});
    return block;
  }
  block.gate = linear(prefix + ".gate",
                      {{prefix + ".gate", traits.router.experts, "num_experts x hidden_size"}},
                      config().hidden_size,
                      Bias::IfStored,
                      DType::F32);
  if (error_) {
    return block;
  }
  Result<Experts> experts = resolve_experts(prefix + ".experts", traits);
  if (!experts) {
    fail(experts.error());
    return block;
  }
  block.experts = *experts;
  if (traits.shared_ffn > 0) {
    block.shared =
        swiglu(prefix + "." + std::string(traits.shared), traits.shared_ffn, Bias::IfStored);
  }
  return block;
}

}  // namespace nibble::model
