// A checkpoint directory in memory: load one, change tensors or config keys, write it elsewhere and
// open it. For tests of damaged and odd checkpoints.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "checkpoint/checkpoint.h"
#include "support/temp_dir.h"

namespace nibble::checkpoint {

class CheckpointEditor {
 public:
  struct Stored {
    DType dtype = DType::F32;
    Shape shape;
    std::vector<std::byte> bytes;
  };

  // Reads config.json, hf_quant_config.json when it is there, and model.safetensors.
  explicit CheckpointEditor(const std::string& directory);

  Stored& tensor(const std::string& name);  // fails the test when absent
  void rename(const std::string& from, const std::string& to);
  void remove(const std::string& name);
  void set_f32(const std::string& name, float value);  // [] f32, made when absent
  std::map<std::string, Stored>& tensors() { return tensors_; }
  boost::json::object& config() { return config_; }
  boost::json::value& side() { return side_; }  // null: no hf_quant_config.json

  // Writes to a fresh temporary directory and opens it.
  Result<Checkpoint> open();
  void write();
  // The same as numbered shards with an index.
  void write_shards(size_t count);
  const test::TempDir& directory() const { return directory_; }

 private:
  void write_configs() const;
  std::map<std::string, Stored> tensors_;
  boost::json::object config_;
  boost::json::value side_;
  test::TempDir directory_;
};

// The texts of all problems of a severity, joined by lines; "" when there are none.
std::string problem_texts(const Checkpoint& checkpoint, Problem::Severity severity);

}  // namespace nibble::checkpoint
