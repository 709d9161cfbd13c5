#include "examine/eval_window.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "engine/model_options.h"

namespace nibble::examine {

namespace {

double log_sum_exp(std::span<const float> logits) {
  const auto largest = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(static_cast<double>(logit) - largest);
  }
  return largest + std::log(sum);
}

size_t argmax(std::span<const float> logits) {
  return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// KL(p || q) of the softmaxes of two rows.
double divergence(std::span<const float> p,
                  double log_total_p,
                  std::span<const float> q,
                  double log_total_q) {
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double log_p = static_cast<double>(p[i]) - log_total_p;
    const double log_q = static_cast<double>(q[i]) - log_total_q;
    sum += std::exp(log_p) * (log_p - log_q);
  }
  return sum;
}

}  // namespace

Result<std::unique_ptr<Fed>> Fed::load(const engine::EngineConfig& config, int64_t window) {
  auto fed = std::make_unique<Fed>(StreamOwner(config.device, engine::num_threads_of(config)));
  fed->model_ =
      TRY(model::load_model(config.model_path, engine::model_options(config), fed->stream_.get()));
  const model::ModelFacts& facts = fed->model_->facts();
  TRY(check_context(facts.context_length, window));
  const int64_t pages = (window + config.page_size - 1) / config.page_size;
  fed->pool_ = std::make_unique<engine::KvPool>(TRY(engine::KvPool::create(
      {facts.layers, facts.kv_heads, facts.head_dim, config.page_size, facts.kv_dtype},
      pages,
      fed->stream_.get())));
  fed->runner_ = std::make_unique<engine::Runner>(
      TRY(engine::Runner::create(*fed->model_, {kChunk, 1, pages}, fed->stream_.get())));
  return fed;
}

void Fed::begin(std::span<const int32_t> window) {
  pool_->give(sequence_.pages);
  sequence_ = engine::Sequence();
  sequence_.tokens.assign(window.begin(), window.end());
  sequence_.prompt_tokens = sequence_.num_tokens();
  sequence_.request.logprobs.prompt_start = 0;  // logits of every position but the last
  auto pages = pool_->take(pool_->pages_of(sequence_.num_tokens()));
  CHECK(pages.has_value(), "the pool was made for a window");
  sequence_.pages = *std::move(pages);
}

void ReferenceRows::clear() {
  logits_.clear();
  log_totals_.clear();
}

void ReferenceRows::add(std::span<const float> row) {
  logits_.insert(logits_.end(), row.begin(), row.end());
  log_totals_.push_back(log_sum_exp(row));
}

void Sums::add(const Sums& other) {
  predictions += other.predictions;
  nll += other.nll;
  kl += other.kl;
  reference_nll += other.reference_nll;
  same += other.same;
}
WindowScores Sums::scores(bool with_reference) const {
  const auto count = static_cast<double>(predictions);
  WindowScores scores;
  scores.predictions = predictions;
  scores.nll = nll / count;
  scores.perplexity = std::exp(scores.nll);
  if (with_reference) {
    scores.kl = kl / count;
    scores.reference_perplexity = std::exp(reference_nll / count);
    scores.top1 = static_cast<double>(same) / count;
  }
  return scores;
}

void add_prediction(std::span<const float> logits,
                    int32_t next,
                    const ReferenceRows* expected,
                    size_t at,
                    Sums& sums) {
  const auto token = static_cast<size_t>(next);
  const double log_total = log_sum_exp(logits);
  sums.nll += log_total - static_cast<double>(logits[token]);
  ++sums.predictions;
  if (expected != nullptr) {
    const std::span<const float> other = expected->row(at, logits.size());
    sums.reference_nll += expected->log_total(at) - static_cast<double>(other[token]);
    sums.kl += divergence(other, expected->log_total(at), logits, log_total);
    sums.same += argmax(other) == argmax(logits) ? 1 : 0;
  }
}

Result<EvalWindows> cut_windows(std::span<const int32_t> tokens, const EvalOptions& options) {
  if (options.window < 2) {
    return invalid(fmt::format("expected at least 2, found {}", options.window), "window");
  }
  if (options.windows < 1) {
    return invalid(fmt::format("expected at least 1, found {}", options.windows), "windows");
  }
  if (static_cast<int64_t>(tokens.size()) / options.window < options.windows) {
    return invalid(fmt::format("{} windows of {} tokens are too many, the text has {}",
                               options.windows,
                               options.window,
                               tokens.size()),
                   "text");
  }
  EvalWindows windows;
  for (int64_t i = 0; i < options.windows; ++i) {
    const auto window = tokens.subspan(static_cast<size_t>(i * options.window),
                                       static_cast<size_t>(options.window));
    windows.emplace_back(window.begin(), window.end());
  }
  return windows;
}

Result<void> check_windows(const EvalWindows& windows) {
  if (windows.empty()) {
    return invalid("there is nothing to predict", "text");
  }
  for (size_t i = 0; i < windows.size(); ++i) {
    if (windows[i].size() < 2) {
      return invalid(
          fmt::format(
              "sequence {} has {} tokens, a prediction needs at least 2", i + 1, windows[i].size()),
          "text");
    }
  }
  return {};
}

Result<void> check_vocabulary(int64_t vocab_size, const EvalWindows& windows) {
  for (const std::vector<int32_t>& window : windows) {
    for (const int32_t token : window) {
      if (token < 0 || token >= vocab_size) {
        return invalid(fmt::format("token {} is out of the model's vocabulary of {}; is it the "
                                   "tokenizer of this model?",
                                   token,
                                   vocab_size),
                       "text");
      }
    }
  }
  return {};
}

Result<void> check_context(int64_t context_length, int64_t window) {
  if (window > context_length) {
    return invalid(
        fmt::format(
            "expected at most the context length of {} tokens, found {}", context_length, window),
        "window");
  }
  return {};
}

int64_t longest(const EvalWindows& windows) {
  size_t most = 0;
  for (const std::vector<int32_t>& window : windows) {
    most = std::max(most, window.size());
  }
  return static_cast<int64_t>(most);
}

}  // namespace nibble::examine
