// New weights: staged on the caller's thread, committed on the engine's between two steps; and what
// the weights are now. The states are drawn in docs/engine.md.
#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "engine/engine_impl.h"
#include "model/stored_values.h"

namespace nibble::engine {

namespace {

constexpr int kLoaderThreads = 1;  // staging must not take the cores that serve

// Buffers of single tensors are plain host memory: when it runs out, that is no bug of ours.
template <typename Load>
auto or_no_memory(const Load& load) -> decltype(load()) {
  try {
    return load();
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::Overloaded, "not enough memory to read its tensors");
  }
}

model::SourceCheck check_of(const WeightUpdate& update) {
  return {update.manifest ? &*update.manifest : nullptr, update.require_manifest};
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

void EngineImpl::cancel_update() {
  const std::lock_guard lock(stop_mutex_);
  staging_stop_.request_stop();
}

Result<WeightUpdateReport> EngineImpl::update_weights(const WeightUpdate& update) {
  const std::unique_lock only_one(update_mutex_, std::try_to_lock);
  if (!only_one.owns_lock()) {
    return fail(ErrorCode::WrongState,
                fmt::format("a weight update is not possible in state {}: another one is in "
                            "progress; possible now: wait for it",
                            staging_ ? "staging" : to_string(weights().state)));
  }
  // Few bytes outside the reading, but they may be the ones that are not there.
  return or_no_memory([&] { return update_one(update); });
}

Result<WeightUpdateReport> EngineImpl::update_one(const WeightUpdate& update) {
  if (update.reuse_prefixes && update.flush_cache) {
    return invalid("cannot reuse prefixes and drop them: expected flush_cache false",
                   "reuse_prefixes");
  }
  std::stop_token stop;
  {
    const std::lock_guard lock(stop_mutex_);
    staging_stop_ = {};
    stop = staging_stop_.get_token();
  }
  std::unique_ptr<std::atomic<bool>, void (*)(std::atomic<bool>*)> mark(
      &staging_, [](std::atomic<bool>* staging) { *staging = false; });
  TRY(call<void>([this]() -> Result<void> {
    if (released_.contains(MemoryTag::Weights)) {
      return tl::unexpected<Error>(
          wrong_state("a weight update", "resume memory with tag weights"));
    }
    staging_ = true;  // on this thread: no release can come between
    return {};
  }));

  const Clock::time_point begin = Clock::now();
  const Result<model::StagedWeights> staged = or_no_memory([&] {
    const StreamOwner loader(parts_.stream.get().device, kLoaderThreads);
    return parts_.model->stage(
        update.model_path, loader.get(), check_of(update), {parts_.config.max_staging_bytes, stop});
  });
  const double staging_seconds = seconds_since(begin);
  mark.reset();
  // Only the lack of memory has this code: a bad checkpoint is never loaded in place.
  const bool no_memory = !staged && staged.error().code == ErrorCode::Overloaded;
  if (!staged && !(no_memory && update.allow_in_place)) {
    LOG(warn, "weight update refused", {"path", update.model_path}, {"why", staged.error().text()});
    Error error = staged.error();
    if (no_memory) {
      error.message += "; allow_in_place overwrites the weights that serve, without a way back";
    }
    return tl::unexpected<Error>(std::move(error));
  }

  std::future<Result<WeightUpdateReport>> future;
  TRY(call<void>([&, this]() -> Result<void> {
    commit_ = std::make_unique<PendingCommit>();
    commit_->update = &update;
    commit_->staged = staged ? &*staged : nullptr;
    commit_->since = Clock::now();
    future = commit_->done.get_future();
    return {};
  }));
  WeightUpdateReport report = TRY(await(future));
  report.staging_seconds = staging_seconds;
  LOG(info,
      "weights updated",
      {"path", update.model_path},
      {"version", report.weight_version},
      {"staging_seconds", report.staging_seconds},
      {"wait_seconds", report.wait_seconds},
      {"commit_seconds", report.commit_seconds});
  return report;
}

void EngineImpl::commit_now() {
  const std::unique_ptr<PendingCommit> commit = std::move(commit_);
  const double wait_seconds = seconds_since(commit->since);
  const Clock::time_point begin = Clock::now();
  Result<WeightUpdateReport> report = replace_weights(*commit->update, commit->staged);
  if (report) {
    report->wait_seconds = wait_seconds;
    report->commit_seconds = seconds_since(begin);
    report->requests_aborted = commit->aborted;
  }
  for (std::unique_ptr<Sequence>& sequence : std::exchange(held_, {})) {
    scheduler_.add(std::move(sequence));
  }
  publish();
  commit->done.set_value(std::move(report));
}

Result<model::InPlaceReport> EngineImpl::overwrite_weights(const WeightUpdate& update) {
  bool touched = false;
  Result<model::InPlaceReport> loaded = or_no_memory([&] {
    return parts_.model->load_in_place(
        update.model_path, parts_.stream.get(), check_of(update), touched);
  });
  if (!loaded && touched) {
    weights_valid_ = false;
    loaded.error().message +=
        "; the old weights are partly overwritten: the state is needs-weights";
    end_all(FinishReason::Error, loaded.error());
  }
  return loaded;
}

Result<WeightUpdateReport> EngineImpl::replace_weights(const WeightUpdate& update,
                                                       const model::StagedWeights* staged) {
  if (released_.contains(MemoryTag::Weights)) {  // released while the new ones were staged
    return tl::unexpected<Error>(wrong_state("a weight update", "resume memory with tag weights"));
  }
  model::ParameterStore& parameters = parts_.model->parameters();
  WeightUpdateReport report;
  model::LoadReport loaded;
  if (staged != nullptr) {
    parameters.commit(staged->staged, parts_.stream.get());
    source_ = staged->source;
    loaded = staged->staged.report();
  } else {
    model::InPlaceReport in_place = TRY(overwrite_weights(update));
    source_ = std::move(in_place.source);
    loaded = std::move(in_place.report);
    report.in_place = true;
  }
  weights_valid_ = true;
  scheduler_.set_eos(source_.eos_token_ids);
  ++weights_serial_;
  weight_version_ = update.weight_version.value_or(fmt::format("update-{}", weights_serial_));
  drop_prefixes(update);
  report.weight_version = weight_version_;
  report.bytes = static_cast<int64_t>(parameters.size_bytes());
  report.tensors_read = loaded.tensors_read;
  report.unused_tensors = std::move(loaded.unused);
  report.files_verified = source_.files_verified;
  return report;
}

void EngineImpl::drop_prefixes(const WeightUpdate& update) {
  if (update.reuse_prefixes) {
    prefix_versions_.push_back(weight_version_);
    return;
  }
  scheduler_.set_weights_serial(weights_serial_);  // older prefixes are not found any more
  prefix_versions_ = {weight_version_};
  if (update.flush_cache) {
    parts_.pool->give(cache_.clear());
  }
}

Result<void> EngineImpl::set_weight_version(const std::string& version) {
  return call<void>([this, version]() -> Result<void> {
    std::replace(prefix_versions_.begin(), prefix_versions_.end(), weight_version_, version);
    weight_version_ = version;
    return {};
  });
}

Result<std::vector<WeightChecksum>> EngineImpl::weight_checksums() {
  return call<std::vector<WeightChecksum>>([this]() -> Result<std::vector<WeightChecksum>> {
    if (!weights_valid_) {  // resident or not: there is nothing to add up
      return tl::unexpected<Error>(wrong_state("a checksum",
                                               released_.contains(MemoryTag::Weights)
                                                   ? "resume memory with tag weights"
                                                   : "update weights"));
    }
    std::vector<WeightChecksum> all;
    for (const model::Checksum& sum : parts_.model->parameters().checksums(parts_.stream.get())) {
      all.push_back({sum.name, fmt::format("{:016x}", sum.value)});
    }
    return all;
  });
}

Result<NamedWeight> EngineImpl::weight_by_name(const std::string& name, int64_t max_rows) {
  model::Source source;
  WeightsInfo now;
  {
    const std::lock_guard lock(mutex_);
    source = published_source_;
    now = weights_;
  }
  const bool released =
      std::find(now.released.begin(), now.released.end(), MemoryTag::Weights) != now.released.end();
  if (released || now.state == EngineState::NeedsWeights || !now.valid) {
    return fail(ErrorCode::WrongState,
                fmt::format("there are no weights to show in state {}; possible now: {}",
                            to_string(now.state),
                            released ? "resume memory with tag weights" : "update weights"));
  }
  const model::StoredValues stored = TRY(or_no_memory(
      [&] { return model::read_stored_values(source.directory, name, max_rows, source.stamps); }));
  NamedWeight weight;
  for (int i = 0; i < stored.shape.rank; ++i) {
    weight.shape.push_back(stored.shape[i]);
  }
  weight.values = stored.values;
  weight.rows = stored.rows;
  return weight;
}

}  // namespace nibble::engine
