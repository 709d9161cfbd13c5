// ParameterStore: from a checkpoint into slots. Where the weights are not host memory, matrices
// that are stored as the kernels' packers take them stream through pinned memory into device
// memory, several ahead of the packing; what has to be converted, or may be wrong, is read in full.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <future>
#include <utility>

#include "base/check.h"
#include "base/number_formats.h"
#include "model/parameter_store.h"
#include "model/weight_stream.h"
#include "tensor/device_api.h"

namespace nibble::model {

namespace {

using checkpoint::Checkpoint;
using checkpoint::FileRange;
using checkpoint::LinearData;
using checkpoint::LinearInfo;
using checkpoint::PlainBytes;
using Clock = std::chrono::steady_clock;

constexpr int kReadThreads = 8;
constexpr size_t kLongRead = size_t{256} << 20;  // bytes
// Device memory for matrices on their way: of this many of the largest.
constexpr size_t kStagedMatrices = 4;
constexpr size_t kMostStaging = size_t{1} << 30;
constexpr size_t kStagingAlignment = 256;

size_t aligned(size_t bytes) {
  return (bytes + kStagingAlignment - 1) / kStagingAlignment * kStagingAlignment;
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::vector<uint16_t> to_bf16(std::span<const std::byte> data, DType dtype) {
  const size_t count = data.size() / static_cast<size_t>(size_of(dtype));
  std::vector<uint16_t> out(count);
  if (dtype == DType::BF16) {
    std::memcpy(out.data(), data.data(), data.size());
  } else if (dtype == DType::F32) {
    const auto* values = reinterpret_cast<const float*>(data.data());
    std::transform(values, values + count, out.begin(), float_to_bf16);
  } else if (dtype == DType::F16) {
    const auto* values = reinterpret_cast<const uint16_t*>(data.data());
    std::transform(values, values + count, out.begin(), [](uint16_t bits) {
      return float_to_bf16(f16_to_float(bits));
    });
  } else {
    CHECK(false, "bias of an unexpected type ", to_string(dtype));
  }
  return out;
}

// Blocks of one piece of memory, given back in the order in which they were taken.
class Ring {
 public:
  explicit Ring(size_t size_bytes) : size_bytes_(size_bytes) {}
  std::optional<size_t> take(size_t bytes) {
    size_t begin = 0;
    size_t end = size_bytes_;  // of what is free there
    if (!blocks_.empty()) {
      const size_t first = blocks_.front().begin;
      const bool wrapped = blocks_.back().begin < first;
      begin = blocks_.back().end;
      if (wrapped) {
        end = first;
      } else if (begin + bytes > size_bytes_) {
        begin = 0;
        end = first;
      }
    }
    if (begin + bytes > end) {
      return std::nullopt;
    }
    blocks_.push_back({begin, begin + bytes});
    return begin;
  }
  void give_first() { blocks_.pop_front(); }

 private:
  struct Block {
    size_t begin, end;
  };
  size_t size_bytes_;
  std::deque<Block> blocks_;
};

}  // namespace

// ---- one parameter ----

Shape ParameterStore::shape_in(const Checkpoint& source,
                               const TensorSpec& spec,
                               const std::string& name) {
  const checkpoint::TensorInfo* stored = source.find(name);
  const bool one = spec.otherwise && stored != nullptr && num_elements(stored->shape) == 1;
  return one ? stored->shape : spec.shape;
}

const std::string* ParameterStore::name_in(const Checkpoint& source, const TensorSpec& spec) {
  if (!spec.otherwise || source.find(spec.name) != nullptr) {
    return &spec.name;
  }
  for (const std::string& name : spec.other_names) {
    if (source.find(name) != nullptr) {
      return &name;
    }
  }
  return nullptr;
}

Result<ParameterStore::HostData> ParameterStore::read(const Entry& entry,
                                                      const Checkpoint& source,
                                                      bool matrices) const {
  HostData read;
  if (entry.kind == Kind::Tensor) {
    const TensorSpec& spec = entry.plain;
    const std::string* name = name_in(source, spec);
    if (name == nullptr) {
      CHECK(spec.otherwise.has_value(), "declare() refused it otherwise");
      const auto bytes = std::as_bytes(std::span(&*spec.otherwise, 1));
      read.plain.assign(bytes.begin(), bytes.end());
      return read;
    }
    const Shape shape = shape_in(source, spec, *name);
    read.plain = TRY(source.read_as(*name, spec.dtype, shape, spec.expected_from));
    TRY(require_finite(spec.dtype, read.plain, *name));
    if (spec.otherwise && !(*reinterpret_cast<const float*>(read.plain.data()) > 0.0f)) {
      return invalid("expected a positive scale", *name);
    }
  }
  if (entry.kind != Kind::Linear) {
    return read;
  }
  const LinearSpec& spec = entry.linear;
  for (const PartSpec& part : spec.parts) {
    read.infos.push_back(TRY(find_part(source, part, spec.desc.k)));
    TRY(check_scheme(spec, read.infos.back()));
    TRY(require_same_input_scaling(source, read.infos.front(), read.infos.back()));
    read.parts.push_back(TRY(matrices ? read_part(source, part, read.infos.back())
                                      : read_part_without_matrix(source, part, read.infos.back())));
  }
  return read;
}

Result<void> ParameterStore::fill_linear(
    const Entry& entry, HostData read, void* base, Stream stream, Names& used) const {
  const LinearSpec& spec = entry.linear;
  const std::vector<LinearInfo>& infos = read.infos;
  std::vector<LinearData>& data = read.parts;
  for (const LinearInfo& info : infos) {
    add_names(info, used);
  }
  // Parts share their input, so one activation scale serves all: the widest, as upstream engines
  // do.
  float input_scale = 0.0f;
  for (const LinearData& part : data) {
    input_scale = std::max(input_scale, part.input_scale.value_or(0.0f));
  }
  std::vector<LinearPart> parts;
  parts.reserve(data.size());
  for (size_t i = 0; i < data.size(); ++i) {
    parts.push_back(view_of(infos[i], data[i], input_scale));
    if (!read.streamed.empty()) {
      parts.back().weight.data = read.streamed[i].weight;
      parts.back().weight.device = stream.device;
      parts.back().weight_scale.data = read.streamed[i].weight_scale;
      parts.back().weight_scale.device = stream.device;
    }
  }
  std::vector<Tensor> slots = slots_at(entry, base);
  if (spec.bias) {
    std::vector<uint16_t> bias;
    for (size_t i = 0; i < data.size(); ++i) {
      TRY(require_finite(data[i].bias_dtype, data[i].bias, infos[i].bias));
      const std::vector<uint16_t> part = to_bf16(data[i].bias, data[i].bias_dtype);
      if (static_cast<int64_t>(part.size()) != infos[i].n) {
        return invalid("expected [" + std::to_string(infos[i].n) + "], found [" +
                           std::to_string(part.size()) + "]",
                       infos[i].bias);
      }
      bias.insert(bias.end(), part.begin(), part.end());
    }
    device_api(stream.device)
        .copy_to_device(slots.back().data, bias.data(), bias.size() * sizeof(uint16_t), stream);
    slots.pop_back();
  }
  spec.backend->pack(spec.desc, parts, slots, stream);
  device_api(stream.device).synchronize(stream);
  return {};
}

void ParameterStore::fill_plain(const Entry& entry,
                                std::span<const std::byte> value,
                                void* base,
                                Stream stream) const {
  const DeviceApi& api = device_api(stream.device);
  api.copy_to_device(slots_at(entry, base)[0].data, value.data(), value.size(), stream);
  api.synchronize(stream);
}

// ---- streaming ----

// Where the files have an entry's bytes, and what becomes of them.
struct ParameterStore::StreamPlan {
  std::vector<PlainBytes> parts;  // a tensor: one, without scales
  bool in_place = false;          // straight into the first slot, part after part
  size_t staging_bytes = 0;       // unless in_place
};

std::optional<ParameterStore::StreamPlan> ParameterStore::plan_stream(
    const Entry& entry, const Checkpoint& source) const {
  StreamPlan plan;
  if (entry.kind == Kind::Tensor) {
    const TensorSpec& spec = entry.plain;
    const auto bytes = source.plain_bytes(spec.name, spec.dtype, spec.shape);
    if (!bytes || spec.dtype != DType::BF16) {
      return std::nullopt;
    }
    plan.parts.push_back({*bytes, {}});
    plan.in_place = true;
    return plan;
  }
  if (entry.kind != Kind::Linear) {
    return std::nullopt;
  }
  const LinearSpec& spec = entry.linear;
  if (!spec.backend->packs_from_device && memory_.device().kind != Device::Kind::Cpu) {
    return std::nullopt;
  }
  plan.in_place = spec.backend->keeps_bf16 && spec.desc.mode == kBf16;
  for (const PartSpec& part : spec.parts) {
    const Result<LinearInfo> info = find_part(source, part, spec.desc.k);
    if (!info || !check_scheme(spec, *info)) {
      return std::nullopt;  // read() says what is wrong
    }
    std::optional<PlainBytes> bytes;
    if (info->module != part.tied_to) {
      bytes = source.plain_bytes(*info);
    } else if (const auto table =
                   source.plain_bytes(info->weight, DType::BF16, {info->n, info->k})) {
      bytes = PlainBytes{*table, {}};
    }
    if (!bytes) {
      return std::nullopt;
    }
    plan.staging_bytes +=
        aligned(bytes->weight.size_bytes) + aligned(bytes->weight_scale.size_bytes);
    plan.parts.push_back(*bytes);
  }
  return plan;
}

// One fill(): what is on its way, in the order of the entries.
class ParameterStore::Loading {
 public:
  Loading(const ParameterStore& store, const Checkpoint& source, void* base, Stream stream)
      : store_(store),
        source_(source),
        base_(base),
        stream_(stream),
        coming_(store.entries_.size()) {
    const bool is_host = stream.device.kind == Device::Kind::Cpu;
    threads_ = store.read_threads_ >= 0 ? store.read_threads_ : is_host ? 0 : kReadThreads;
    if (threads_ > 0) {
      plan();
    }
    for (size_t i = 0; i < coming_.size() && threads_ > 0; ++i) {  // they would be waited for
      if (!coming_[i].plan && store_.entries_[i].size_bytes >= kLongRead) {
        start_reading(i);
      }
    }
  }

