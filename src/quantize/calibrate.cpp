#include "quantize/calibrate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/cpu_info.h"
#include "base/number_formats.h"
#include "model/model.h"
#include "model/observer.h"
#include "quantize/attention_statistics.h"
#include "quantize/expert_statistics.h"
#include "tensor/device_api.h"

namespace nibble::quantize {

using checkpoint::Checkpoint;

namespace {

constexpr int64_t kPageSize = 16;
// Below this, nothing can be learned.
constexpr int64_t kFewestTokens = kLanes;

// H is summed in FP32: it overflows before the means do. Its diagonal bounds the rest of it.
Result<void> require_finite(const InputStatistics& input, const std::string& name) {
  bool finite = std::all_of(input.mean_square.begin(), input.mean_square.end(), [](float square) {
    return std::isfinite(square);
  });
  for (int64_t i = 0; i < input.hessian.n(); ++i) {
    finite = finite && std::isfinite(input.hessian.at(i, i));
  }
  if (!finite) {
    return invalid("the source model's own activations are not finite, or their squares are not",
                   name);
  }
  return {};
}

// Collects what the wanted groups read.
class Collector final : public model::Observer {
 public:
  Collector(const std::set<std::string, std::less<>>& wanted, Method method, const Compute& compute)
      : wanted_(wanted), method_(method), compute_(compute) {}

  void linear(const model::LinearSpec& spec, const Tensor& x) override {
    const std::string group = scale_group(spec.parts.front().module);
    if (wanted_.contains(group)) {
      std::vector<const uint16_t*> rows;
      rows.reserve(static_cast<size_t>(x.shape[0]));
      for (int64_t t = 0; t < x.shape[0]; ++t) {
        rows.push_back(x.as<uint16_t>() + t * x.stride[0]);
      }
      add(group, x.shape[1], rows);
    }
  }

  void attention(const model::LinearSpec& qkv,
                 const AttentionDesc& desc,
                 const Tensor& q,
                 const Tensor& k,
                 const Tensor& x) override {
    if (method_ != Method::Full || qkv.parts.size() != 3 ||
        !wanted_.contains(scale_group(qkv.parts[2].module))) {
      return;
    }
    std::vector<StatisticsCollector>& heads = value_heads_[qkv.parts[2].module];
    while (heads.size() < static_cast<size_t>(desc.kv_heads)) {
      heads.emplace_back(x.shape[1], true);
    }
    add_value_statistics(desc, q, k, x, compute_, heads);
  }

  void experts(const model::ExpertsSpec& spec, const Tensor& x, const Tensor& ids) override {
    experts_.add(spec, x, ids);
  }

  Result<LayerStatistics> finish(const Checkpoint& source) {
    LayerStatistics statistics;
    for (auto& [group, collector] : inputs_) {
      statistics.inputs[group] = collector.finish(compute_);
    }
    TRY(experts_.finish(source, wanted_, needs_hessian(method_), compute_, statistics));
    for (const auto& [group, input] : statistics.inputs) {
      TRY(require_finite(input, group));
    }
    for (auto& [module, heads] : value_heads_) {
      for (StatisticsCollector& head : heads) {
        InputStatistics input = head.finish(compute_);
        TRY(require_finite(input, module));
        statistics.value_heads[module].push_back(std::move(input.hessian));
      }
    }
    return statistics;
  }

 private:
  void add(const std::string& group, int64_t width, std::span<const uint16_t* const> rows) {
    const auto [at, fresh] = inputs_.try_emplace(group);
    if (fresh) {
      at->second = StatisticsCollector(width, needs_hessian(method_));
    }
    at->second.add(rows, compute_);
  }

  const std::set<std::string, std::less<>>& wanted_;
  Method method_;
  const Compute& compute_;
  std::map<std::string, StatisticsCollector> inputs_;
  ExpertTokens experts_;
  std::map<std::string, std::vector<StatisticsCollector>> value_heads_;
};

std::vector<int32_t> counting(int64_t count) {
  std::vector<int32_t> values;
  values.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<int32_t>(i));
  }
  return values;
}

