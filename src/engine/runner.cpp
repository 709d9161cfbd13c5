#include "engine/runner.h"

#include <algorithm>

#include "base/check.h"
#include "tensor/device_api.h"

namespace nibble::engine {

namespace {

// Sizes of a batch without data: what a measuring forward sees.
model::BatchView shape_only(int64_t tokens, int64_t seqs, int64_t pages, Device device) {
  const auto ints = [device](Shape shape) { return Tensor(nullptr, DType::I32, shape, device); };
  model::BatchView view;
  view.tokens = ints({tokens});
  view.positions = ints({tokens});
  view.kv_slots = ints({tokens});
  view.page_table = ints({seqs, pages});
  view.q_begin = ints({seqs + 1});
  view.kv_lens = ints({seqs});
  view.rows = ints({tokens});
  return view;
}

}  // namespace

Runner::Runner(const model::Model& model, const RunnerLimits& limits, Stream stream)
    : model_(&model), limits_(limits), stream_(stream) {}

Result<Runner> Runner::create(const model::Model& model,
                              const RunnerLimits& limits,
                              Stream stream) {
  Runner runner(model, limits, stream);
  const SmallOps& ops = small_ops(stream.device.kind, model.facts().isa);
  const int64_t hidden = model.hidden_size();
  const int64_t vocab = model.facts().vocab_size;
  const int64_t most_tokens = std::max(limits.max_step_tokens, limits.max_seqs);

  // The same code as a real step, at every power of two: the largest batch need not want the most.
  Arena measure(stream.device);
  model::Context context{measure, stream, ops};
  const auto measure_step = [&](int64_t tokens) {
    const Tensor rows(nullptr, DType::BF16, Shape{tokens, hidden}, stream.device);
    for (const bool decode : {false, true}) {
      const int64_t seqs = std::min(tokens, limits.max_seqs);
      model::BatchView view = shape_only(tokens, seqs, limits.max_pages_per_seq, stream.device);
      view.decode = decode;
      model.forward(context, view, rows);
    }
    if (tokens <= kLogitBlock) {
      const Tensor out(nullptr, DType::F32, Shape{tokens, vocab}, stream.device);
      model.logits(context, rows, out);
    }
  };
  for (int64_t tokens = 1; tokens < most_tokens; tokens *= 2) {
    measure_step(tokens);
  }
  measure_step(most_tokens);
  measure_step(std::min(kLogitBlock, most_tokens));

  const int64_t ints =
      4 * most_tokens + 2 * limits.max_seqs + 1 + limits.max_seqs * limits.max_pages_per_seq;
  runner.scratch_ = TRY(Buffer::allocate("scratch", measure.peak_bytes(), stream));
  runner.inputs_ =
      TRY(Buffer::allocate("batch inputs", static_cast<size_t>(ints) * sizeof(int32_t), stream));
  runner.hidden_ =
      TRY(Buffer::allocate("hidden rows", static_cast<size_t>(most_tokens * hidden * 2), stream));
  runner.logits_ = TRY(
      Buffer::allocate("logits", static_cast<size_t>(kLogitBlock * vocab) * sizeof(float), stream));
  if (stream.device.kind != Device::Kind::Cpu) {
    runner.host_logits_.resize(static_cast<size_t>(kLogitBlock * vocab));
  }
  return runner;
}

std::vector<Runner::Wanted> Runner::fill_inputs(const Batch& batch, const KvPool& pool) {
  const int64_t tokens = batch.num_tokens();
  const auto seqs = static_cast<int64_t>(batch.slices.size());
  int64_t max_pages = 1;
  for (const Slice& slice : batch.slices) {
    max_pages = std::max(max_pages, pool.pages_of(slice.begin + slice.count));
  }
  CHECK(seqs <= limits_.max_seqs && max_pages <= limits_.max_pages_per_seq,
        "batch exceeds what the runner was sized for");

  std::vector<Wanted> wanted;
  std::vector<int32_t>& all = host_inputs_;
  all.clear();
  const auto push = [&all](int64_t value) { all.push_back(static_cast<int32_t>(value)); };
  for (const Slice& slice : batch.slices) {
    const auto first = slice.sequence->tokens.begin() + slice.begin;
    all.insert(all.end(), first, first + slice.count);
  }
  for (const Slice& slice : batch.slices) {
    for (int64_t i = 0; i < slice.count; ++i) {
      push(slice.begin + i);
    }
  }
  const int64_t page_size = pool.page_size();
  for (const Slice& slice : batch.slices) {
    for (int64_t position = slice.begin; position < slice.begin + slice.count; ++position) {
      const int64_t page = slice.sequence->pages[static_cast<size_t>(position / page_size)];
      push(page * page_size + position % page_size);
    }
  }
  for (const Slice& slice : batch.slices) {
    const int64_t used = pool.pages_of(slice.begin + slice.count);
    for (int64_t i = 0; i < max_pages; ++i) {
      push(i < used ? slice.sequence->pages[static_cast<size_t>(i)] : 0);
    }
  }
  int64_t row = 0;
  push(0);
  for (const Slice& slice : batch.slices) {
    row += slice.count;
    push(row);
  }
  for (const Slice& slice : batch.slices) {
    push(slice.begin + slice.count);
  }
  row = 0;
  for (size_t i = 0; i < batch.slices.size(); ++i) {
    const Slice& slice = batch.slices[i];
    const int64_t end = slice.begin + slice.count;
    const int64_t first_logit = slice.sequence->first_logit_position();
    for (int64_t position = slice.begin; position < end; ++position, ++row) {
      // Logits of the last prompt token are those of the first generated one.
      const bool prompt = first_logit >= 0 && position >= first_logit &&
                          position + 1 < slice.sequence->prompt_tokens;
      if (prompt || (slice.samples && position + 1 == end)) {
        wanted.push_back({i, position});
        push(row);
      }
    }
  }

  const DeviceApi& api = device_api(stream_.device);
  api.copy_to_device(inputs_.data(), all.data(), all.size() * sizeof(int32_t), stream_);
  size_t offset = 0;
  const auto take = [&](Shape shape) {
    const Tensor part = inputs_.view(DType::I32, shape, offset * sizeof(int32_t));
    offset += static_cast<size_t>(num_elements(shape));
    return part;
  };
  view_.tokens = take({tokens});
  view_.positions = take({tokens});
  view_.kv_slots = take({tokens});
  view_.page_table = take({seqs, max_pages});
  view_.q_begin = take({seqs + 1});
  view_.kv_lens = take({seqs});
  view_.rows = take({static_cast<int64_t>(wanted.size())});
  view_.decode = batch.decode;
  view_.kv = pool.layers();
  return wanted;
}

void Runner::run(const Batch& batch, const KvPool& pool, const Consume& consume) {
  const std::vector<Wanted> wanted = fill_inputs(batch, pool);
  const DeviceApi& api = device_api(stream_.device);
  Arena arena(scratch_.data(), scratch_.size_bytes(), stream_.device);
  model::Context context{arena, stream_, small_ops(stream_.device.kind, model_->facts().isa)};
  const auto rows = static_cast<int64_t>(wanted.size());
  const Tensor hidden = hidden_.view(DType::BF16, {rows, model_->hidden_size()});
  model_->forward(context, view_, hidden);

  const int64_t vocab = model_->facts().vocab_size;
  std::vector<LogitRow> block;
  for (int64_t begin = 0; begin < rows; begin += kLogitBlock) {
    const int64_t count = std::min(kLogitBlock, rows - begin);
    const Tensor logits = logits_.view(DType::F32, {count, vocab});
    model_->logits(context, hidden.rows(begin, begin + count), logits);
    const float* host = host_logits_.empty() ? logits.as<float>() : host_logits_.data();
    if (!host_logits_.empty()) {
      api.copy_to_host(
          host_logits_.data(), logits.data, static_cast<size_t>(logits.size_bytes()), stream_);
    }
    api.synchronize(stream_);
    block.clear();
    for (int64_t i = 0; i < count; ++i) {
      const Wanted& want = wanted[static_cast<size_t>(begin + i)];
      block.push_back(
          {want.slice, want.position, std::span(host + i * vocab, static_cast<size_t>(vocab))});
    }
    consume(block);
  }
  if (rows == 0) {
    api.synchronize(stream_);
  }
}

}  // namespace nibble::engine
