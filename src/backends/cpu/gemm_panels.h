// The driver around the SIMD GEMM kernels: packed layout, packing, activation preparation, threads.
// A backend is a PanelFormat (where each weight sits) and a kernel; both are compile-time constants
// so that the functions below fit GemmBackend's plain function pointers.
//
// Slots: [0] u8, the packed groups of all parts (each part padded to whole groups);
//        [1] f32 [parts], what multiplies the accumulators; [2] f32 [parts], input scale (0: per
//        token); [3] f32 [parts, k] pre-quant scale, when asked for.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backends/cpu/gemm_shared.h"
#include "backends/cpu/isa_abi.h"
#include "ops/gemm.h"

namespace nibble::cpu {

// What a kernel gets as x, in 32-bit lanes, and how many k's share a lane.
enum class Activations : uint8_t {
  F32,        // 1
  Bf16Pairs,  // 2
  Grid,       // int16 multiples of a power of two per 16 k's: pairs in records (gemm_grid.h), or
              // four k's in two words of digits where there is one row (gemm_w4a16_grid_kernel.h)
  E2m1,       // 4, as int8 of twice the value; or two of each of PanelFormat::lane_blocks blocks
};

struct PanelFormat {
  int64_t group_rows;  // output rows of a group: 4 vectors
  int64_t unit_k;      // k's of a unit; K is padded to it with zero weights
  int64_t unit_bytes;
  Activations activations;
  // E2m1, blocks that share the lanes of many rows (gemm_w4a4_kernel.h). With two, GemmTask::x_sums
  // are 16-bit words: of two blocks, or of one in the low word where there is one row.
  int64_t lane_blocks;
  float alpha_factor;  // undoes the power of two that the kernel leaves in its accumulators
  // Writes one unit of a group from the part's rows [row, row + group_rows) and k's [k, k+unit_k);
  // rows and k's beyond the part are zero.
  void (*pack_unit)(
      const GemmDesc& desc, const LinearPart& part, int64_t row, int64_t k, uint8_t* unit);
};

std::vector<Tensor> panel_layout(const PanelFormat& format, const GemmDesc& desc);
void panel_pack(const PanelFormat& format,
                const GemmDesc& desc,
                std::span<const LinearPart> parts,
                std::span<const Tensor> slots,
                Stream stream);
size_t panel_workspace_bytes(const PanelFormat& format, const GemmDesc& desc, int64_t max_rows);

// ---- the steps of a run, for those who schedule several products in one region ----

// Where the rows of x are: row i at base + (index == nullptr ? i : index[i]) * stride.
struct RowSource {
  const uint16_t* base;  // bf16
  int64_t stride;
  const int32_t* index;
};

// Up to kRowBlock rows times one packed matrix.
struct PanelBlock {
  const PanelFormat* format;
  const GemmDesc* desc;
  std::span<const Tensor> packed;
  RowSource x;
  int64_t rows;
  void* workspace;  // panel_workspace_bytes(format, desc, rows)
  // To multiply rows of another block's workspace (panel_shares_rows()), which has `prepared_rows`
  // of them, more than one: [rows] which of them each is.
  const int32_t* prepared = nullptr;
  int64_t prepared_rows = 0;
};

struct PanelOutput {
  void* y;  // row 0, column 0; bf16 or f32 as desc.out says
  int64_t stride;
  const uint16_t* bias = nullptr;
  const uint16_t* residual = nullptr;
  int64_t residual_stride = 0;
};

// Whether a row is prepared in the same way for every matrix of this shape and for itself alone.
bool panel_shares_rows(const PanelFormat& format, const GemmDesc& desc);
// Preparing is cut into units (row groups of each distinct part); every unit must be done before
// the first group is multiplied.
int64_t panel_prepare_units(const PanelBlock& block);
void panel_prepare(const PanelBlock& block, int64_t unit);
// Groups of output rows, all parts together.
int64_t panel_groups(const PanelFormat& format, const GemmDesc& desc);
void panel_multiply(const PanelBlock& block,
                    GemmKernel kernel,
                    const PanelOutput& out,
                    int64_t group_begin,
                    int64_t group_end);

void panel_run(const PanelFormat& format,
               GemmKernel kernel,
               const GemmDesc& desc,
               const GemmArgs& args,
               Stream stream);

// The formats, for whoever packs other things than a Linear with them.
extern const PanelFormat kW4a16Avx2Format;
extern const PanelFormat kW4a16Avx512Format;
extern const PanelFormat kW4a16Avx512Bf16Format;
extern const PanelFormat kW4a4Avx2Format;
extern const PanelFormat kW4a4VnniFormat;
extern const PanelFormat kBf16Avx2Format;
extern const PanelFormat kBf16Avx512Format;
extern const PanelFormat kBf16Avx512Bf16Format;

// The table of a backend made of a format and a kernel.
template <const PanelFormat& kFormat, GemmKernel kKernel>
constexpr GemmBackend panel_backend(std::string_view name, Support (*supports)(const GemmDesc&)) {
  return {
      .name = name,
      .family = "cpu",
      .opt_in = false,
      .supports = supports,
      .packed_layout = [](const GemmDesc& desc) { return panel_layout(kFormat, desc); },
      .pack = [](const GemmDesc& desc,
                 std::span<const LinearPart> parts,
                 std::span<const Tensor> slots,
                 Stream stream) { panel_pack(kFormat, desc, parts, slots, stream); },
      .workspace_bytes =
          [](const GemmDesc& desc, int64_t max_rows) {
            return panel_workspace_bytes(kFormat, desc, max_rows);
          },
      .run = [](const GemmDesc& desc,
                const GemmArgs& args,
                Stream stream) { panel_run(kFormat, kKernel, desc, args, stream); },
  };
}

}  // namespace nibble::cpu
