// Weights in kernel format, at one address for life: declare -> seal -> load, then stage -> commit
// for every later checkpoint. The first load packs straight into the slots (peak extra memory: the
// tensors of one linear; where the weights are not host memory, what the report says); a later one
// packs into spare memory while the old weights serve. Loading is in parameter_load.cpp.
// Layers keep an Id and read slots() at every call. Declared and committed by the thread that runs
// the model; stage() only reads the declarations and may run on another thread meanwhile.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "model/linear_source.h"
#include "ops/experts.h"
#include "ops/gemm.h"
#include "tensor/buffer.h"
#include "tensor/tensor.h"

namespace nibble::model {

struct LinearSpec {
  std::string name;  // "model.layers.0.self_attn.qkv_proj": for tables and checksums
  std::vector<PartSpec> parts;
  GemmDesc desc;  // k columns; mode, parts, epilogue resolved
  const GemmBackend* backend = nullptr;
  bool bias = false;
};

struct TensorSpec {
  std::string name;  // as in the checkpoint
  DType dtype = DType::BF16;
  Shape shape;
  std::string expected_from;
  // A scale that checkpoints may do without ([] f32, finite and positive): the value then, and
  // other names that it goes by.
  std::optional<float> otherwise = {};
  std::vector<std::string> other_names = {};
};

// The matrices of one expert; the gate is unused without SwiGLU.
struct ExpertSpec {
  PartSpec gate, up, down;
};

struct ExpertsSpec {
  std::string name;  // "model.layers.0.mlp.experts"
  std::vector<ExpertSpec> experts;
  ExpertsDesc desc;
  const ExpertsBackend* backend = nullptr;
};

// What a checkpoint had for the declared parameters, all of which were found, and how it was read.
struct LoadReport {
  int64_t tensors_read = 0;
  std::vector<std::string> unused;  // tensors nobody declared: other branches, caches' scales
  size_t streamed_bytes = 0;        // that came straight through pinned memory (weight_stream.h)
  size_t pinned_bytes = 0;          // taken for that meanwhile, of the host
  size_t staging_bytes = 0;         // and of the device
  double seconds = 0;
  double wait_seconds = 0;  // of them: until what is packed next was there
};

// A whole checkpoint, read, checked and packed, waiting for commit().
class Staged {
 public:
  size_t size_bytes() const { return memory_.size_bytes(); }
  const LoadReport& report() const { return report_; }

 private:
  friend class ParameterStore;
  Buffer memory_;
  LoadReport report_;
};

struct StageLimits {
  int64_t max_bytes = -1;  // of spare memory; negative: whatever is free
  std::stop_token stop;    // ends the reading with Cancelled
};

struct Checksum {
  std::string name;
  uint64_t value = 0;  // of the bytes in memory, kernel format
};

class ParameterStore {
 public:
  using Id = uint32_t;
  // Called after each declared parameter with (done, total) bytes.
  using Progress = std::function<void(size_t, size_t)>;

  ParameterStore() = default;
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  // ---- declaration: no memory yet ----
  Id declare_linear(LinearSpec spec);
  Id declare_experts(ExpertsSpec spec);
  Id declare_tensor(TensorSpec spec);
  // Computed from the config, never in the checkpoint (rope tables).
  Id declare_derived(std::string name, DType dtype, Shape shape, std::vector<std::byte> value);
  // One allocation; fails with both sizes when there is not enough memory.
  Result<void> seal(Stream stream);

  // Threads that read ahead of the packing: eight, or none where the weights are host memory.
  void set_read_threads(int threads) { read_threads_ = threads; }

  // ---- the first load ----
  Result<LoadReport> load(const checkpoint::Checkpoint& source,
                          Stream stream,
                          const Progress& progress);

  // ---- reading; valid after seal(), the same addresses after every commit() ----
  std::span<const Tensor> slots(Id id) const;  // of a linear, without its bias, or of experts
  const LinearSpec& linear(Id id) const;
  const ExpertsSpec& experts(Id id) const;
  Tensor bias(Id id) const;    // empty when there is none
  Tensor tensor(Id id) const;  // of a plain or derived tensor
  size_t size_bytes() const { return size_bytes_; }
  size_t linear_bytes() const;  // of the matrices that a step of one token reads
  bool resident() const { return memory_.data() != nullptr; }

