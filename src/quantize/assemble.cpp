#include "quantize/assemble.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>

#include "checkpoint/convert.h"
#include "quantize/fp8_weights.h"

namespace nibble::quantize {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;
using checkpoint::LinearInfo;
using checkpoint::SafetensorsFile;
using checkpoint::SafetensorsWriter;
using checkpoint::TensorInfo;

namespace {

constexpr uint64_t kCopyBytes = uint64_t{64} << 20;

// One tensor of the output: from a finished layer, or from the source.
struct Piece {
  SafetensorsWriter::Entry entry;
  std::string stored;                         // its name where it comes from
  const SafetensorsFile* finished = nullptr;  // null: the source
  const LinearInfo* convert = nullptr;        // 8-bit at the source: becomes bf16
  bool inverse = false;                       // a scale that this layout stores as 1 / scale
};

struct Suffix {
  std::string_view ours;
  std::string_view theirs;
  bool inverse;
};
constexpr std::array<Suffix, 4> kCompressedTensors = {{
    {".weight_scale_2", ".weight_global_scale", true},
    {".weight_scale", ".weight_scale", false},
    {".input_scale", ".input_global_scale", true},
    {".weight", ".weight_packed", false},
}};

Piece finished_piece(const std::string& name, const FinishedTensor& finished, Layout layout) {
  const TensorInfo& info = finished.file->tensors().at(finished.stored);
  Piece piece{{name, info.dtype, info.shape}, finished.stored, finished.file, nullptr, false};
  const bool fp8 = finished.stored.ends_with(kFp8Suffix);
  if (layout == Layout::CompressedTensors && fp8) {
    if (info.dtype == DType::F32) {
      piece.entry.shape = Shape{1};
    }
  } else if (layout == Layout::CompressedTensors) {
    for (const Suffix& suffix : kCompressedTensors) {
      if (name.ends_with(suffix.ours)) {
        piece.entry.name =
            name.substr(0, name.size() - suffix.ours.size()) + std::string(suffix.theirs);
        piece.inverse = suffix.inverse;
        piece.entry.shape = suffix.inverse ? Shape{1} : info.shape;
        break;
      }
    }
  }
  return piece;
}

std::vector<Piece> pieces_of(const Checkpoint& source,
                             const Unit& unit,
                             const FinishedTensors& finished,
                             Layout layout) {
  std::vector<Piece> pieces;
  for (const LinearInfo& info : unit.linears) {
    for (const char* suffix : {".weight", ".weight_scale", ".weight_scale_2", ".input_scale"}) {
      const std::string name = info.module + suffix;
      if (const auto found = finished.find(name); found != finished.end()) {
        pieces.push_back(finished_piece(name, found->second, layout));
      }
    }
  }
  if (!unit.linears.empty()) {
    return pieces;
  }
  if (const auto found = finished.find(unit.tensor); found != finished.end()) {
    pieces.push_back(finished_piece(unit.tensor, found->second, Layout::ModelOpt));
  } else if (unit.convert) {
    pieces.push_back({unit.entries.front(), unit.tensor, nullptr, &*unit.convert, false});
  } else {
    const TensorInfo& info = *source.find(unit.tensor);
    pieces.push_back({{unit.tensor, info.dtype, info.shape}, unit.tensor, nullptr, nullptr, false});
  }
  return pieces;
}

// read(offset, out) of `size_bytes` bytes, in parts.
template <typename Read>
Result<void> copy(const std::string& name,
                  uint64_t size_bytes,
                  SafetensorsWriter& writer,
                  const Read& read) {
  std::vector<std::byte> buffer(std::min(size_bytes, kCopyBytes));
  if (size_bytes == 0) {
    writer.append_part(name, {});
  }
  for (uint64_t offset = 0; offset < size_bytes; offset += buffer.size()) {
    const auto part =
        std::span(buffer).first(std::min<uint64_t>(buffer.size(), size_bytes - offset));
    TRY(read(offset, part));
    writer.append_part(name, part);
  }
  return {};
}

Result<void> write_piece(const Checkpoint& source, const Piece& piece, SafetensorsWriter& writer) {
  const std::string& name = piece.entry.name;
  if (piece.inverse) {
    float scale = 0;
    TRY(piece.finished->read(piece.stored, std::as_writable_bytes(std::span(&scale, 1))));
    const float inverse = 1.0f / scale;
    writer.append(name, std::as_bytes(std::span(&inverse, 1)));
    return {};
  }
  if (piece.finished != nullptr) {
    return copy(name,
                piece.finished->tensors().at(piece.stored).size_bytes,
                writer,
                [&](uint64_t offset, std::span<std::byte> out) {
                  return piece.finished->read_part(piece.stored, offset, out);
                });
  }
  if (piece.convert != nullptr) {
    const std::vector<float> values = TRY(source.read_weight(*piece.convert));
    const auto bytes = std::as_bytes(std::span(values));
    writer.append(name,
                  TRY(checkpoint::convert_floats(
                      {bytes.begin(), bytes.end()}, DType::F32, DType::BF16, piece.stored)));
    return {};
  }
  return copy(name,
              source.find(piece.stored)->size_bytes,
              writer,
              [&](uint64_t offset, std::span<std::byte> out) {
                return source.read_part(piece.stored, offset, out);
              });
}

void move_or_throw(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  const bool other_disk = error == std::errc::cross_device_link;  // a mounted destination
  if (other_disk) {
    fs::copy_file(from, to, fs::copy_options::overwrite_existing, error);
  }
  if (error) {
    throw_system_error("cannot move " + from.string() + " to " + to.string(), error.value());
  }
}

}  // namespace

Result<std::map<std::string, std::string>> write_shards(const Checkpoint& source,
                                                        const Plan& plan,
                                                        const FinishedTensors& finished,
                                                        Layout layout,
                                                        const std::string& folder) {
  std::map<std::string, std::string> weight_map;
  for (size_t i = 0; i < plan.shards.size(); ++i) {
    const std::string name = shard_name(i, plan.shards.size());
    std::vector<Piece> pieces;
    for (const Unit& unit : plan.shards[i]) {
      for (Piece& piece : pieces_of(source, unit, finished, layout)) {
        pieces.push_back(std::move(piece));
      }
    }
    std::vector<SafetensorsWriter::Entry> entries;
    for (const Piece& piece : pieces) {
      entries.push_back(piece.entry);
      weight_map.emplace(piece.entry.name, name);
    }
    SafetensorsWriter writer =
        TRY(SafetensorsWriter::create(folder + "/" + name, std::move(entries), {{"format", "pt"}}));
    for (const Piece& piece : pieces) {
      TRY(write_piece(source, piece, writer));
    }
    writer.finish();
  }
  return weight_map;
}

void publish(const std::string& folder, const std::string& destination) {
  std::error_code error;
  fs::rename(folder, destination, error);  // also onto an empty folder
  if (!error) {
    return;
  }
  constexpr const char* kLast = "config.json";
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename() != kLast) {
      move_or_throw(entry.path(), fs::path(destination) / entry.path().filename());
    }
  }
  move_or_throw(fs::path(folder) / kLast, fs::path(destination) / kLast);
}

}  // namespace nibble::quantize
