// W4A4 on Hopper: the activations are quantized as a Blackwell GPU would have them, then multiplied
// exactly as BF16 by the W4A16 kernels (a code times its block scale fits bf16). Only the order of
// accumulation differs from FP4 tensor cores. The global scale of a row is a multiplier a token.
//
// Parts that may have input scales of their own are matrices of their own: each quantizes x anew.
#include <algorithm>
#include <array>
#include <vector>

#include <cuda_runtime_api.h>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/gemm_nvfp4.h"
#include "backends/cuda/nvfp4_layout.h"
#include "backends/cuda/nvfp4_w4a16_sm90.h"
#include "backends/cuda/quantize_act.h"
#include "backends/cuda/scale_columns.h"
#include "ops/gemm.h"

namespace nibble {

namespace {

using namespace nibble::cuda;  // NOLINT(google-build-using-namespace): the folder's own helpers

// NOLINTNEXTLINE(readability-identifier-naming): indices, used as the constants they are
enum Slot { kPacked, kMultiplier, kCounters, kInputScales, kPreQuant, kNumSlots };

// A matrix within the slots: all parts, or one part.
struct Piece {
  GemmDesc desc;  // n, part_rows of this piece
  int first_part = 0;
  int64_t first_row = 0;      // of y
  int64_t packed_at = 0;      // bytes
  int64_t multiplier_at = 0;  // elements
  int64_t counters_at = 0;
};

struct Pieces {
  std::vector<Piece> all;
  Piece end;  // offsets are the sizes
};

Pieces pieces_of(const GemmDesc& desc) {
  Pieces pieces;
  const bool separate = desc.static_input_scale && desc.num_parts > 1;
  Piece next;
  for (int part = 0; part < (separate ? desc.num_parts : 1); ++part) {
    Piece piece = next;
    piece.desc = desc;
    piece.first_part = part;
    if (separate) {
      piece.desc.n = desc.part_rows[static_cast<size_t>(part)];
      piece.desc.num_parts = 1;
      piece.desc.part_rows = {piece.desc.n};
    }
    next.first_row += piece.desc.n;
    next.packed_at += packed_bytes(piece.desc.n, desc.k);
    next.multiplier_at += padded_rows(piece.desc.n);
    next.counters_at += w4a16_num_counters(piece.desc.n);
    if (piece.desc.n > 0) {
      pieces.all.push_back(piece);
    }
  }
  pieces.end = next;
  return pieces;
}

Support supports(const GemmDesc& desc) { return supports_nvfp4(desc, kW4A4, Needs::Hopper); }

std::vector<Tensor> packed_layout(const GemmDesc& desc) {
  const Device device{desc.device, 0};
  const Piece end = pieces_of(desc).end;
  std::vector<Tensor> slots(kNumSlots);
  slots[kPacked] = Tensor(nullptr, DType::U8, {end.packed_at}, device);
  slots[kMultiplier] = Tensor(nullptr, DType::F32, {end.multiplier_at}, device);
  slots[kCounters] = Tensor(nullptr, DType::I32, {end.counters_at}, device);
  slots[kInputScales] = Tensor(nullptr, DType::F32, {kMaxParts}, device);
  slots[kPreQuant] = pre_quant_slot(desc);
  return slots;
}

void pack(const GemmDesc& desc,
          std::span<const LinearPart> parts,
          std::span<const Tensor> slots,
          Stream stream) {
  std::array<float, kMaxParts> input_scales{};
  for (const Piece& piece : pieces_of(desc).all) {
    Tensor packed = slots[kPacked];
    packed.data = static_cast<uint8_t*>(packed.data) + piece.packed_at;
    Tensor multiplier = slots[kMultiplier];
    multiplier.data = multiplier.as<float>() + piece.multiplier_at;
    pack_parts(piece.desc,
               parts.subspan(static_cast<size_t>(piece.first_part),
                             static_cast<size_t>(piece.desc.num_parts)),
               packed,
               multiplier,
               stream);
  }
  for (size_t i = 0; i < parts.size() && desc.static_input_scale; ++i) {
    input_scales[i] = *parts[i].input_scale.as<float>();
  }
  auto* native = static_cast<cudaStream_t>(stream.native);
  CUDA_CHECK(cudaMemsetAsync(
      slots[kCounters].data, 0, static_cast<size_t>(slots[kCounters].size_bytes()), native));
  CUDA_CHECK(cudaMemcpyAsync(slots[kInputScales].data,
                             input_scales.data(),
                             sizeof input_scales,
                             cudaMemcpyHostToDevice,
                             native));
  CUDA_CHECK(cudaStreamSynchronize(native));
  pack_pre_quant(desc, parts.front(), slots[kPreQuant], native);
}

int64_t aligned(int64_t bytes) { return ceil_div(bytes, 256) * 256; }

size_t workspace_bytes(const GemmDesc& desc, int64_t max_rows) {
  int64_t product = 0;
  for (const Piece& piece : pieces_of(desc).all) {
    product = std::max(product, w4a16_workspace_bytes(max_rows, piece.desc.n, desc.k));
  }
  return static_cast<size_t>(pre_quant_bytes(desc, max_rows) + aligned(max_rows * desc.k * 2) +
                             aligned(max_rows * 4) + product);
}

void run(const GemmDesc& desc, const GemmArgs& given, Stream stream) {
  const int64_t m = given.x.shape[0];
  if (m == 0) {
    return;
  }
  auto* native = static_cast<cudaStream_t>(stream.native);
  const GemmArgs args = apply_pre_quant(desc, given, given.packed[kPreQuant], native);
  auto* values = static_cast<uint8_t*>(args.workspace.data);
  auto* token_scale = reinterpret_cast<float*>(values + aligned(m * desc.k * 2));
  for (const Piece& piece : pieces_of(desc).all) {
    quantize_act({.x = args.x.data,
                  .m = m,
                  .k = desc.k,
                  .ldx = args.x.stride[0],
                  .input_scale = desc.static_input_scale
                                     ? args.packed[kInputScales].as<float>() + piece.first_part
                                     : nullptr,
                  .values = values,
                  .token_scale = token_scale},
                 native);
    const int64_t out_bytes = size_of(args.y.dtype) * piece.first_row;
    W4A16Args call;
    call.x = values;
    call.packed = static_cast<const uint8_t*>(args.packed[kPacked].data) + piece.packed_at;
    call.row_multiplier = args.packed[kMultiplier].as<float>() + piece.multiplier_at;
    call.y = static_cast<uint8_t*>(args.y.data) + out_bytes;
    if (!args.bias.empty()) {
      call.bias = args.bias.as<uint16_t>() + piece.first_row;
    }
    call.workspace = reinterpret_cast<uint8_t*>(token_scale) + aligned(m * 4);
    call.counters =
        reinterpret_cast<uint32_t*>(args.packed[kCounters].as<int32_t>() + piece.counters_at);
    if (!args.residual.empty()) {
      call.residual = args.residual.as<uint16_t>() + piece.first_row;
      call.ldr = args.residual.stride[0];
    }
    call.m = m;
    call.n = piece.desc.n;
    call.k = desc.k;
    call.ldx = desc.k;
    call.ldy = args.y.stride[0];
    call.y_is_f32 = args.y.dtype == DType::F32;
    call.token_multiplier = token_scale;
    const W4A16Plan plan = plan_w4a16(m, call.n, call.k, num_multiprocessors(stream.device));
    launch_w4a16_sm90(plan, call, native);
  }
}

}  // namespace

extern const GemmBackend kNvfp4W4a4Sm90;
const GemmBackend kNvfp4W4a4Sm90{
    .name = "nvfp4_w4a4_sm90",
    .family = "sm90",
    .opt_in = false,
    .supports = supports,
    .packed_layout = packed_layout,
    .pack = pack,
    .workspace_bytes = workspace_bytes,
    .run = run,
    .packs_from_device = true,
};

}  // namespace nibble
