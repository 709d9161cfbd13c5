#include "engine/runner.h"

#include <algorithm>

#include "base/check.h"
#include "tensor/device_api.h"

namespace nibble::engine {

namespace {

// The largest captured step: its logits are kept whole.
constexpr int64_t kMostCapturedRows = 512;
constexpr size_t kCandidateBytes = kDrawCandidates * sizeof(DrawCandidate);  // of a row

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

  const bool is_host = stream.device.kind == Device::Kind::Cpu;
  if (!is_host) {  // a captured step has the logits of all its rows
    runner.logit_block_ = std::clamp(limits.max_seqs, kLogitBlock, kMostCapturedRows);
  }

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
    if (tokens <= runner.logit_block_) {
      const Tensor out(nullptr, DType::F32, Shape{tokens, vocab}, stream.device);
      model.logits(context, rows, out);
    }
  };
  for (int64_t tokens = 1; tokens < most_tokens; tokens *= 2) {
    measure_step(tokens);
  }
  measure_step(most_tokens);
  measure_step(std::min(runner.logit_block_, most_tokens));

  const int64_t ints =
      4 * most_tokens + 2 * limits.max_seqs + 1 + limits.max_seqs * limits.max_pages_per_seq;
  runner.scratch_ = TRY(Buffer::allocate("scratch", measure.peak_bytes(), stream));
  runner.inputs_ =
      TRY(Buffer::allocate("batch inputs", static_cast<size_t>(ints) * sizeof(int32_t), stream));
  runner.hidden_ =
      TRY(Buffer::allocate("hidden rows", static_cast<size_t>(most_tokens * hidden * 2), stream));
  const auto block = static_cast<size_t>(runner.logit_block_);
  const size_t logit_bytes = block * static_cast<size_t>(vocab) * sizeof(float);
  runner.logits_ = TRY(Buffer::allocate("logits", logit_bytes, stream));
  if (!is_host) {
    runner.host_logits_ = TRY(runner.pin(logit_bytes));
  }
  if (ops.draw_tokens != nullptr) {
    const size_t both = block * (sizeof(DrawRequest) + sizeof(DrawResult) + kCandidateBytes);
    runner.host_drawing_ = TRY(runner.pin(both));
    runner.drawing_ = TRY(
        Buffer::allocate("drawing",
                         both + static_cast<size_t>(ops.draw_workspace_bytes(runner.logit_block_)),
                         stream));
  }
  return runner;
}

void Runner::Unpin::operator()(std::byte* memory) const {
  device_api(device).release_pinned(memory);
}

Result<Runner::Pinned> Runner::pin(size_t size_bytes) const {
  void* memory = device_api(stream_.device).allocate_pinned(size_bytes);
  if (memory == nullptr) {
    return fail(ErrorCode::Overloaded,
                "not enough host memory: " + std::to_string(size_bytes) + " bytes wanted",
                "pinned buffers");
  }
  return Pinned(static_cast<std::byte*>(memory), Unpin{stream_.device});
}