Tensor view_of(std::vector<int32_t>& values, Shape shape) {
  return {values.data(), DType::I32, shape, Device{}};
}

}  // namespace

struct Calibrator::State {
  State(const Checkpoint& checkpoint, int num_threads)
      : source(checkpoint), stream(Device{}, num_threads) {}

  ThreadPool& pool() { return *static_cast<ThreadPool*>(stream.get().native); }
  model::ModelOptions options(const model::ModelSlice& slice) const {
    model::ModelOptions result;
    result.isa = static_cast<int>(detect_cpu_isa());
    result.page_size = kPageSize;
    result.context_length = segment;
    result.slice = slice;
    return result;
  }
  Tensor rows_of(int64_t index) {
    return {hidden.data() + index * segment * width, DType::BF16, Shape{segment, width}, Device{}};
  }
  Result<void> embed();

  const Checkpoint& source;
  StreamOwner stream;
  Method method = Method::Full;
  LargeBlocks* blocks = nullptr;
  std::vector<int32_t> tokens;  // whole segments
  int64_t segment = 0;
  int64_t width = 0;
  std::vector<uint16_t> hidden;  // [tokens, width] bf16
  Buffer cache;                  // K, then V, of one layer and one segment
};

Result<void> Calibrator::State::embed() {
  const model::ModelSlice slice{.embedding = true, .layer_begin = 0, .layer_end = 0, .head = false};
  const auto model = TRY(model::load_slice(source, options(slice), stream.get()));
  hidden.resize(tokens.size() * static_cast<size_t>(width));
  std::byte none{};  // embedding takes no scratch
  Arena arena(&none, 0, Device{});
  model::Context context{arena, stream.get(), small_ops(Device::Kind::Cpu, model->facts().isa)};
  for (int64_t i = 0; i < static_cast<int64_t>(tokens.size()) / segment; ++i) {
    const Tensor ids(tokens.data() + i * segment, DType::I32, Shape{segment}, Device{});
    model->embed(context, ids, rows_of(i));
  }
  return {};
}

Calibrator::Calibrator(std::unique_ptr<State> state) : state_(std::move(state)) {}
Calibrator::~Calibrator() = default;

Result<std::unique_ptr<Calibrator>> Calibrator::create(const Checkpoint& source,
                                                       std::span<const int32_t> tokens,
                                                       Method method,
                                                       int num_threads,
                                                       LargeBlocks* blocks) {
  const checkpoint::ModelConfig& config = source.config();
  auto state = std::make_unique<State>(source, num_threads);
  state->method = method;
  state->blocks = blocks;
  state->width = config.hidden_size;
  const auto count = static_cast<int64_t>(tokens.size());
  state->segment =
      std::min({kSegmentTokens, count, config.max_position_embeddings}) / kLanes * kLanes;
  if (state->segment < kFewestTokens) {
    return invalid("expected at least " + std::to_string(kFewestTokens) + " tokens, found " +
                       std::to_string(count),
                   "calibration text");
  }
  state->tokens.assign(tokens.begin(), tokens.begin() + count / state->segment * state->segment);
  for (const int32_t token : state->tokens) {
    if (token < 0 || token >= config.vocab_size) {
      return invalid("token " + std::to_string(token) + " is out of the model's vocabulary of " +
                         std::to_string(config.vocab_size) + "; is it the tokenizer of this model?",
                     "calibration text");
    }
  }
  const auto cache_bytes = static_cast<size_t>(2 * state->segment * config.num_key_value_heads *
                                               config.head_dim * size_of(DType::BF16));
  state->cache = TRY(Buffer::allocate("calibration cache", cache_bytes, state->stream.get()));
  TRY(state->embed());
  return std::make_unique<Calibrator>(std::move(state));
}

int64_t Calibrator::num_tokens() const { return static_cast<int64_t>(state_->tokens.size()); }

std::span<const uint16_t> Calibrator::hidden() const { return state_->hidden; }

