#include "backends/cpu/gemm_panels.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "backends/cpu/gemm_grid.h"
#include "base/check.h"
#include "base/number_formats.h"

namespace nibble::cpu {

namespace {

// NOLINTNEXTLINE(readability-identifier-naming): indices, used as the constants they are
enum Slot : size_t { kWeights, kAlpha, kInputScale, kPreQuant };

int64_t divide_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

// Groups of each part, one after another.
struct Groups {
  std::array<int64_t, kMaxParts + 1> begin{};
  int64_t total = 0;
};

Groups groups_of(const PanelFormat& format, const GemmDesc& desc) {
  Groups groups;
  for (int part = 0; part < desc.num_parts; ++part) {
    const PartRange range = part_range(desc, part);
    groups.begin[static_cast<size_t>(part)] = groups.total;
    groups.total += divide_up(range.end - range.begin, format.group_rows);
    groups.begin[static_cast<size_t>(part) + 1] = groups.total;
  }
  return groups;
}

int64_t padded_k(const PanelFormat& format, const GemmDesc& desc) {
  return divide_up(desc.k, format.unit_k) * format.unit_k;
}

int64_t group_bytes(const PanelFormat& format, const GemmDesc& desc) {
  return divide_up(desc.k, format.unit_k) * format.unit_bytes;
}

int64_t k_per_lane(const PanelFormat& format) {
  switch (format.activations) {
    case Activations::F32:
      return 1;
    case Activations::Bf16Pairs:
    case Activations::Grid:
      return 2;
    case Activations::E2m1:
      return 4;
  }
  return 1;
}

// Whether x has a scale and a sum for each 16 k's.
bool has_blocks(const PanelFormat& format) {
  return format.activations == Activations::Grid || format.activations == Activations::E2m1;
}

// k's of x that are stored, those added to fill the last lanes included.
int64_t stored_k(const PanelFormat& format, const GemmDesc& desc) {
  const int64_t k = padded_k(format, desc);
  return format.lane_blocks == 1 ? k : divide_up(k, 32) * 32;
}

// Parts may see different activations: each has its own pre-quant scale and, quantized with a
// static scale, its own input scale. Parts that agree share the first part's copy.
int64_t copy_of_part(const GemmDesc& desc, std::span<const Tensor> packed, int part) {
  if (desc.pre_quant_scale) {
    return part;
  }
  const float* input_scale = packed[kInputScale].as<float>();
  return input_scale[part] == input_scale[0] ? 0 : part;
}

int64_t max_copies(const GemmDesc& desc) {
  return desc.pre_quant_scale || desc.static_input_scale ? desc.num_parts : 1;
}

// One copy of `rows` prepared rows in the workspace.
struct PreparedRows {
  uint32_t* lanes;   // row groups, each [steps, count]
  float* scales;     // with blocks: row groups, each [k / 16, count]
  int32_t* sums;     // with blocks: the same
  float* row_scale;  // E2m1: [rows]
  // Grid: as in GemmTask. The records of many rows take lanes and scales as one piece of memory.
  uint32_t* rest_lanes;
  float* rest_scales;
  int32_t* rest_sums;
  uint32_t* rest_masks;
};

int64_t rest_tiles(int64_t k) { return divide_up(k / 16, kRestTile); }

int64_t copy_words(const PanelFormat& format, const GemmDesc& desc, int64_t rows) {
  const int64_t k = stored_k(format, desc);
  int64_t words = k / k_per_lane(format) + (has_blocks(format) ? k / 16 * 2 + 1 : 0);
  if (format.activations == Activations::Grid) {
    words += k / 2 + k / 16 * 2 + rest_tiles(k);
  }
  return rows * words;
}

PreparedRows prepared_rows(
    const PanelFormat& format, const GemmDesc& desc, void* workspace, int64_t rows, int64_t copy) {
  const int64_t k = stored_k(format, desc);
  PreparedRows prepared{};
  prepared.lanes = static_cast<uint32_t*>(workspace) + copy * copy_words(format, desc, rows);
  if (has_blocks(format)) {
    prepared.scales = reinterpret_cast<float*>(prepared.lanes + rows * (k / k_per_lane(format)));
    prepared.sums = reinterpret_cast<int32_t*>(prepared.scales + rows * (k / 16));
  }
  if (format.activations == Activations::E2m1) {
    prepared.row_scale = reinterpret_cast<float*>(prepared.sums + rows * (k / 16));
  }
  if (format.activations == Activations::Grid) {
    prepared.rest_lanes = reinterpret_cast<uint32_t*>(prepared.sums + rows * (k / 16));
    prepared.rest_scales = reinterpret_cast<float*>(prepared.rest_lanes + rows * (k / 2));
    prepared.rest_sums = reinterpret_cast<int32_t*>(prepared.rest_scales + rows * (k / 16));
    prepared.rest_masks = reinterpret_cast<uint32_t*>(prepared.rest_sums + rows * (k / 16));
  }
  return prepared;
}

uint16_t activation(const uint16_t* x, const float* pre_quant_scale, int64_t k) {
  return pre_quant_scale == nullptr ? x[k]
                                    : float_to_bf16(bf16_to_float(x[k]) * pre_quant_scale[k]);
}

// A row group as [steps, kRows] lanes of f32 or pairs of bf16. The row count is a constant so that
// the inner loop writes one line after another.
template <int kRows>
void prepare_group(const PanelFormat& format,
                   const GemmDesc& desc,
                   const std::array<const uint16_t*, kMaxRowGroup>& rows,
                   const float* pre_quant_scale,
                   uint32_t* out) {
  const bool single = format.activations == Activations::F32;
  const int64_t steps = padded_k(format, desc) / k_per_lane(format);
  const auto value = [&](int r, int64_t k) -> uint32_t {
    return k < desc.k ? activation(rows[static_cast<size_t>(r)], pre_quant_scale, k) : 0u;
  };
  if (single && pre_quant_scale == nullptr) {
    for (int64_t k = 0; k < desc.k; ++k) {
      for (int r = 0; r < kRows; ++r) {
        out[k * kRows + r] = static_cast<uint32_t>(rows[static_cast<size_t>(r)][k]) << 16;
      }
    }
    std::fill(out + desc.k * kRows, out + steps * kRows, 0u);
    return;
  }
  for (int64_t step = 0; step < steps; ++step) {
    for (int r = 0; r < kRows; ++r) {
      out[step * kRows + r] =
          single ? value(r, step) << 16 : value(r, step * 2) | value(r, step * 2 + 1) << 16;
    }
  }
}

using PrepareGroup = void (*)(const PanelFormat&,
                              const GemmDesc&,
                              const std::array<const uint16_t*, kMaxRowGroup>&,
                              const float*,
                              uint32_t*);
constexpr std::array<PrepareGroup, kMaxRowGroup> kPrepareGroup{prepare_group<1>,
                                                               prepare_group<2>,
                                                               prepare_group<3>,
                                                               prepare_group<4>,
                                                               prepare_group<5>,
                                                               prepare_group<6>};

// Where the `count` rows of a row group go; for a row of it everything is moved by its column.
struct QuantizedGroup {
  uint32_t* lanes;
  float* scales;
  int32_t* sums;
  int64_t count;
  bool word_sums;
  bool joined;  // two blocks a lane
};

// Blocks [0, blocks) of a row: codes [blocks, 16], their sums and scales.
void store_quantized(const int8_t* codes,
                     const int32_t* block_sums,
                     int64_t blocks,
                     const QuantizedGroup& to,
                     int64_t first) {
  const auto minus_sum = [&](int64_t b) { return static_cast<uint32_t>(-12 * block_sums[b]); };
  const int64_t count = to.count;
  if (!to.joined) {
    for (int64_t step = 0; step < blocks * 4; ++step) {
      std::memcpy(to.lanes + (first * 4 + step) * count, codes + step * 4, 4);
    }
    for (int64_t b = 0; b < blocks; ++b) {
      const uint32_t sum = minus_sum(b);
      to.sums[(first + b) * count] = static_cast<int32_t>(to.word_sums ? sum & 0xFFFFu : sum);
    }
    return;
  }
  for (int64_t b = 0; b < blocks; b += 2) {
    std::array<uint16_t, 16> words{};
    const bool whole = b + 1 < blocks;
    std::memcpy(words.data(), codes + b * 16, whole ? 32 : 16);
    uint32_t* lanes = to.lanes + (first + b) * 4 * count;
    for (size_t step = 0; step < 8; ++step) {
      lanes[static_cast<int64_t>(step) * count] =
          words[step] | static_cast<uint32_t>(words[step + 8]) << 16;
    }
    to.sums[(first + b) / 2 * count] =
        static_cast<int32_t>((minus_sum(b) & 0xFFFFu) | (whole ? minus_sum(b + 1) << 16 : 0u));
    if (!whole) {
      to.scales[(first + b + 1) * count] = 0.0f;
    }
  }
}

// One row quantized to NVFP4, as quantize_row() in gemm_shared.cpp does it. Works through a chunk
// of blocks at a time on the stack.
float prepare_quantized_row(const GemmDesc& desc,
                            const uint16_t* row,
                            const float* pre_quant_scale,
                            float input_scale,
                            const QuantizedGroup& to) {
  constexpr int64_t kChunkBlocks = 32;
  std::array<float, kChunkBlocks * 16> x;
  std::array<float, kChunkBlocks> amax;
  std::array<float, kChunkBlocks> divisors;
  std::array<int8_t, kChunkBlocks * 16> codes;
  std::array<int32_t, kChunkBlocks> block_sums;
  const int64_t blocks = desc.k / 16;
  const auto for_chunks = [&](const auto& body) {
    for (int64_t first = 0; first < blocks; first += kChunkBlocks) {
      body(first, std::min(kChunkBlocks, blocks - first));
    }
  };
  const auto scale_at = [&](int64_t block) {
    return pre_quant_scale == nullptr ? nullptr : pre_quant_scale + block * 16;
  };
  float global = input_scale;
  if (global <= 0.0f) {
    float top = 0.0f;
    for_chunks([&](int64_t first, int64_t in_chunk) {
      nvfp4_amax_avx2(row + first * 16, scale_at(first), in_chunk, nullptr, amax.data());
      top = std::max(top, *std::max_element(amax.begin(), amax.begin() + in_chunk));
    });
    global = top / (6.0f * 448.0f);
    global = global > 0.0f ? global : 1.0f;
  }
  for_chunks([&](int64_t first, int64_t in_chunk) {
    nvfp4_amax_avx2(row + first * 16, scale_at(first), in_chunk, x.data(), amax.data());
    for (int64_t b = 0; b < in_chunk; ++b) {
      const auto at = static_cast<size_t>(b);
      const float scale = e4m3_to_float(float_to_e4m3(amax[at] / 6.0f / global));
      divisors[at] = scale * global;
      to.scales[(first + b) * to.count] = scale * 0.25f;  // both codes are twice their value
    }
    nvfp4_codes_avx2(x.data(), divisors.data(), in_chunk, codes.data(), block_sums.data());
    store_quantized(codes.data(), block_sums.data(), in_chunk, to, first);
  });
  return global;
}

// Row `at` of the `rows` of a block on the grid: a single row becomes digits, more become records.
void prepare_grid_row(const GemmDesc& desc,
                      const uint16_t* row,
                      const float* pre_quant_scale,
                      int64_t rows,
                      int64_t at,
                      const PreparedRows& to) {
  constexpr int64_t kChunkBlocks = 32;
  static_assert(kChunkBlocks == 2 * kRestTile);
  std::array<uint16_t, kChunkBlocks * 16> scaled;
  std::array<uint16_t, kChunkBlocks * 16> rest;
  std::array<uint16_t, 16> rest_of_rest;
  const int64_t blocks = desc.k / 16;
  uint32_t* records = to.lanes + at * blocks * kGridRecord;
  uint32_t* rest_records = to.rest_lanes + at * blocks * kGridRecord;
  uint32_t* masks = to.rest_masks + at * rest_tiles(desc.k);
  for (int64_t first = 0; first < blocks; first += kChunkBlocks) {
    const int64_t in_chunk = std::min(kChunkBlocks, blocks - first);
    const uint16_t* x = row + first * 16;
    if (pre_quant_scale != nullptr) {
      for (int64_t k = 0; k < in_chunk * 16; ++k) {
        scaled[static_cast<size_t>(k)] = activation(row, pre_quant_scale, first * 16 + k);
      }
      x = scaled.data();
    }
    uint32_t rests =
        rows == 1 ? nvfp4_grid_digits_avx2(x,
                                           in_chunk,
                                           to.lanes + first * 8,
                                           to.scales + first,
                                           to.sums + first,
                                           rest.data())
                  : nvfp4_grid_pairs_avx2(x, in_chunk, records + first * kGridRecord, rest.data());
    masks[first / kRestTile] = rests & 0xFFFFu;
    if (in_chunk > kRestTile) {
      masks[first / kRestTile + 1] = rests >> 16;
    }
    for (; rests != 0; rests &= rests - 1) {
      const int64_t b = first + std::countr_zero(rests);
      const uint16_t* values = rest.data() + (b - first) * 16;
      if (rows == 1) {
        nvfp4_grid_digits_avx2(values,
                               1,
                               to.rest_lanes + b * 8,
                               to.rest_scales + b,
                               to.rest_sums + b,
                               rest_of_rest.data());
      } else {
        nvfp4_grid_pairs_avx2(values, 1, rest_records + b * kGridRecord, rest_of_rest.data());
      }
    }
  }
}

// Preparing costs about a nanosecond an element: below this a second thread does not pay.
constexpr int64_t kSerialElements = 16384;

}  // namespace

std::vector<Tensor> panel_layout(const PanelFormat& format, const GemmDesc& desc) {
  const Device cpu{};
  const Groups groups = groups_of(format, desc);
  std::vector<Tensor> slots;
  slots.emplace_back(nullptr, DType::U8, Shape{groups.total, group_bytes(format, desc)}, cpu);
  slots.emplace_back(nullptr, DType::F32, Shape{desc.num_parts}, cpu);
  slots.emplace_back(nullptr, DType::F32, Shape{desc.num_parts}, cpu);
  if (desc.pre_quant_scale) {
    slots.emplace_back(nullptr, DType::F32, Shape{desc.num_parts, desc.k}, cpu);
  }
  return slots;
}

void panel_pack(const PanelFormat& format,
                const GemmDesc& desc,
                std::span<const LinearPart> parts,
                std::span<const Tensor> slots,
                Stream stream) {
  CHECK(static_cast<int>(parts.size()) == desc.num_parts, "expected as many parts as the desc has");
  const Groups groups = groups_of(format, desc);
  const int64_t units = divide_up(desc.k, format.unit_k);
  for (int index = 0; index < desc.num_parts; ++index) {
    const LinearPart& part = parts[static_cast<size_t>(index)];
    const int64_t first = groups.begin[static_cast<size_t>(index)];
    const int64_t last = groups.begin[static_cast<size_t>(index) + 1];
    slots[kAlpha].as<float>()[index] = part_alpha(desc, part) * format.alpha_factor;
    slots[kInputScale].as<float>()[index] =
        desc.static_input_scale ? read_scalar(part.input_scale, 0.0f) : 0.0f;
    if (desc.pre_quant_scale) {
      read_pre_quant_scale(part, desc.k, slots[kPreQuant].as<float>() + index * desc.k);
    }
    pool_of(stream).parallel_for(last - first, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t group = begin; group < end; ++group) {
        uint8_t* to = slots[kWeights].as<uint8_t>() + (first + group) * units * format.unit_bytes;
        for (int64_t unit = 0; unit < units; ++unit) {
          format.pack_unit(desc,
                           part,
                           group * format.group_rows,
                           unit * format.unit_k,
                           to + unit * format.unit_bytes);
        }
      }
    });
  }
}

