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
    runner.host_logits_ = TRY(PinnedMemory::allocate("logits", logit_bytes, stream.device));
  }
  if (ops.draw_tokens != nullptr) {
    const size_t answers = block * (sizeof(DrawResult) + kCandidateBytes);
    const size_t both = block * sizeof(DrawRequest) + answers;
    for (Flight& flight : runner.flights_) {
      flight.drawing = TRY(PinnedMemory::allocate("drawing", both, stream.device));
      if (device_api(stream.device).create_event != nullptr) {
        flight.arrived.emplace(stream.device);
      }
    }
    runner.drawing_ = TRY(Buffer::allocate(
        "drawing",
        answers + static_cast<size_t>(ops.draw_workspace_bytes(runner.logit_block_)),
        stream));
  }
  return runner;
}

Runner::Flight::Event::Event(Device of) : device(of), handle(device_api(of).create_event(of)) {}

Runner::Flight::Event& Runner::Flight::Event::operator=(Event&& other) noexcept {
  std::swap(device, other.device);
  std::swap(handle, other.handle);
  return *this;
}

Runner::Flight::Event::~Event() {
  if (handle != nullptr) {
    device_api(device).destroy_event(handle);
  }
}

size_t Runner::pinned_bytes() const {
  return host_logits_.size_bytes() + flights_[0].drawing.size_bytes() +
         flights_[1].drawing.size_bytes() + graphs_.pinned_bytes();
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
  view_.step_state = step_state();
  return wanted;
}

// ---- rows of logits ----

DrawResult* Runner::results_of(const Flight& flight) const {
  return reinterpret_cast<DrawResult*>(flight.requests() + logit_block_);
}

DrawCandidate* Runner::candidates_of(const Flight& flight) const {
  return reinterpret_cast<DrawCandidate*>(results_of(flight) + logit_block_);
}

Tensor Runner::device_results(int64_t rows) const {
  return drawing_.view(DType::U8, {rows * static_cast<int64_t>(sizeof(DrawResult))});
}

void Runner::send(Flight& flight,
                  std::span<const Wanted> wanted,
                  const Tensor& logits,
                  const Choose& choose) {
  const DeviceApi& api = device_api(stream_.device);
  const SmallOps& ops = small_ops(stream_.device.kind, model_->facts().isa);
  const int64_t rows = logits.shape[0];
  const int64_t vocab = logits.shape[1];
  flight.wanted.assign(wanted.begin(), wanted.end());
  flight.drawn.assign(wanted.size(), false);
  flight.logits = logits;
  bool any = false;
  bool filters = false;
  if (ops.draw_tokens != nullptr && choose) {
    std::fill_n(flight.requests(), rows, DrawRequest{});
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (const auto request = choose(wanted[i].slice, wanted[i].position)) {
        flight.requests()[wanted[i].row] = *request;
        flight.drawn[i] = true;
        any = true;
        filters = filters || request->candidates != 0;
      }
    }
  }
  flight.draws_all =
      any && !filters &&
      std::find(flight.drawn.begin(), flight.drawn.end(), false) == flight.drawn.end();
  if (any) {
    const auto block = static_cast<size_t>(logit_block_);
    const auto count = static_cast<size_t>(rows);
    const size_t candidates_at = block * sizeof(DrawResult);
    const size_t workspace_at = candidates_at + block * kCandidateBytes;
    const auto part = [this](size_t at, size_t size_bytes) {
      return drawing_.view(DType::U8, {static_cast<int64_t>(size_bytes)}, at);
    };
    const Tensor candidates = part(candidates_at, count * kCandidateBytes);
    // Requests come from where the host has them, and results go there, too; on the device these
    // stay for the step that goes on from this one.
    const auto of_host = [this](void* data, size_t size_bytes) {
      return Tensor(data, DType::U8, {static_cast<int64_t>(size_bytes)}, stream_.device);
    };
    ops.draw_tokens(logits,
                    of_host(flight.requests(), count * sizeof(DrawRequest)),
                    part(workspace_at, drawing_.size_bytes() - workspace_at),
                    device_results(rows),
                    of_host(results_of(flight), count * sizeof(DrawResult)),
                    filters ? candidates : Tensor{},
                    stream_);
    if (filters) {
      api.copy_to_host(candidates_of(flight), candidates.data, count * kCandidateBytes, stream_);
    }
  }
  for (size_t i = 0; i < wanted.size() && host_logits_.data() != nullptr; ++i) {
    if (!flight.drawn[i]) {
      const int64_t at = wanted[i].row * vocab;
      api.copy_to_host(reinterpret_cast<float*>(host_logits_.data()) + at,
                       logits.as<float>() + at,
                       static_cast<size_t>(vocab) * sizeof(float),
                       stream_);
    }
  }
}

