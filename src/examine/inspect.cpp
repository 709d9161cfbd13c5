#include "examine/inspect.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "base/cpu_info.h"
#include "base/manifest.h"
#include "base/number_formats.h"
#include "checkpoint/convert.h"
#include "checkpoint/linear_table.h"
#include "checkpoint/verify.h"
#include "examine/expected_tensors.h"
#include "model/linear_source.h"
#include "model/model.h"
#include "model/registry.h"
#include "ops/experts.h"
#include "ops/gemm.h"
#include "ops/gemm_variant.h"
#include "quant/quant_mode.h"
#include "tensor/device_api.h"

namespace nibble::examine {

using checkpoint::Checkpoint;
using checkpoint::LinearInfo;
using checkpoint::Problem;

namespace {

constexpr uint8_t kSmallestCode = 1;
constexpr uint8_t kLargestCode = 0x7E;
constexpr uint8_t kNanMagnitude = 0x7F;
constexpr uint8_t kSignBit = 0x80;

QuantMode default_mode(const LinearInfo& info) {
  switch (info.format) {
    case LinearInfo::Format::Nvfp4:
      return kW4A16;
    case LinearInfo::Format::Fp8:
      return kFp8;
    case LinearInfo::Format::Bf16:
      return kBf16;
  }
  return kBf16;
}

constexpr int kAssumedGpu = 90;
constexpr int64_t kMostRows = 8192;

int isa_of(Device::Kind kind) {
  if (kind == Device::Kind::Cpu) {
    return static_cast<int>(detect_cpu_isa());
  }
  const DeviceApi* api = find_device_api(kind);
  return api != nullptr && api->num_devices() > 0 ? api->isa({kind, 0}) : kAssumedGpu;
}

std::string name_of_experts_kernel(const LinearInfo& info,
                                   const checkpoint::ModelConfig& config,
                                   Device::Kind device) {
  ExpertsDesc desc;
  desc.device = device;
  desc.isa = isa_of(device);
  desc.mode = default_mode(info);
  desc.experts = config.moe.num_experts;
  desc.topk = config.moe.num_experts_per_tok;
  desc.hidden = config.hidden_size;
  desc.ffn = config.moe.moe_intermediate_size;
  desc.pre_quant_scale = !info.pre_quant_scale.empty();
  const auto backend = select_experts(desc, "auto");
  return backend ? std::string((*backend)->name) : "none: " + backend.error().message;
}

std::string kernel_of(const LinearInfo& info,
                      const checkpoint::ModelConfig& config,
                      Device::Kind device) {
  if (config.moe.num_experts > 0 && info.module.find(".experts.") != std::string::npos) {
    return name_of_experts_kernel(info, config, device);
  }
  GemmDesc desc;
  desc.device = device;
  desc.isa = isa_of(device);
  desc.mode = default_mode(info);
  desc.n = info.n;
  desc.k = info.k;
  desc.part_rows[0] = info.n;
  desc.pre_quant_scale = !info.pre_quant_scale.empty();
  desc.static_input_scale = !info.input_scale.empty();
  const auto backend = select_gemm(desc, "auto");
  if (!backend) {
    return "none: " + backend.error().message;
  }
  const std::string variants = gemm_variants(**backend, desc, kMostRows);
  return std::string((*backend)->name) + (variants.empty() ? "" : " (" + variants + ")");
}

// The values of a linear, judged by what loads it. Of NVFP4 all codes are numbers, so that its
// block scales are enough; reading the whole linear tells whether odd ones are harmless.
void scan(const Checkpoint& checkpoint, InspectedLinear& linear, std::vector<Problem>& problems) {
  const bool nvfp4 = linear.info.format == LinearInfo::Format::Nvfp4;
  if (!nvfp4 || linear.info.expert >= 0) {  // or a slice of a stack
    auto data = model::read_part(checkpoint, {}, linear.info);
    if (!data) {
      problems.push_back({Problem::Severity::Error, std::move(data).error()});
    } else if (nvfp4) {
      linear.scales = scale_statistics(data->weight_scale);
    }
    return;
  }
  const checkpoint::TensorInfo* info = checkpoint.find(linear.info.weight_scale);
  std::vector<std::byte> codes(info->size_bytes);
  auto read = checkpoint.read(linear.info.weight_scale, codes);
  if (!read) {
    problems.push_back({Problem::Severity::Error, std::move(read).error()});
    return;
  }
  const size_t row_bytes =
      codes.size() /
      static_cast<size_t>(linear.info.stored_rows > 0 ? linear.info.stored_rows : linear.info.n);
  linear.scales = scale_statistics(
      std::span(codes).subspan(row_bytes * static_cast<size_t>(linear.info.row_begin),
                               row_bytes * static_cast<size_t>(linear.info.n)));
  if (linear.scales.nan + linear.scales.negative == 0) {
    return;
  }
  if (auto data = checkpoint.read_linear(linear.info); !data) {
    problems.push_back({Problem::Severity::Error, std::move(data).error()});
  } else {
    problems.push_back({Problem::Severity::Warning,
                        {ErrorCode::InvalidArgument,
                         std::to_string(linear.scales.nan + linear.scales.negative) +
                             " block scales are NaN or -0 over blocks of zeros; they are read as 0",
                         linear.info.weight_scale}});
  }
}

// nullopt when there is a model for it.
std::optional<Error> unsupported_architecture(const std::string& name) {
  std::string known;
  for (const model::Architecture& architecture : model::architectures()) {
    if (architecture.name == name) {
      return std::nullopt;
    }
    known += (known.empty() ? "" : ", ") + std::string(architecture.name);
  }
  return Error{ErrorCode::Unsupported,
               "'" + name.substr(0, 64) + "' is not supported; known are " + known,
               "config.json.architectures"};
}

bool has_errors(const std::vector<Problem>& problems) {
  return std::any_of(problems.begin(), problems.end(), [](const Problem& problem) {
    return problem.severity == Problem::Severity::Error;
  });
}

// What the loader refuses before it reads a weight, asked of the loader itself.
void add_refusal_of_loader(const Checkpoint& checkpoint, std::vector<Problem>& problems) {
  model::ModelOptions options;
  options.isa = isa_of(Device::Kind::Cpu);
  if (auto model = model::declare_model(checkpoint, options); !model) {
    problems.push_back({Problem::Severity::Error, std::move(model).error()});
  }
}

// The manifest that the loader compares the files with; hashing them is part of the scan.
void check_manifest(const Checkpoint& checkpoint,
                    checkpoint::VerifyDepth depth,
                    std::vector<Problem>& problems) {
  auto manifest = read_manifest(checkpoint.directory());
  if (!manifest) {
    problems.push_back({Problem::Severity::Error, std::move(manifest).error()});
  } else if (const auto& listed = *manifest) {
    if (auto same = checkpoint::verify_files(checkpoint, *listed, depth); !same) {
      problems.push_back({Problem::Severity::Error, std::move(same).error()});
    }
  }
}

// Norms, biases, tables and matrices that are not quantized: NaN and infinity, which the loader
// refuses too.
void scan_plain_tensors(const Checkpoint& checkpoint,
                        const checkpoint::TensorNames& names,
                        std::vector<Problem>& problems) {
  std::vector<std::byte> data;
  for (const std::string& name : names) {
    const checkpoint::TensorInfo* found = checkpoint.find(name);
    if (found == nullptr || num_elements(found->shape) <= 1 ||
        !checkpoint::is_float_dtype(found->dtype)) {
      continue;  // missing, or judged as a scale
    }
    data.resize(found->size_bytes);
    Result<void> read = checkpoint.read(name, data);
    if (read) {
      auto rounded = checkpoint::convert_floats(std::move(data), found->dtype, DType::BF16, name);
      data = rounded ? std::move(*rounded) : std::vector<std::byte>();
      read = rounded ? model::require_finite(DType::BF16, data, name)
                     : tl::unexpected<Error>(std::move(rounded).error());
    }
    if (!read) {
      problems.push_back({Problem::Severity::Error, std::move(read).error()});
    }
  }
}

void add_to_patterns(const InspectedLinear& linear,
                     std::map<std::string, LinearPattern>& patterns) {
  LinearPattern& row = patterns[name_pattern_of(linear.info.module)];
  const LinearInfo& info = linear.info;
  if (row.count == 0) {
    row.pattern = name_pattern_of(info.module);
    row.example = linear;
    row.min_global_scale = info.global_scale;
    row.max_global_scale = info.global_scale;
  }
  const LinearInfo& first = row.example.info;
  row.uniform = row.uniform && first.format == info.format && first.stored == info.stored &&
                first.n == info.n && first.k == info.k && first.group_size == info.group_size;
  ++row.count;
  row.size_bytes += info.size_bytes;
  row.min_global_scale = std::min(row.min_global_scale, info.global_scale);
  row.max_global_scale = std::max(row.max_global_scale, info.global_scale);
  row.with_input_scale += info.input_scale.empty() ? 0 : 1;
  row.scales.add(linear.scales);
}

}  // namespace

void ScaleStatistics::add(const ScaleStatistics& other) {
  const bool had_positive = max > 0;
  blocks += other.blocks;
  zero += other.zero;
  smallest += other.smallest;
  largest += other.largest;
  nan += other.nan;
  negative += other.negative;
  if (other.max > 0) {
    min = had_positive ? std::min(min, other.min) : other.min;
    max = std::max(max, other.max);
  }
}

ScaleStatistics scale_statistics(std::span<const std::byte> e4m3_codes) {
  ScaleStatistics statistics;
  uint8_t low = kLargestCode;
  uint8_t high = 0;
  for (std::byte byte : e4m3_codes) {
    const auto code = static_cast<uint8_t>(byte);
    ++statistics.blocks;
    if ((code & kNanMagnitude) == kNanMagnitude) {
      ++statistics.nan;
    } else if ((code & kSignBit) != 0) {
      ++statistics.negative;
    } else if (code == 0) {
      ++statistics.zero;
    } else {
      low = std::min(low, code);
      high = std::max(high, code);
      statistics.smallest += code == kSmallestCode ? 1 : 0;
      statistics.largest += code == kLargestCode ? 1 : 0;
    }
  }
  if (high > 0) {
    statistics.min = e4m3_to_float(low);
    statistics.max = e4m3_to_float(high);
  }
  return statistics;
}

bool Inspection::servable() const { return !has_errors(problems); }

std::string name_pattern_of(const std::string& module) {
  std::string pattern;
  for (size_t begin = 0; begin <= module.size();) {
    const size_t end = std::min(module.find('.', begin), module.size());
    const std::string segment = module.substr(begin, end - begin);
    const bool number =
        !segment.empty() && segment.find_first_not_of("0123456789") == std::string::npos;
    pattern += (begin == 0 ? "" : ".") + (number ? std::string("*") : segment);
    begin = end + 1;
  }
  return pattern;
}

Result<Inspection> inspect(const InspectOptions& options) {
  const Checkpoint checkpoint = TRY(Checkpoint::open(options.directory));
  Inspection result;
  result.directory = options.directory;
  result.config = checkpoint.config();
  result.quant = checkpoint.quant();
  result.problems = checkpoint.problems();
  check_manifest(
      checkpoint,
      options.scan_scales ? checkpoint::VerifyDepth::Hashes : checkpoint::VerifyDepth::Sizes,
      result.problems);
  for (const std::string& name : checkpoint.tensor_names()) {
    ++result.num_tensors;
    result.total_bytes += checkpoint.find(name)->size_bytes;
  }
  std::map<std::string, std::string> kernels;  // by pattern and form: asking is not free
  std::map<std::string, LinearPattern> patterns;
  for (const LinearInfo& info : checkpoint.linears()) {
    InspectedLinear linear;
    linear.info = info;
    linear.mode = to_string(default_mode(info));
    const bool expert = info.module.find(".experts.") != std::string::npos;
    const std::string key = linear.mode + (expert ? " experts " : " ") + std::to_string(info.n) +
                            " " + std::to_string(info.k) +
                            (info.pre_quant_scale.empty() ? "" : " awq");
    auto [kernel, is_new] = kernels.try_emplace(key);
    if (is_new) {
      kernel->second = kernel_of(info, result.config, options.device);
    }
    linear.kernel = kernel->second;
    const bool plain =  // scanned with the norms
        info.format == LinearInfo::Format::Bf16 && info.stored == LinearInfo::Stored::AsFormat;
    if (options.scan_scales && !plain) {
      std::vector<Problem> found;
      scan(checkpoint, linear, found);
      for (Problem& problem : found) {
        if (!checkpoint::runs_for_text(info.module, result.config)) {
          problem.severity = Problem::Severity::Warning;  // nothing reads it
        }
        result.problems.push_back(std::move(problem));
      }
    }
    result.linear_bytes += info.size_bytes;
    result.linear_weights += info.n * info.k;
    add_to_patterns(linear, patterns);
    result.linears.push_back(std::move(linear));
  }
  for (auto& [name, row] : patterns) {
    result.patterns.push_back(std::move(row));
  }
  if (auto error = unsupported_architecture(result.config.architecture);
      error && !result.config.architecture.empty()) {  // an unreadable config is told already
    result.problems.push_back({Problem::Severity::Error, std::move(*error)});
  }
  ExpectedTensors expected = expected_tensors(checkpoint);
  for (Error& error : expected.errors) {
    result.problems.push_back({Problem::Severity::Error, std::move(error)});
  }
  if (options.scan_scales) {
    scan_plain_tensors(checkpoint, expected.names, result.problems);
  }
  if (!has_errors(result.problems)) {  // the loader stops at its first, which would be one of them
    add_refusal_of_loader(checkpoint, result.problems);
  }
  std::stable_sort(result.problems.begin(),
                   result.problems.end(),
                   [](const Problem& a, const Problem& b) { return a.severity > b.severity; });
  return result;
}

}  // namespace nibble::examine
