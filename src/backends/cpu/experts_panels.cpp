// experts_{w4a16,w4a4,bf16}_{avx2,avx512,...}: grouped experts on the packed panels of the dense
// kernels. Pairs (token, expert) are sorted by expert; each expert's rows are one or more segments
// of at most kRowBlock rows. Five parallel regions a block of tokens: prepare x, gate and up,
// activation + prepare, down, weighted sum. Work is split by cost over (segment, output rows), so
// uneven routing does not idle threads; a row's arithmetic is that of the dense kernel, so its bits
// do not depend on the routing of others.
#include <algorithm>

#include "backends/cpu/experts_shared.h"
#include "backends/cpu/gemm_panels.h"
#include "base/check.h"

namespace nibble {

namespace {

using namespace nibble::cpu;  // NOLINT(google-build-using-namespace): the folder's own helpers

// Tokens handled together: more give each expert more rows per decoded weight, and more memory.
constexpr int64_t kTokenBlock = 512;
// Decoding a weight costs about as much as this many rows of multiply-adds.
constexpr int64_t kDecodeRows = 2;
// Rows an expert gets on average from which on tokens are prepared once for all experts: then a
// single row is multiplied as many are, which costs as much as kDecodeRows more.
constexpr int64_t kSharingRows = 4;
constexpr int64_t kCombineColumns = 256;

size_t slots_per_matrix(const ExpertsDesc& desc) { return desc.pre_quant_scale ? 4 : 3; }

std::vector<Tensor> layout(const PanelFormat& format, const ExpertsDesc& desc) {
  std::vector<Tensor> slots;
  for (const GemmDesc& gemm : {first_desc(desc), second_desc(desc)}) {
    for (const Tensor& slot : panel_layout(format, gemm)) {
      Shape shape{desc.experts, slot.shape[0]};
      if (slot.shape.rank == 2) {
        shape = {desc.experts, slot.shape[0], slot.shape[1]};
      }
      slots.emplace_back(nullptr, slot.dtype, shape, Device{});
    }
  }
  return slots;
}

// The slots of one matrix of one expert, in the shapes that the dense driver knows.
struct ExpertSlots {
  std::array<Tensor, 4> slots;
  size_t count = 0;
  std::span<const Tensor> span() const { return std::span(slots).first(count); }
};

ExpertSlots expert_slots(const ExpertsDesc& desc,
                         std::span<const Tensor> packed,
                         int matrix,
                         int64_t expert) {
  ExpertSlots out;
  out.count = slots_per_matrix(desc);
  for (size_t i = 0; i < out.count; ++i) {
    const Tensor one = packed[static_cast<size_t>(matrix) * out.count + i].rows(expert, expert + 1);
    const Shape shape =
        one.shape.rank == 3 ? Shape{one.shape[1], one.shape[2]} : Shape{one.shape[1]};
    out.slots[i] = Tensor(one.data, one.dtype, shape, one.device);
  }
  return out;
}

void pack(const PanelFormat& format,
          const ExpertsDesc& desc,
          int64_t expert,
          const ExpertParts& parts,
          std::span<const Tensor> slots,
          Stream stream) {
  const ExpertSlots first = expert_slots(desc, slots, 0, expert);
  const ExpertSlots second = expert_slots(desc, slots, 1, expert);
  if (desc.activation == ExpertActivation::SwiGlu) {
    const std::array<LinearPart, 2> gate_up{parts.gate, parts.up};
    panel_pack(format, first_desc(desc), gate_up, first.span(), stream);
  } else {
    panel_pack(format, first_desc(desc), std::span(&parts.up, 1), first.span(), stream);
  }
  panel_pack(format, second_desc(desc), std::span(&parts.down, 1), second.span(), stream);
}

struct Segment {
  int32_t expert;
  int32_t begin;  // sorted place
  int32_t rows;
};

// The workspace, cut for up to kTokenBlock tokens.
struct Workspace {
  PairOrder order;
  Segment* segments;
  std::byte* first_prepared;  // row bytes * pairs
  std::byte* second_prepared;
  uint16_t* first_out;  // [pairs, first n] bf16
  uint16_t* activated;  // [pairs, ffn] bf16
  float* second_out;    // [pairs, hidden] f32
  size_t first_row_bytes;
  size_t second_row_bytes;
  size_t total_bytes;
};

Workspace cut_workspace(const PanelFormat& format,
                        const ExpertsDesc& desc,
                        void* memory,
                        int64_t tokens) {
  const auto pairs = static_cast<size_t>(std::min(tokens, kTokenBlock) * desc.topk);
  Workspace w{};
  size_t used = 0;
  const auto take = [&](size_t bytes) {
    // Sizes are also asked for with a null base.
    auto* at = memory == nullptr ? nullptr : static_cast<std::byte*>(memory) + used;
    used += (bytes + 63) / 64 * 64;
    return at;
  };
  w.first_row_bytes = panel_workspace_bytes(format, first_desc(desc), 1);
  w.second_row_bytes = panel_workspace_bytes(format, second_desc(desc), 1);
  const auto experts = static_cast<size_t>(desc.experts);
  w.order.begin = reinterpret_cast<int32_t*>(take((experts + 1) * 4));
  w.order.token = reinterpret_cast<int32_t*>(take(pairs * 4));
  w.order.place = reinterpret_cast<int32_t*>(take(pairs * 4));
  w.segments = reinterpret_cast<Segment*>(
      take((std::min(experts, pairs) + pairs / kRowBlock + 1) * sizeof(Segment)));
  w.first_prepared = take(pairs * w.first_row_bytes);
  w.second_prepared = take(pairs * w.second_row_bytes);
  w.first_out =
      reinterpret_cast<uint16_t*>(take(pairs * static_cast<size_t>(first_desc(desc).n) * 2));
  w.activated = reinterpret_cast<uint16_t*>(take(pairs * static_cast<size_t>(desc.ffn) * 2));
  w.second_out = reinterpret_cast<float*>(take(pairs * static_cast<size_t>(desc.hidden) * 4));
  w.total_bytes = used;
  return w;
}

int64_t make_segments(const ExpertsDesc& desc, const Workspace& w) {
  int64_t count = 0;
  for (int32_t e = 0; e < static_cast<int32_t>(desc.experts); ++e) {
    const int32_t end = w.order.begin[e + 1];
    for (int32_t begin = w.order.begin[e]; begin < end; begin += kRowBlock) {
      w.segments[count++] = {e, begin, std::min<int32_t>(kRowBlock, end - begin)};
    }
  }
  return count;
}

// Splits units over the pool by cost: segment s has units_of(s) units of cost_of(s) each; a unit
// belongs to the thread in whose share its first bit of cost lies. Calls body(s, begin, end).
template <typename UnitsOf, typename CostOf, typename Body>
void for_segments(ThreadPool& pool,
                  int64_t segments,
                  const UnitsOf& units_of,
                  const CostOf& cost_of,
                  const Body& body) {
  int64_t total = 0;
  for (int64_t s = 0; s < segments; ++s) {
    total += units_of(s) * cost_of(s);
  }
  pool.parallel_for(total, 1, [&](int64_t begin, int64_t end, int) {
    int64_t start = 0;
    for (int64_t s = 0; s < segments && start < end; ++s) {
      const int64_t cost = cost_of(s);
      const int64_t units = units_of(s);
      const auto unit_at = [&](int64_t share) {
        return std::clamp<int64_t>((share - start + cost - 1) / cost, 0, units);
      };
      const int64_t from = begin <= start ? 0 : unit_at(begin);
      const int64_t to = unit_at(end);
      if (from < to) {
        body(s, from, to);
      }
      start += units * cost;
    }
  });
}

// The tokens [0, ids.shape[0]) of one block.
void run_block(const PanelFormat& format,
               GemmKernel kernel,
               const ExpertsDesc& desc,
               std::span<const Tensor> packed,
               const Tensor& x,
               const Tensor& ids,
               const Tensor& weights,
               const Tensor& y,
               const Workspace& w,
               ThreadPool& pool) {
  const GemmDesc first = first_desc(desc);
  const GemmDesc second = second_desc(desc);
  sort_pairs(desc, ids, w.order);
  const int64_t segments = make_segments(desc, w);
  // Where experts get several rows each, a token is prepared once for all of them.
  const bool shared = panel_shares_rows(format, first) &&
                      ids.shape[0] * desc.topk >= kSharingRows * desc.experts && ids.shape[0] > 1;
  const auto tokens_block = [&](const ExpertSlots& slots) {
    return PanelBlock{.format = &format,
                      .desc = &first,
                      .packed = slots.span(),
                      .x = {x.as<uint16_t>(), x.stride[0], nullptr},
                      .rows = ids.shape[0],
                      .workspace = w.first_prepared};
  };
  const auto first_block = [&](int64_t s, const ExpertSlots& slots) {
    const Segment& segment = w.segments[s];
    if (shared) {
      PanelBlock block = tokens_block(slots);
      block.rows = segment.rows;
      block.prepared = w.order.token + segment.begin;
      block.prepared_rows = ids.shape[0];
      return block;
    }
    return PanelBlock{
        .format = &format,
        .desc = &first,
        .packed = slots.span(),
        .x = {x.as<uint16_t>(), x.stride[0], w.order.token + segment.begin},
        .rows = segment.rows,
        .workspace = w.first_prepared + static_cast<size_t>(segment.begin) * w.first_row_bytes};
  };
  const auto second_block = [&](int64_t s, const ExpertSlots& slots) {
    const Segment& segment = w.segments[s];
    return PanelBlock{
        .format = &format,
        .desc = &second,
        .packed = slots.span(),
        .x = {w.activated + segment.begin * desc.ffn, desc.ffn, nullptr},
        .rows = segment.rows,
        .workspace = w.second_prepared + static_cast<size_t>(segment.begin) * w.second_row_bytes};
  };
  const auto slots_of = [&](int64_t s, int matrix) {
    return expert_slots(desc, packed, matrix, w.segments[s].expert);
  };
  const auto rows_cost = [&](int64_t s) -> int64_t { return w.segments[s].rows + kDecodeRows; };
  const auto one = [](int64_t) -> int64_t { return 1; };

  if (shared) {
    const ExpertSlots slots = slots_of(0, 0);
    const PanelBlock block = tokens_block(slots);
    pool.parallel_for(panel_prepare_units(block), 1, [&](int64_t from, int64_t to, int) {
      for (int64_t unit = from; unit < to; ++unit) {
        panel_prepare(block, unit);
      }
    });
  } else {
    const auto first_units = [&](int64_t s) {
      return panel_prepare_units(first_block(s, slots_of(s, 0)));
    };
    for_segments(pool, segments, first_units, one, [&](int64_t s, int64_t from, int64_t to) {
      const ExpertSlots slots = slots_of(s, 0);
      for (int64_t unit = from; unit < to; ++unit) {
        panel_prepare(first_block(s, slots), unit);
      }
    });
  }
  const int64_t first_groups = panel_groups(format, first);
  for_segments(
      pool,
      segments,
      [&](int64_t) { return first_groups; },
      rows_cost,
      [&](int64_t s, int64_t from, int64_t to) {
        const ExpertSlots slots = slots_of(s, 0);
        const PanelOutput out{.y = w.first_out + w.segments[s].begin * first.n, .stride = first.n};
        panel_multiply(first_block(s, slots), kernel, out, from, to);
      });
  const auto second_units = [&](int64_t s) {
    return panel_prepare_units(second_block(s, slots_of(s, 1)));
  };
  for_segments(pool, segments, second_units, one, [&](int64_t s, int64_t from, int64_t to) {
    const ExpertSlots slots = slots_of(s, 1);
    const Segment& segment = w.segments[s];
    const int64_t units = second_units(s);
    for (int64_t unit = from; unit < to; ++unit) {
      // The rows of this unit: the same balanced cut as in panel_prepare().
      const int64_t row_end = segment.rows * (unit + 1) / units;
      for (int64_t row = segment.rows * unit / units; row < row_end; ++row) {
        const int64_t place = segment.begin + row;
        activate_row(desc, w.first_out + place * first.n, w.activated + place * desc.ffn);
      }
      panel_prepare(second_block(s, slots), unit);
    }
  });
  const int64_t second_groups = panel_groups(format, second);
  for_segments(
      pool,
      segments,
      [&](int64_t) { return second_groups; },
      rows_cost,
      [&](int64_t s, int64_t from, int64_t to) {
        const ExpertSlots slots = slots_of(s, 1);
        const PanelOutput out{.y = w.second_out + w.segments[s].begin * desc.hidden,
                              .stride = desc.hidden};
        panel_multiply(second_block(s, slots), kernel, out, from, to);
      });
  const int64_t chunks = (desc.hidden + kCombineColumns - 1) / kCombineColumns;
  pool.parallel_for(ids.shape[0] * chunks, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t t = unit / chunks;
      const int64_t column = unit % chunks * kCombineColumns;
      combine_row(desc,
                  weights.as<float>() + t * weights.stride[0],
                  w.order.place + t * desc.topk,
                  w.second_out,
                  column,
                  std::min(desc.hidden, column + kCombineColumns),
                  y.as<uint16_t>() + t * y.stride[0]);
    }
  });
}

