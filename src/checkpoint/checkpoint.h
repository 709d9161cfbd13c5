// A checkpoint directory as one object: configs, index, safetensors headers, and the per-linear
// table in which the stored tensors decide the scheme. Data is read when asked. Immutable after
// open(); const methods are thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/model_config.h"
#include "checkpoint/quant_config.h"
#include "checkpoint/safetensors.h"
#include "quant/quant_mode.h"
#include "tensor/tensor.h"

namespace nibble::checkpoint {

// How one linear is stored. Names are those of the files.
struct LinearInfo {
  enum class Format : uint8_t { Bf16, Nvfp4, Fp8 };
  // Plain weights and three scaled 8-bit forms that read_linear() turns into bf16.
  enum class Stored : uint8_t { AsFormat, Fp8PerChannel, Fp8Block, Mxfp8 };
  std::string module;  // "model.layers.0.self_attn.q_proj"
  Format format = Format::Bf16;
  Stored stored = Stored::AsFormat;
  QuantAlgo claim = QuantAlgo::None;  // what the config says
  int64_t n = 0;
  int64_t k = 0;
  int64_t group_size = 16;  // as stored: 16 or 32
  std::string weight;       // tensor names; empty when absent
  std::string weight_scale;
  std::string weight_scale_2;
  std::string input_scale;  // empty too when the config says weight only, or when it is unusable
  std::string pre_quant_scale;
  std::string bias;
  // Part of a matrix that is fused in the file (qkv_proj, gate_up_proj): n rows of it from
  // row_begin on; stored_rows is the whole matrix's. 0: not a part.
  int64_t row_begin = 0;
  int64_t stored_rows = 0;
  // Slice of a tensor that stacks all experts of a layer; -1: not one. stored_rows is then the
  // slice's, and `transposed` says that slices are stored [k, n].
  int64_t expert = -1;
  bool transposed = false;
  // Quantized while loading: `format` is Nvfp4, the file stores `source_format`.
  bool online = false;
  Format source_format = Format::Bf16;
  bool inverse_scales = false;  // compressed-tensors stores 1 / multiplier
  float global_scale = 1.0f;    // the multiplier: nvfp4 weight_scale_2, fp8 weight_scale
  uint64_t size_bytes = 0;
};
std::string_view to_string(LinearInfo::Format format);

// Host copies of one linear's tensors in the form LinearPart of ops/gemm.h wants: group size 16,
// multipliers not inverses, f32 scalars. Owns its memory.
struct LinearData {
  std::vector<std::byte> weight, weight_scale, pre_quant_scale, bias;
  DType weight_dtype = DType::BF16, pre_quant_scale_dtype = DType::BF16, bias_dtype = DType::BF16;
  float weight_scale_2 = 1.0f;  // nvfp4 global scale, or fp8 per-tensor scale
  std::optional<float> input_scale;
};

// Bytes of one of a checkpoint's files.
struct FileRange {
  size_t file_index = 0;
  uint64_t offset_bytes = 0;
  uint64_t size_bytes = 0;
};

// Where the bytes of LinearData's weight and weight_scale are, for a matrix that is stored just so.
struct PlainBytes {
  FileRange weight, weight_scale;
};

struct Problem {
  enum class Severity : uint8_t { Warning, Error };
  Severity severity = Severity::Error;
  Error error;
};

// name -> (index of its file, header entry)
using TensorTable = std::map<std::string, std::pair<size_t, TensorInfo>, std::less<>>;

class Checkpoint {
 public:
  // Fails only when nothing can be said (no directory, no config.json, no weight file); everything
  // else that makes it unservable is in problems(). Who wants to run the model asks
  // require_servable() first.
  static Result<Checkpoint> open(const std::string& directory);
  // The same seen as an NVFP4 checkpoint: every linear that `nibble quantize` would quantize says
  // Nvfp4 and is encoded by four-over-six when it is read, with the bits that the recipe of that
  // name writes. Fails when it is NVFP4 already.
  static Result<Checkpoint> open_online(const std::string& directory);

  const std::string& directory() const { return directory_; }
  const ModelConfig& config() const { return config_; }
  const QuantConfig& quant() const { return quant_; }
  const std::vector<Problem>& problems() const { return problems_; }
  // The first error among the problems, with the number of others.
  Result<void> require_servable() const;

  // The weight files, open. Their stamps tell two loads of one directory apart.
  const std::vector<SafetensorsFile>& files() const { return files_; }
  std::vector<FileStamp> stamps() const;
  // Fails when a weight file was written to since open(): what was read may be of two checkpoints.
  Result<void> require_unchanged() const;

