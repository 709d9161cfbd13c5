// The numbers behind a tensor name of a checkpoint, for people and for trainers that check what a
// server runs: dequantised where the checkpoint stores codes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "tensor/shape.h"

namespace nibble::model {

struct StoredValues {
  Shape shape;                // of the whole tensor, codes unpacked
  std::vector<float> values;  // row-major, the first rows of it
  int64_t rows = 0;           // how many of the first dimension; 1 for a scalar
};

// At most max_rows of the first dimension. NotFound: no such tensor. WrongState: the weight files
// are not those with these stamps, so their numbers are not those that were loaded; empty: any.
Result<StoredValues> read_stored_values(const std::string& directory,
                                        const std::string& name,
                                        int64_t max_rows,
                                        const std::vector<FileStamp>& stamps = {});

}  // namespace nibble::model
