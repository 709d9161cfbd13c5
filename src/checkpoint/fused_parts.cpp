#include "checkpoint/fused_parts.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace nibble::checkpoint {

namespace {

struct Part {
  std::string_view name;
  int64_t rows;
};

std::vector<Part> parts_of(const LinearInfo& info, const ModelConfig& config) {
  if (info.module.ends_with(".qkv_proj")) {
    const int64_t q = config.num_attention_heads * config.head_dim;
    const int64_t kv = config.num_key_value_heads * config.head_dim;
    return {{"q_proj", q}, {"k_proj", kv}, {"v_proj", kv}};
  }
  if (info.module.ends_with(".gate_up_proj") && info.n % 2 == 0) {
    return {{"gate_proj", info.n / 2}, {"up_proj", info.n / 2}};
  }
  return {};
}

}  // namespace

std::vector<LinearInfo> split_fused_linears(std::vector<LinearInfo> linears,
                                            const ModelConfig& config) {
  std::vector<LinearInfo> result;
  result.reserve(linears.size());
  for (LinearInfo& info : linears) {
    const std::vector<Part> parts = parts_of(info, config);
    int64_t rows = 0;
    for (const Part& part : parts) {
      rows += part.rows;
    }
    if (parts.empty() || rows != info.n) {
      result.push_back(std::move(info));
      continue;
    }
    const std::string prefix = info.module.substr(0, info.module.rfind('.') + 1);
    int64_t begin = 0;
    for (const Part& part : parts) {
      LinearInfo piece = info;
      piece.module = prefix + std::string(part.name);
      piece.n = part.rows;
      piece.row_begin = begin;
      piece.stored_rows = info.n;
      piece.size_bytes =
          info.size_bytes / static_cast<uint64_t>(info.n) * static_cast<uint64_t>(part.rows);
      begin += part.rows;
      result.push_back(std::move(piece));
    }
  }
  std::sort(result.begin(), result.end(), [](const LinearInfo& a, const LinearInfo& b) {
    return a.module < b.module;
  });
  return result;
}

}  // namespace nibble::checkpoint