size_t panel_workspace_bytes(const PanelFormat& format, const GemmDesc& desc, int64_t max_rows) {
  const int64_t rows = std::min<int64_t>(max_rows, kRowBlock);
  return static_cast<size_t>(copy_words(format, desc, rows) * max_copies(desc)) * 4;
}

bool panel_shares_rows(const PanelFormat& format, const GemmDesc& desc) {
  return format.activations == Activations::Grid && !desc.pre_quant_scale &&
         !desc.static_input_scale;
}

int64_t panel_prepare_units(const PanelBlock& block) {
  return divide_up(block.rows, kMaxRowGroup) * max_copies(*block.desc);
}

void panel_prepare(const PanelBlock& block, int64_t unit) {
  const PanelFormat& format = *block.format;
  const GemmDesc& desc = *block.desc;
  const int64_t groups = divide_up(block.rows, kMaxRowGroup);
  const int part = static_cast<int>(unit / groups);
  if (copy_of_part(desc, block.packed, part) != part) {
    return;  // shares the first part's copy
  }
  const int64_t k = stored_k(format, desc);
  const int64_t group = unit % groups;
  const int64_t first = block.rows * group / groups;
  const int64_t count = block.rows * (group + 1) / groups - first;
  const float* pre_quant_scale =
      desc.pre_quant_scale ? block.packed[kPreQuant].as<float>() + part * desc.k : nullptr;
  const PreparedRows to = prepared_rows(format, desc, block.workspace, block.rows, part);
  uint32_t* lanes = to.lanes + first * (k / k_per_lane(format));
  std::array<const uint16_t*, kMaxRowGroup> rows{};
  for (int64_t r = 0; r < count; ++r) {
    const int64_t source = block.x.index == nullptr ? first + r : block.x.index[first + r];
    rows[static_cast<size_t>(r)] = block.x.base + source * block.x.stride;
  }
  if (!has_blocks(format)) {
    kPrepareGroup[static_cast<size_t>(count - 1)](format, desc, rows, pre_quant_scale, lanes);
    return;
  }
  float* scales = to.scales + first * (k / 16);
  const bool joined = format.lane_blocks == 2 && block.rows > 1;
  int32_t* sums = to.sums + first * (k / 16) / (joined ? 2 : 1);
  for (int64_t r = 0; r < count; ++r) {
    const uint16_t* row = rows[static_cast<size_t>(r)];
    if (format.activations == Activations::Grid) {
      prepare_grid_row(desc, row, pre_quant_scale, block.rows, first + r, to);
    } else {
      const float input_scale = block.packed[kInputScale].as<float>()[part];
      const QuantizedGroup place{.lanes = lanes + r,
                                 .scales = scales + r,
                                 .sums = sums + r,
                                 .count = count,
                                 .word_sums = format.lane_blocks == 2,
                                 .joined = joined};
      to.row_scale[first + r] =
          prepare_quantized_row(desc, row, pre_quant_scale, input_scale, place);
    }
  }
}

