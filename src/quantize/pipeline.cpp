#include "quantize/pipeline.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "base/file.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/convert.h"
#include "quantize/encode.h"
#include "quantize/plan.h"
#include "quantize/recipe.h"
#include "quantize/write.h"

namespace nibble::quantize {

using checkpoint::Checkpoint;
using checkpoint::LinearInfo;
using checkpoint::SafetensorsWriter;

namespace {

constexpr uint64_t kCopyBytes = uint64_t{64} << 20;

Result<void> check_destination(const QuantizeOptions& options, uint64_t output_bytes) {
  for (const char* name : {"config.json", "model.safetensors", "model.safetensors.index.json"}) {
    if (file_exists(options.destination + "/" + name)) {
      return invalid(std::string("there is a ") + name + " already; choose an empty directory",
                     options.destination);
    }
  }
  std::error_code error;
  std::filesystem::create_directories(options.destination, error);
  if (error) {
    return invalid("cannot create the directory: " + error.message(), options.destination);
  }
  const auto space = std::filesystem::space(options.destination, error);
  if (!error && space.available < output_bytes) {
    return invalid("needs " + std::to_string(output_bytes) + " bytes, the disk has " +
                       std::to_string(space.available) + " free",
                   options.destination);
  }
  return {};
}

Result<void> copy_tensor(const Checkpoint& source,
                         const std::string& name,
                         SafetensorsWriter& writer) {
  const uint64_t size_bytes = source.find(name)->size_bytes;
  std::vector<std::byte> buffer(std::min(size_bytes, kCopyBytes));
  if (size_bytes == 0) {
    writer.append_part(name, {});
  }
  for (uint64_t offset = 0; offset < size_bytes; offset += buffer.size()) {
    const auto part =
        std::span(buffer).first(std::min<uint64_t>(buffer.size(), size_bytes - offset));
    TRY(source.read_part(name, offset, part));
    writer.append_part(name, part);
  }
  return {};
}

Result<void> write_group(const Checkpoint& source,
                         const Unit& unit,
                         ThreadPool& pool,
                         SafetensorsWriter& writer,
                         QuantizeReport& report) {
  std::vector<SourceWeight> weights;
  std::vector<float> amax;
  for (const LinearInfo& info : unit.linears) {
    weights.push_back(TRY(SourceWeight::read(source, info)));
    amax.push_back(TRY(weight_amax(weights.back(), pool)));
  }
  const float global_scale =
      quant::global_scale_from_amax(*std::max_element(amax.begin(), amax.end()));
  for (size_t i = 0; i < weights.size(); ++i) {
    const std::string& module = unit.linears[i].module;
    Encoded encoded = encode_weight(weights[i], amax[i], global_scale, pool);
    writer.append(module + ".weight", std::as_bytes(std::span(encoded.matrix.codes)));
    writer.append(module + ".weight_scale", std::as_bytes(std::span(encoded.matrix.block_scales)));
    writer.append(module + ".weight_scale_2", std::as_bytes(std::span(&global_scale, 1)));
    report.tensors.push_back(std::move(encoded.report));
  }
  return {};
}

Result<void> write_unit(const Checkpoint& source,
                        const Unit& unit,
                        ThreadPool& pool,
                        SafetensorsWriter& writer,
                        QuantizeReport& report) {
  if (!unit.linears.empty()) {
    return write_group(source, unit, pool, writer, report);
  }
  if (unit.convert) {
    const std::vector<float> values = TRY(source.read_weight(*unit.convert));
    const auto bytes = std::as_bytes(std::span(values));
    writer.append(unit.tensor,
                  TRY(checkpoint::convert_floats(
                      {bytes.begin(), bytes.end()}, DType::F32, DType::BF16, unit.tensor)));
    return {};
  }
  return copy_tensor(source, unit.tensor, writer);
}

std::vector<std::string> excluded_modules(const Plan& plan, const Checkpoint& source) {
  std::vector<std::string> names;
  for (const auto& [module, reason] : plan.kept) {
    names.push_back(module);
  }
  // A tied head is stored nowhere, but readers look for its name in the list.
  if (source.config().tie_word_embeddings &&
      std::find(names.begin(), names.end(), "lm_head") == names.end()) {
    names.emplace_back("lm_head");
  }
  std::sort(names.begin(), names.end());
  return names;
}

void write_configs(const QuantizeOptions& options,
                   const Checkpoint& source,
                   const Plan& plan,
                   const std::map<std::string, std::string>& weight_map,
                   const QuantizeReport& report) {
  const std::string folder = options.destination + "/";
  if (plan.shards.size() > 1) {
    write_file_atomically(folder + "model.safetensors.index.json",
                          pretty_json(shard_index(weight_map, plan.output_bytes)));
  }
  const std::vector<std::string> excluded = excluded_modules(plan, source);
  copy_side_files(options.source, options.destination);
  write_file_atomically(folder + "quantize_report.json", pretty_json(to_json(report)));
  write_file_atomically(folder + "hf_quant_config.json", pretty_json(hf_quant_config(excluded)));
  write_file_atomically(folder + "config.json",
                        pretty_json(config_with_quantization(source.config().raw, excluded)));
}

}  // namespace

Result<QuantizeReport> quantize(const QuantizeOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const Checkpoint source = TRY(Checkpoint::open(options.source));
  TRY(source.require_servable());
  const Recipe recipe = TRY(Recipe::make(options.exclude));
  const Plan plan = TRY(make_plan(source, recipe, options.max_shard_bytes));
  TRY(check_destination(options, plan.output_bytes));

  QuantizeReport report;
  report.kept = plan.kept;
  report.source_bytes = plan.source_bytes;
  report.output_bytes = plan.output_bytes;
  report.num_shards = static_cast<int>(plan.shards.size());
  ThreadPool pool(options.num_threads > 0 ? options.num_threads : num_usable_cpus());
  std::optional<Progress> progress;
  if (options.show_progress) {
    progress.emplace("quantizing", plan.source_bytes, "B");
  }
  std::map<std::string, std::string> weight_map;
  for (size_t i = 0; i < plan.shards.size(); ++i) {
    const std::string name = shard_name(i, plan.shards.size());
    std::vector<SafetensorsWriter::Entry> entries;
    for (const Unit& unit : plan.shards[i]) {
      entries.insert(entries.end(), unit.entries.begin(), unit.entries.end());
    }
    for (const SafetensorsWriter::Entry& entry : entries) {
      weight_map.emplace(entry.name, name);
    }
    SafetensorsWriter writer = TRY(SafetensorsWriter::create(
        options.destination + "/" + name, std::move(entries), {{"format", "pt"}}));
    for (const Unit& unit : plan.shards[i]) {
      TRY(write_unit(source, unit, pool, writer, report));
      if (progress) {
        progress->advance(unit.source_bytes);
      }
    }
    writer.finish();
  }
  if (progress) {
    progress->finish();
  }
  std::sort(report.tensors.begin(),
            report.tensors.end(),
            [](const TensorReport& a, const TensorReport& b) { return a.module < b.module; });
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  write_configs(options, source, plan, weight_map, report);
  return report;
}

}  // namespace nibble::quantize
