// What the NVFP4 backends of this folder share on the host: the check of a desc and packing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backends/cuda/nvfp4_w4a16_sm90.h"
#include "ops/gemm.h"

namespace nibble::cuda {

enum class Needs : uint8_t { Ampere, Hopper };

// Of the kernels that share the packed matrix. Ampere: compute capability 8.0 or newer;
// Hopper: 9.0.
Support supports_nvfp4(const GemmDesc& desc, QuantMode mode, Needs needs);

// ---- w4a16 kernels: slots, packing, arguments ----

// Slots: codes and scales, row multipliers f32, counters of shared tiles (zero between calls), the
// pre_quant_scale. The counters belong to the matrix, so one matrix must not be used on two streams
// at once.
// NOLINTNEXTLINE(readability-identifier-naming): indices, used as the constants they are
enum W4A16Slot { kW4A16Records, kW4A16Multiplier, kW4A16Counters, kW4A16PreQuant, kNumW4A16Slots };
std::vector<Tensor> w4a16_layout(const GemmDesc& desc);
void pack_w4a16(const GemmDesc& desc,
                std::span<const LinearPart> parts,
                std::span<const Tensor> slots,
                Stream stream);
size_t w4a16_gemm_workspace(const GemmDesc& desc, int64_t max_rows);
W4A16Args w4a16_args(const GemmDesc& desc, const GemmArgs& args);

// Of the device, or of an H200 where there is none (to say what it would do).
int num_multiprocessors(Device device);

// Host parts into the packed matrix and its row multipliers; done when it returns.
void pack_parts(const GemmDesc& desc,
                std::span<const LinearPart> parts,
                const Tensor& packed,
                const Tensor& row_multiplier,
                Stream stream);

}  // namespace nibble::cuda