int64_t panel_groups(const PanelFormat& format, const GemmDesc& desc) {
  return groups_of(format, desc).total;
}

void panel_multiply(const PanelBlock& block,
                    GemmKernel kernel,
                    const PanelOutput& out,
                    int64_t group_begin,
                    int64_t group_end) {
  const PanelFormat& format = *block.format;
  const GemmDesc& desc = *block.desc;
  const Groups groups = groups_of(format, desc);
  for (int part = 0; part < desc.num_parts; ++part) {
    const int64_t part_begin = groups.begin[static_cast<size_t>(part)];
    const int64_t from = std::max(group_begin, part_begin);
    const int64_t to = std::min(group_end, groups.begin[static_cast<size_t>(part) + 1]);
    if (from >= to) {
      continue;
    }
    const PartRange range = part_range(desc, part);
    const int64_t stored = block.prepared == nullptr ? block.rows : block.prepared_rows;
    const PreparedRows x = prepared_rows(
        format, desc, block.workspace, stored, copy_of_part(desc, block.packed, part));
    GemmTask task{};
    task.weights = static_cast<const uint8_t*>(block.packed[kWeights].data) +
                   part_begin * group_bytes(format, desc);
    task.alpha = block.packed[kAlpha].as<float>() + part;
    task.x = x.lanes;
    task.x_rows = block.prepared;
    task.x_scales = x.scales;
    task.x_sums = x.sums;
    task.row_scale = x.row_scale;
    task.rest_lanes = x.rest_lanes;
    task.rest_scales = x.rest_scales;
    task.rest_sums = x.rest_sums;
    task.rest_masks = x.rest_masks;
    task.rows = block.rows;
    task.k = padded_k(format, desc);
    task.n = range.end - range.begin;
    task.y = static_cast<uint8_t*>(out.y) + range.begin * size_of(desc.out);
    task.y_stride = out.stride;
    task.y_is_f32 = desc.out == DType::F32 ? 1 : 0;
    task.bias = out.bias == nullptr ? nullptr : out.bias + range.begin;
    task.residual = out.residual == nullptr ? nullptr : out.residual + range.begin;
    task.residual_stride = out.residual_stride;
    kernel(&task, from - part_begin, to - part_begin);
  }
}

