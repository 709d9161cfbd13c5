// Runs one batch: device inputs at fixed addresses, the model's forward (captured, for decode steps
// on devices with graphs), the logits of the rows that are wanted, handed out on the host a block
// at a time, or tokens that the device drew from them. Owns scratch memory and graphs, nothing
// else.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/batch.h"
#include "engine/decode_graphs.h"
#include "engine/kv_pool.h"
#include "model/model.h"
#include "tensor/buffer.h"
#include "tensor/pinned_memory.h"

namespace nibble::engine {

struct RunnerLimits {
  int64_t max_step_tokens = 512;
  int64_t max_seqs = 64;
  int64_t max_pages_per_seq = 0;
};

// A row of logits: of the token at `position` of slice `slice`.
struct LogitRow {
  size_t slice = 0;
  int64_t position = 0;
  std::span<const float> logits;    // [vocab]; empty when the device drew
  std::optional<DrawResult> drawn;  // by the device, as Choose asked
  // Where the request was for candidates: these, in any order; `fetch` gives the whole row when
  // they are not enough.
  std::span<const DrawCandidate> candidates;
  std::function<std::span<const float>()> fetch;
};

class Runner {
 public:
  static Result<Runner> create(const model::Model& model,
                               const RunnerLimits& limits,
                               Stream stream);

  // Calls `consume` with every wanted row, blocks of rows at a time, in order: prompt positions
  // from first_logit_position() on, and the last token of slices that sample.
  using Consume = std::function<void(std::span<const LogitRow>)>;
  // What the device may draw for the token at `position` of slice `slice`; nullopt: the logits are
  // wanted on the host. Not asked where the device cannot draw.
  using Choose = std::function<std::optional<DrawRequest>(size_t slice, int64_t position)>;
  void run(const Batch& batch,
           const KvPool& pool,
           const Consume& consume,
           const Choose& choose = {});

  // The same in two halves for batches that starts() names, so that the host works while the device
  // computes. After start() either finish(), with its turn, or another start() that goes on from
  // its result: the tokens of that batch are those that turn `after` draws, row rows[i] of it for
  // slice i. Turns are 0 and 1, in turn; at most two are under way.
  bool starts(const Batch& batch) const;
  void start(const Batch& batch, const KvPool& pool, int turn, const Choose& choose);
  void start_after(const Batch& batch,
                   const KvPool& pool,
                   int turn,
                   const Choose& choose,
                   int after,
                   std::vector<int32_t> rows);
  // Whether the device draws every token of it and needs nobody's help: others can go on from it.
  bool draws_all(int turn) const { return flights_[static_cast<size_t>(turn)].draws_all; }
  void finish(int turn, const Consume& consume);
  // Waits for what is under way, whose results nobody wants any more.
  void abandon();

  // Decode steps of one token as one kernel from now on, where the model has one; to be called
  // before capture_graphs().
  Result<void> prepare_decode_step(const KvPool& pool);
  // Captures decode steps of these sizes (decode_graphs.h); eager steps give the same bits.
  Result<void> capture_graphs(const std::vector<int64_t>& sizes, const KvPool& pool);

  size_t scratch_bytes() const { return scratch_.size_bytes(); }
  size_t input_bytes() const { return inputs_.size_bytes(); }
  size_t output_bytes() const;
  size_t step_bytes() const { return step_state_.size_bytes(); }
  size_t pinned_bytes() const;  // of the host
  const DecodeGraphs& graphs() const { return graphs_; }
  static constexpr int64_t kLogitBlock = 64;  // rows, unless a captured step has more

 private:
  struct Wanted {
    size_t slice;
    int64_t position;
    int64_t row = 0;  // of the logits, in a block or captured step
  };
  // Rows of logits on their way to the host.
  struct Flight {
    std::vector<Wanted> wanted;
    std::vector<bool> drawn;  // by the device, of `wanted`
    bool draws_all = false;
    Tensor logits;         // [rows, vocab] f32
    PinnedMemory drawing;  // [logit_block_] requests, then results, then candidates; the device
                           // reads and writes it until the step has arrived
    struct Event {
      Device device;
      void* handle = nullptr;
      explicit Event(Device of);
      Event(Event&& other) noexcept
          : device(other.device), handle(std::exchange(other.handle, {})) {}
      Event& operator=(Event&& other) noexcept;
      ~Event();
    };
    std::optional<Event> arrived;  // where the device has events

    DrawRequest* requests() const { return reinterpret_cast<DrawRequest*>(drawing.data()); }
  };
  Runner(const model::Model& model, const RunnerLimits& limits, Stream stream);
  std::vector<Wanted> fill_inputs(const Batch& batch, const KvPool& pool);
  DrawResult* results_of(const Flight& flight) const;
  DrawCandidate* candidates_of(const Flight& flight) const;
  Tensor device_results(int64_t rows) const;
  Tensor step_state() const;
  void launch(const Batch& batch,
              const KvPool& pool,
              int turn,
              const Choose& choose,
              const DecodeGraphs::Feed* feed);
  // Draws, or copies to the host, the rows of `logits` that are wanted.
  void send(Flight& flight,
            std::span<const Wanted> wanted,
            const Tensor& logits,
            const Choose& choose);
  void consume(const Flight& flight, const Consume& consume);  // what has arrived

  const model::Model* model_;
  RunnerLimits limits_;
  Stream stream_;
  Buffer scratch_;     // arena of forward and head
  Buffer inputs_;      // i32
  Buffer hidden_;      // [max_step_tokens, hidden] bf16
  Buffer logits_;      // [logit_block_, vocab] f32
  Buffer drawing_;     // results, candidates and workspace of draw_tokens
  Buffer step_state_;  // of Model::prepare_decode_step()
  int64_t logit_block_ = kLogitBlock;
  std::vector<int32_t> host_inputs_;
  std::array<Flight, 2> flights_;
  PinnedMemory host_logits_;  // [logit_block_, vocab] f32, unless the device is the host
  DecodeGraphs graphs_;
  model::BatchView view_;
};

}  // namespace nibble::engine
