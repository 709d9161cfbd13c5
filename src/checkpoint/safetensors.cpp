#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

#include <boost/json.hpp>

#include "base/json.h"

namespace nibble::checkpoint {

namespace json = boost::json;

namespace {

constexpr uint64_t kPrefixBytes = 8;
// The reference implementation's limit; real headers of 200,000 tensors have about 30 MB.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxHeaderDepth = 8;
constexpr uint64_t kMaxElements = uint64_t{1} << 56;  // its size in bits fits 64 bits
constexpr size_t kMaxNameBytes = 1024;

struct StoredType {
  std::string_view name;
  std::optional<DType> dtype;  // nullopt: known, but nothing here computes with it
  uint64_t bits;
};
constexpr std::array<StoredType, 17> kStoredTypes = {{
    {"F32", DType::F32, 32},
    {"BF16", DType::BF16, 16},
    {"F16", DType::F16, 16},
    {"F8_E4M3", DType::E4M3, 8},
    {"F8_E8M0", DType::E8M0, 8},
    {"U8", DType::U8, 8},
    {"I8", DType::I8, 8},
    {"I32", DType::I32, 32},
    {"I64", DType::I64, 64},
    {"BOOL", DType::Bool, 8},
    {"F64", std::nullopt, 64},
    {"F8_E5M2", std::nullopt, 8},
    {"I16", std::nullopt, 16},
    {"U16", std::nullopt, 16},
    {"U32", std::nullopt, 32},
    {"U64", std::nullopt, 64},
    {"F4", std::nullopt, 4},
}};

const StoredType* stored_type(std::string_view name) {
  const auto* found = std::find_if(kStoredTypes.begin(),
                                   kStoredTypes.end(),
                                   [&](const StoredType& type) { return type.name == name; });
  return found == kStoredTypes.end() ? nullptr : found;
}

// Boost.JSON keeps one of two equal keys; a header that names a tensor twice is ambiguous. Walks
// the text and returns the first key of the outermost object that appears again.
std::optional<std::string> repeated_key(std::string_view text) {
  std::set<std::string_view> keys;
  int depth = 0;
  std::string_view last_string;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      const size_t begin = i + 1;
      for (++i; i < text.size() && text[i] != '"'; ++i) {
        if (text[i] == '\\') {
          ++i;
        }
      }
      last_string = text.substr(begin, std::min(i, text.size()) - begin);
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      --depth;
    } else if (c == ':' && depth == 1 && !keys.insert(last_string).second) {
      return std::string(last_string);
    }
  }
  return std::nullopt;
}

std::string dims_text(const std::vector<int64_t>& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(dims[i]);
  }
  return text + "]";
}

Result<std::vector<int64_t>> int_array(const JsonObject& entry, std::string_view key) {
  const auto* value = entry.find(key);
  if (value == nullptr || !value->is_array()) {
    return invalid("expected an array of integers", entry.path_of(key));
  }
  return TRY(entry.find_int_list(key)).value_or(std::vector<int64_t>{});
}

// Number of elements, or an error for negative sizes, absurd products and, where a zero hides the
// product, absurd sizes.
Result<uint64_t> checked_elements(const std::vector<int64_t>& dims, const std::string& where) {
  uint64_t count = 1;
  for (int64_t dim : dims) {
    if (dim < 0 || static_cast<uint64_t>(dim) > kMaxElements ||
        (dim != 0 && count > kMaxElements / static_cast<uint64_t>(dim))) {
      return invalid("shape " + dims_text(dims) + " is out of range", where);
    }
    count *= static_cast<uint64_t>(dim);
  }
  return count;
}

Result<TensorInfo> parse_entry(const json::value& value,
                               uint64_t data_begin,
                               uint64_t data_bytes,
                               const std::string& where) {
  const JsonObject entry = TRY(JsonObject::from(value, where));
  const std::string dtype_name = TRY(entry.get_string("dtype"));
  const std::vector<int64_t> dims = TRY(int_array(entry, "shape"));
  const std::vector<int64_t> offsets = TRY(int_array(entry, "data_offsets"));
  if (offsets.size() != 2 || offsets[0] < 0 || offsets[1] < offsets[0]) {
    return invalid("data_offsets must be two increasing positions", where);
  }
  const auto begin = static_cast<uint64_t>(offsets[0]);
  const auto end = static_cast<uint64_t>(offsets[1]);
  if (end > data_bytes) {
    return invalid("data ends at byte " + std::to_string(end) + " of the data section, which has " +
                       std::to_string(data_bytes) + " bytes (truncated file?)",
                   where);
  }
  const uint64_t elements = TRY(checked_elements(dims, where));

  TensorInfo info;
  info.offset_bytes = data_begin + begin;
  info.size_bytes = end - begin;
  const StoredType* type = stored_type(dtype_name);
  if (type != nullptr) {
    const uint64_t needed = (elements * type->bits + 7) / 8;
    if (needed != info.size_bytes) {
      return invalid(dtype_name + " " + dims_text(dims) + " needs " + std::to_string(needed) +
                         " bytes, data_offsets give " + std::to_string(info.size_bytes),
                     where);
    }
  }
  const std::optional<DType> dtype = type == nullptr ? std::nullopt : type->dtype;
  if (!dtype) {
    info.unusable = "stored as " + dtype_name.substr(0, 32) + ", which nothing here reads";
  } else if (dims.size() > kMaxRank) {
    info.unusable = "has " + std::to_string(dims.size()) + " dimensions, at most " +
                    std::to_string(kMaxRank) + " are supported";
  }
  if (dtype && info.unusable.empty()) {
    info.dtype = *dtype;
    info.shape.rank = static_cast<uint8_t>(dims.size());
    std::copy(dims.begin(), dims.end(), info.shape.dim.begin());
  } else {
    info.dtype = DType::U8;
    info.shape = {static_cast<int64_t>(info.size_bytes)};
  }
  return info;
}

