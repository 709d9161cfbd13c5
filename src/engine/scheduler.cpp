#include "engine/scheduler.h"

#include <algorithm>
#include <set>

#include "base/check.h"

namespace nibble::engine {

namespace {
constexpr double kReserveStep = 0.2;      // added after a retraction
constexpr double kReserveDecay = 0.0005;  // taken back per decode step
}  // namespace

Scheduler::Scheduler(const SchedulerLimits& limits, KvPool& pool, PrefixCache& cache)
    : limits_(limits), pool_(pool), cache_(cache), reserve_(limits.reserve) {}

void Scheduler::add(std::unique_ptr<Sequence> sequence) { waiting_.push_back(std::move(sequence)); }

// A sequence is prefilling until all tokens it had at admission are computed (but for the last one
// of a retracted sequence, which may as well be decoded). Afterwards exactly one is not computed.
bool Scheduler::prefilling(const Sequence& sequence) const {
  return sequence.computed < sequence.prompt_tokens ||
         (!limits_.replay_by_decode && sequence.computed + 1 < sequence.num_tokens());
}

std::string Scheduler::space_of(const Sequence& sequence) const {
  return std::to_string(sequence.weights_serial) + "/" + sequence.request.extra_key;
}

// ---- pages ----

std::optional<std::vector<int32_t>> Scheduler::take_pages(int64_t count) {
  if (pool_.free_pages() < count) {
    const std::vector<int32_t> evicted = cache_.evict(count - pool_.free_pages());
    pool_.give(evicted);
  }
  return pool_.take(count);
}

void Scheduler::release_pages(Sequence& sequence) {
  pool_.give(std::span(sequence.pages).subspan(sequence.shared_pages));
  cache_.unlock(sequence.node);
  sequence.node = nullptr;
  sequence.pages.clear();
  sequence.shared_pages = 0;
  sequence.computed = 0;
}

// Hands the full pages of the first `tokens` tokens to the prefix cache.
void Scheduler::cache_pages(Sequence& sequence, int64_t tokens) {
  if (!limits_.prefix_cache || sequence.weights_serial != weights_serial_) {
    return;
  }
  const int64_t full = std::min(tokens, sequence.computed) / pool_.page_size();
  if (full <= static_cast<int64_t>(sequence.shared_pages)) {
    return;
  }
  std::vector<int32_t> duplicates;
  PrefixCache::Node* node =
      cache_.insert_and_lock(space_of(sequence),
                             std::span(sequence.tokens).first(full * pool_.page_size()),
                             std::span(sequence.pages).first(full),
                             duplicates);
  pool_.give(duplicates);
  cache_.unlock(sequence.node);
  sequence.node = node;
  sequence.shared_pages = static_cast<size_t>(full);
}

int64_t Scheduler::used_tokens() const {
  return (pool_.num_pages() - pool_.free_pages() - cache_.evictable_pages()) * pool_.page_size();
}

// ---- admission ----

int64_t Scheduler::reserved_pages() const {
  double pages = 0;
  for (const auto& sequence : running_) {
    const int64_t growth =
        pool_.pages_of(sequence->max_tokens) - static_cast<int64_t>(sequence->pages.size());
    pages += static_cast<double>(std::max<int64_t>(growth, 0)) * reserve_;
  }
  return static_cast<int64_t>(pages);
}

bool Scheduler::try_admit(Sequence& sequence) {
  PrefixCache::Match match;
  sequence.weights_serial = weights_serial_;
  if (limits_.prefix_cache) {
    // The last token is always computed, and so is every position whose logits are wanted.
    int64_t usable = sequence.num_tokens() - 1;
    if (const int64_t first = sequence.first_logit_position(); first >= 0) {
      usable = std::min(usable, first);
    }
    match = cache_.match_and_lock(space_of(sequence), sequence.tokens, usable);
  }
  const auto shared = static_cast<int64_t>(match.pages.size());
  const int64_t wanted = pool_.pages_of(sequence.num_tokens()) - shared;
  const int64_t available = pool_.free_pages() + cache_.evictable_pages();
  // An empty engine admits whatever fits: nobody else needs the reserve.
  const int64_t reserved = running_.empty() ? 0 : reserved_pages();
  if (wanted + reserved > available) {
    cache_.unlock(match.node);
    return false;
  }
  auto pages = take_pages(wanted);
  CHECK(pages.has_value(), "pages counted as available could not be taken");
  sequence.node = match.node;
  sequence.shared_pages = match.pages.size();
  sequence.pages = std::move(match.pages);
  sequence.pages.insert(sequence.pages.end(), pages->begin(), pages->end());
  sequence.computed = shared * pool_.page_size();
  if (sequence.cached_tokens < 0) {
    sequence.cached_tokens = sequence.computed;
  }
  return true;
}

void Scheduler::admit() {
  while (!waiting_.empty() && num_running() < limits_.max_running && try_admit(*waiting_.front())) {
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  admission_refused_ = !waiting_.empty();
}

// ---- retraction ----

void Scheduler::retract(size_t running_index) {
  std::unique_ptr<Sequence> victim = std::move(running_[running_index]);
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(running_index));
  release_pages(*victim);
  victim->prompt_logprobs.clear();  // computed again, unless already delivered
  ++victim->num_retractions;
  ++num_retractions_;
  reserve_ = std::min(1.0, reserve_ + kReserveStep);
  // Back to where its age belongs: in front of everything that arrived later.
  const auto later = std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& other) {
    return other->id() > victim->id();
  });
  waiting_.insert(later, std::move(victim));
}

