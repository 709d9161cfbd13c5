// Decides what each step computes: admission by KV capacity, chunked prefill, decode of everything
// that runs, retraction when pages run out. A plain object without threads, clocks or I/O; tests
// drive it by hand. Prefill and decode never share a step; when both have work they alternate, so
// neither starves. Nothing it decides can change a request's tokens, only when they come.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/batch.h"
#include "engine/kv_pool.h"
#include "engine/prefix_cache.h"
#include "engine/sequence.h"

namespace nibble::engine {

struct SchedulerLimits {
  int64_t max_running = 64;
  int64_t max_step_tokens = 512;  // prefill tokens a step
  // Part of what running requests may still generate that admission keeps free. Raised after a
  // retraction, lowered again slowly.
  double reserve = 0.3;
  bool prefix_cache = true;
  bool reuse_generated = true;  // cache pages of generated tokens too
  // Recompute the generated tokens of a retracted request by decode steps, for devices whose
  // prefill and decode kernels differ in their bits.
  bool replay_by_decode = false;
};

// What became of one slice of a committed batch, in the same order.
struct StepResult {
  Sequence* sequence = nullptr;        // valid until the results are dropped; as in the slice
  std::unique_ptr<Sequence> finished;  // set when this was its last step
  std::optional<int32_t> token;
  FinishReason finish = FinishReason::None;
  int32_t matched_token = -1;
};

class Scheduler {
 public:
  Scheduler(const SchedulerLimits& limits, KvPool& pool, PrefixCache& cache);

  // eos: token ids that end every request that does not ignore them.
  void set_eos(std::vector<int32_t> eos) { eos_ = std::move(eos); }
  // Which weights compute from now on: pages of others are not found in the cache.
  void set_weights_serial(uint64_t serial) { weights_serial_ = serial; }

  void add(std::unique_ptr<Sequence> sequence);
  // Takes a waiting or running sequence out and frees its pages; nullptr when unknown. Not between
  // next() and commit().
  std::unique_ptr<Sequence> remove(RequestId id);
  std::vector<std::unique_ptr<Sequence>> remove_all();
  // Moves everything that runs back to the waiting queue, without pages.
  void retract_all();

  std::optional<Batch> next();
  // The decode step after one that is under way, before its tokens are known: of those of its
  // sequences that its token does not end by length. nullopt where more is to be decided than that:
  // somebody could be admitted, prefills, replays, or would have to be retracted. To be committed
  // after that one; a sequence that ended there has to be taken out of the slices.
  std::optional<Batch> next_after(const Batch& under_way);
  // sampled: one per slice, nullopt where nothing was sampled.
  std::vector<StepResult> commit(const Batch& batch,
                                 std::span<const std::optional<int32_t>> sampled);
  // As commit() for one sequence that failed: takes it out.
  std::unique_ptr<Sequence> drop(Sequence* sequence);

  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  bool idle() const { return running_.empty() && waiting_.empty(); }
  int64_t num_retractions() const { return num_retractions_; }
  int64_t used_tokens() const;
  // CHECKs that every page is free, cached or held by exactly one sequence.
  void check_integrity() const;

 private:
  void admit();
  bool try_admit(Sequence& sequence);
  std::optional<Batch> next_prefill();
  std::optional<Batch> next_decode();
  bool reserve_decode_pages();
  void retract(size_t running_index);
  void release_pages(Sequence& sequence);
  std::optional<std::vector<int32_t>> take_pages(int64_t count);
  int64_t reserved_pages() const;
  void cache_pages(Sequence& sequence, int64_t tokens);
  std::string space_of(const Sequence& sequence) const;
  static bool ends_by_length(const Sequence& sequence, int64_t more_tokens);
  FinishReason finish_of(const Sequence& sequence, int32_t token, int32_t& matched) const;
  bool prefilling(const Sequence& sequence) const;
  std::unique_ptr<Sequence> take_running(const Sequence* sequence);

  SchedulerLimits limits_;
  KvPool& pool_;
  PrefixCache& cache_;
  std::vector<int32_t> eos_;
  uint64_t weights_serial_ = 0;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;  // in order of admission
  double reserve_ = 0;
  bool last_was_prefill_ = false;
  bool admission_refused_ = false;  // the first that waits did not fit
  int64_t num_retractions_ = 0;
};

}  // namespace nibble::engine