size_t Runner::output_bytes() const {
  return hidden_.size_bytes() + logits_.size_bytes() + drawing_.size_bytes();
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
        wanted.push_back({i, position, 0});
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

void Runner::hand_out(std::span<const Wanted> wanted,
                      const Tensor& logits,
                      const Consume& consume,
                      const Choose& choose) {
  const DeviceApi& api = device_api(stream_.device);
  const SmallOps& ops = small_ops(stream_.device.kind, model_->facts().isa);
  const int64_t rows = logits.shape[0];
  const int64_t vocab = logits.shape[1];
  const bool draws = ops.draw_tokens != nullptr && choose;
  std::vector<bool> drawn(wanted.size(), false);
  auto* requests = reinterpret_cast<DrawRequest*>(host_drawing_.get());
  auto* results = reinterpret_cast<DrawResult*>(requests + (draws ? logit_block_ : 0));
  const auto* candidates =
      reinterpret_cast<const DrawCandidate*>(results + (draws ? logit_block_ : 0));
  bool any = false;
  bool filters = false;
  if (draws) {
    std::fill_n(requests, rows, DrawRequest{});
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (const auto request = choose(wanted[i].slice, wanted[i].position)) {
        requests[wanted[i].row] = *request;
        drawn[i] = true;
        any = true;
        filters = filters || request->candidates != 0;
      }
    }
  }
  if (any) {
    const auto block = static_cast<size_t>(logit_block_);
    const auto count = static_cast<size_t>(rows);
    const size_t results_at = block * sizeof(DrawRequest);
    const size_t candidates_at = results_at + block * sizeof(DrawResult);
    const size_t workspace_at = candidates_at + block * kCandidateBytes;
    const auto part = [this](size_t at, size_t size_bytes) {
      return drawing_.view(DType::U8, {static_cast<int64_t>(size_bytes)}, at);
    };
    const Tensor device_results = part(results_at, count * sizeof(DrawResult));
    api.copy_to_device(drawing_.data(), requests, count * sizeof(DrawRequest), stream_);
    ops.draw_tokens(logits,
                    part(0, count * sizeof(DrawRequest)),
                    part(workspace_at, drawing_.size_bytes() - workspace_at),
                    device_results,
                    filters ? part(candidates_at, count * kCandidateBytes) : Tensor{},
                    stream_);
    if (filters) {
      api.copy_to_host(const_cast<DrawCandidate*>(candidates),
                       part(candidates_at, count * kCandidateBytes).data,
                       count * kCandidateBytes,
                       stream_);
    }
    api.copy_to_host(results, device_results.data, count * sizeof(DrawResult), stream_);
  }
  const auto* host = static_cast<const float*>(logits.data);
  if (host_logits_ != nullptr) {
    auto* copies = reinterpret_cast<float*>(host_logits_.get());
    host = copies;
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (!drawn[i]) {
        const int64_t at = wanted[i].row * vocab;
        api.copy_to_host(copies + at,
                         logits.as<float>() + at,
                         static_cast<size_t>(vocab) * sizeof(float),
                         stream_);
      }
    }
  }
  api.synchronize(stream_);
  std::vector<LogitRow> block;
  for (size_t i = 0; i < wanted.size(); ++i) {
    LogitRow row{wanted[i].slice, wanted[i].position, {}, std::nullopt, {}, {}};
    if (drawn[i]) {
      row.drawn = results[wanted[i].row];
      if (requests[wanted[i].row].candidates != 0) {
        row.candidates = std::span(candidates + wanted[i].row * kDrawCandidates,
                                   static_cast<size_t>(std::min(kDrawCandidates, vocab)));
        row.fetch = [this, &api, &logits, at = wanted[i].row * vocab, vocab] {
          auto* copy = reinterpret_cast<float*>(host_logits_.get()) + at;
          const auto bytes = static_cast<size_t>(vocab) * sizeof(float);
          api.copy_to_host(copy, logits.as<float>() + at, bytes, stream_);
          api.synchronize(stream_);
          return std::span<const float>(copy, static_cast<size_t>(vocab));
        };
      }
    } else {
      row.logits = std::span(host + wanted[i].row * vocab, static_cast<size_t>(vocab));
    }
    block.push_back(row);
  }
  consume(block);
}

Result<void> Runner::capture_graphs(const std::vector<int64_t>& sizes, const KvPool& pool) {
  CHECK(sizes.empty() || sizes.back() <= logit_block_, "a captured step of too many rows");
  graphs_ = TRY(DecodeGraphs::capture(
      sizes, limits_.max_pages_per_seq, pool.layers(), stream_, [this](const auto& view) {
        Arena arena(scratch_.data(), scratch_.size_bytes(), stream_.device);
        model::Context context{arena, stream_, small_ops(stream_.device.kind, model_->facts().isa)};
        const int64_t rows = view.rows.shape[0];
        const Tensor hidden = hidden_.view(DType::BF16, {rows, model_->hidden_size()});
        model_->forward(context, view, hidden);
        model_->logits(
            context, hidden, logits_.view(DType::F32, {rows, model_->facts().vocab_size}));
      }));
  return {};
}

void Runner::run_captured(const Batch& batch,
                          const KvPool& pool,
                          const Consume& consume,
                          const Choose& choose) {
  graphs_.run(batch, pool);
  std::vector<Wanted> wanted;
  for (size_t i = 0; i < batch.slices.size(); ++i) {
    if (batch.slices[i].samples) {
      wanted.push_back({i, batch.slices[i].begin, static_cast<int64_t>(i)});
    }
  }
  const auto rows = static_cast<int64_t>(batch.slices.size());
  const Tensor logits = logits_.view(DType::F32, {rows, model_->facts().vocab_size});
  if (wanted.empty()) {
    device_api(stream_.device).synchronize(stream_);
  } else {
    hand_out(wanted, logits, consume, choose);
  }
}

void Runner::run(const Batch& batch,
                 const KvPool& pool,
                 const Consume& consume,
                 const Choose& choose) {
  if (graphs_.takes(batch)) {
    return run_captured(batch, pool, consume, choose);
  }
  std::vector<Wanted> wanted = fill_inputs(batch, pool);
  Arena arena(scratch_.data(), scratch_.size_bytes(), stream_.device);
  model::Context context{arena, stream_, small_ops(stream_.device.kind, model_->facts().isa)};
  const auto rows = static_cast<int64_t>(wanted.size());
  const Tensor hidden = hidden_.view(DType::BF16, {rows, model_->hidden_size()});
  model_->forward(context, view_, hidden);

  for (int64_t begin = 0; begin < rows; begin += logit_block_) {
    const int64_t count = std::min(logit_block_, rows - begin);
    const Tensor logits = logits_.view(DType::F32, {count, model_->facts().vocab_size});
    model_->logits(context, hidden.rows(begin, begin + count), logits);
    const auto block =
        std::span(wanted).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      block[static_cast<size_t>(i)].row = i;
    }
    hand_out(block, logits, consume, choose);
  }
  if (rows == 0) {
    device_api(stream_.device).synchronize(stream_);
  }
}

}  // namespace nibble::engine