Result<void> Calibrator::restore(std::vector<uint16_t> hidden) {
  if (hidden.size() != state_->hidden.size()) {
    return invalid("expected " + std::to_string(state_->hidden.size()) + " hidden values, found " +
                   std::to_string(hidden.size()));
  }
  state_->hidden = std::move(hidden);
  return {};
}

Result<std::optional<float>> Calibrator::head_input_amax() {
  State& s = *state_;
  const std::string name = "model.norm.weight";
  if (s.source.find(name) == nullptr) {
    return std::optional<float>();
  }
  auto weight = TRY(s.source.read_as(name, DType::BF16, Shape{s.width}, "hidden_size"));
  const Tensor norm(weight.data(), DType::BF16, Shape{s.width}, Device{});
  std::vector<uint16_t> normed(static_cast<size_t>(s.segment * s.width));
  const Tensor out(normed.data(), DType::BF16, Shape{s.segment, s.width}, Device{});
  const SmallOps& ops = small_ops(Device::Kind::Cpu, static_cast<int>(detect_cpu_isa()));
  float amax = 0.0f;
  for (int64_t i = 0; i < num_tokens() / s.segment; ++i) {
    ops.rms_norm(s.rows_of(i),
                 norm,
                 static_cast<float>(s.source.config().rms_norm_eps),
                 out,
                 s.stream.get());
    for (const uint16_t value : normed) {
      const float magnitude = std::fabs(bf16_to_float(value));
      if (!std::isfinite(magnitude)) {
        return invalid("the source model's own activations are not finite", "lm_head");
      }
      amax = std::max(amax, magnitude);
    }
  }
  return amax;
}

Result<LayerStatistics> Calibrator::run_layer(int64_t layer,
                                              const std::set<std::string, std::less<>>& wanted,
                                              const std::function<void(int64_t)>& progress) {
  State& s = *state_;
  const model::ModelSlice slice{
      .embedding = false, .layer_begin = layer, .layer_end = layer + 1, .head = false};
  const auto model = TRY(model::load_slice(s.source, s.options(slice), s.stream.get()));
  const checkpoint::ModelConfig& config = s.source.config();
  const int64_t pages = s.segment / kPageSize;
  const Shape cache_shape{pages, kPageSize, config.num_key_value_heads, config.head_dim};
  const model::KvLayer cache{s.cache.view(DType::BF16, cache_shape),
                             s.cache.view(DType::BF16, cache_shape, s.cache.size_bytes() / 2)};
  std::vector<int32_t> positions = counting(s.segment);
  std::vector<int32_t> page_table = counting(pages);
  std::vector<int32_t> borders{0, static_cast<int32_t>(s.segment)};
  std::vector<int32_t> lengths{static_cast<int32_t>(s.segment)};
  model::BatchView batch;
  batch.tokens = view_of(positions, {s.segment});
  batch.positions = view_of(positions, {s.segment});
  batch.kv_slots = view_of(positions, {s.segment});
  batch.page_table = view_of(page_table, {1, pages});
  batch.q_begin = view_of(borders, {2});
  batch.kv_lens = view_of(lengths, {1});
  batch.kv = std::span(&cache, 1);

  const SmallOps& ops = small_ops(Device::Kind::Cpu, model->facts().isa);
  Arena measure(Device{});
  model::Context measuring{measure, s.stream.get(), ops};
  model->run_layers(measuring, batch, s.rows_of(0));
  const Buffer scratch =
      TRY(Buffer::allocate("calibration scratch", measure.peak_bytes(), s.stream.get()));

  const Compute compute{panel_kernels(), s.pool(), s.blocks};
  Collector collector(wanted, s.method, compute);
  for (int64_t i = 0; i < num_tokens() / s.segment; ++i) {
    Arena arena(scratch.data(), scratch.size_bytes(), Device{});
    model::Context context{arena, s.stream.get(), ops, wanted.empty() ? nullptr : &collector};
    model->run_layers(context, batch, s.rows_of(i));
    if (progress) {
      progress((i + 1) * s.segment);
    }
  }
  return collector.finish(s.source);
}

}  // namespace nibble::quantize
