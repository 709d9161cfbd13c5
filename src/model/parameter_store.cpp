#include "model/parameter_store.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <future>
#include <utility>

#include "base/check.h"
#include "base/number_formats.h"
#include "base/random.h"
#include "tensor/device_api.h"

namespace nibble::model {

namespace {

using checkpoint::Checkpoint;
using checkpoint::LinearInfo;

constexpr uint64_t kAlignment = 256;

uint64_t round_up(uint64_t value) { return (value + kAlignment - 1) / kAlignment * kAlignment; }

uint64_t hash_bytes(std::span<const std::byte> data, uint64_t hash) {
  size_t i = 0;
  for (; i + 8 <= data.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, data.data() + i, 8);
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  uint64_t tail = data.size() - i;
  for (; i < data.size(); ++i) {
    tail = (tail << 8) | static_cast<uint64_t>(data[i]);
  }
  return mix64(hash ^ tail);
}

}  // namespace

// The scheme a linear was declared with must be what the checkpoint stores: kernels and slots
// depend on it.
Result<void> ParameterStore::check_scheme(const LinearSpec& spec, const LinearInfo& info) {
  TRY(check_format(spec.desc.mode.weight, info));
  if (spec.bias != !info.bias.empty()) {
    return invalid(spec.bias ? "expected a bias, found none" : "found a bias, expected none",
                   info.module + ".bias");
  }
  if (spec.desc.pre_quant_scale != !info.pre_quant_scale.empty()) {
    return invalid(spec.desc.pre_quant_scale ? "expected a pre_quant_scale, found none"
                                             : "found a pre_quant_scale, expected none",
                   info.module + ".pre_quant_scale");
  }
  if (spec.desc.static_input_scale && info.input_scale.empty()) {
    return invalid("expected an input_scale, found none", info.module + ".input_scale");
  }
  return {};
}

const std::string& ParameterStore::Entry::name() const {
  switch (kind) {
    case Kind::Linear:
      return linear.name;
    case Kind::Experts:
      return experts.name;
    case Kind::Tensor:
    case Kind::Derived:
      break;
  }
  return plain.name;
}

// ---- declaration ----

ParameterStore::Entry& ParameterStore::add(Entry entry) {
  CHECK(!sealed_, "parameter declared after seal()");
  for (const Tensor& slot : entry.slots) {
    entry.offsets.push_back(size_bytes_);
    const uint64_t padded = round_up(static_cast<uint64_t>(slot.size_bytes()));
    size_bytes_ += padded;
    entry.size_bytes += padded;
  }
  return entries_.emplace_back(std::move(entry));
}

ParameterStore::Id ParameterStore::declare_linear(LinearSpec spec) {
  CHECK(spec.backend != nullptr && !spec.parts.empty(), "linear without backend: ", spec.name);
  Entry entry;
  entry.kind = Kind::Linear;
  entry.slots = spec.backend->packed_layout(spec.desc);
  if (spec.bias) {  // last slot
    entry.slots.emplace_back(nullptr, DType::BF16, Shape{spec.desc.n}, Device{});
  }
  entry.linear = std::move(spec);
  add(std::move(entry));
  return static_cast<Id>(entries_.size() - 1);
}

ParameterStore::Id ParameterStore::declare_experts(ExpertsSpec spec) {
  CHECK(spec.backend != nullptr && static_cast<int64_t>(spec.experts.size()) == spec.desc.experts,
        "experts without backend or parts: ",
        spec.name);
  Entry entry;
  entry.kind = Kind::Experts;
  entry.slots = spec.backend->packed_layout(spec.desc);
  entry.experts = std::move(spec);
  add(std::move(entry));
  return static_cast<Id>(entries_.size() - 1);
}

ParameterStore::Id ParameterStore::declare_tensor(TensorSpec spec) {
  Entry entry;
  entry.kind = Kind::Tensor;
  entry.slots.emplace_back(nullptr, spec.dtype, spec.shape, Device{});
  entry.plain = std::move(spec);
  add(std::move(entry));
  return static_cast<Id>(entries_.size() - 1);
}

ParameterStore::Id ParameterStore::declare_derived(std::string name,
                                                   DType dtype,
                                                   Shape shape,
                                                   std::vector<std::byte> value) {
  Entry entry;
  entry.kind = Kind::Derived;
  entry.slots.emplace_back(nullptr, dtype, shape, Device{});
  CHECK(static_cast<int64_t>(value.size()) == entry.slots[0].size_bytes(),
        "derived tensor of the wrong size: ",
        name);
  entry.plain = TensorSpec{std::move(name), dtype, shape, {}};
  entry.value = std::move(value);
  add(std::move(entry));
  return static_cast<Id>(entries_.size() - 1);
}

Result<void> ParameterStore::seal(Stream stream) {
  CHECK(!sealed_, "sealed twice");
  sealed_ = true;
  memory_ = TRY(Buffer::allocate_fixed("weights", size_bytes_, stream));
  point_slots_at(memory_.data());
  return {};
}

void ParameterStore::point_slots_at(void* base) {
  for (Entry& entry : entries_) {
    entry.slots = slots_at(entry, base);
  }
}

std::vector<Tensor> ParameterStore::slots_at(const Entry& entry, void* base) const {
  std::vector<Tensor> slots = entry.slots;
  for (size_t i = 0; i < slots.size(); ++i) {
    slots[i].data = base == nullptr ? nullptr : static_cast<std::byte*>(base) + entry.offsets[i];
    slots[i].device = memory_.device();
  }
  return slots;
}

// ---- reading ----

std::span<const Tensor> ParameterStore::slots(Id id) const {
  const Entry& entry = entries_[id];
  const std::span<const Tensor> all(entry.slots);
  return entry.linear.bias ? all.first(all.size() - 1) : all;
}

const LinearSpec& ParameterStore::linear(Id id) const {
  DCHECK(entries_[id].kind == Kind::Linear, "not a linear: ", entries_[id].name());
  return entries_[id].linear;
}

const ExpertsSpec& ParameterStore::experts(Id id) const {
  DCHECK(entries_[id].kind == Kind::Experts, "not experts: ", entries_[id].name());
  return entries_[id].experts;
}

Tensor ParameterStore::bias(Id id) const {
  const Entry& entry = entries_[id];
  return entry.linear.bias ? entry.slots.back() : Tensor{};
}

Tensor ParameterStore::tensor(Id id) const {
  DCHECK(entries_[id].kind == Kind::Tensor || entries_[id].kind == Kind::Derived,
         "linears and experts have slots, not one tensor");
  return entries_[id].slots[0];
}

size_t ParameterStore::linear_bytes() const {
  size_t bytes = 0;
  for (const Entry& entry : entries_) {
    if (entry.kind == Kind::Linear) {
      bytes += entry.size_bytes;
    } else if (entry.kind == Kind::Experts) {
      const ExpertsDesc& desc = entry.experts.desc;
      bytes +=
          entry.size_bytes * static_cast<size_t>(desc.topk) / static_cast<size_t>(desc.experts);
    }
  }
  return bytes;
}

Result<LoadReport> ParameterStore::load(const Checkpoint& source,
                                        Stream stream,
                                        const Progress& progress) {
  CHECK(sealed_ && resident(), "load() before seal()");
  return fill(source, memory_.data(), stream, progress, {});
}

// The device says what is free before it is asked: a host that overcommits would hand out memory it
// does not have and end the process at first use.
Result<void> ParameterStore::require_spare(Stream stream, const StageLimits& limits) const {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  device_api(stream.device).memory_info(stream.device, &free_bytes, &total_bytes);
  const bool forbidden =
      limits.max_bytes >= 0 && size_bytes_ > static_cast<size_t>(limits.max_bytes);
  if (!forbidden && size_bytes_ <= free_bytes) {
    return {};
  }
  const std::string have =
      forbidden ? std::to_string(limits.max_bytes) + " allowed for staging"
                : std::to_string(free_bytes) + " of " + std::to_string(total_bytes) + " free";
  return fail(ErrorCode::Overloaded,
              "not enough memory: " + std::to_string(size_bytes_) + " bytes wanted, " + have,
              "staged weights");
}

Result<Staged> ParameterStore::stage(const Checkpoint& source,
                                     Stream stream,
                                     const StageLimits& limits) const {
  CHECK(sealed_, "stage() before seal()");
  TRY(require_spare(stream, limits));
  Staged staged;
  staged.memory_ = TRY(Buffer::allocate("staged weights", size_bytes_, stream));
  staged.report_ = TRY(fill(source, staged.memory_.data(), stream, {}, limits.stop));
  return staged;
}

void ParameterStore::commit(const Staged& staged, Stream stream) noexcept {
  CHECK(resident(), "commit() while the weights are released");
  CHECK(staged.memory_.size_bytes() == size_bytes_, "staged weights of another model");
  const DeviceApi& api = device_api(stream.device);
  api.copy_on_device(memory_.data(), staged.memory_.data(), size_bytes_, stream);
  api.synchronize(stream);
}

Result<void> ParameterStore::check_headers(const Checkpoint& source) const {
  for (const Entry& entry : entries_) {
    if (entry.kind == Kind::Linear) {
      LinearInfo first;
      for (size_t i = 0; i < entry.linear.parts.size(); ++i) {
        const LinearInfo info = TRY(find_part(source, entry.linear.parts[i], entry.linear.desc.k));
        first = i == 0 ? info : first;
        TRY(check_scheme(entry.linear, info));
        TRY(require_same_input_scaling(source, first, info));
      }
    } else if (entry.kind == Kind::Experts) {
      TRY(check_experts(entry, source));
    } else if (entry.kind == Kind::Tensor) {
      const TensorSpec& spec = entry.plain;
      if (const std::string* name = name_in(source, spec)) {
        const Shape shape = shape_in(source, spec, *name);
        TRY(source.require_readable_as(*name, spec.dtype, shape, spec.expected_from));
      }
    }
  }
  return {};
}

Result<LoadReport> ParameterStore::load_in_place(const Checkpoint& source, Stream stream) {
  CHECK(resident(), "load_in_place() while the weights are released");
  return fill(source, memory_.data(), stream, {}, {});
}

// ---- release and resume ----

void ParameterStore::release() {
  memory_.drop();
  point_slots_at(nullptr);
}

Result<void> ParameterStore::resume(Stream stream) {
  CHECK(sealed_ && !resident(), "resume() of weights that are not released");
  TRY(memory_.restore(stream));
  point_slots_at(memory_.data());
  for (const Entry& entry : entries_) {
    if (entry.kind == Kind::Derived) {
      fill_plain(entry, entry.value, memory_.data(), stream);
    }
  }
  return {};
}

std::vector<Checksum> ParameterStore::checksums(Stream stream) const {
  CHECK(resident(), "checksums of released weights");
  std::vector<Checksum> all;
  std::vector<std::byte> host;
  for (const Entry& entry : entries_) {
    if (entry.kind == Kind::Derived) {
      continue;  // not a weight
    }
    uint64_t hash = 0;
    for (const Tensor& slot : entry.slots) {
      host.resize(static_cast<size_t>(slot.size_bytes()));
      device_api(stream.device).copy_to_host(host.data(), slot.data, host.size(), stream);
      device_api(stream.device).synchronize(stream);
      hash = hash_bytes(host, hash);
    }
    all.push_back({entry.name(), hash});
  }
  return all;
}

}  // namespace nibble::model