  std::vector<std::string> tensor_names() const;        // sorted
  const TensorInfo* find(std::string_view name) const;  // nullptr when absent
  Result<void> read(std::string_view name, std::span<std::byte> out) const;
  // out.size() bytes of the tensor from offset_bytes on, as stored.
  Result<void> read_part(std::string_view name,
                         uint64_t offset_bytes,
                         std::span<std::byte> out) const;
  // A tensor of the expected dtype (BF16 accepts F16/F32 sources by conversion) and shape,
  // converted to `dtype`; an NVFP4 or FP8 embedding table is decoded. Errors name tensor, expected,
  // found and the config key the expectation comes from.
  Result<std::vector<std::byte>> read_as(std::string_view name,
                                         DType dtype,
                                         const Shape& shape,
                                         std::string_view expected_from) const;

  // What read_as() refuses by the header, without reading.
  Result<void> require_readable_as(std::string_view name,
                                   DType dtype,
                                   const Shape& shape,
                                   std::string_view expected_from) const;

  // Looks one linear up by module name, checked against the expected sizes (n rows, k columns) and
  // the quantization claim. `expected_from` is for messages ("hidden_size x intermediate_size").
  Result<LinearInfo> linear(std::string_view module,
                            int64_t n,
                            int64_t k,
                            std::string_view expected_from) const;
  Result<LinearData> read_linear(const LinearInfo& info) const;
  // For loaders that bring the bytes themselves, without looking at the values: where the files
  // hold what read_linear() would give for the matrix (or read_as() for the tensor, by its header),
  // and the rest of what it would give. nullopt: it has to be converted.
  std::optional<PlainBytes> plain_bytes(const LinearInfo& info) const;
  std::optional<FileRange> plain_bytes(std::string_view name,
                                       DType dtype,
                                       const Shape& shape) const;
  Result<LinearData> read_without_matrix(const LinearInfo& info) const;
  // Anything that makes `module` a linear is there, usable or not.
  bool stores_linear(std::string_view module) const;
  // One input factor a column, [k] in `dtype`; empty when the linear has none.
  Result<std::vector<std::byte>> read_pre_quant_scale(const LinearInfo& info, DType& dtype) const;
  // The weight as numbers, whatever its form: [n, k] f32, not rounded on the way.
  Result<std::vector<float>> read_weight(const LinearInfo& info) const;

  // Every linear found by its tensors, sorted, for inspect.
  const std::vector<LinearInfo>& linears() const { return linears_; }

 private:
  Checkpoint() = default;
  Result<void> read_configs();
  Result<void> read_headers();
  void check_scalars();
  Result<void> check_global_scale(LinearInfo& info) const;
  Result<void> check_pre_quant_scale(const LinearInfo& info) const;
  Result<void> check_offsets(const LinearInfo& info) const;
  void check_head();
  Result<float> read_scalar(const std::string& name) const;
  // Of a stack: the expert's number, where there is one for each.
  Result<float> read_scalar_of(const LinearInfo& info, const std::string& name) const;
  Error missing(std::string_view name, const std::string& expected) const;
  Result<void> decode_weight(const LinearInfo& info, LinearData& data) const;
  Result<void> read_factors(const LinearInfo& info, LinearData& data) const;
  const LinearInfo* find_linear(std::string_view module) const;  // nullptr when absent
  // A quantized embedding table of this shape, or nullptr.
  const LinearInfo* find_table(std::string_view name, const Shape& shape) const;
  Result<void> mark_online();
  Result<void> encode_online(const LinearInfo& info, LinearData& data) const;
  Result<void> read_nvfp4(const LinearInfo& info, LinearData& data) const;
  Result<std::vector<float>> read_fp8(const LinearInfo& info) const;
  Result<std::vector<std::byte>> read_bytes(const std::string& name) const;
  // The whole tensor, or a stack's slice as [n, columns].
  Result<std::vector<std::byte>> read_matrix(const LinearInfo& info, const std::string& name) const;
  // Keeps bf16, turns the other float types into f32; `dtype` says what it became.
  Result<std::vector<std::byte>> read_small_floats(const std::string& name, DType& dtype) const;
  void add_error(Error error) { problems_.push_back({Problem::Severity::Error, std::move(error)}); }
  void add_warning(Error error) {
    problems_.push_back({Problem::Severity::Warning, std::move(error)});
  }

  std::string directory_;
  ModelConfig config_;
  QuantConfig quant_;
  std::vector<Problem> problems_;
  std::vector<SafetensorsFile> files_;
  TensorTable tensors_;
  std::vector<LinearInfo> linears_;
  std::map<std::string, Error, std::less<>> linear_errors_;  // by module
};

}  // namespace nibble::checkpoint
