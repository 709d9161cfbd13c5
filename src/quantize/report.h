// What quantization did to each linear.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <boost/json.hpp>

#include "base/error.h"
#include "quantize/method.h"

namespace nibble::quantize {

struct TensorReport {
  std::string module;
  int64_t n = 0;
  int64_t k = 0;
  float amax = 0;              // of the tensor itself
  float global_scale = 0;      // of its group
  double relative_error = 0;   // ||w - q|| / ||w||, Frobenius norms
  double max_error = 0;        // largest |w - q|
  int64_t zero_blocks = 0;     // blocks of 16 zeros
  int64_t smallest_scale = 0;  // other blocks at the smallest block scale: values lost to underflow
  std::array<int64_t, 16> scale_exponents{};  // blocks by exponent field of their E4M3 scale
  Method method = Method::Max;  // of this tensor; a fallback may differ from the recipe
  // In FP8 the errors and the scale are of that form, the objective still of NVFP4 where that was
  // tried.
  Precision precision = Precision::Nvfp4;
  // With calibration: e^T H e / tr(W H W^T) with H = X^T X / tokens, e the rounding error.
  std::optional<double> relative_objective;
  std::optional<double> descent_gain;  // the objective after coordinate descent over before
  std::optional<float> alpha;          // exponent of the folded channel scales
  std::optional<float> input_scale;    // stored for W4A4
  int64_t calibration_tokens = 0;      // that its input saw
};

// Of one kind of work, all threads together.
struct Spent {
  double seconds = 0;
  double cpu_seconds = 0;
};

// How a model predicts a text, beside its source. Means over all predictions.
struct Evaluation {
  std::string model;  // "source", "four-over-six while loading", "result"
  double perplexity = 0;
  double kl = 0;    // of the source's distributions to this model's
  double top1 = 1;  // share of predictions with the same most likely token
};

struct QuantizeReport {
  std::string source;
  Method method = Method::Max;
  int64_t calibration_tokens = 0;
  std::vector<TensorReport> tensors;                      // sorted by module
  std::vector<std::pair<std::string, std::string>> kept;  // linear that stays, reason
  uint64_t source_bytes = 0;
  uint64_t output_bytes = 0;
  int num_shards = 0;
  double seconds = 0;
  // Parts of it; a run that went on where another had stopped counts its own share only.
  Spent calibration;            // the forward and the statistics: grows with the tokens
  Spent rounding;               // choosing folds, scales and codes: grows with the weights
  int64_t rounded_weights = 0;  // in that time
  int64_t peak_bytes = 0;       // largest resident size of the process so far

  std::string evaluation_text;  // the file; empty: not evaluated
  int64_t evaluation_tokens = 0;
  std::vector<Evaluation> evaluations;  // before and after

  int64_t num_weights() const;
  double mean_relative_error() const;  // 0 without tensors
};

boost::json::object to_json(const TensorReport& report);
boost::json::object to_json(const QuantizeReport& report);
// What to_json() wrote; `where` names the source in errors.
Result<TensorReport> parse_tensor_report(const boost::json::value& value, const std::string& where);

// A few lines for the terminal: sizes, mean error, the worst tensors, what stayed and why.
std::string summary_text(const QuantizeReport& report);

}  // namespace nibble::quantize