  // The tensors of an entry; blocks until they are there.
  Result<HostData> take(size_t index, LoadReport& report) {
    const Entry& entry = store_.entries_[index];
    start_streaming();
    const auto begin = Clock::now();
    Result<HostData> data = take_now(entry, coming_[index], index, report);
    report.wait_seconds += seconds_since(begin);
    return data;
  }
  // Its tensors are packed.
  void packed(size_t index) {
    if (coming_[index].staged) {
      ring_.give_first();
    }
  }
  bool arrived_in_place(size_t index) const { return coming_[index].arrived_in_place; }
  size_t pinned_bytes() const { return pinned_bytes_; }
  size_t staging_bytes() const { return staging_.size_bytes(); }

 private:
  struct Coming {
    std::optional<StreamPlan> plan;
    std::vector<StreamedPart> parts;
    bool staged = false;
    bool arrived_in_place = false;
    WeightStream::Ticket ticket = 0;
    std::future<Result<HostData>> read;  // without a plan
  };

  void plan() {
    size_t largest = 0;
    for (size_t i = 0; i < coming_.size(); ++i) {
      const auto& plan = coming_[i].plan = store_.plan_stream(store_.entries_[i], source_);
      if (plan && !plan->in_place) {
        const size_t bytes = plan->staging_bytes;
        largest = bytes <= kMostStaging ? std::max(largest, bytes) : largest;
      }
    }
    size_t staging = std::max(largest, std::min(kStagedMatrices * largest, kMostStaging));
    if (auto memory = Buffer::allocate("weight staging", staging, stream_)) {
      staging_ = std::move(*memory);
    } else {
      staging = 0;
    }
    ring_ = Ring(staging);
    size_t total = 0;
    for (Coming& coming : coming_) {
      if (coming.plan && !coming.plan->in_place && coming.plan->staging_bytes > staging) {
        coming.plan.reset();
      }
      for (size_t i = 0; coming.plan && i < coming.plan->parts.size(); ++i) {
        total += coming.plan->parts[i].weight.size_bytes;
      }
    }
    if (total > 0) {
      device_api(stream_.device).synchronize(stream_);  // new memory is being filled in test builds
      // Pinning memory takes its time: no more threads than there is to read for.
      WeightStreamOptions options;
      options.threads = static_cast<int>(
          std::min<size_t>(static_cast<size_t>(threads_), 1 + total / options.chunk_bytes));
      files_ = WeightStream::create(stream_.device, options);
    }
    if (files_ == nullptr) {
      for (Coming& coming : coming_) {
        coming.plan.reset();
      }
    } else {
      pinned_bytes_ = files_->pinned_bytes();
    }
  }