void run(const PanelFormat& format,
         GemmKernel kernel,
         const ExpertsDesc& desc,
         const ExpertsArgs& args,
         Stream stream) {
  const int64_t tokens = args.x.shape[0];
  const Workspace w = cut_workspace(format, desc, args.workspace.data, tokens);
  CHECK(args.workspace.size_bytes() >= static_cast<int64_t>(w.total_bytes),
        "the workspace is too small: ",
        args.workspace.size_bytes());
  for (int64_t begin = 0; begin < tokens; begin += kTokenBlock) {
    const int64_t end = std::min(tokens, begin + kTokenBlock);
    run_block(format,
              kernel,
              desc,
              args.packed,
              args.x.rows(begin, end),
              args.ids.rows(begin, end),
              args.weights.rows(begin, end),
              args.y.rows(begin, end),
              w,
              pool_of(stream));
  }
}

template <QuantMode kMode, CpuIsa kIsa>
Support supports(const ExpertsDesc& desc) {
  // FP8 weights are widened when packed, as in the dense kernels.
  if (desc.mode != kMode && !(kMode == kBf16 && desc.mode == kFp8)) {
    return {false, "computes " + to_string(kMode) + " only"};
  }
  return check_experts(desc, kIsa);
}

template <const PanelFormat& kFormat, GemmKernel kKernel>
constexpr ExpertsBackend panel_experts(std::string_view name,
                                       Support (*supports_desc)(const ExpertsDesc&)) {
  return {
      .name = name,
      .family = "cpu",
      .opt_in = false,
      .supports = supports_desc,
      .packed_layout = [](const ExpertsDesc& desc) { return layout(kFormat, desc); },
      .pack = [](const ExpertsDesc& desc,
                 int64_t expert,
                 const ExpertParts& parts,
                 std::span<const Tensor> slots,
                 Stream stream) { pack(kFormat, desc, expert, parts, slots, stream); },
      .workspace_bytes =
          [](const ExpertsDesc& desc, int64_t max_tokens) {
            return cut_workspace(kFormat, desc, nullptr, max_tokens).total_bytes;
          },
      .run = [](const ExpertsDesc& desc,
                const ExpertsArgs& args,
                Stream stream) { run(kFormat, kKernel, desc, args, stream); },
  };
}

}  // namespace

