#include "checkpoint/fused_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::checkpoint {
namespace {

ModelConfig small_config() {
  ModelConfig config;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 16;
  return config;
}

LinearInfo linear(const std::string& module, int64_t n) {
  LinearInfo info;
  info.module = module;
  info.n = n;
  info.k = 32;
  info.weight = module + ".weight";
  info.size_bytes = static_cast<uint64_t>(n) * 64;
  return info;
}

TEST(FusedParts, RowsAreDealtOutInTheOrderOfTheParts) {
  const auto parts = split_fused_linears(
      {linear("a.mlp.gate_up_proj", 96), linear("a.self_attn.qkv_proj", 128)}, small_config());
  ASSERT_EQ(parts.size(), 5u);
  EXPECT_EQ(parts[0].module, "a.mlp.gate_proj");
  EXPECT_EQ(parts[1].module, "a.mlp.up_proj");
  EXPECT_EQ(parts[1].row_begin, 48);
  EXPECT_EQ(parts[1].n, 48);
  EXPECT_EQ(parts[1].weight, "a.mlp.gate_up_proj.weight");
  EXPECT_EQ(parts[2].module, "a.self_attn.k_proj");
  EXPECT_EQ(parts[2].row_begin, 64);
  EXPECT_EQ(parts[3].module, "a.self_attn.q_proj");
  EXPECT_EQ(parts[3].row_begin, 0);
  EXPECT_EQ(parts[4].row_begin, 96);
  EXPECT_EQ(parts[4].stored_rows, 128);
  EXPECT_EQ(parts[2].size_bytes, 32u * 64u);
}

TEST(FusedParts, MatricesThatDoNotFitTheConfigStayWhole) {
  const auto parts = split_fused_linears({linear("a.mlp.gate_up_proj", 97),
                                          linear("a.self_attn.qkv_proj", 120),
                                          linear("b.q_proj", 64)},
                                         small_config());
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].stored_rows, 0);
  EXPECT_EQ(parts[1].module, "a.self_attn.qkv_proj");
}

}  // namespace
}  // namespace nibble::checkpoint
