#include "checkpoint/checkpoint_editor.h"

#include <cstring>
#include <stdexcept>

#include "base/json.h"

namespace nibble::checkpoint {

CheckpointEditor::CheckpointEditor(const std::string& directory) {
  config_ = parse_json_file(directory + "/config.json").value().as_object();
  if (auto side = parse_json_file(directory + "/hf_quant_config.json")) {
    side_ = std::move(*side);
  }
  const auto file = SafetensorsFile::open(directory + "/model.safetensors").value();
  for (const auto& [name, info] : file.tensors()) {
    Stored stored{info.dtype, info.shape, std::vector<std::byte>(info.size_bytes)};
    if (!file.read(name, stored.bytes)) {
      throw std::runtime_error(name);
    }
    tensors_.emplace(name, std::move(stored));
  }
}

CheckpointEditor::Stored& CheckpointEditor::tensor(const std::string& name) {
  return tensors_.at(name);
}

void CheckpointEditor::rename(const std::string& from, const std::string& to) {
  auto node = tensors_.extract(from);
  if (node.empty()) {
    throw std::out_of_range(from);
  }
  node.key() = to;
  tensors_.insert(std::move(node));
}

void CheckpointEditor::remove(const std::string& name) {
  if (tensors_.erase(name) != 1) {
    throw std::out_of_range(name);
  }
}

void CheckpointEditor::set_f32(const std::string& name, float value) {
  Stored stored{DType::F32, {}, std::vector<std::byte>(sizeof value)};
  std::memcpy(stored.bytes.data(), &value, sizeof value);
  tensors_[name] = std::move(stored);
}

void CheckpointEditor::write() {
  directory_.write("config.json", boost::json::serialize(config_));
  if (!side_.is_null()) {
    directory_.write("hf_quant_config.json", boost::json::serialize(side_));
  }
  std::vector<SafetensorsWriter::Entry> entries;
  for (const auto& [name, stored] : tensors_) {
    entries.push_back({name, stored.dtype, stored.shape});
  }
  auto writer =
      SafetensorsWriter::create(directory_.file("model.safetensors"), entries, {{"format", "pt"}});
  for (const auto& [name, stored] : tensors_) {
    writer.value().append(name, stored.bytes);
  }
  writer->finish();
}

Result<Checkpoint> CheckpointEditor::open() {
  write();
  return Checkpoint::open(directory_.path());
}

std::string problem_texts(const Checkpoint& checkpoint, Problem::Severity severity) {
  std::string text;
  for (const Problem& problem : checkpoint.problems()) {
    if (problem.severity == severity) {
      text += problem.error.text() + "\n";
    }
  }
  return text;
}

}  // namespace nibble::checkpoint
