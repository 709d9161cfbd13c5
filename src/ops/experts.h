// Mixture of experts: route() picks experts for each token, an ExpertsBackend runs them.
//   y[t] = sum over j < topk of weights[t, j] * expert[ids[t, j]](x[t]), j ascending
//   expert(x) = down(act(gate(x), up(x))): SwiGLU, or down(relu(up(x))^2) without a gate
// The sum is in FP32 with one rounding at the end; gate, up and the activation are rounded to bf16
// as in the dense layers. Contract as for GEMM: a token's bits do not depend on the other tokens,
// on the chunking or on the thread count.
// Shared experts are ordinary dense MLPs: the model adds them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "ops/gemm.h"
#include "quant/quant_mode.h"
#include "tensor/tensor.h"

namespace nibble {

// ---- router ----

enum class RouterScore : uint8_t { Softmax, Sigmoid };

struct RouterDesc {
  int64_t experts = 0;
  int64_t topk = 0;
  RouterScore score = RouterScore::Softmax;
  bool normalize = false;  // weights of the chosen sum to 1 (norm_topk_prob)
  float scale = 1.0f;      // routed_scaling_factor, after normalizing
  // DeepSeek: experts in `groups` equal groups, only the best `topk_groups` of them are eligible. A
  // group's score is its best expert's, or the sum of its two best with a bias.
  int64_t groups = 1;
  int64_t topk_groups = 1;
};

// logits: [tokens, experts] f32. bias: [experts] f32, added for the choice only, or empty.
// ids: [tokens, topk] i32, best first, equal scores by lower id; weights: [tokens, topk] f32.
struct RouterBackend {
  Device::Kind device;
  void (*route)(const RouterDesc&,
                const Tensor& logits,
                const Tensor& bias,
                const Tensor& ids,
                const Tensor& weights,
                Stream);
};
const RouterBackend& router(Device::Kind device);
const RouterBackend* find_router(Device::Kind device);  // nullptr: this build has none

// ---- experts ----

enum class ExpertActivation : uint8_t { SwiGlu, Relu2 };  // Relu2 has no gate

struct ExpertsDesc {
  Device::Kind device = Device::Kind::Cpu;
  int isa = 0;
  QuantMode mode;
  int64_t experts = 0;
  int64_t topk = 0;
  int64_t hidden = 0;
  int64_t ffn = 0;
  ExpertActivation activation = ExpertActivation::SwiGlu;
  bool pre_quant_scale = false;     // any expert carries one; the others get ones
  bool static_input_scale = false;  // W4A4: stored; an expert without one is quantized per token
  bool operator==(const ExpertsDesc&) const = default;
};

// One expert as stored; the gate is empty without SwiGLU. Each part keeps its own global, input and
// pre-quant scale.
struct ExpertParts {
  LinearPart gate;  // [ffn, hidden]
  LinearPart up;    // [ffn, hidden]
  LinearPart down;  // [hidden, ffn]
};

struct ExpertsArgs {
  Tensor x;                        // [tokens, hidden] bf16
  Tensor ids;                      // [tokens, topk] i32
  Tensor weights;                  // [tokens, topk] f32
  Tensor y;                        // [tokens, hidden] bf16, overwritten; may alias x
  std::span<const Tensor> packed;  // the slots that pack() wrote
  Tensor workspace;                // u8 [workspace_bytes(desc, tokens)]
};

struct ExpertsBackend {
  std::string_view name;
  std::string_view family;  // the --moe-runner-backend value that asks for it
  bool opt_in;
  Support (*supports)(const ExpertsDesc&);
  std::vector<Tensor> (*packed_layout)(const ExpertsDesc&);  // first dimension: experts
  // Called once for every expert.
  void (*pack)(const ExpertsDesc&,
               int64_t expert,
               const ExpertParts& parts,
               std::span<const Tensor> slots,
               Stream);
  size_t (*workspace_bytes)(const ExpertsDesc&, int64_t max_tokens);
  void (*run)(const ExpertsDesc&, const ExpertsArgs&, Stream);
};

std::span<const ExpertsBackend* const> experts_backends();  // ops/experts_list.cpp
Result<const ExpertsBackend*> select_experts(const ExpertsDesc& desc, std::string_view wanted);

std::string describe(
    const ExpertsDesc& desc);  // "w4a16 128 experts (8 a token) 2048x768 on cpu avx2"

}  // namespace nibble
