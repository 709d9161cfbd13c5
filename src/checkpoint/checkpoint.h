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
  std::string module;  // "model.layers.0.self_attn.q_proj"
  Format format = Format::Bf16;
  int64_t n = 0;
  int64_t k = 0;
  int64_t group_size = 16;  // as stored: 16 or 32
  std::string weight;       // tensor names; empty when absent
  std::string weight_scale;
  std::string weight_scale_2;
  std::string input_scale;
  std::string pre_quant_scale;
  std::string bias;
  bool inverse_scales = false;  // compressed-tensors stores 1 / multiplier
  uint64_t size_bytes = 0;
};

// Host copies of one linear's tensors in the form LinearPart of ops/gemm.h wants: group size 16,
// multipliers not inverses, f32 scalars. Owns its memory.
struct LinearData {
  std::vector<std::byte> weight, weight_scale, pre_quant_scale, bias;
  DType weight_dtype = DType::BF16, pre_quant_scale_dtype = DType::BF16, bias_dtype = DType::BF16;
  float weight_scale_2 = 1.0f;  // nvfp4 global scale, or fp8 per-tensor scale
  std::optional<float> input_scale;
};

struct Problem {
  enum class Severity : uint8_t { Warning, Error };
  Severity severity = Severity::Error;
  Error error;
};

class Checkpoint {
 public:
  // Fails only when nothing can be said (no directory, no config.json, unreadable header); anything
  // else that makes it unservable is in problems().
  static Result<Checkpoint> open(const std::string& directory);

  const std::string& directory() const { return directory_; }
  const ModelConfig& config() const { return config_; }
  const QuantConfig& quant() const { return quant_; }
  const std::vector<Problem>& problems() const { return problems_; }

  std::vector<std::string> tensor_names() const;        // sorted
  const TensorInfo* find(std::string_view name) const;  // nullptr when absent
  Result<void> read(std::string_view name, std::span<std::byte> out) const;
  // A tensor of the expected dtype (BF16 accepts F16/F32 sources by conversion) and shape,
  // converted to `dtype`; errors name tensor, expected, found and the config key the expectation
  // comes from.
  Result<std::vector<std::byte>> read_as(std::string_view name,
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

  // Every linear found by its tensors, sorted, for inspect.
  const std::vector<LinearInfo>& linears() const { return linears_; }

 private:
  Checkpoint() = default;
  std::string directory_;
  ModelConfig config_;
  QuantConfig quant_;
  std::vector<Problem> problems_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::pair<size_t, TensorInfo>, std::less<>> tensors_;  // name -> file, info
  std::vector<LinearInfo> linears_;
};

}  // namespace nibble::checkpoint
