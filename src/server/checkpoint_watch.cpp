#include "server/checkpoint_watch.h"

#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/manifest.h"

namespace nibble::server {

namespace {

namespace fs = std::filesystem;

// The directory and those directly in it, without hidden ones.
std::vector<std::string> candidates(const std::string& root) {
  std::vector<std::string> found{root};
  std::error_code error;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (!it->path().filename().string().starts_with('.') && it->is_directory(ignored)) {
      found.push_back(it->path().string());
    }
  }
  return found;
}

bool same_directory(const std::string& a, const std::string& b) {
  std::error_code error;
  return fs::equivalent(a, b, error) && !error;
}

// Not the checkpoint's fault: worth another look.
bool may_pass(ErrorCode code) {
  return code == ErrorCode::WrongState || code == ErrorCode::Overloaded ||
         code == ErrorCode::Cancelled;
}

}  // namespace

CheckpointWatch::CheckpointWatch(WatchConfig config, engine::Engine& engine)
    : config_(std::move(config)), engine_(engine), thread_([this] { loop(); }) {}

CheckpointWatch::~CheckpointWatch() {
  stop();
  thread_.join();
}

void CheckpointWatch::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  engine_.cancel_update();
}

void CheckpointWatch::loop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    look();
    lock.lock();
    wake_.wait_for(
        lock, std::chrono::duration<double>(config_.period_seconds), [this] { return stopping_; });
  }
}

std::optional<CheckpointWatch::Found> CheckpointWatch::newest() const {
  std::optional<Found> best;
  for (const std::string& directory : candidates(config_.directory)) {
    const auto manifest = ReadFile::open(directory + "/" + std::string(kManifestName));
    if (!manifest) {
      continue;
    }
    const bool newer = !best || std::pair(manifest->stamp().modified_ns, directory) >
                                    std::pair(best->manifest.modified_ns, best->directory);
    if (newer) {
      best = Found{directory, manifest->stamp()};
    }
  }
  return best;
}

void CheckpointWatch::look() {
  const std::optional<Found> found = newest();
  if (!found) {
    return;
  }
  const auto settled = settled_.find(found->directory);
  if (settled != settled_.end() && settled->second == found->manifest) {
    return;
  }
  const engine::WeightsInfo now = engine_.weights();
  if (settled_.empty() && now.num_updates == 0 &&
      same_directory(found->directory, now.model_path)) {
    settled_[found->directory] = found->manifest;  // what the server started with
    return;
  }
  take(*found);
}

void CheckpointWatch::take(const Found& found) {
  const auto refused = [&](const Error& error) {
    settled_[found.directory] = found.manifest;
    LOG(error, "checkpoint refused", {"path", found.directory}, {"why", error.text()});
  };
  auto manifest = read_manifest(found.directory);
  if (!manifest) {
    refused(manifest.error());
    return;
  }
  if (!*manifest) {
    return;  // gone again
  }
  engine::WeightUpdate update;
  update.model_path = found.directory;
  update.running = config_.running;
  Manifest listed = *std::move(*manifest);
  if (!listed.weight_version.empty()) {
    update.weight_version = listed.weight_version;
  } else if (found.directory != config_.directory) {
    update.weight_version = fs::path(found.directory).filename().string();
  }
  update.manifest = std::move(listed);
  const auto report = engine_.update_weights(update);
  if (report) {
    settled_[found.directory] = found.manifest;
    waiting_for_.clear();
    return;  // the engine logs it
  }
  if (!may_pass(report.error().code)) {
    refused(report.error());
    return;
  }
  if (const std::string why = found.directory + ": " + report.error().text(); why != waiting_for_) {
    waiting_for_ = why;
    LOG(warn, "checkpoint waits", {"path", found.directory}, {"why", report.error().text()});
  }
}

}  // namespace nibble::server
