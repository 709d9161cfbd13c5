#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/json.h"
#include "checkpoint/convert.h"
#include "checkpoint/fused_parts.h"
#include "checkpoint/linear_table.h"
#include "checkpoint/model_sizes.h"
#include "checkpoint/shard_list.h"

namespace nibble::checkpoint {

namespace json = boost::json;

namespace {

constexpr size_t kMaxNamesListed = 3;
// A name within this edit distance is worth suggesting.
constexpr size_t kSuggestDistance = 3;

std::string expectation(DType dtype, const Shape& shape, std::string_view expected_from) {
  std::string text = std::string(to_string(dtype)) + " " + to_string(shape);
  return expected_from.empty() ? text : text + " (from " + std::string(expected_from) + ")";
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) {
    row[j] = j;
  }
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    size_t least = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substitute, row[j] + 1, row[j - 1] + 1});
      least = std::min(least, row[j]);
    }
    if (least > kSuggestDistance) {
      return least;  // it only grows
    }
  }
  return row[b.size()];
}

// Names that are what they say are no misspelling of another: the other parts of the same layer,
// the same part of other layers and experts.
bool is_common_name(const std::string& name) {
  constexpr std::array<std::string_view, 14> kCommon = {".q_proj.",
                                                        ".k_proj.",
                                                        ".v_proj.",
                                                        ".o_proj.",
                                                        ".gate_proj.",
                                                        ".up_proj.",
                                                        ".down_proj.",
                                                        ".q_norm.",
                                                        ".k_norm.",
                                                        ".w1.",
                                                        ".w2.",
                                                        ".w3.",
                                                        ".gate.",
                                                        "layernorm."};
  return std::any_of(kCommon.begin(), kCommon.end(), [&](std::string_view part) {
    return name.find(part) != std::string::npos;
  });
}

Result<std::optional<json::value>> optional_json(const std::string& path) {
  if (!file_exists(path)) {
    return std::nullopt;
  }
  return std::optional<json::value>(TRY(parse_json_file(path)));
}

bool same_bytes(const SafetensorsFile& a, const SafetensorsFile& b, const std::string& name) {
  const TensorInfo& first = a.tensors().at(name);
  const TensorInfo& second = b.tensors().at(name);
  if (first.dtype != second.dtype || !(first.shape == second.shape) ||
      first.size_bytes != second.size_bytes) {
    return false;
  }
  std::vector<std::byte> left(first.size_bytes);
  std::vector<std::byte> right(second.size_bytes);
  return a.read(name, left) && b.read(name, right) && left == right;
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::string& directory) {
  if (!directory_exists(directory)) {
    return fail(ErrorCode::NotFound, "no such directory", directory);
  }
  Checkpoint checkpoint;
  checkpoint.directory_ = directory;
  TRY(checkpoint.read_configs());
  TRY(checkpoint.read_headers());
  LinearTable table =
      build_linear_table(checkpoint.tensors_, checkpoint.quant_, checkpoint.config_);
  checkpoint.linears_ = split_fused_linears(std::move(table.linears), checkpoint.config_);
  checkpoint.linear_errors_ = std::move(table.errors);
  checkpoint.check_scalars();
  checkpoint.check_head();
  for (const auto& [module, error] : checkpoint.linear_errors_) {
    if (runs_for_text(module, checkpoint.config_)) {
      checkpoint.add_error(error);
    } else {
      checkpoint.add_warning(error);
    }
  }
  for (Error& warning : table.warnings) {
    checkpoint.add_warning(std::move(warning));
  }
  return checkpoint;
}

Result<void> Checkpoint::read_configs() {
  const std::string path = directory_ + "/config.json";
  if (!file_exists(path)) {
    return fail(ErrorCode::NotFound, "no config.json in this directory", directory_);
  }
  const json::value config = TRY(parse_json_file(path));
  // The optional files may be broken without hiding what else is wrong.
  const auto optional_file = [&](const char* name) -> std::optional<json::value> {
    auto value = optional_json(directory_ + "/" + name);
    if (!value) {
      add_error(std::move(value).error());
      return std::nullopt;
    }
    return std::move(*value);
  };
  const auto generation = optional_file("generation_config.json");
  const auto side = optional_file("hf_quant_config.json");

  auto model = parse_model_config(config, generation ? &*generation : nullptr, "config.json");
  if (model) {
    config_ = std::move(*model);
  } else {
    add_error(std::move(model).error());
    if (auto sizes = parse_model_sizes(config, "config.json")) {
      config_ = std::move(*sizes);  // never run, but the tensors are judged by it
    }
  }
  auto quant = parse_quant_config(config, side ? &*side : nullptr);
  if (quant) {
    quant_ = std::move(*quant);
    for (const std::string& warning : quant_.warnings) {
      add_warning({ErrorCode::InvalidArgument, warning, {}});
    }
  } else {
    add_error(std::move(quant).error());
  }
  return {};
}

