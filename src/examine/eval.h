// What `nibble eval` computes: perplexity of a model over a text, and its divergence from another
// checkpoint or mode. Takes token ids; apps joins text and tokenizer. Windows are independent: each
// starts with an empty cache, without a beginning-of-sequence token, and its mean is over the
// predictions of its tokens but the first.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "base/error.h"
#include "engine/config.h"
#include "quant/mode_rules.h"

namespace nibble::examine {

struct EvalOptions {
  int64_t window = 2048;
  int64_t windows = 1;
};

using EvalWindows = std::vector<std::vector<int32_t>>;  // each at least two tokens

// What every evaluation refuses about its windows, asked before hours of other work: nothing to
// predict, longer than the context of the checkpoint, tokens that it does not know.
Result<void> check_evaluation(const std::string& model_path, const EvalWindows& windows);

// The first windows of a text. Fails when it is too short.
Result<EvalWindows> cut_windows(std::span<const int32_t> tokens, const EvalOptions& options);

struct WindowScores {
  int64_t predictions = 0;
  double nll = 0;  // mean, natural logarithm
  double perplexity = 0;
  std::optional<double> kl;    // mean of KL(reference || model) per prediction
  std::optional<double> top1;  // share of predictions with the same most likely token
  std::optional<double> reference_perplexity;
};

struct EvalReport {
  std::string model_path;
  std::string quantization;
  std::string reference_path;  // empty without a reference
  std::string reference_quantization;
  int64_t window = 0;  // tokens of the longest
  std::vector<WindowScores> windows;
  WindowScores all;  // means over every prediction
};

// What one layer costs when it alone runs in W4A4, against all of them in W4A16.
struct LayerCost {
  int64_t layer = 0;
  double kl = 0;
};

struct PerLayerReport {
  std::string model_path;
  int64_t window = 0;  // tokens of the longest
  int64_t windows = 0;
  double kl_budget = 0;
  std::vector<LayerCost> layers;  // by layer
  Nvfp4ModeRules proposal;        // the cheapest layers whose costs sum to the budget in W4A4
};

// (tokens done, tokens in all)
using EvalProgress = std::function<void(int64_t, int64_t)>;

Result<EvalReport> evaluate_perplexity(const engine::EngineConfig& model,
                                       const EvalWindows& windows,
                                       const EvalProgress& progress = {});
// Both models are loaded at the same time; their vocabularies must have the same size.
Result<EvalReport> evaluate_divergence(const engine::EngineConfig& model,
                                       const engine::EngineConfig& reference,
                                       const EvalWindows& windows,
                                       const EvalProgress& progress = {});

// The logits of the reference that evaluate_per_layer() keeps, or of one window where that is more.
inline constexpr uint64_t kKeptLogitsBytes = uint64_t{1} << 30;
// How many of the windows from `begin` on that is.
size_t windows_at_once(const EvalWindows& windows,
                       size_t begin,
                       int64_t vocab_size,
                       uint64_t kept_bytes);

// Both modes of one checkpoint, layer by layer. The windows run once in W4A16 and once a layer;
// several windows whose logits do not fit go in rounds, each of which loads every layer's model.
// progress: steps of one layer over the windows of one round.
Result<PerLayerReport> evaluate_per_layer(const engine::EngineConfig& model,
                                          const EvalWindows& windows,
                                          double kl_budget,
                                          const EvalProgress& progress = {},
                                          uint64_t kept_bytes = kKeptLogitsBytes);

boost::json::value to_json(const PerLayerReport& report);
std::string to_text(const PerLayerReport& report);
// What --nvfp4-mode-file reads.
boost::json::object mode_file(const Nvfp4ModeRules& rules);
boost::json::value to_json(const EvalReport& report);
std::string to_text(const EvalReport& report);

}  // namespace nibble::examine
