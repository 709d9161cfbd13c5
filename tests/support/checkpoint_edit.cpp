#include "support/checkpoint_edit.h"

#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "base/number_formats.h"
#include "checkpoint/safetensors.h"

namespace nibble::test {

CheckpointEdit::CheckpointEdit(const std::string& directory) : source_(directory) {
  const auto file = checkpoint::SafetensorsFile::open(directory + "/model.safetensors");
  if (!file) {
    throw std::runtime_error(file.error().text());
  }
  for (const auto& [name, info] : file->tensors()) {
    EditedTensor tensor{info.dtype, info.shape, std::vector<std::byte>(info.size_bytes)};
    if (!file->read(name, tensor.data)) {
      throw std::runtime_error("cannot read " + name);
    }
    tensors.emplace(name, std::move(tensor));
  }
}

void CheckpointEdit::scale(const std::string& part, float factor) {
  for (auto& [name, tensor] : tensors) {
    if (name.find(part) == std::string::npos) {
      continue;
    }
    if (tensor.dtype == DType::BF16) {
      auto* values = reinterpret_cast<uint16_t*>(tensor.data.data());
      for (size_t i = 0; i < tensor.data.size() / 2; ++i) {
        values[i] = float_to_bf16(bf16_to_float(values[i]) * factor);
      }
    } else if (tensor.dtype == DType::F32) {
      auto* values = reinterpret_cast<float*>(tensor.data.data());
      for (size_t i = 0; i < tensor.data.size() / 4; ++i) {
        values[i] *= factor;
      }
    }
  }
}

void CheckpointEdit::write(const std::string& directory) const {
  std::vector<checkpoint::SafetensorsWriter::Entry> entries;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back({name, tensor.dtype, tensor.shape});
  }
  auto writer =
      checkpoint::SafetensorsWriter::create(directory + "/model.safetensors", entries, {});
  if (!writer) {
    throw std::runtime_error(writer.error().text());
  }
  for (const auto& [name, tensor] : tensors) {
    writer->append(name, tensor.data);
  }
  writer->finish();
  for (const char* name : {"config.json", "generation_config.json", "hf_quant_config.json"}) {
    if (std::filesystem::exists(source_ + "/" + name)) {
      std::filesystem::copy_file(source_ + "/" + name,
                                 directory + "/" + name,
                                 std::filesystem::copy_options::overwrite_existing);
    }
  }
}

}  // namespace nibble::test