Result<void> Checkpoint::read_headers() {
  const ShardList shards = TRY(list_shards(directory_));
  struct Listed {
    size_t tensors = 0;
    std::string first;
  };
  std::map<std::string, Listed> listed_in;  // by file name
  for (const auto& [tensor, owner] : shards.weight_map) {
    Listed& listed = listed_in[owner];
    listed.first = listed.tensors++ == 0 ? tensor : listed.first;
  }
  std::map<std::string, size_t> opened;  // file name -> index in files_
  for (const std::string& name : shards.files) {
    auto file = SafetensorsFile::open(directory_ + "/" + name);
    if (file) {
      opened.emplace(name, files_.size());
      files_.push_back(std::move(*file));
      continue;
    }
    Error error = std::move(file).error();
    if (const auto listed = listed_in.find(name); listed != listed_in.end()) {
      error.message += "; the index says it holds " + std::to_string(listed->second.tensors) +
                       " tensors, the first is " + listed->second.first;
    }
    add_error(std::move(error));
  }

  std::map<std::string, size_t> strays;  // file -> tensors that the index gives to another file
  std::map<std::string, std::string> stray_in;  // such a tensor -> the first file that has it
  for (const auto& [file_name, file_index] : opened) {
    for (const auto& [name, info] : files_[file_index].tensors()) {
      const auto listed = shards.weight_map.find(name);
      if (listed != shards.weight_map.end() && listed->second != file_name) {
        ++strays[file_name];
        stray_in.emplace(name, file_name);
        continue;
      }
      const auto [it, inserted] = tensors_.try_emplace(name, file_index, info);
      if (!inserted && !same_bytes(files_[it->second.first], files_[file_index], name)) {
        add_error(
            {ErrorCode::InvalidArgument,
             "stored in two files with different contents: " + files_[it->second.first].path() +
                 " and " + files_[file_index].path() + "; the index does not say which one counts",
             name});
      }
    }
  }
  for (const auto& [file_name, count] : strays) {
    add_warning({ErrorCode::InvalidArgument,
                 std::to_string(count) + " tensors are skipped: " + shards.index +
                     " gives their names to other files",
                 file_name});
  }
  for (const auto& [name, file_name] : shards.weight_map) {
    if (tensors_.contains(name) || !opened.contains(file_name)) {
      continue;
    }
    std::string message = shards.index + " says it is in " + file_name + ", which does not have it";
    if (const auto stray = stray_in.find(name); stray != stray_in.end()) {
      message += "; it is in " + stray->second;
    }
    add_error({ErrorCode::InvalidArgument, std::move(message), name});
  }
  return {};
}

// The files decide: a head of its own is used, whatever the config says of sharing.
void Checkpoint::check_head() {
  if (config_.tie_word_embeddings && stores_linear("lm_head")) {
    add_warning({ErrorCode::InvalidArgument,
                 "stored although config.json says tie_word_embeddings true; the stored head is "
                 "used, not the embedding",
                 "lm_head.weight"});
  }
}

bool Checkpoint::stores_linear(std::string_view module) const {
  return find_linear(module) != nullptr || linear_errors_.contains(module) ||
         find(std::string(module) + ".weight") != nullptr;
}

Result<void> Checkpoint::require_servable() const {
  size_t errors = 0;
  const Problem* first = nullptr;
  for (const Problem& problem : problems_) {
    if (problem.severity == Problem::Severity::Error) {
      first = errors++ == 0 ? &problem : first;
    }
  }
  if (first == nullptr) {
    return {};
  }
  Error error = first->error;
  if (errors > 1) {
    error.message += " (and " + std::to_string(errors - 1) +
                     " more problems; `nibble inspect` lists all of them)";
  }
  return tl::unexpected<Error>(std::move(error));
}

std::vector<FileStamp> Checkpoint::stamps() const {
  std::vector<FileStamp> stamps;
  stamps.reserve(files_.size());
  for (const SafetensorsFile& file : files_) {
    stamps.push_back(file.file().stamp());
  }
  return stamps;
}

Result<void> Checkpoint::require_unchanged() const {
  for (const SafetensorsFile& file : files_) {
    TRY(file.file().require_unchanged());
  }
  return {};
}

std::vector<std::string> Checkpoint::tensor_names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, entry] : tensors_) {
    names.push_back(name);
  }
  return names;
}

const TensorInfo* Checkpoint::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second.second;
}

Error Checkpoint::missing(std::string_view name, const std::string& expected) const {
  std::vector<std::pair<size_t, std::string>> near;
  for (const auto& [other, entry] : tensors_) {
    const size_t longer = std::max(other.size(), name.size());
    if (longer - std::min(other.size(), name.size()) > kSuggestDistance || is_common_name(other)) {
      continue;
    }
    const size_t distance = edit_distance(name, other);
    if (distance <= kSuggestDistance) {
      near.emplace_back(distance, other);
    }
  }
  std::sort(near.begin(), near.end());
  std::string message = "missing; expected " + expected;
  for (size_t i = 0; i < std::min(near.size(), kMaxNamesListed); ++i) {
    message += (i == 0 ? "; similar names that are there: " : ", ") + near[i].second;
  }
  return {ErrorCode::NotFound, std::move(message), std::string(name)};
}