void panel_run(const PanelFormat& format,
               GemmKernel kernel,
               const GemmDesc& desc,
               const GemmArgs& args,
               Stream stream) {
  const int64_t m = args.x.shape[0];
  CHECK(args.x.shape[1] == desc.k && args.y.shape[1] == desc.n,
        "x or y has other sizes than the desc");
  CHECK(args.workspace.size_bytes() >= static_cast<int64_t>(panel_workspace_bytes(format, desc, m)),
        "the workspace is too small: ",
        args.workspace.size_bytes());
  ThreadPool& pool = pool_of(stream);
  for (int64_t begin = 0; begin < m; begin += kRowBlock) {
    const int64_t rows = std::min<int64_t>(kRowBlock, m - begin);
    const Tensor x = args.x.rows(begin, begin + rows);
    const Tensor y = args.y.rows(begin, begin + rows);
    const PanelBlock block{.format = &format,
                           .desc = &desc,
                           .packed = args.packed,
                           .x = {x.as<uint16_t>(), x.stride[0], nullptr},
                           .rows = rows,
                           .workspace = args.workspace.data};
    PanelOutput out{.y = y.data, .stride = y.stride[0]};
    if (!args.bias.empty()) {
      out.bias = args.bias.as<uint16_t>();
    }
    if (!args.residual.empty()) {
      out.residual = args.residual.rows(begin, begin + rows).as<uint16_t>();
      out.residual_stride = args.residual.stride[0];
    }
    const int64_t units = panel_prepare_units(block);
    const auto prepare = [&](int64_t from, int64_t to, int) {
      for (int64_t unit = from; unit < to; ++unit) {
        panel_prepare(block, unit);
      }
    };
    if (rows * desc.k * max_copies(desc) <= kSerialElements) {
      prepare(0, units, 0);
    } else {
      pool.parallel_for(units, 1, prepare);
    }
    pool.parallel_for(panel_groups(format, desc), 1, [&](int64_t from, int64_t to, int) {
      panel_multiply(block, kernel, out, from, to);
    });
  }
}

}  // namespace nibble::cpu