  // ---- replacing ----
  // Reads, checks and packs `source` into spare memory: changes nothing here. Overloaded, with the
  // numbers, when there is not enough of it.
  Result<Staged> stage(const checkpoint::Checkpoint& source,
                       Stream stream,
                       const StageLimits& limits = {}) const;
  // Copies to the fixed addresses; cannot fail on data. The spare memory stays the caller's, so
  // that giving it back does not delay the thread that commits.
  void commit(const Staged& staged, Stream stream) noexcept;
  // Whether every declared tensor is there in its form, type and shape; reads no weight.
  Result<void> check_headers(const checkpoint::Checkpoint& source) const;
  // For hosts without spare memory: overwrites in place, after check_headers(). A failure leaves
  // the weights undefined.
  Result<LoadReport> load_in_place(const checkpoint::Checkpoint& source, Stream stream);

  // ---- giving the memory back and taking it again; contents are undefined after resume() ----
  void release();
  Result<void> resume(Stream stream);

  std::vector<Checksum> checksums(Stream stream) const;

 private:
  enum class Kind : uint8_t { Linear, Experts, Tensor, Derived };
  struct Entry {
    Kind kind = Kind::Tensor;
    LinearSpec linear;              // Linear
    ExpertsSpec experts;            // Experts
    TensorSpec plain;               // Tensor, Derived
    std::vector<std::byte> value;   // Derived
    std::vector<Tensor> slots;      // data: inside memory_
    std::vector<uint64_t> offsets;  // of slots
    size_t size_bytes = 0;
    const std::string& name() const;
  };
  Entry& add(Entry entry);
  void point_slots_at(void* base);
  std::vector<Tensor> slots_at(const Entry& entry, void* base) const;
  // Names of checkpoint tensors that were read.
  using Names = std::set<std::string, std::less<>>;
  Result<LoadReport> fill(const checkpoint::Checkpoint& source,
                          void* base,
                          Stream stream,
                          const Progress& progress,
                          const std::stop_token& stop) const;
  // The name a tensor has in this checkpoint; nullptr: it is not there, and may be missing.
  static const std::string* name_in(const checkpoint::Checkpoint& source, const TensorSpec& spec);
  // The shape it is read with: a scale may be stored as [1].
  static Shape shape_in(const checkpoint::Checkpoint& source,
                        const TensorSpec& spec,
                        const std::string& name);
  static Result<void> check_scheme(const LinearSpec& spec, const checkpoint::LinearInfo& info);
  // Device memory that holds a part's matrix as the checkpoint stores it.
  struct StreamedPart {
    std::byte* weight = nullptr;
    std::byte* weight_scale = nullptr;
  };
  // The tensors of an entry as the checkpoint stores them, checked. Read on any thread.
  struct HostData {
    std::vector<checkpoint::LinearInfo> infos;  // of each part of a linear
    std::vector<checkpoint::LinearData> parts;  // without matrices where `streamed` has them
    std::vector<StreamedPart> streamed;
    std::vector<std::byte> plain;  // of a tensor
  };
  struct StreamPlan;
  class Loading;
  Result<HostData> read(const Entry& entry,
                        const checkpoint::Checkpoint& source,
                        bool matrices) const;
  // nullopt: has to be read() in full.
  std::optional<StreamPlan> plan_stream(const Entry& entry,
                                        const checkpoint::Checkpoint& source) const;
  Result<void> fill_linear(
      const Entry& entry, HostData data, void* base, Stream stream, Names& used) const;
  Result<void> fill_experts(const Entry& entry,
                            const checkpoint::Checkpoint& source,
                            void* base,
                            Stream stream,
                            Names& used) const;
  static Result<void> check_experts(const Entry& entry, const checkpoint::Checkpoint& source);
  void fill_plain(const Entry& entry,
                  std::span<const std::byte> value,
                  void* base,
                  Stream stream) const;
  Result<void> require_spare(Stream stream, const StageLimits& limits) const;

  std::vector<Entry> entries_;
  Buffer memory_;
  size_t size_bytes_ = 0;
  int read_threads_ = -1;
  bool sealed_ = false;
};

}  // namespace nibble::model
