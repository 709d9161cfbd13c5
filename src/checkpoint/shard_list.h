// Which safetensors files a directory's model consists of: the index decides, else one file, else
// numbered shards. Other safetensors files beside them are never read.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/error.h"

namespace nibble::checkpoint {

struct ShardList {
  std::vector<std::string> files;                 // names inside the directory, sorted
  std::map<std::string, std::string> weight_map;  // tensor -> file; empty without an index
  std::string index;                              // name of the index file; empty without one
};

// Refuses file names in the index that are not plain names inside the directory.
Result<ShardList> list_shards(const std::string& directory);

}  // namespace nibble::checkpoint
