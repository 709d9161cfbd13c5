#include "examine/eval.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include <fmt/format.h>

#include "base/check.h"
#include "engine/kv_pool.h"
#include "engine/model_options.h"
#include "engine/runner.h"
#include "model/model.h"
#include "tensor/device_api.h"

namespace nibble::examine {

namespace {

constexpr int64_t kChunk = 128;  // tokens a step: bounds the logits that are kept for comparison

// One model fed one window at a time.
class Fed {
 public:
  explicit Fed(StreamOwner stream) : stream_(std::move(stream)) {}
  static Result<std::unique_ptr<Fed>> load(const engine::EngineConfig& config, int64_t window) {
    auto fed = std::make_unique<Fed>(StreamOwner(config.device, engine::num_threads_of(config)));
    fed->model_ = TRY(
        model::load_model(config.model_path, engine::model_options(config), fed->stream_.get()));
    const model::ModelFacts& facts = fed->model_->facts();
    if (window > facts.context_length) {
      return invalid(fmt::format("expected at most the context length of {} tokens, found {}",
                                 facts.context_length,
                                 window),
                     "window");
    }
    const int64_t pages = (window + config.page_size - 1) / config.page_size;
    fed->pool_ = std::make_unique<engine::KvPool>(TRY(engine::KvPool::create(
        {facts.layers, facts.kv_heads, facts.head_dim, config.page_size, facts.kv_dtype},
        pages,
        fed->stream_.get())));
    fed->runner_ = std::make_unique<engine::Runner>(
        TRY(engine::Runner::create(*fed->model_, {kChunk, 1, pages}, fed->stream_.get())));
    return fed;
  }

  const model::ModelFacts& facts() const { return model_->facts(); }

  void begin(std::span<const int32_t> window) {
    pool_->give(sequence_.pages);
    sequence_ = engine::Sequence();
    sequence_.tokens.assign(window.begin(), window.end());
    sequence_.prompt_tokens = sequence_.num_tokens();
    sequence_.request.logprobs.prompt_start = 0;  // logits of every position but the last
    auto pages = pool_->take(pool_->pages_of(sequence_.num_tokens()));
    CHECK(pages.has_value(), "the pool was made for a window");
    sequence_.pages = *std::move(pages);
  }
  bool done() const { return sequence_.computed == sequence_.num_tokens(); }
  int64_t computed() const { return sequence_.computed; }

  // Feeds the next chunk; row(position, logits) for each of its predictions.
  template <typename Row>
  void step(Row&& row) {
    const int64_t count = std::min(kChunk, sequence_.num_tokens() - sequence_.computed);
    engine::Batch batch;
    batch.slices.push_back({&sequence_, sequence_.computed, count, false});
    runner_->run(batch, *pool_, [&](std::span<const engine::LogitRow> rows) {
      for (const engine::LogitRow& one : rows) {
        row(one.position, one.logits);
      }
    });
    sequence_.computed += count;
  }

 private:
  StreamOwner stream_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<engine::KvPool> pool_;
  std::unique_ptr<engine::Runner> runner_;
  engine::Sequence sequence_;
};

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

Result<void> check_input(std::span<const int32_t> tokens, const EvalOptions& options) {
  if (options.window < 2) {
    return invalid(fmt::format("expected at least 2, found {}", options.window), "window");
  }
  if (options.windows < 1) {
    return invalid(fmt::format("expected at least 1, found {}", options.windows), "windows");
  }
  if (static_cast<int64_t>(tokens.size()) / options.window < options.windows) {
    return invalid(fmt::format("{} windows of {} tokens need {} tokens, the text has {}",
                               options.windows,
                               options.window,
                               options.windows * options.window,
                               tokens.size()),
                   "text");
  }
  return {};
}

Result<void> check_vocabulary(const Fed& fed, std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) {
    if (token < 0 || token >= fed.facts().vocab_size) {
      return invalid(fmt::format("token {} is out of the model's vocabulary of {}; is it the "
                                 "tokenizer of this model?",
                                 token,
                                 fed.facts().vocab_size),
                     "text");
    }
  }
  return {};
}

struct Sums {
  int64_t predictions = 0;
  double nll = 0;
  double kl = 0;
  double reference_nll = 0;
  int64_t same = 0;

