// The unfinished part of a run, beside its destination: one file a finished layer, so that a run
// that was killed goes on where it stopped and writes the same bits. Belongs to one run at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "quantize/folder_lock.h"
#include "quantize/report.h"
#include "quantize/unit.h"

namespace nibble::quantize {

class WorkFolder {
 public:
  // run: what the bits depend on, as text. A folder of another run is emptied; one that is not a
  // work folder at all, or that another process works in, is refused. Throws SystemError when the
  // disk fails.
  static Result<WorkFolder> open(const std::string& path, const std::string& run);
  // Bytes of the files below `path`; 0 where there is nothing.
  static uint64_t bytes_at(const std::string& path);

  const std::string& path() const { return path_; }
  bool has(int64_t step) const;
  void store(int64_t step, const UnitResult& result) const;

  struct Step {
    checkpoint::SafetensorsFile file;
    std::vector<TensorReport> reports;
  };
  Result<Step> read(int64_t step) const;

  // The hidden states after `step`; older ones are forgotten.
  void store_hidden(int64_t step, std::span<const uint16_t> hidden) const;
  bool has_hidden(int64_t step) const;
  Result<std::vector<uint16_t>> read_hidden(int64_t step) const;

  // An empty folder inside, for what becomes the destination.
  std::string fresh_output() const;
  void remove() const;

  // An error about what the folder holds, with what to do.
  Error damaged(Error error) const;

 private:
  WorkFolder(std::string path, FolderLock lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  std::string step_file(int64_t step) const;
  std::string hidden_file(int64_t step) const;
  std::string path_;
  FolderLock lock_;
};

}  // namespace nibble::quantize
