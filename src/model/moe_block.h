// A mixture-of-experts block: router, chosen experts, shared experts. Built by Builder::moe(); the
// architecture files say what differs between families.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "model/layers.h"
#include "ops/experts.h"

namespace nibble::model {

// How a family names and computes its experts.
struct MoeTraits {
  std::string_view block = "mlp";  // the block's name under its layer
  std::string_view gate = "gate_proj";
  std::string_view up = "up_proj";
  std::string_view down = "down_proj";
  ExpertActivation activation = ExpertActivation::SwiGlu;
  RouterDesc router;
  int64_t ffn = 0;
  std::string_view ffn_key = "moe_intermediate_size";
  // A dense MLP that every token passes, 0: none. Its name under the block.
  int64_t shared_ffn = 0;
  std::string_view shared = "shared_experts";
};

// The experts of one layer: y[t] = sum over the chosen of weight * expert(x[t]).
class Experts {
 public:
  Experts() = default;
  Experts(const ParameterStore& store,
          ParameterStore::Id id,
          const ExpertsDesc& desc,
          const ExpertsBackend* backend)
      : store_(&store), id_(id), desc_(desc), backend_(backend) {}

  // x, out: [tokens, hidden] bf16; out may alias x. ids: [tokens, topk] i32; weights: the same f32.
  void operator()(Context& context,
                  const Tensor& x,
                  const Tensor& ids,
                  const Tensor& weights,
                  const Tensor& out) const;

 private:
  const ParameterStore* store_ = nullptr;
  ParameterStore::Id id_ = 0;
  ExpertsDesc desc_;
  const ExpertsBackend* backend_ = nullptr;
};

struct MoeBlock {
  Linear gate;  // [experts, hidden], logits in f32
  RouterDesc router_desc;
  const RouterBackend* router = nullptr;
  Experts experts;
  std::optional<SwiGluMlp> shared;

  // x, out: [tokens, hidden] bf16; out may alias x.
  void operator()(Context& context, const Tensor& x, const Tensor& out) const;
};

}  // namespace nibble::model
