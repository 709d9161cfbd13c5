// The safetensors container (huggingface/safetensors, format 0.3): u64 little-endian header size,
// JSON header, tensor data. Reading is by pread: a file that shrinks under us is an error, not a
// crash. Every size in the header is checked against the file before memory is allocated.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "tensor/tensor.h"

namespace nibble::checkpoint {

struct TensorInfo {
  DType dtype = DType::F32;
  Shape shape;                // rank up to 4
  uint64_t offset_bytes = 0;  // in the file
  uint64_t size_bytes = 0;
  // Why nothing here can use it (f64, more than four dimensions); empty for all others. Such a
  // tensor is listed as u8 [size_bytes]: only a model that asks for it is refused.
  std::string unusable;
};

class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);
  const std::string& path() const { return file_.path(); }
  const ReadFile& file() const { return file_; }
  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  Result<void> read(const std::string& name, std::span<std::byte> out) const;
  // out.size() bytes of the tensor from offset_bytes on.
  Result<void> read_part(const std::string& name,
                         uint64_t offset_bytes,
                         std::span<std::byte> out) const;

 private:
  explicit SafetensorsFile(ReadFile file) : file_(std::move(file)) {}
  ReadFile file_;
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
};

// Parses a header alone; file_size_bytes is the whole file's. Fuzzed.
Result<std::map<std::string, TensorInfo>> parse_safetensors_header(
    std::string_view header_json,
    uint64_t data_begin,
    uint64_t file_size_bytes,
    const std::string& where,
    std::map<std::string, std::string>* metadata);

// Writes one file in streaming fashion: all names, dtypes and shapes first, then the data in that
// order. The file appears under its name when finish() succeeds.
class SafetensorsWriter {
 public:
  struct Entry {
    std::string name;
    DType dtype = DType::F32;
    Shape shape;
  };
  static Result<SafetensorsWriter> create(const std::string& path,
                                          std::vector<Entry> entries,
                                          const std::map<std::string, std::string>& metadata);
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) noexcept;
  ~SafetensorsWriter();
  // CHECK name and size. A large tensor may come in parts, in order.
  void append(const std::string& name, std::span<const std::byte> data);
  void append_part(const std::string& name, std::span<const std::byte> data);
  void finish();

 private:
  struct State;
  explicit SafetensorsWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace nibble::checkpoint