void Scheduler::retract_all() {
  while (!running_.empty()) {
    retract(running_.size() - 1);
  }
  reserve_ = limits_.reserve;
}

// Makes room for one more token of everything that decodes. Victims: the fewest generated tokens
// first, then the longest prompt, then the youngest. The last one always fits: max_tokens is within
// the pool.
bool Scheduler::reserve_decode_pages() {
  for (;;) {
    int64_t wanted = 0;
    for (const auto& sequence : running_) {
      if (!prefilling(*sequence)) {
        wanted +=
            pool_.pages_of(sequence->num_tokens()) - static_cast<int64_t>(sequence->pages.size());
      }
    }
    if (wanted <= pool_.free_pages() + cache_.evictable_pages()) {
      break;
    }
    if (running_.size() <= 1) {
      return false;
    }
    size_t victim = 0;
    for (size_t i = 1; i < running_.size(); ++i) {
      const Sequence& a = *running_[i];
      const Sequence& b = *running_[victim];
      if (a.num_generated() < b.num_generated() ||
          (a.num_generated() == b.num_generated() && a.prompt_tokens >= b.prompt_tokens)) {
        victim = i;
      }
    }
    retract(victim);
  }
  for (const auto& sequence : running_) {
    if (prefilling(*sequence)) {
      continue;
    }
    const int64_t missing =
        pool_.pages_of(sequence->num_tokens()) - static_cast<int64_t>(sequence->pages.size());
    if (missing > 0) {
      auto pages = take_pages(missing);
      CHECK(pages.has_value(), "pages counted as available could not be taken");
      sequence->pages.insert(sequence->pages.end(), pages->begin(), pages->end());
    }
  }
  return true;
}

// ---- steps ----

std::optional<Batch> Scheduler::next_prefill() {
  Batch batch;
  int64_t budget = limits_.max_step_tokens;
  for (const auto& sequence : running_) {
    if (budget == 0) {
      break;
    }
    if (!prefilling(*sequence)) {
      continue;
    }
    const int64_t end = limits_.replay_by_decode ? sequence->prompt_tokens : sequence->num_tokens();
    const int64_t count = std::min(budget, end - sequence->computed);
    batch.slices.push_back({sequence.get(),
                            sequence->computed,
                            count,
                            sequence->computed + count == sequence->num_tokens()});
    budget -= count;
  }
  if (batch.slices.empty()) {
    return std::nullopt;
  }
  return batch;
}