  void add(const Sums& other) {
    predictions += other.predictions;
    nll += other.nll;
    kl += other.kl;
    reference_nll += other.reference_nll;
    same += other.same;
  }
  WindowScores scores(bool with_reference) const {
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
};

// reference may be null.
Sums run_window(Fed& model,
                Fed* reference,
                std::span<const int32_t> window,
                const std::function<void(int64_t)>& progress) {
  Sums sums;
  std::vector<float> expected;  // the reference's rows of one chunk
  model.begin(window);
  if (reference != nullptr) {
    reference->begin(window);
  }
  while (!model.done()) {
    const int64_t chunk_begin = model.computed();
    expected.clear();
    if (reference != nullptr) {
      reference->step([&](int64_t /*position*/, std::span<const float> logits) {
        expected.insert(expected.end(), logits.begin(), logits.end());
      });
    }
    model.step([&](int64_t position, std::span<const float> logits) {
      const double log_total = log_sum_exp(logits);
      const auto next = static_cast<size_t>(window[static_cast<size_t>(position) + 1]);
      sums.nll += log_total - static_cast<double>(logits[next]);
      ++sums.predictions;
      if (reference != nullptr) {
        const auto row = static_cast<size_t>(position - chunk_begin);
        const auto other =
            std::span<const float>(expected).subspan(row * logits.size(), logits.size());
        const double reference_total = log_sum_exp(other);
        sums.reference_nll += reference_total - static_cast<double>(other[next]);
        sums.kl += divergence(other, reference_total, logits, log_total);
        sums.same += argmax(other) == argmax(logits) ? 1 : 0;
      }
    });
    progress(model.computed());
  }
  return sums;
}

Result<EvalReport> evaluate(const engine::EngineConfig& model_config,
                            const engine::EngineConfig* reference_config,
                            std::span<const int32_t> tokens,
                            const EvalOptions& options,
                            const EvalProgress& progress) {
  TRY(check_input(tokens, options));
  const std::unique_ptr<Fed> model = TRY(Fed::load(model_config, options.window));
  std::unique_ptr<Fed> reference;
  EvalReport report;
  report.options = options;
  report.model_path = model_config.model_path;
  report.quantization = model->facts().quantization;
  const auto used = tokens.first(static_cast<size_t>(options.window * options.windows));
  TRY(check_vocabulary(*model, used));
  if (reference_config != nullptr) {
    reference = TRY(Fed::load(*reference_config, options.window));
    report.reference_path = reference_config->model_path;
    report.reference_quantization = reference->facts().quantization;
    if (reference->facts().vocab_size != model->facts().vocab_size) {
      return invalid(fmt::format("expected the model's vocabulary of {} tokens, found {}",
                                 model->facts().vocab_size,
                                 reference->facts().vocab_size),
                     "reference");
    }
  }
  Sums all;
  for (int64_t i = 0; i < options.windows; ++i) {
    const auto window =
        used.subspan(static_cast<size_t>(i * options.window), static_cast<size_t>(options.window));
    const Sums sums = run_window(*model, reference.get(), window, [&](int64_t done) {
      if (progress) {
        progress(i * options.window + done, options.windows * options.window);
      }
    });
    report.windows.push_back(sums.scores(reference != nullptr));
    all.add(sums);
  }
  report.all = all.scores(reference != nullptr);
  return report;
}

boost::json::object scores_json(const WindowScores& scores) {
  boost::json::object object;
  object["predictions"] = scores.predictions;
  object["nll"] = scores.nll;
  object["ppl"] = scores.perplexity;
  if (scores.kl && scores.top1) {
    object["kl"] = *scores.kl;
    object["top1"] = *scores.top1;
    object["reference_ppl"] = scores.reference_perplexity.value_or(0);
  }
  return object;
}

std::string scores_text(const std::string& name, const WindowScores& scores) {
  std::string line = fmt::format("{:<10} {:>7} predictions  ppl {:9.4f}  nll {:.4f}",
                                 name,
                                 scores.predictions,
                                 scores.perplexity,
                                 scores.nll);
  if (scores.kl && scores.top1) {
    line += fmt::format("  kl {:.4f}  same top-1 {:.3f}", *scores.kl, *scores.top1);
  }
  return line + "\n";
}

}  // namespace

Result<EvalReport> evaluate_perplexity(const engine::EngineConfig& model,
                                       std::span<const int32_t> tokens,
                                       const EvalOptions& options,
                                       const EvalProgress& progress) {
  return evaluate(model, nullptr, tokens, options, progress);
}

Result<EvalReport> evaluate_divergence(const engine::EngineConfig& model,
                                       const engine::EngineConfig& reference,
                                       std::span<const int32_t> tokens,
                                       const EvalOptions& options,
                                       const EvalProgress& progress) {
  return evaluate(model, &reference, tokens, options, progress);
}

boost::json::value to_json(const EvalReport& report) {
  boost::json::object object;
  object["model"] = report.model_path;
  object["quantization"] = report.quantization;
  if (!report.reference_path.empty()) {
    object["reference"] = report.reference_path;
    object["reference_quantization"] = report.reference_quantization;
  }
  object["window"] = report.options.window;
  boost::json::array windows;
  for (const WindowScores& scores : report.windows) {
    windows.push_back(scores_json(scores));
  }
  object["windows"] = std::move(windows);
  object["all"] = scores_json(report.all);
  return object;
}

std::string to_text(const EvalReport& report) {
  std::string text = fmt::format("model      {} ({})\n", report.model_path, report.quantization);
  if (!report.reference_path.empty()) {
    text +=
        fmt::format("reference  {} ({})\n", report.reference_path, report.reference_quantization);
  }
  for (size_t i = 0; i < report.windows.size(); ++i) {
    text += scores_text(fmt::format("window {}", i), report.windows[i]);
  }
  if (report.windows.size() > 1) {
    text += scores_text("all", report.all);
  }
  return text;
}

}  // namespace nibble::examine