  void start_streaming() {
    for (; next_ < coming_.size(); ++next_) {
      Coming& coming = coming_[next_];
      if (!coming.plan) {
        continue;
      }
      const Entry& entry = store_.entries_[next_];
      std::byte* to = static_cast<std::byte*>(store_.slots_at(entry, base_)[0].data);
      if (!coming.plan->in_place) {
        const auto place = ring_.take(coming.plan->staging_bytes);
        if (!place) {
          return;  // later, when more is packed
        }
        to = static_cast<std::byte*>(staging_.data()) + *place;
        coming.staged = true;
      }
      const bool bf16 = entry.kind == Kind::Tensor || entry.linear.desc.mode == kBf16;
      std::vector<WeightPiece> pieces;
      const auto piece = [&](const FileRange& range, WeightValues values) {
        std::byte* at = to;
        if (range.size_bytes > 0) {
          pieces.push_back({&source_.files()[range.file_index].file(),
                            range.offset_bytes,
                            range.size_bytes,
                            at,
                            values});
        }
        to += coming.plan->in_place ? range.size_bytes : aligned(range.size_bytes);
        return at;
      };
      for (const PlainBytes& part : coming.plan->parts) {
        std::byte* weight = piece(part.weight, bf16 ? WeightValues::Bf16 : WeightValues::Any);
        std::byte* scale = piece(part.weight_scale, WeightValues::BlockScales);
        coming.parts.push_back({weight, bf16 ? nullptr : scale});
      }
      coming.ticket = files_->add(pieces);
    }
  }

