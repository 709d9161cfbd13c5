// A tiny checkpoint in memory, to be changed and written elsewhere: damaged files, other weights.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace nibble::test {

struct EditedTensor {
  DType dtype = DType::F32;
  Shape shape;
  std::vector<std::byte> data;
};

class CheckpointEdit {
 public:
  // Reads model.safetensors of a directory.
  explicit CheckpointEdit(const std::string& directory);
  std::map<std::string, EditedTensor> tensors;
  // Multiplies every bf16 and f32 value of tensors whose name contains `part`.
  void scale(const std::string& part, float factor);
  // model.safetensors and the json files, into an existing directory.
  void write(const std::string& directory) const;

 private:
  std::string source_;
};

}  // namespace nibble::test