// The format has no holes: each byte of the data section belongs to one tensor.
Result<void> check_coverage(const std::map<std::string, TensorInfo>& tensors,
                            uint64_t data_begin,
                            uint64_t file_size_bytes,
                            const std::string& where) {
  std::vector<std::pair<const std::string*, const TensorInfo*>> order;
  order.reserve(tensors.size());
  for (const auto& [name, info] : tensors) {
    order.emplace_back(&name, &info);
  }
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->offset_bytes, a.second->size_bytes) <
           std::pair(b.second->offset_bytes, b.second->size_bytes);
  });
  uint64_t position = data_begin;
  for (const auto& [name, info] : order) {
    if (info->offset_bytes < position) {
      return invalid("its data overlaps the tensor stored before it", where + ": " + *name);
    }
    if (info->offset_bytes > position) {
      return invalid(std::to_string(info->offset_bytes - position) +
                         " bytes before its data belong to no tensor",
                     where + ": " + *name);
    }
    position += info->size_bytes;
  }
  if (position != file_size_bytes) {
    return invalid("the header describes " + std::to_string(position) + " bytes, the file has " +
                       std::to_string(file_size_bytes),
                   where);
  }
  return {};
}

}  // namespace

Result<std::map<std::string, TensorInfo>> parse_safetensors_header(
    std::string_view header_json,
    uint64_t data_begin,
    uint64_t file_size_bytes,
    const std::string& where,
    std::map<std::string, std::string>* metadata) {
  if (header_json.empty() || header_json.front() != '{') {
    return invalid("not a safetensors file: the header is not a JSON object", where);
  }
  if (data_begin > file_size_bytes) {
    return invalid("header reaches past the end of the file (truncated file?)", where);
  }
  const json::value header = TRY(
      parse_json(header_json, where, {.max_bytes = kMaxHeaderBytes, .max_depth = kMaxHeaderDepth}));
  const JsonObject root = TRY(JsonObject::from(header, where));
  if (auto name = repeated_key(header_json)) {
    return invalid("the header names it twice", where + ": " + *name);
  }
  std::map<std::string, TensorInfo> tensors;
  for (const auto& member : root.raw()) {
    const std::string name(member.key());
    if (name == "__metadata__") {
      const JsonObject texts = TRY(JsonObject::from(member.value(), where + ": __metadata__"));
      for (const auto& text : texts.raw()) {
        const std::string value = TRY(texts.get_string(text.key()));
        if (metadata != nullptr) {
          metadata->emplace(text.key(), value);
        }
      }
      continue;
    }
    if (name.empty() || name.size() > kMaxNameBytes) {
      return invalid("a tensor name has " + std::to_string(name.size()) + " bytes, the limit is " +
                         std::to_string(kMaxNameBytes),
                     where);
    }
    TensorInfo info = TRY(
        parse_entry(member.value(), data_begin, file_size_bytes - data_begin, where + ": " + name));
    tensors.emplace(name, std::move(info));
  }
  TRY(check_coverage(tensors, data_begin, file_size_bytes, where));
  return tensors;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  SafetensorsFile result(TRY(ReadFile::open(path)));
  const ReadFile& file = result.file_;
  if (file.size_bytes() < kPrefixBytes) {
    return invalid("file has " + std::to_string(file.size_bytes()) +
                       " bytes, too short for a safetensors file (truncated or not downloaded?)",
                   path);
  }
  std::array<std::byte, kPrefixBytes> prefix{};
  TRY(file.read_at(0, prefix));
  uint64_t header_bytes = 0;
  for (size_t i = 0; i < kPrefixBytes; ++i) {
    header_bytes |= static_cast<uint64_t>(prefix[i]) << (8 * i);
  }
  if (header_bytes > kMaxHeaderBytes || header_bytes > file.size_bytes() - kPrefixBytes) {
    return invalid("header length " + std::to_string(header_bytes) + " does not fit a file of " +
                       std::to_string(file.size_bytes()) +
                       " bytes (truncated, or not a safetensors file)",
                   path);
  }
  std::string header(header_bytes, '\0');
  TRY(file.read_at(kPrefixBytes, std::as_writable_bytes(std::span(header))));
  result.tensors_ = TRY(parse_safetensors_header(
      header, kPrefixBytes + header_bytes, file.size_bytes(), path, &result.metadata_));
  return result;
}

Result<void> SafetensorsFile::read(const std::string& name, std::span<std::byte> out) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end() && out.size() != found->second.size_bytes) {
    return invalid("has " + std::to_string(found->second.size_bytes) + " bytes, asked for " +
                       std::to_string(out.size()),
                   name);
  }
  return read_part(name, 0, out);
}

Result<void> SafetensorsFile::read_part(const std::string& name,
                                        uint64_t offset_bytes,
                                        std::span<std::byte> out) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    return fail(ErrorCode::NotFound, "no such tensor in " + path(), name);
  }
  const TensorInfo& info = found->second;
  if (offset_bytes > info.size_bytes || out.size() > info.size_bytes - offset_bytes) {
    return invalid("has " + std::to_string(info.size_bytes) + " bytes, asked for " +
                       std::to_string(out.size()) + " from " + std::to_string(offset_bytes),
                   name);
  }
  return file_.read_at(info.offset_bytes + offset_bytes, out).map_error([&](Error error) {
    error.where = name + " in " + path();
    return error;
  });
}

}  // namespace nibble::checkpoint