std::optional<Batch> Scheduler::next_decode() {
  const bool any = std::any_of(running_.begin(), running_.end(), [&](const auto& sequence) {
    return !prefilling(*sequence);
  });
  if (!any) {
    return std::nullopt;
  }
  CHECK(reserve_decode_pages(), "one sequence does not fit the KV cache alone");
  Batch batch;
  batch.decode = true;
  for (const auto& sequence : running_) {
    if (!prefilling(*sequence)) {
      const bool samples = sequence->computed + 1 == sequence->num_tokens();
      batch.slices.push_back({sequence.get(), sequence->computed, 1, samples});
    }
  }
  reserve_ = std::max(limits_.reserve, reserve_ - kReserveDecay);
  if (batch.slices.empty()) {  // all of them were retracted in favour of a prefill
    return std::nullopt;
  }
  return batch;
}

std::optional<Batch> Scheduler::next() {
  admit();
  std::optional<Batch> batch = last_was_prefill_ ? next_decode() : next_prefill();
  if (!batch) {
    batch = last_was_prefill_ ? next_prefill() : next_decode();
  }
  if (batch) {
    last_was_prefill_ = !batch->decode;
  }
  return batch;
}

std::optional<Batch> Scheduler::next_after(const Batch& under_way) {
  if (!under_way.decode || (!waiting_.empty() && !admission_refused_)) {
    return std::nullopt;
  }
  Batch batch;
  batch.decode = true;
  int64_t running = 0;
  int64_t wanted = 0;
  const auto missing = [this](const Slice& slice) {
    const int64_t pages = pool_.pages_of(slice.begin + slice.count);
    return std::max<int64_t>(pages - static_cast<int64_t>(slice.sequence->pages.size()), 0);
  };
  for (const Slice& slice : under_way.slices) {
    if (slice.sequence == nullptr) {
      continue;
    }
    if (!slice.samples) {
      return std::nullopt;  // replays
    }
    ++running;
    if (!ends_by_length(*slice.sequence, 1)) {
      batch.slices.push_back({slice.sequence, slice.begin + 1, 1, true});
      wanted += missing(batch.slices.back());
    }
  }
  if (running != num_running() || batch.slices.empty() ||
      wanted > pool_.free_pages() + cache_.evictable_pages()) {
    return std::nullopt;
  }
  for (const Slice& slice : batch.slices) {
    auto pages = take_pages(missing(slice));
    CHECK(pages.has_value(), "pages counted as available could not be taken");
    slice.sequence->pages.insert(slice.sequence->pages.end(), pages->begin(), pages->end());
  }
  reserve_ = std::max(limits_.reserve, reserve_ - kReserveDecay);
  return batch;
}

bool Scheduler::ends_by_length(const Sequence& sequence, int64_t more_tokens) {
  return sequence.num_generated() + more_tokens >= sequence.request.sampling.max_new_tokens ||
         sequence.num_tokens() + more_tokens >= sequence.max_tokens;
}