void Runner::consume(const Flight& flight, const Consume& consume) {
  const DeviceApi& api = device_api(stream_.device);
  const int64_t vocab = flight.logits.shape[1];
  const auto* host = host_logits_.data() != nullptr
                         ? reinterpret_cast<const float*>(host_logits_.data())
                         : static_cast<const float*>(flight.logits.data);
  std::vector<LogitRow> block;
  for (size_t i = 0; i < flight.wanted.size(); ++i) {
    const Wanted& wanted = flight.wanted[i];
    LogitRow row{wanted.slice, wanted.position, {}, std::nullopt, {}, {}};
    if (flight.drawn[i]) {
      row.drawn = results_of(flight)[wanted.row];
      if (flight.requests()[wanted.row].candidates != 0) {
        row.candidates = std::span(candidates_of(flight) + wanted.row * kDrawCandidates,
                                   static_cast<size_t>(std::min(kDrawCandidates, vocab)));
        row.fetch = [this, &api, &flight, at = wanted.row * vocab, vocab] {
          auto* copy = reinterpret_cast<float*>(host_logits_.data()) + at;
          const auto bytes = static_cast<size_t>(vocab) * sizeof(float);
          api.copy_to_host(copy, flight.logits.as<float>() + at, bytes, stream_);
          api.synchronize(stream_);
          return std::span<const float>(copy, static_cast<size_t>(vocab));
        };
      }
    } else {
      row.logits = std::span(host + wanted.row * vocab, static_cast<size_t>(vocab));
    }
    block.push_back(row);
  }
  if (!block.empty()) {
    consume(block);
  }
}

// ---- steps ----

Result<void> Runner::prepare_decode_step(const KvPool& pool) {
  const int64_t bytes = model_->step_state_bytes();
  if (bytes == 0) {
    return {};
  }
  step_state_ = TRY(Buffer::allocate("decode step", static_cast<size_t>(bytes), stream_));
  model_->prepare_decode_step(step_state(), pool.layers(), stream_);
  return {};
}

Tensor Runner::step_state() const {
  return step_state_.view(DType::U8, {static_cast<int64_t>(step_state_.size_bytes())});
}

Result<void> Runner::capture_graphs(const std::vector<int64_t>& sizes, const KvPool& pool) {
  CHECK(sizes.empty() || sizes.back() <= logit_block_, "a captured step of too many rows");
  graphs_ = TRY(DecodeGraphs::capture(
      sizes, limits_.max_pages_per_seq, pool.layers(), stream_, [this](model::BatchView view) {
        view.step_state = step_state();
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

bool Runner::starts(const Batch& batch) const {
  return graphs_.takes(batch) && flights_[0].arrived.has_value();
}

void Runner::launch(const Batch& batch,
                    const KvPool& pool,
                    int turn,
                    const Choose& choose,
                    const DecodeGraphs::Feed* feed) {
  const SmallOps& ops = small_ops(stream_.device.kind, model_->facts().isa);
  graphs_.run(batch, pool, turn, feed, ops);
  std::vector<Wanted> wanted;
  for (size_t i = 0; i < batch.slices.size(); ++i) {
    if (batch.slices[i].samples) {
      wanted.push_back({i, batch.slices[i].begin, static_cast<int64_t>(i)});
    }
  }
  const auto rows = static_cast<int64_t>(batch.slices.size());
  Flight& flight = flights_[static_cast<size_t>(turn)];
  send(flight, wanted, logits_.view(DType::F32, {rows, model_->facts().vocab_size}), choose);
  flight.draws_all = flight.draws_all && wanted.size() == batch.slices.size();
  CHECK(flight.arrived.has_value(), "steps are only started where the device has events");
  device_api(stream_.device).record_event(flight.arrived->handle, stream_);
}

void Runner::start(const Batch& batch, const KvPool& pool, int turn, const Choose& choose) {
  launch(batch, pool, turn, choose, nullptr);
}

void Runner::start_after(const Batch& batch,
                         const KvPool& pool,
                         int turn,
                         const Choose& choose,
                         int after,
                         std::vector<int32_t> rows) {
  CHECK(turn != after && draws_all(after), "a step after one whose tokens the host chooses");
  const Flight& before = flights_[static_cast<size_t>(after)];
  const DecodeGraphs::Feed feed{device_results(before.logits.shape[0]), std::move(rows)};
  launch(batch, pool, turn, choose, &feed);
}

void Runner::finish(int turn, const Consume& consume) {
  const Flight& flight = flights_[static_cast<size_t>(turn)];
  CHECK(flight.arrived.has_value(), "no step was started");
  device_api(stream_.device).wait_event(flight.arrived->handle);
  this->consume(flight, consume);
}

void Runner::abandon() { device_api(stream_.device).synchronize(stream_); }

void Runner::run(const Batch& batch,
                 const KvPool& pool,
                 const Consume& consume,
                 const Choose& choose) {
  if (starts(batch)) {
    start(batch, pool, 0, choose);
    return finish(0, consume);
  }
  std::vector<Wanted> wanted = fill_inputs(batch, pool);
  Arena arena(scratch_.data(), scratch_.size_bytes(), stream_.device);
  model::Context context{arena, stream_, small_ops(stream_.device.kind, model_->facts().isa)};
  const auto rows = static_cast<int64_t>(wanted.size());
  const Tensor hidden = hidden_.view(DType::BF16, {rows, model_->hidden_size()});
  model_->forward(context, view_, hidden);

  const DeviceApi& api = device_api(stream_.device);
  Flight& flight = flights_[0];
  for (int64_t begin = 0; begin < rows; begin += logit_block_) {
    const int64_t count = std::min(logit_block_, rows - begin);
    const Tensor logits = logits_.view(DType::F32, {count, model_->facts().vocab_size});
    model_->logits(context, hidden.rows(begin, begin + count), logits);
    const auto block =
        std::span(wanted).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      block[static_cast<size_t>(i)].row = i;
    }
    send(flight, block, logits, choose);
    api.synchronize(stream_);
    this->consume(flight, consume);
  }
  if (rows == 0) {
    api.synchronize(stream_);
  }
}

}  // namespace nibble::engine
