#include "support/checkpoint_editor.h"

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

void CheckpointEditor::write_configs() const {
  directory_.write("config.json", boost::json::serialize(config_));
  if (!side_.is_null()) {
    directory_.write("hf_quant_config.json", boost::json::serialize(side_));
  }
}

namespace {

using Tensors = std::map<std::string, CheckpointEditor::Stored>;

void write_file(const std::string& path,
                Tensors::const_iterator begin,
                Tensors::const_iterator end) {
  std::vector<SafetensorsWriter::Entry> entries;
  for (auto it = begin; it != end; ++it) {
    entries.push_back({it->first, it->second.dtype, it->second.shape});
  }
  auto writer = SafetensorsWriter::create(path, entries, {{"format", "pt"}});
  for (auto it = begin; it != end; ++it) {
    writer.value().append(it->first, it->second.bytes);
  }
  writer->finish();
}

}  // namespace

void CheckpointEditor::write() {
  write_configs();
  write_file(directory_.file("model.safetensors"), tensors_.begin(), tensors_.end());
}

void CheckpointEditor::write_shards(size_t count) {
  write_configs();
  boost::json::object weight_map;
  auto begin = tensors_.cbegin();
  for (size_t shard = 0; shard < count; ++shard) {
    const std::string name = "model-0000" + std::to_string(shard + 1) + "-of-0000" +
                             std::to_string(count) + ".safetensors";
    const size_t size = tensors_.size() * (shard + 1) / count - tensors_.size() * shard / count;
    const auto end = std::next(begin, static_cast<std::ptrdiff_t>(size));
    write_file(directory_.file(name), begin, end);
    for (auto it = begin; it != end; ++it) {
      weight_map[it->first] = name;
    }
    begin = end;
  }
  directory_.write("model.safetensors.index.json",
                   boost::json::serialize(boost::json::object{{"weight_map", weight_map}}));
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