FinishReason Scheduler::finish_of(const Sequence& sequence, int32_t token, int32_t& matched) const {
  const SamplingParams& sampling = sequence.request.sampling;
  const auto contains = [token](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  // Length before stop tokens, as upstream orders them.
  if (ends_by_length(sequence, 0)) {
    return FinishReason::Length;
  }
  // A sampled stop token below min_new_tokens is impossible: the sampler masks it.
  if (!sampling.ignore_eos && (contains(eos_) || contains(sampling.stop_token_ids))) {
    matched = token;
    return FinishReason::StopToken;
  }
  return FinishReason::None;
}

std::vector<StepResult> Scheduler::commit(const Batch& batch,
                                          std::span<const std::optional<int32_t>> sampled) {
  CHECK(sampled.size() == batch.slices.size(), "one sample per slice");
  std::vector<StepResult> results;
  results.reserve(batch.slices.size());
  for (size_t i = 0; i < batch.slices.size(); ++i) {
    const Slice& slice = batch.slices[i];
    if (slice.sequence == nullptr) {
      results.emplace_back();
      continue;
    }
    Sequence& sequence = *slice.sequence;
    StepResult result;
    result.sequence = &sequence;
    sequence.computed = slice.begin + slice.count;
    if (slice.samples && !batch.decode) {
      cache_pages(sequence, sequence.prompt_tokens);
    }
    if (slice.samples && sequence.request.sampling.max_new_tokens == 0) {
      result.finish = FinishReason::Length;  // prefill only
    } else if (const std::optional<int32_t> token = sampled[i]; slice.samples && token) {
      result.token = token;
      sequence.tokens.push_back(*token);
      result.finish = finish_of(sequence, *token, result.matched_token);
    }
    if (result.finish != FinishReason::None) {
      admission_refused_ = false;
      cache_pages(sequence, limits_.reuse_generated ? sequence.computed : sequence.prompt_tokens);
      result.finished = take_running(&sequence);
      release_pages(*result.finished);
    }
    results.push_back(std::move(result));
  }
  return results;
}

// ---- removal ----

std::unique_ptr<Sequence> Scheduler::take_running(const Sequence* sequence) {
  const auto found = std::find_if(
      running_.begin(), running_.end(), [&](const auto& other) { return other.get() == sequence; });
  if (found == running_.end()) {
    return nullptr;
  }
  std::unique_ptr<Sequence> taken = std::move(*found);
  running_.erase(found);
  return taken;
}

std::unique_ptr<Sequence> Scheduler::drop(Sequence* sequence) {
  std::unique_ptr<Sequence> taken = take_running(sequence);
  CHECK(taken != nullptr, "dropped a sequence that does not run");
  admission_refused_ = false;
  release_pages(*taken);
  return taken;
}

std::unique_ptr<Sequence> Scheduler::remove(RequestId id) {
  for (const auto& sequence : running_) {
    if (sequence->id() == id) {
      return drop(sequence.get());
    }
  }
  const auto found = std::find_if(
      waiting_.begin(), waiting_.end(), [id](const auto& other) { return other->id() == id; });
  if (found == waiting_.end()) {
    return nullptr;
  }
  std::unique_ptr<Sequence> taken = std::move(*found);
  waiting_.erase(found);
  admission_refused_ = false;
  return taken;
}

std::vector<std::unique_ptr<Sequence>> Scheduler::remove_all() {
  std::vector<std::unique_ptr<Sequence>> all;
  while (!running_.empty()) {
    all.push_back(drop(running_.front().get()));
  }
  for (auto& sequence : waiting_) {
    all.push_back(std::move(sequence));
  }
  waiting_.clear();
  return all;
}

void Scheduler::check_integrity() const {
  cache_.check_integrity();
  std::set<int32_t> owned;
  for (const auto& sequence : running_) {
    for (size_t i = sequence->shared_pages; i < sequence->pages.size(); ++i) {
      CHECK(owned.insert(sequence->pages[i]).second, "page owned by two sequences");
    }
    CHECK(static_cast<int64_t>(sequence->pages.size()) >= pool_.pages_of(sequence->computed),
          "sequence with fewer pages than tokens");
  }
  for (const auto& sequence : waiting_) {
    CHECK(sequence->pages.empty() && sequence->node == nullptr, "waiting sequence holds pages");
  }
  CHECK(pool_.free_pages() + cache_.num_pages() + static_cast<int64_t>(owned.size()) ==
            pool_.num_pages(),
        "pages leaked: ",
        pool_.free_pages(),
        " free, ",
        cache_.num_pages(),
        " cached, ",
        owned.size(),
        " owned of ",
        pool_.num_pages());
  if (running_.empty()) {
    CHECK(cache_.evictable_pages() == cache_.num_pages(), "prefix cache locked by nobody");
  }
}

}  // namespace nibble::engine
