// cpu_reference experts: every (token, expert) pair through the scalar GEMM, one at a time. The
// oracle of the grouped kernels and the backend of CPUs without AVX2.
#include <algorithm>
#include <array>

#include "backends/cpu/experts_shared.h"
#include "backends/cpu/gemm_shared.h"
#include "base/check.h"

namespace nibble {

extern const GemmBackend kCpuReferenceGemm;

namespace {

using namespace nibble::cpu;  // NOLINT(google-build-using-namespace): the folder's own helpers

Support supports(const ExpertsDesc& desc) { return check_experts(desc, CpuIsa::Scalar); }

// Slots of the scalar GEMM for [gate; up], then for down, each with a leading [experts].
std::vector<Tensor> packed_layout(const ExpertsDesc& desc) {
  std::vector<Tensor> slots;
  for (const GemmDesc& gemm : {first_desc(desc), second_desc(desc)}) {
    for (const Tensor& slot : kCpuReferenceGemm.packed_layout(gemm)) {
      Shape shape{desc.experts, slot.shape[0]};
      if (slot.shape.rank == 2) {
        shape = {desc.experts, slot.shape[0], slot.shape[1]};
      }
      slots.emplace_back(nullptr, slot.dtype, shape, Device{});
    }
  }
  return slots;
}

constexpr size_t kMaxSlots = 5;

struct ExpertSlots {
  std::array<Tensor, kMaxSlots> slots;
  size_t count = 0;
  std::span<const Tensor> span() const { return std::span(slots).first(count); }
};

ExpertSlots expert_slots(std::span<const Tensor> packed, int matrix, int64_t expert) {
  ExpertSlots out;
  out.count = packed.size() / 2;
  for (size_t i = 0; i < out.count; ++i) {
    const Tensor one = packed[static_cast<size_t>(matrix) * out.count + i].rows(expert, expert + 1);
    const Shape shape =
        one.shape.rank == 3 ? Shape{one.shape[1], one.shape[2]} : Shape{one.shape[1]};
    out.slots[i] = Tensor(one.data, one.dtype, shape, one.device);
  }
  return out;
}

void pack(const ExpertsDesc& desc,
          int64_t expert,
          const ExpertParts& parts,
          std::span<const Tensor> slots,
          Stream stream) {
  std::vector<LinearPart> first{parts.up};
  if (desc.activation == ExpertActivation::SwiGlu) {
    first = {parts.gate, parts.up};
  }
  kCpuReferenceGemm.pack(first_desc(desc), first, expert_slots(slots, 0, expert).span(), stream);
  kCpuReferenceGemm.pack(
      second_desc(desc), std::span(&parts.down, 1), expert_slots(slots, 1, expert).span(), stream);
}

// Per call: [topk, hidden] f32 results of a token, one row each of the two hidden layers, and the
// workspace of one GEMM row.
struct Workspace {
  float* results;
  uint16_t* first;
  uint16_t* activated;
  std::byte* gemm;
  size_t gemm_bytes;
  size_t total_bytes;
};

Workspace cut_workspace(const ExpertsDesc& desc, void* memory) {
  Workspace w{};
  size_t used = 0;
  const auto take = [&](size_t bytes) {
    // Sizes are also asked for with a null base.
    auto* at = memory == nullptr ? nullptr : static_cast<std::byte*>(memory) + used;
    used += (bytes + 63) / 64 * 64;
    return at;
  };
  w.results = reinterpret_cast<float*>(take(static_cast<size_t>(desc.topk * desc.hidden) * 4));
  w.first = reinterpret_cast<uint16_t*>(take(static_cast<size_t>(first_desc(desc).n) * 2));
  w.activated = reinterpret_cast<uint16_t*>(take(static_cast<size_t>(desc.ffn) * 2));
  w.gemm_bytes = std::max(kCpuReferenceGemm.workspace_bytes(first_desc(desc), 1),
                          kCpuReferenceGemm.workspace_bytes(second_desc(desc), 1));
  w.gemm = take(w.gemm_bytes);
  w.total_bytes = used;
  return w;
}

size_t workspace_bytes(const ExpertsDesc& desc, int64_t /*max_tokens*/) {
  return cut_workspace(desc, nullptr).total_bytes;
}

void run(const ExpertsDesc& desc, const ExpertsArgs& args, Stream stream) {
  const Device cpu{};
  const Workspace w = cut_workspace(desc, args.workspace.data);
  CHECK(args.workspace.size_bytes() >= static_cast<int64_t>(w.total_bytes),
        "the workspace is too small: ",
        args.workspace.size_bytes());
  const GemmDesc first = first_desc(desc);
  const GemmDesc second = second_desc(desc);
  std::array<int32_t, kMostExpertsPerToken> places;
  CHECK(desc.topk <= kMostExpertsPerToken, "topk is above its limit: ", desc.topk);
  for (int64_t t = 0; t < args.x.shape[0]; ++t) {
    for (int64_t j = 0; j < desc.topk; ++j) {
      const int64_t expert = args.ids.as<int32_t>()[t * args.ids.stride[0] + j];
      CHECK(expert >= 0 && expert < desc.experts, "expert id out of range: ", expert);
      const ExpertSlots first_slots = expert_slots(args.packed, 0, expert);
      const ExpertSlots second_slots = expert_slots(args.packed, 1, expert);
      GemmArgs gemm;
      gemm.workspace = {w.gemm, DType::U8, {static_cast<int64_t>(w.gemm_bytes)}, cpu};
      gemm.x = args.x.rows(t, t + 1);
      gemm.y = {w.first, DType::BF16, {1, first.n}, cpu};
      gemm.packed = first_slots.span();
      kCpuReferenceGemm.run(first, gemm, stream);
      activate_row(desc, w.first, w.activated);
      gemm.x = {w.activated, DType::BF16, {1, desc.ffn}, cpu};
      gemm.y = {w.results + j * desc.hidden, DType::F32, {1, desc.hidden}, cpu};
      gemm.packed = second_slots.span();
      kCpuReferenceGemm.run(second, gemm, stream);
      places[static_cast<size_t>(j)] = static_cast<int32_t>(j);
    }
    combine_row(desc,
                args.weights.as<float>() + t * args.weights.stride[0],
                places.data(),
                w.results,
                0,
                desc.hidden,
                args.y.as<uint16_t>() + t * args.y.stride[0]);
  }
}

}  // namespace

extern const ExpertsBackend kCpuReferenceExperts;
const ExpertsBackend kCpuReferenceExperts{
    .name = "cpu_reference",
    .family = "reference",
    .opt_in = false,
    .supports = supports,
    .packed_layout = packed_layout,
    .pack = pack,
    .workspace_bytes = workspace_bytes,
    .run = run,
};

}  // namespace nibble
