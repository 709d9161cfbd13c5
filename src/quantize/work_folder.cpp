#include "quantize/work_folder.h"

#include <cerrno>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "base/file.h"
#include "base/json.h"

namespace nibble::quantize {

namespace fs = std::filesystem;
namespace json = boost::json;
using checkpoint::SafetensorsFile;
using checkpoint::SafetensorsWriter;

namespace {

constexpr const char* kRunFile = "nibble-quantize-run.json";
constexpr const char* kReports = "reports";
constexpr const char* kHidden = "hidden";
constexpr size_t kMaxRunBytes = size_t{16} << 20;

void throw_for(const std::string& what, const std::error_code& error) {
  if (error) {
    throw_system_error(what, error.value());
  }
}

// Makes it, or removes what is in it; the folder itself stays, for it is what the lock is on.
void empty_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  throw_for("cannot create " + path, error);
  for (const auto& entry : fs::directory_iterator(path, error)) {
    fs::remove_all(entry.path(), error);
    throw_for("cannot empty " + path, error);
  }
  throw_for("cannot empty " + path, error);
}

// What a killed run was in the middle of writing.
void remove_temporaries(const std::string& path) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path, error)) {
    if (entry.path().filename().string().find(".tmp") != std::string::npos) {
      fs::remove(entry.path(), error);
    }
  }
}

}  // namespace

Result<WorkFolder> WorkFolder::open(const std::string& path, const std::string& run) {
  const std::string run_file = path + "/" + kRunFile;
  FolderLock lock = TRY(FolderLock::take(path));
  std::error_code error;
  if (!fs::is_empty(path, error) && !file_exists(run_file)) {
    return invalid("is in the way of the unfinished result, and nibble did not make it; move it",
                   path);
  }
  const Result<std::string> before = read_text_file(run_file, kMaxRunBytes);
  if (!before || *before != run) {
    empty_folder(path);
    write_file_atomically(run_file, run);
  }
  remove_temporaries(path);
  return WorkFolder(path, std::move(lock));
}

uint64_t WorkFolder::bytes_at(const std::string& path) {
  uint64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator at(path, error), end; !error && at != end;
       at.increment(error)) {
    std::error_code gone;
    const uint64_t size = at->is_regular_file(gone) ? at->file_size(gone) : 0;
    bytes += gone ? 0 : size;
  }
  return bytes;
}

Error WorkFolder::damaged(Error error) const {
  error.message += "; the unfinished run is damaged: remove " + path_ + " and start again";
  return error;
}

std::string WorkFolder::step_file(int64_t step) const {
  return fmt::format("{}/step-{:05}.safetensors", path_, step);
}

std::string WorkFolder::hidden_file(int64_t step) const {
  return fmt::format("{}/hidden-{:05}.safetensors", path_, step);
}

bool WorkFolder::has(int64_t step) const { return file_exists(step_file(step)); }

void WorkFolder::store(int64_t step, const UnitResult& result) const {
  std::vector<SafetensorsWriter::Entry> entries;
  entries.reserve(result.tensors.size());
  for (const StoredTensor& tensor : result.tensors) {
    entries.push_back(tensor.entry);
  }
  json::array reports;
  reports.reserve(result.reports.size());
  for (const TensorReport& report : result.reports) {
    reports.push_back(to_json(report));
  }
  auto writer = SafetensorsWriter::create(
      step_file(step), std::move(entries), {{kReports, json::serialize(reports)}});
  CHECK(writer.has_value(), "a layer's tensors repeat a name");
  for (const StoredTensor& tensor : result.tensors) {
    writer->append(tensor.entry.name, tensor.bytes);
  }
  writer->finish();
}

Result<WorkFolder::Step> WorkFolder::read(int64_t step) const {
  auto found = [&]() -> Result<Step> {
    SafetensorsFile file = TRY(SafetensorsFile::open(step_file(step)));
    const auto text = file.metadata().find(kReports);
    if (text == file.metadata().end()) {
      return invalid("has no reports", step_file(step));
    }
    const json::value value = TRY(parse_json(text->second, step_file(step)));
    if (!value.is_array()) {
      return invalid("its reports are not a list", step_file(step));
    }
    std::vector<TensorReport> reports;
    for (const json::value& one : value.get_array()) {
      reports.push_back(TRY(parse_tensor_report(one, step_file(step))));
    }
    return Step{std::move(file), std::move(reports)};
  }();
  if (!found) {
    return tl::unexpected<Error>(damaged(std::move(found).error()));
  }
  return found;
}

void WorkFolder::store_hidden(int64_t step, std::span<const uint16_t> hidden) const {
  const auto count = static_cast<int64_t>(hidden.size());
  auto writer =
      SafetensorsWriter::create(hidden_file(step), {{kHidden, DType::BF16, Shape{count}}}, {});
  CHECK(writer.has_value(), "one name cannot repeat");
  writer->append(kHidden, std::as_bytes(hidden));
  writer->finish();
  std::error_code error;
  fs::remove(hidden_file(step - 1), error);
}

bool WorkFolder::has_hidden(int64_t step) const { return file_exists(hidden_file(step)); }

Result<std::vector<uint16_t>> WorkFolder::read_hidden(int64_t step) const {
  auto found = [&]() -> Result<std::vector<uint16_t>> {
    const SafetensorsFile file = TRY(SafetensorsFile::open(hidden_file(step)));
    const auto tensor = file.tensors().find(kHidden);
    if (tensor == file.tensors().end()) {
      return invalid("has no hidden states", hidden_file(step));
    }
    std::vector<uint16_t> hidden(tensor->second.size_bytes / sizeof(uint16_t));
    TRY(file.read(kHidden, std::as_writable_bytes(std::span(hidden))));
    return hidden;
  }();
  if (!found) {
    return tl::unexpected<Error>(damaged(std::move(found).error()));
  }
  return found;
}

std::string WorkFolder::fresh_output() const {
  const std::string path = path_ + "/output";
  empty_folder(path);
  return path;
}

void WorkFolder::remove() const {
  std::error_code error;
  fs::remove_all(path_, error);
}

}  // namespace nibble::quantize
