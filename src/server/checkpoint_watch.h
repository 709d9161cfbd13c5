// nibble serve --watch: loads checkpoints that appear below a directory, for trainers that only
// write files. A checkpoint is there once its manifest is; the newest manifest counts, and one that
// was loaded or refused is not looked at again until it changes. A thread that looks now and then:
// notifications of the kernel do not come from network file systems.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/file.h"
#include "engine/engine.h"

namespace nibble::server {

struct WatchConfig {
  std::string directory;  // a checkpoint, or a directory of checkpoints
  double period_seconds = 1;
  engine::RunningPolicy running = engine::RunningPolicy::Wait;
};

class CheckpointWatch {
 public:
  // The engine must outlive it.
  CheckpointWatch(WatchConfig config, engine::Engine& engine);
  CheckpointWatch(const CheckpointWatch&) = delete;
  CheckpointWatch& operator=(const CheckpointWatch&) = delete;
  ~CheckpointWatch();  // as stop(), and joins

  // Nothing more is loaded; a checkpoint that is being read is dropped.
  void stop();

 private:
  struct Found {
    std::string directory;
    FileStamp manifest;
  };
  void loop();
  std::optional<Found> newest() const;
  void look();
  void take(const Found& found);

  const WatchConfig config_;
  engine::Engine& engine_;
  std::map<std::string, FileStamp> settled_;  // loaded or refused, by directory
  std::string waiting_for_;                   // logged once: why the newest one cannot be taken yet
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace nibble::server
