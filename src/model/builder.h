// Builds a model from a checkpoint: declares parameters, resolves mode and kernel of every linear
// (once, with the reason kept for the table) and hands out layers. The first error is kept and
// reported by finish(), so architecture files read as a list of what the model consists of.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/name_pattern.h"
#include "checkpoint/unread_weights.h"
#include "model/layers.h"
#include "model/model.h"
#include "model/moe_block.h"

namespace nibble::model {

enum class Bias : uint8_t { IfStored, Required };

class Builder {
 public:
  Builder(const checkpoint::Checkpoint& checkpoint, const ModelOptions& options);

  const checkpoint::ModelConfig& config() const { return checkpoint_.config(); }
  const ModelOptions& options() const { return options_; }
  const ModelSlice& slice() const { return options_.slice; }
  int64_t context_length() const { return context_length_; }
  const ParameterStore& store() const { return *store_; }

  // gated: two parts, gate and up; the product gives silu(gate) * up where its kernel can
  // (Linear::epilogue() says). name: of the fused whole. parts: what the checkpoint calls its
  // pieces, stacked along n.
  Linear linear(const std::string& name,
                std::vector<PartSpec> parts,
                int64_t k,
                Bias bias = Bias::IfStored,
                DType out = DType::BF16,
                bool gated = false);
  Norm norm(const std::string& module, int64_t width, std::string_view expected_from);
  Embedding embedding(const std::string& module);
  // The output head, or the embedding matrix where the config ties them.
  Linear head(const std::string& module, const std::string& embedding_module);
  // The standard attention of a layer; biases as `bias` says for q, k, v and `o_bias` for o.
  Attention attention(
      const std::string& prefix, size_t layer, bool qk_norm, Bias bias, Bias o_bias);
  SwiGluMlp swiglu(const std::string& prefix, int64_t intermediate, Bias bias);
  // The mixture of experts under `layer` ("model.layers.0").
  MoeBlock moe(const std::string& layer, const MoeTraits& traits);

  // For the families whose config can ask for windows: fails when it does.
  void refuse_sliding_window();
  void fail(Error error);  // keeps the first
  Result<void> finish() const;
  // For whole models: fails when a layer of the checkpoint has weights that none of the above
  // reads.
  Result<void> refuse_unread_weights() const;
  std::unique_ptr<ParameterStore> take_store() { return std::move(store_); }
  std::vector<std::string> layer_table() const;
  std::string quantization() const;  // "nvfp4 (w4a16)", "bf16"
  enum class Op : uint8_t { Fp4Gemm, Experts, Attention };
  std::string kernels(Op op) const;  // registry names of those chosen, "a, b"

 private:
  struct Row {
    std::string pattern, format, mode, kernel, why;
    int count = 0;
    bool operator==(const Row& other) const {
      return pattern == other.pattern && format == other.format && mode == other.mode &&
             kernel == other.kernel && why == other.why;
    }
  };
  struct ModeChoice {
    QuantMode mode;
    std::string why;
  };
  // The one place where a stored form and the wanted mode become what is computed.
  static ModeChoice choose_mode(checkpoint::LinearInfo::Format format, Nvfp4Mode wanted);
  // What the rules, else the options, want of a linear.
  Nvfp4Mode wanted_mode(const std::string& name);
  static std::string pattern_of(std::string_view name);
  struct Resolved {
    GemmDesc desc;
    const GemmBackend* backend;
    bool bias;
  };
  Result<Resolved> resolve(const std::string& name,
                           const std::vector<PartSpec>& parts,
                           int64_t k,
                           Bias bias,
                           DType out,
                           bool gated);
  Result<Experts> resolve_experts(const std::string& name, const MoeTraits& traits);
  void add_row(Row row);
  void note_kernel(Op op, std::string_view name) {
    kernels_[static_cast<size_t>(op)].emplace(name);
  }
  // Before the config's sizes become memory: what is stored must be there and have that shape.
  void expect_stored(const std::string& name, const Shape& shape, std::string_view expected_from);
  std::optional<ParameterStore::Id> declare_rope_table();

  const checkpoint::Checkpoint& checkpoint_;
  ModelOptions options_;
  int64_t context_length_ = 0;
  std::unique_ptr<ParameterStore> store_ = std::make_unique<ParameterStore>();
  std::optional<ParameterStore::Id> rope_table_;
  std::optional<ParameterStore::Id> attention_counters_;
  struct Rule {
    checkpoint::NamePattern pattern;
    const Nvfp4ModeRule* rule;
    bool used = false;
  };
  std::vector<Rule> rules_;  // options_.nvfp4_rules, compiled
  std::optional<Error> error_;
  checkpoint::TensorNames read_;  // weights and biases
  std::vector<Row> rows_;
  std::array<std::set<std::string, std::less<>>, 3> kernels_;  // by Op
};

}  // namespace nibble::model
