// The GEMM interface: y[m, n] = x[m, k] * W[n, k]^T. A backend is a table of functions without
// state, one object a file, listed in gemm_list.cpp in order of preference.
//
// Contract of every backend that is not opt-in by name: for given inputs a row of y has the same
// bits for every number of rows, batch mix and thread count (one summation order per (n, k)).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "quant/quant_mode.h"
#include "tensor/tensor.h"

namespace nibble {

enum class Epilogue : uint8_t { None, Bias, Residual, SwiGlu };

// A fused matrix is several checkpoint matrices stacked along n (q, k, v or gate, up), each with
// its own global scale.
inline constexpr int kMaxParts = 4;

struct GemmDesc {
  Device::Kind device = Device::Kind::Cpu;
  int isa = 0;  // CpuIsa on the CPU, 90 = sm_90 on CUDA
  QuantMode mode;
  DType in = DType::BF16;   // of x: BF16
  DType out = DType::BF16;  // of y: BF16 or F32
  int64_t n = 0;            // all parts together
  int64_t k = 0;
  std::array<int64_t, kMaxParts> part_rows{};  // sums to n
  int num_parts = 1;
  Epilogue epilogue = Epilogue::None;  // what run() may be asked to add: bias is [n] bf16,
                                       // residual [m, n] bf16 (y += residual, may alias y)
  bool pre_quant_scale = false;        // AWQ: x is multiplied by a [k] vector first
  bool static_input_scale = false;     // W4A4: input_scale is stored (else per token)
  bool operator==(const GemmDesc&) const = default;
};

// One part as stored in the checkpoint; absent tensors have null data. Host memory, but see
// packs_from_device.
struct LinearPart {
  Tensor weight;           // bf16 [n, k], or nvfp4 codes u8 [n, k/2], or e4m3 [n, k]
  Tensor weight_scale;     // nvfp4: e4m3 [n, k/16]; fp8: f32 []
  Tensor weight_scale_2;   // nvfp4: f32 [], the multiplier (already inverted where the file stores
                           // the inverse)
  Tensor input_scale;      // f32 [], as ModelOpt stores it: activation amax / (6 * 448)
  Tensor pre_quant_scale;  // bf16 or f32 [k], the same for every part
};

struct GemmArgs {
  Tensor x;                        // [m, k] bf16, rows contiguous
  Tensor y;                        // [m, n] bf16 or f32
  std::span<const Tensor> packed;  // the slots that pack() wrote
  Tensor bias;                     // [n] bf16, or empty
  Tensor residual;                 // [m, n] bf16, or empty
  Tensor workspace;                // u8 [workspace_bytes(desc, m)]
};

struct Support {
  bool ok = false;
  std::string why_not;  // words for people; empty when ok
};

struct GemmBackend {
  std::string_view name;
  std::string_view family;  // the --fp4-gemm-backend value that asks for it: cpu, sm90, ...
  bool opt_in;              // never chosen by auto (not batch-invariant, or a test oracle)
  Support (*supports)(const GemmDesc&);  // pure: never touches the device
  // Kernel-format slots, data == nullptr; sizes depend on the desc only.
  std::vector<Tensor> (*packed_layout)(const GemmDesc&);
  // Checkpoint tensors (host) to slots (device memory of the desc). May allocate scratch.
  void (*pack)(const GemmDesc&,
               std::span<const LinearPart> parts,
               std::span<const Tensor> slots,
               Stream);
  size_t (*workspace_bytes)(const GemmDesc&, int64_t max_rows);
  void (*run)(const GemmDesc&, const GemmArgs&, Stream);  // no allocation, graph-capturable
  // pack() takes the weight and weight_scale of parts from the device's memory too.
  bool packs_from_device = false;
  // bf16 weights: slot 0 begins with the rows of all parts as they are stored, and pack() leaves
  // what is there already.
  bool keeps_bf16 = false;
};

std::span<const GemmBackend* const> gemm_backends();  // ops/gemm_list.cpp: order = preference

// wanted: "auto", a family or a registry name. Errors list what was refused and why, and what would
// work.
Result<const GemmBackend*> select_gemm(const GemmDesc& desc, std::string_view wanted);

std::string describe(const GemmDesc& desc);  // "w4a16 6144x4096 (4096+1024+1024) bf16 on cpu avx2"

}  // namespace nibble