extern const ExpertsBackend kExpertsW4a16Avx512Bf16;
extern const ExpertsBackend kExpertsW4a16Avx512;
extern const ExpertsBackend kExpertsW4a16Avx2;
extern const ExpertsBackend kExpertsW4a4Vnni;
extern const ExpertsBackend kExpertsW4a4Avx2;
extern const ExpertsBackend kExpertsBf16Avx512Bf16;
extern const ExpertsBackend kExpertsBf16Avx512;
extern const ExpertsBackend kExpertsBf16Avx2;
const ExpertsBackend kExpertsW4a16Avx512Bf16 =
    panel_experts<kW4a16Avx512Bf16Format, nvfp4_w4a16_avx512bf16>(
        "nvfp4_grouped_w4a16_avx512bf16", supports<kW4A16, CpuIsa::Avx512Bf16>);
const ExpertsBackend kExpertsW4a16Avx512 = panel_experts<kW4a16Avx512Format, nvfp4_w4a16_avx512>(
    "nvfp4_grouped_w4a16_avx512", supports<kW4A16, CpuIsa::Avx512>);
const ExpertsBackend kExpertsW4a16Avx2 = panel_experts<kW4a16Avx2Format, nvfp4_w4a16_avx2>(
    "nvfp4_grouped_w4a16_avx2", supports<kW4A16, CpuIsa::Avx2>);
const ExpertsBackend kExpertsW4a4Vnni = panel_experts<kW4a4VnniFormat, nvfp4_w4a4_vnni>(
    "nvfp4_grouped_w4a4_vnni", supports<kW4A4, CpuIsa::Avx512>);
const ExpertsBackend kExpertsW4a4Avx2 = panel_experts<kW4a4Avx2Format, nvfp4_w4a4_avx2>(
    "nvfp4_grouped_w4a4_avx2", supports<kW4A4, CpuIsa::Avx2>);
const ExpertsBackend kExpertsBf16Avx512Bf16 =
    panel_experts<kBf16Avx512Bf16Format, gemm_bf16_avx512bf16>("grouped_bf16_avx512bf16",
                                                               supports<kBf16, CpuIsa::Avx512Bf16>);
const ExpertsBackend kExpertsBf16Avx512 = panel_experts<kBf16Avx512Format, gemm_bf16_avx512>(
    "grouped_bf16_avx512", supports<kBf16, CpuIsa::Avx512>);
const ExpertsBackend kExpertsBf16Avx2 = panel_experts<kBf16Avx2Format, gemm_bf16_avx2>(
    "grouped_bf16_avx2", supports<kBf16, CpuIsa::Avx2>);

}  // namespace nibble
