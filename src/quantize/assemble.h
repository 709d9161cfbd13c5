// From finished layers and the source's other tensors to a checkpoint directory.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/progress.h"
#include "checkpoint/checkpoint.h"
#include "quantize/plan.h"
#include "quantize/work_folder.h"
#include "quantize/write.h"

namespace nibble::quantize {

// A tensor of a finished step, by its name in that step's file.
struct FinishedTensor {
  const checkpoint::SafetensorsFile* file = nullptr;
  std::string stored;
};
// By the name it gets.
using FinishedTensors = std::map<std::string, FinishedTensor, std::less<>>;

// Writes the shards into `folder`; returns tensor -> shard.
Result<std::map<std::string, std::string>> write_shards(const checkpoint::Checkpoint& source,
                                                        const Plan& plan,
                                                        const FinishedTensors& finished,
                                                        Layout layout,
                                                        const std::string& folder);

// Puts the finished folder in its place; the config goes last where it cannot go as a whole.
void publish(const std::string& folder, const std::string& destination);

}  // namespace nibble::quantize