  void start_reading(size_t index) {
    std::future<Result<HostData>>& read = coming_[index].read;
    if (!read.valid()) {
      read = std::async(std::launch::async, [this, index] {
        return store_.read(store_.entries_[index], source_, true);
      });
    }
  }

  Result<HostData> take_now(const Entry& entry, Coming& coming, size_t index, LoadReport& report) {
    if (coming.plan && files_->wait(coming.ticket)) {
      coming.arrived_in_place = entry.kind == Kind::Tensor;
      for (const PlainBytes& part : coming.plan->parts) {
        report.streamed_bytes += part.weight.size_bytes + part.weight_scale.size_bytes;
      }
      HostData data;
      if (entry.kind == Kind::Linear) {
        data = TRY(store_.read(entry, source_, false));
        data.streamed = std::move(coming.parts);
      }
      return data;
    }
    if (coming.plan || threads_ == 0) {
      return store_.read(entry, source_, true);
    }
    // Others that have to be read in full go ahead too.
    int ahead = threads_;
    for (size_t i = index; i < coming_.size() && ahead > 0; ++i) {
      if (!coming_[i].plan) {
        start_reading(i);
        --ahead;
      }
    }
    return std::exchange(coming.read, {}).get();
  }

  const ParameterStore& store_;
  const Checkpoint& source_;
  void* base_;
  Stream stream_;
  int threads_ = 0;
  size_t pinned_bytes_ = 0;
  Buffer staging_;
  Ring ring_{0};
  std::vector<Coming> coming_;
  size_t next_ = 0;                      // to be streamed
  std::unique_ptr<WeightStream> files_;  // last: ends before what it writes to
};

// ---- all of them ----

Result<LoadReport> ParameterStore::fill(const Checkpoint& source,
                                        void* base,
                                        Stream stream,
                                        const Progress& progress,
                                        const std::stop_token& stop) const {
  const auto begin = Clock::now();
  LoadReport report;
  Names used;
  size_t done = 0;
  Loading loading(*this, source, base, stream);
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (stop.stop_requested()) {
      return fail(ErrorCode::Cancelled, "stopped while the weights were read", source.directory());
    }
    HostData data = TRY(loading.take(i, report));
    switch (entry.kind) {
      case Kind::Linear:
        TRY(fill_linear(entry, std::move(data), base, stream, used));
        break;
      case Kind::Experts:
        TRY(fill_experts(entry, source, base, stream, used));
        break;
      case Kind::Tensor:
        if (!loading.arrived_in_place(i)) {
          fill_plain(entry, data.plain, base, stream);
        }
        if (const std::string* name = name_in(source, entry.plain)) {
          used.insert(*name);
        }
        break;
      case Kind::Derived:
        fill_plain(entry, entry.value, base, stream);
        break;
    }
    loading.packed(i);
    done += entry.size_bytes;
    if (progress) {
      progress(done, size_bytes_);
    }
  }
  // Torn between two checkpoints, every tensor may still look right.
  TRY(source.require_unchanged());
  report.tensors_read = static_cast<int64_t>(used.size());
  for (std::string& name : source.tensor_names()) {
    if (!used.contains(name)) {
      report.unused.push_back(std::move(name));
    }
  }
  report.pinned_bytes = loading.pinned_bytes();
  report.staging_bytes = loading.staging_bytes();
  report.seconds = seconds_since(begin);
  return report;
}

}  // namespace nibble::model
