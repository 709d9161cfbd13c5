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

void empty_folder(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  throw_for("cannot empty " + path, error);
  fs::create_directories(path, error);
  throw_for("cannot create " + path, error);
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
  std::error_code error;
  if (fs::exists(path, error) && !fs::is_empty(path, error) && !file_exists(run_file)) {
    return invalid("is in the way of the unfinished result, and nibble did not make it; move it",
                   path);
  }
  const Result<std::string> before = read_text_file(run_file, kMaxRunBytes);
  if (!before || *before != run) {
    empty_folder(path);
    write_file_atomically(run_file, run);
  }
  remove_temporaries(path);
  return WorkFolder(path);
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
  for (const StoredTensor& tensor : result.tensors) {
    entries.push_back(tensor.entry);
  }
  json::array reports;
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
  SafetensorsFile file = TRY(SafetensorsFile::open(step_file(step)));
  const auto text = file.metadata().find(kReports);
  if (text == file.metadata().end()) {
    return invalid("has no reports; remove the folder and start again", step_file(step));
  }
  const json::value value = TRY(parse_json(text->second, step_file(step)));
  if (!value.is_array()) {
    return invalid("its reports are not a list; remove the folder and start again",
                   step_file(step));
  }
  std::vector<TensorReport> reports;
  for (const json::value& one : value.get_array()) {
    reports.push_back(TRY(parse_tensor_report(one, step_file(step))));
  }
  return Step{std::move(file), std::move(reports)};
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
  const SafetensorsFile file = TRY(SafetensorsFile::open(hidden_file(step)));
  const auto found = file.tensors().find(kHidden);
  if (found == file.tensors().end()) {
    return invalid("has no hidden states; remove the folder and start again", hidden_file(step));
  }
  std::vector<uint16_t> hidden(found->second.size_bytes / sizeof(uint16_t));
  TRY(file.read(kHidden, std::as_writable_bytes(std::span(hidden))));
  return hidden;
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
