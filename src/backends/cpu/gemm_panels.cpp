#include "backends/cpu/gemm_panels.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/check.h"
#include "base/number_formats.h"

namespace nibble::cpu {

namespace {

enum Slot : size_t { kWeights, kAlpha, kPreQuant };

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

// Copies of the prepared rows: one per part where the pre-quant scale may differ.
int64_t num_copies(const GemmDesc& desc) { return desc.pre_quant_scale ? desc.num_parts : 1; }

// Bytes of one prepared copy of `rows` rows.
int64_t copy_bytes(const PanelFormat& format, const GemmDesc& desc, int64_t rows) {
  return rows * (padded_k(format, desc) / format.k_per_step) * 4;
}

uint16_t activation(const uint16_t* x, const float* pre_quant_scale, int64_t k) {
  return pre_quant_scale == nullptr ? x[k]
                                    : float_to_bf16(bf16_to_float(x[k]) * pre_quant_scale[k]);
}

// One row group: [steps, count] 32-bit lanes, x rows [begin, begin + count).
void prepare_group(const PanelFormat& format,
                   const GemmDesc& desc,
                   const Tensor& x,
                   const float* pre_quant_scale,
                   int64_t begin,
                   int64_t count,
                   uint32_t* out) {
  const int64_t steps = padded_k(format, desc) / format.k_per_step;
  for (int64_t r = 0; r < count; ++r) {
    const uint16_t* row = x.as<uint16_t>() + (begin + r) * x.stride[0];
    uint32_t* to = out + r;
    if (format.k_per_step == 1) {
      for (int64_t k = 0; k < desc.k; ++k) {
        to[k * count] = static_cast<uint32_t>(activation(row, pre_quant_scale, k)) << 16;
      }
      for (int64_t k = desc.k; k < steps; ++k) {
        to[k * count] = 0;
      }
      continue;
    }
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t k = step * 2;
      const uint32_t low = k < desc.k ? activation(row, pre_quant_scale, k) : 0u;
      const uint32_t high = k + 1 < desc.k ? activation(row, pre_quant_scale, k + 1) : 0u;
      to[step * count] = low | high << 16;
    }
  }
}

// Preparing costs about a nanosecond an element: below this a second thread does not pay.
constexpr int64_t kSerialElements = 16384;

void prepare_rows(const PanelFormat& format,
                  const GemmDesc& desc,
                  const GemmArgs& args,
                  int64_t row_begin,
                  int64_t rows,
                  ThreadPool& pool) {
  const int64_t groups = divide_up(rows, kMaxRowGroup);
  const int64_t copies = num_copies(desc);
  const int64_t steps = padded_k(format, desc) / format.k_per_step;
  auto* workspace = static_cast<uint32_t*>(args.workspace.data);
  const auto prepare = [&](int64_t begin, int64_t end, int) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t copy = unit / groups;
      const int64_t group = unit % groups;
      const int64_t first = rows * group / groups;
      const int64_t count = rows * (group + 1) / groups - first;
      const float* scale =
          desc.pre_quant_scale ? args.packed[kPreQuant].as<float>() + copy * desc.k : nullptr;
      prepare_group(format,
                    desc,
                    args.x,
                    scale,
                    row_begin + first,
                    count,
                    workspace + (copy * rows + first) * steps);
    }
  };
  if (rows * desc.k * copies <= kSerialElements) {
    prepare(0, groups * copies, 0);
  } else {
    pool.parallel_for(groups * copies, 1, prepare);
  }
}

}  // namespace

std::vector<Tensor> panel_layout(const PanelFormat& format, const GemmDesc& desc) {
  const Device cpu{};
  const Groups groups = groups_of(format, desc);
  std::vector<Tensor> slots;
  slots.emplace_back(nullptr, DType::U8, Shape{groups.total, group_bytes(format, desc)}, cpu);
  slots.emplace_back(nullptr, DType::F32, Shape{groups.total * format.group_rows}, cpu);
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
    float* alpha = slots[kAlpha].as<float>();
    std::fill(alpha + first * format.group_rows,
              alpha + last * format.group_rows,
              part_alpha(desc, part) * format.alpha_factor);
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
  return static_cast<size_t>(copy_bytes(format, desc, rows) * num_copies(desc));
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
  const Groups groups = groups_of(format, desc);
  ThreadPool& pool = pool_of(stream);
  const int64_t y_bytes = size_of(desc.out);
  for (int64_t row_begin = 0; row_begin < m; row_begin += kRowBlock) {
    const int64_t rows = std::min<int64_t>(kRowBlock, m - row_begin);
    prepare_rows(format, desc, args, row_begin, rows, pool);
    pool.parallel_for(groups.total, 1, [&](int64_t begin, int64_t end, int) {
      for (int part = 0; part < desc.num_parts; ++part) {
        const int64_t part_begin = groups.begin[static_cast<size_t>(part)];
        const int64_t from = std::max(begin, part_begin);
        const int64_t to = std::min(end, groups.begin[static_cast<size_t>(part) + 1]);
        if (from >= to) {
          continue;
        }
        const PartRange range = part_range(desc, part);
        const int64_t copy = desc.pre_quant_scale ? part : 0;
        GemmTask task{};
        task.weights = args.packed[kWeights].as<uint8_t>() + part_begin * group_bytes(format, desc);
        task.alpha = args.packed[kAlpha].as<float>() + part_begin * format.group_rows;
        task.x = static_cast<const uint8_t*>(args.workspace.data) +
                 copy * copy_bytes(format, desc, rows);
        task.rows = rows;
        task.k = padded_k(format, desc);
        task.n = range.end - range.begin;
        task.y_stride = args.y.stride[0];
        task.y = static_cast<uint8_t*>(args.y.data) +
                 (row_begin * task.y_stride + range.begin) * y_bytes;
        task.y_is_f32 = desc.out == DType::F32 ? 1 : 0;
        if (!args.bias.empty()) {
          task.bias = args.bias.as<uint16_t>() + range.begin;
        }
        if (!args.residual.empty()) {
          task.residual_stride = args.residual.stride[0];
          task.residual =
              args.residual.as<uint16_t>() + row_begin * task.residual_stride + range.begin;
        }
        kernel(&task, from - part_begin, to - part_begin);
      }
    });
  }
}

}  // namespace nibble::cpu
