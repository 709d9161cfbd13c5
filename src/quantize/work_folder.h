// The unfinished part of a run, beside its destination: one file a finished layer, so that a run
// that was killed goes on where it stopped and writes the same bits. Belongs to one run at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "quantize/report.h"
#include "quantize/unit.h"

namespace nibble::quantize {

class WorkFolder {
 public:
  // run: what the bits depend on, as text. A folder of another run is emptied; one that is not a
  // work folder at all is refused. Throws SystemError when the disk fails.
  static Result<WorkFolder> open(const std::string& path, const std::string& run);

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

 private:
  explicit WorkFolder(std::string path) : path_(std::move(path)) {}
  std::string step_file(int64_t step) const;
  std::string hidden_file(int64_t step) const;
  std::string path_;
};

}  // namespace nibble::quantize
