#include <array>
#include <cerrno>
#include <cstdio>
#include <set>
#include <utility>

#include <boost/json.hpp>
#include <fcntl.h>
#include <unistd.h>

#include "base/check.h"
#include "checkpoint/safetensors.h"

namespace nibble::checkpoint {

namespace json = boost::json;

namespace {

constexpr size_t kHeaderAlignment = 8;

std::string_view stored_name(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return "F32";
    case DType::BF16:
      return "BF16";
    case DType::F16:
      return "F16";
    case DType::E4M3:
      return "F8_E4M3";
    case DType::E8M0:
      return "F8_E8M0";
    case DType::I64:
      return "I64";
    case DType::I32:
      return "I32";
    case DType::I8:
      return "I8";
    case DType::E2M1x2:  // two codes a byte; the container has no name for it that others read
    case DType::U8:
      return "U8";
    case DType::Bool:
      return "BOOL";
  }
  return "U8";
}

uint64_t entry_bytes(const SafetensorsWriter::Entry& entry) {
  return static_cast<uint64_t>(num_elements(entry.shape) * size_of(entry.dtype));
}

}  // namespace

struct SafetensorsWriter::State {
  std::string path;
  std::string temporary;
  int descriptor = -1;
  std::vector<Entry> entries;
  size_t next = 0;
  uint64_t written_bytes = 0;  // of entries[next]

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (descriptor >= 0) {  // not finished: leave nothing behind
      ::close(descriptor);
      ::unlink(temporary.c_str());
    }
  }

  void write_all(std::span<const std::byte> data) const {
    size_t done = 0;
    while (done < data.size()) {
      const ssize_t got = ::write(descriptor, data.data() + done, data.size() - done);
      if (got < 0 && errno != EINTR) {
        throw_system_error("cannot write " + temporary, errno);
      }
      done += got < 0 ? 0 : static_cast<size_t>(got);
    }
  }
};

SafetensorsWriter::SafetensorsWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter::~SafetensorsWriter() = default;

Result<SafetensorsWriter> SafetensorsWriter::create(
    const std::string& path,
    std::vector<Entry> entries,
    const std::map<std::string, std::string>& metadata) {
  json::object header;
  if (!metadata.empty()) {
    json::object& texts = header["__metadata__"].emplace_object();
    for (const auto& [key, value] : metadata) {
      texts[key] = value;
    }
  }
  uint64_t offset = 0;
  for (const Entry& entry : entries) {
    if (header.contains(entry.name)) {
      return invalid("the list of tensors to write names it twice", entry.name);
    }
    json::array shape;
    for (int i = 0; i < entry.shape.rank; ++i) {
      shape.emplace_back(entry.shape[i]);
    }
    const uint64_t end = offset + entry_bytes(entry);
    header[entry.name] = json::object{{"dtype", stored_name(entry.dtype)},
                                      {"shape", std::move(shape)},
                                      {"data_offsets", json::array{offset, end}}};
    offset = end;
  }
  std::string text = json::serialize(header);
  text.append((kHeaderAlignment - text.size() % kHeaderAlignment) % kHeaderAlignment, ' ');

  auto state = std::make_unique<State>();
  state->path = path;
  state->temporary = path + ".tmp" + std::to_string(::getpid());
  state->entries = std::move(entries);
  state->descriptor =
      ::open(state->temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (state->descriptor < 0) {
    throw_system_error("cannot create " + state->temporary, errno);
  }
  std::array<std::byte, 8> prefix{};
  for (size_t i = 0; i < prefix.size(); ++i) {
    prefix[i] = static_cast<std::byte>((static_cast<uint64_t>(text.size()) >> (8 * i)) & 0xFFu);
  }
  state->write_all(prefix);
  state->write_all(std::as_bytes(std::span(text)));
  return SafetensorsWriter(std::move(state));
}

void SafetensorsWriter::append(const std::string& name, std::span<const std::byte> data) {
  const size_t before = state_->next;
  append_part(name, data);
  CHECK(state_->next == before + 1, "wrong size of ", name, ": ", data.size());
}

void SafetensorsWriter::append_part(const std::string& name, std::span<const std::byte> data) {
  CHECK(state_ != nullptr && state_->next < state_->entries.size(),
        "append past the last announced tensor: ",
        name);
  const Entry& entry = state_->entries[state_->next];
  CHECK(entry.name == name, "tensors out of order: expected ", entry.name, ", got ", name);
  state_->written_bytes += data.size();
  CHECK(state_->written_bytes <= entry_bytes(entry), "too many bytes for ", name);
  state_->write_all(data);
  if (state_->written_bytes == entry_bytes(entry)) {
    state_->written_bytes = 0;
    ++state_->next;
  }
}

void SafetensorsWriter::finish() {
  CHECK(state_ != nullptr && state_->next == state_->entries.size(),
        "finish before every announced tensor was written");
  if (::fsync(state_->descriptor) != 0) {
    throw_system_error("cannot flush " + state_->temporary, errno);
  }
  ::close(std::exchange(state_->descriptor, -1));
  if (std::rename(state_->temporary.c_str(), state_->path.c_str()) != 0) {
    const int error_number = errno;
    ::unlink(state_->temporary.c_str());
    throw_system_error("cannot rename to " + state_->path, error_number);
  }
}

}  // namespace nibble::checkpoint