Result<void> Checkpoint::read(std::string_view name, std::span<std::byte> out) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    return fail(ErrorCode::NotFound, "missing", std::string(name));
  }
  return files_[found->second.first].read(found->first, out);
}

Result<void> Checkpoint::read_part(std::string_view name,
                                   uint64_t offset_bytes,
                                   std::span<std::byte> out) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    return fail(ErrorCode::NotFound, "missing", std::string(name));
  }
  return files_[found->second.first].read_part(found->first, offset_bytes, out);
}

Result<std::vector<std::byte>> Checkpoint::read_bytes(const std::string& name) const {
  const TensorInfo* info = find(name);
  if (info == nullptr) {
    return fail(ErrorCode::NotFound, "missing", name);
  }
  std::vector<std::byte> bytes(info->size_bytes);
  TRY(read(name, bytes));
  return bytes;
}

const LinearInfo* Checkpoint::find_linear(std::string_view module) const {
  const auto found = std::lower_bound(
      linears_.begin(),
      linears_.end(),
      module,
      [](const LinearInfo& info, std::string_view wanted) { return info.module < wanted; });
  return found == linears_.end() || found->module != module ? nullptr : &*found;
}

const LinearInfo* Checkpoint::find_table(std::string_view name, const Shape& shape) const {
  if (!is_embedding_table(name)) {
    return nullptr;
  }
  const LinearInfo* found = find_linear(name.substr(0, name.rfind('.')));
  return found == nullptr || found->weight != name || !(shape == Shape{found->n, found->k})
             ? nullptr
             : found;
}

Result<void> Checkpoint::require_readable_as(std::string_view name,
                                             DType dtype,
                                             const Shape& shape,
                                             std::string_view expected_from) const {
  const std::string text(name);
  const TensorInfo* info = find(name);
  const std::string expected = expectation(dtype, shape, expected_from);
  if (info == nullptr) {
    return tl::unexpected<Error>(missing(name, expected));
  }
  if (!info->unusable.empty()) {
    return unsupported(info->unusable + "; expected " + expected, text);
  }
  const bool same_kind =
      info->dtype == dtype || (is_float_dtype(info->dtype) && is_float_dtype(dtype));
  if ((!same_kind || !(info->shape == shape)) && find_table(name, shape) == nullptr) {
    return invalid("expected " + expected + ", found " + std::string(to_string(info->dtype)) + " " +
                       to_string(info->shape),
                   text);
  }
  return {};
}

Result<std::vector<std::byte>> Checkpoint::read_as(std::string_view name,
                                                   DType dtype,
                                                   const Shape& shape,
                                                   std::string_view expected_from) const {
  TRY(require_readable_as(name, dtype, shape, expected_from));
  const std::string text(name);
  if (const LinearInfo* table = find_table(name, shape)) {
    const std::vector<float> values = TRY(read_weight(*table));
    const auto bytes = std::as_bytes(std::span(values));
    return convert_floats({bytes.begin(), bytes.end()}, DType::F32, dtype, text);
  }
  return convert_floats(TRY(read_bytes(text)), find(name)->dtype, dtype, text);
}

Result<LinearInfo> Checkpoint::linear(std::string_view module,
                                      int64_t n,
                                      int64_t k,
                                      std::string_view expected_from) const {
  if (const auto error = linear_errors_.find(module); error != linear_errors_.end()) {
    return tl::unexpected<Error>(error->second);
  }
  const LinearInfo* found = find_linear(module);
  const std::string origin =
      expected_from.empty() ? std::string() : " (from " + std::string(expected_from) + ")";
  const std::string shape = to_string(Shape{n, k}) + origin;
  if (found == nullptr) {
    const std::string weight = std::string(module) + ".weight";
    const std::string expected = "a linear of shape " + shape;
    if (const TensorInfo* stored = find(weight)) {
      return stored->unusable.empty()
                 ? invalid("expected " + expected + ", found " +
                               std::string(to_string(stored->dtype)) + " " +
                               to_string(stored->shape),
                           weight)
                 : unsupported(stored->unusable + "; expected " + expected, weight);
    }
    return tl::unexpected<Error>(missing(weight, expected));
  }
  if (found->n != n || found->k != k) {
    const TensorInfo* weight = find(found->weight);
    std::string stored = to_string(weight->shape);
    if (found->expert >= 0) {
      stored += ", for each expert " + to_string(Shape{found->n, found->k});
    } else if (found->format == LinearInfo::Format::Nvfp4) {
      stored += " u8, 4-bit codes of " + to_string(Shape{found->n, found->k});
    }
    return invalid("expected " + shape + ", found " + stored, found->weight);
  }
  return *found;
}

}  // namespace nibble::checkpoint
