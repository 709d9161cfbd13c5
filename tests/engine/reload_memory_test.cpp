// Peak memory of a first load and of a reload, measured as the system sees it (VmHWM), on a
// generated model of about 60 MB: a first load takes the weights and the tensors of one linear, a
// reload the same once more, and gives it back.
#include <cstdio>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <malloc.h>

#include "base/cpu_info.h"
#include "checkpoint/safetensors.h"
#include "model/model.h"
#include "support/temp_dir.h"
#include "tensor/device_api.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define NIBBLE_SANITIZED 1
#else
#define NIBBLE_SANITIZED 0
#endif

namespace nibble::model {
namespace {

using checkpoint::SafetensorsWriter;

constexpr int64_t kHidden = 1536;
constexpr int64_t kFfn = 6144;
constexpr int64_t kLayers = 3;
constexpr int64_t kVocab = 512;
// What the allocator keeps, headers, names: everything that is not a tensor.
constexpr int64_t kSlack = int64_t{4} << 20;

struct Pending {
  SafetensorsWriter::Entry entry;
  bool scale = false;
};

void add_linear(std::vector<Pending>& out, const std::string& name, int64_t n, int64_t k) {
  out.push_back({{name + ".weight", DType::U8, {n, k / 2}}});
  out.push_back({{name + ".weight_scale", DType::E4M3, {n, k / 16}}, true});
  out.push_back({{name + ".weight_scale_2", DType::F32, {}}, true});
  out.push_back({{name + ".input_scale", DType::F32, {}}, true});
}

void write_model(const test::TempDir& directory) {
  directory.write("config.json",
                  R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
      "hidden_size":)" +
                      std::to_string(kHidden) + R"(,"intermediate_size":)" + std::to_string(kFfn) +
                      R"(,"num_hidden_layers":)" + std::to_string(kLayers) + R"(,"vocab_size":)" +
                      std::to_string(kVocab) +
                      R"(,"num_attention_heads":12,"num_key_value_heads":4,
      "head_dim":128,"rms_norm_eps":1e-5,"rope_theta":10000.0,"max_position_embeddings":512,
      "hidden_act":"silu","tie_word_embeddings":false,"torch_dtype":"bfloat16"})");
  directory.write("hf_quant_config.json", R"({"producer":{"name":"modelopt"},"quantization":{
      "quant_algo":"NVFP4","group_size":16,"exclude_modules":["lm_head"]}})");
  std::vector<Pending> all;
  all.push_back({{"model.embed_tokens.weight", DType::BF16, {kVocab, kHidden}}});
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    add_linear(all, prefix + "self_attn.q_proj", kHidden, kHidden);
    add_linear(all, prefix + "self_attn.k_proj", 512, kHidden);
    add_linear(all, prefix + "self_attn.v_proj", 512, kHidden);
    add_linear(all, prefix + "self_attn.o_proj", kHidden, kHidden);
    add_linear(all, prefix + "mlp.gate_proj", kFfn, kHidden);
    add_linear(all, prefix + "mlp.up_proj", kFfn, kHidden);
    add_linear(all, prefix + "mlp.down_proj", kHidden, kFfn);
    all.push_back({{prefix + "input_layernorm.weight", DType::BF16, {kHidden}}});
    all.push_back({{prefix + "post_attention_layernorm.weight", DType::BF16, {kHidden}}});
  }
  all.push_back({{"model.norm.weight", DType::BF16, {kHidden}}});
  all.push_back({{"lm_head.weight", DType::BF16, {kVocab, kHidden}}});
  std::vector<SafetensorsWriter::Entry> entries;
  entries.reserve(all.size());
  for (const Pending& one : all) {
    entries.push_back(one.entry);
  }
  auto writer = SafetensorsWriter::create(directory.file("model.safetensors"), entries, {});
  ASSERT_TRUE(writer.has_value());
  std::mt19937 random(3);
  for (const Pending& one : all) {
    std::vector<std::byte> bytes(
        static_cast<size_t>(num_elements(one.entry.shape) * size_of(one.entry.dtype)));
    for (size_t i = 0; i < bytes.size(); ++i) {
      const bool high = one.entry.dtype == DType::BF16 && i % 2 == 1;
      // Codes are free; scales and plain values stay small and finite.
      bytes[i] = one.entry.dtype == DType::U8 ? static_cast<std::byte>(random() & 0xFF)
                 : high                       ? std::byte{0x3C}
                                              : static_cast<std::byte>(0x20 + random() % 16);
    }
    if (one.entry.dtype == DType::F32) {
      bytes = {std::byte{0}, std::byte{0}, std::byte{0}, std::byte{0x3C}};  // 2^-7
    }
    writer->append(one.entry.name, bytes);
  }
  writer->finish();
}

int64_t status_bytes(const std::string& key) {
  std::ifstream file("/proc/self/status");
  std::string word;
  while (file >> word) {
    if (word == key) {
      int64_t kibibytes = 0;
      file >> kibibytes;
      return kibibytes * 1024;
    }
  }
  return -1;
}

// Resident bytes now; the peak starts again from here.
int64_t begin_measuring() {
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5";
  return status_bytes("VmRSS:");
}

TEST(ReloadMemory, AFirstLoadTakesOneLinearMoreThanTheWeightsAndAReloadTheWeightsOnceMore) {
  if (NIBBLE_SANITIZED) {
    GTEST_SKIP() << "a sanitizer's own memory would be measured";
  }
  const test::TempDir directory;
  write_model(directory);
  ModelOptions options;
  options.isa = static_cast<int>(detect_cpu_isa());
  const StreamOwner stream(Device{}, 1);
  const int64_t one_linear = 2 * kFfn * kHidden / 2 + 2 * kFfn * kHidden / 16;

  int64_t before = begin_measuring();
  const auto model = load_model(directory.path(), options, stream.get());
  ASSERT_TRUE(model.has_value()) << model.error().text();
  const auto weights = static_cast<int64_t>((*model)->parameters().size_bytes());
  ASSERT_GT(weights, int64_t{45} << 20);
  const int64_t first = status_bytes("VmHWM:") - before;
  std::printf("weights %.1f MB, largest linear %.1f MB, first load's peak %.1f MB\n",
              static_cast<double>(weights) / 1e6,
              static_cast<double>(one_linear) / 1e6,
              static_cast<double>(first) / 1e6);
  EXPECT_LE(first, weights + one_linear + kSlack);
  EXPECT_GE(first, weights) << "the measurement itself is wrong";

  for (int round = 0; round < 3; ++round) {
    before = begin_measuring();
    {
      const auto staged = (*model)->stage(directory.path(), stream.get());
      ASSERT_TRUE(staged.has_value()) << staged.error().text();
      (*model)->parameters().commit(staged->staged, stream.get());
    }
    const int64_t peak = status_bytes("VmHWM:") - before;
    malloc_trim(0);
    const int64_t left = status_bytes("VmRSS:") - before;
    std::printf("reload's peak %.1f MB, left %.1f MB\n",
                static_cast<double>(peak) / 1e6,
                static_cast<double>(left) / 1e6);
    EXPECT_LE(peak, weights + one_linear + kSlack);
    EXPECT_LE(left, kSlack);
  }
}

}  // namespace
}  // namespace nibble::model
