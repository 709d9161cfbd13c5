#include "checkpoint/stacked_experts.h"

#include <array>
#include <string_view>
#include <utility>

#include "checkpoint/convert.h"

namespace nibble::checkpoint {

namespace {

constexpr int64_t kMostExperts = 65536;
constexpr int64_t kBlock = 16;

struct Stack {
  std::string_view ending;
  std::array<std::string_view, 2> parts;  // the second is empty for a stack of one matrix
};
constexpr std::array<Stack, 4> kStacks{{
    {".experts.gate_up_proj", {"gate_proj", "up_proj"}},
    {".experts.gate_proj", {"gate_proj", ""}},
    {".experts.up_proj", {"up_proj", ""}},
    {".experts.down_proj", {"down_proj", ""}},
}};

int64_t parts_of(const Stack& stack) { return stack.parts[1].empty() ? 1 : 2; }

const TensorInfo* find(const TensorTable& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  return found == tensors.end() ? nullptr : &found->second.second;
}

std::string found_text(const TensorInfo& info) {
  return std::string(to_string(info.dtype)) + " " + to_string(info.shape);
}

// One matrix of every expert: [n, k] logically, stored as [n, columns] or transposed.
class StackReader {
 public:
  StackReader(const TensorTable& tensors, const ModelConfig& config, const Stack& stack)
      : tensors_(tensors), stack_(stack), experts_(config.moe.num_experts) {
    const int64_t ffn = config.moe.moe_intermediate_size;
    const bool down = stack.ending.ends_with("down_proj");
    n_ = down ? config.hidden_size : ffn * parts_of(stack);
    k_ = down ? ffn : config.hidden_size;
    origin_ = std::string(" (from num_experts x ") +
              (down ? "hidden_size x moe_intermediate_size"
                    : (parts_of(stack) == 2 ? "2 * moe_intermediate_size x hidden_size"
                                            : "moe_intermediate_size x hidden_size")) +
              ")";
  }

  Result<LinearInfo> read(const std::string& name, const TensorInfo& weight) const {
    LinearInfo info;
    info.weight = name;
    info.k = k_;
    info.stored_rows = n_;
    if (weight.dtype == DType::U8 && weight.unusable.empty()) {
      TRY(read_nvfp4(name, weight, info));
    } else if (is_float_dtype(weight.dtype)) {
      TRY(take_orientation(name, weight, k_, info));
    } else {
      return unsupported("expected bf16, f16, f32 or u8 (two 4-bit codes) " +
                             to_string(Shape{experts_, n_, k_}) + ", found " +
                             (weight.unusable.empty() ? found_text(weight) : weight.unusable),
                         name);
    }
    return info;
  }

 private:
  Result<void> take_orientation(const std::string& name,
                                const TensorInfo& tensor,
                                int64_t columns,
                                LinearInfo& info) const {
    const Shape straight{experts_, n_, columns};
    const Shape transposed{experts_, columns, n_};
    if (!(tensor.shape == straight) && !(tensor.shape == transposed)) {
      return invalid("expected " + to_string(straight) + origin_ + " or " + to_string(transposed) +
                         ", found " + found_text(tensor),
                     name);
    }
    info.transposed = !(tensor.shape == straight);
    return {};
  }

  Result<void> read_nvfp4(const std::string& name,
                          const TensorInfo& weight,
                          LinearInfo& info) const {
    info.format = LinearInfo::Format::Nvfp4;
    info.weight_scale = name + "_weight_scale";
    info.weight_scale_2 = name + "_weight_scale_2";
    const TensorInfo* scale = find(tensors_, info.weight_scale);
    if (scale == nullptr || find(tensors_, info.weight_scale_2) == nullptr) {
      return invalid("missing; " + name + " is stored as 4-bit codes and needs it",
                     scale == nullptr ? info.weight_scale : info.weight_scale_2);
    }
    if (k_ % kBlock != 0) {
      return invalid("expected a multiple of 16 columns, found " + std::to_string(k_), name);
    }
    // Both tensors lie the same way; a shape that reads both ways is decided by the other one.
    LinearInfo scales = info;
    TRY(take_orientation(name, weight, k_ / 2, info));
    TRY(take_orientation(info.weight_scale, *scale, k_ / kBlock, scales));
    if (scale->dtype != DType::E4M3 && scale->dtype != DType::U8) {
      return invalid("expected f8_e4m3, found " + found_text(*scale), info.weight_scale);
    }
    const bool weight_both = n_ == k_ / 2;
    const bool scale_both = n_ == k_ / kBlock;
    if (weight_both) {
      info.transposed = scales.transposed;
    } else if (!scale_both && info.transposed != scales.transposed) {
      return invalid("lies " + to_string(scale->shape) + " while " + name + " lies " +
                         to_string(weight.shape) + "; expected both [n, k] or both [k, n]",
                     info.weight_scale);
    }
    TRY(check_numbers(info.weight_scale_2));
    const std::string input = name + "_input_scale";
    if (find(tensors_, input) != nullptr) {
      TRY(check_numbers(input));
      info.input_scale = input;
    }
    return {};
  }

  Result<void> check_numbers(const std::string& name) const {
    const TensorInfo& info = *find(tensors_, name);
    const int64_t count = num_elements(info.shape);
    const bool fits = count == 1 || count == experts_ || count == experts_ * parts_of(stack_);
    if (!is_float_dtype(info.dtype) || !fits) {
      return invalid("expected one f32 number, or one for each of " + std::to_string(experts_) +
                         " experts, found " + found_text(info),
                     name);
    }
    return {};
  }

  const TensorTable& tensors_;
  const Stack& stack_;
  int64_t experts_;
  int64_t n_ = 0;
  int64_t k_ = 0;
  std::string origin_;
};

void add_rows(const LinearInfo& whole,
              const Stack& stack,
              const TensorInfo& weight,
              int64_t experts,
              std::vector<LinearInfo>& out) {
  const std::string prefix = whole.weight.substr(0, whole.weight.rfind('.') + 1);
  const int64_t parts = parts_of(stack);
  for (int64_t expert = 0; expert < experts; ++expert) {
    for (int64_t part = 0; part < parts; ++part) {
      LinearInfo row = whole;
      row.module = prefix + std::to_string(expert) + "." +
                   std::string(stack.parts[static_cast<size_t>(part)]);
      row.expert = expert;
      row.n = whole.stored_rows / parts;
      row.row_begin = part * row.n;
      row.size_bytes = weight.size_bytes / static_cast<uint64_t>(experts * parts);
      out.push_back(std::move(row));
    }
  }
}

}  // namespace

StackedExperts find_stacked_experts(const TensorTable& tensors, const ModelConfig& config) {
  StackedExperts found;
  const int64_t experts = config.moe.num_experts;
  if (experts == 0) {
    return found;
  }
  for (const auto& [name, entry] : tensors) {
    for (const Stack& stack : kStacks) {
      if (!name.ends_with(stack.ending)) {
        continue;
      }
      const TensorInfo& weight = entry.second;
      if (experts > kMostExperts) {
        found.errors.push_back({ErrorCode::Unsupported,
                                "a stack of " + std::to_string(experts) +
                                    " experts is not supported, the limit is " +
                                    std::to_string(kMostExperts),
                                name});
        continue;
      }
      auto whole = StackReader(tensors, config, stack).read(name, weight);
      if (whole) {
        add_rows(*whole, stack, weight, experts, found.linears);
      } else {
        found.errors.push_back(std::move(whole).error());
      }
    }
  }
  return found;
}

}  // namespace nibble::checkpoint
