// Damaged checkpoints, each with the exact words that refuse it. The table is the specification of
// the messages; DIR stands for the directory.
#include <cmath>
#include <cstring>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dialects/dialect_harness.h"
#include "support/data_dir.h"

namespace nibble::checkpoint {
namespace {

using Editor = CheckpointEditor;

struct Damage {
  const char* what;
  void (*apply)(Editor&);
  std::string words;  // all errors that inspecting finds
};

const std::string kNorm = "model.layers.0.input_layernorm.weight";
const std::string kScale = kDown + ".weight_scale";
const std::string kGlobal = kDown + ".weight_scale_2";
const std::string kWeight = kDown + ".weight";

void config(Editor& e, const char* key, boost::json::value value) {
  e.config()[key] = std::move(value);
}
void quant(Editor& e, const char* key, boost::json::value value) {
  e.config().at("quantization_config").as_object()[key] = std::move(value);
}
void resize(Editor& e, const std::string& name, DType dtype, Shape shape) {
  e.tensors()[name] = {
      dtype,
      shape,
      std::vector<std::byte>(static_cast<size_t>(num_elements(shape) * size_of(dtype)))};
}

// Byte-level damage: changes the file after it was written.
struct FileDamage {
  const char* what;
  void (*apply)(std::string& file);
  std::string words;
};

// Damage to what lies around the weights.
struct DirectoryDamage {
  const char* what;
  void (*apply)(const test::TempDir& dir);
  std::string words;
};

std::string header_of(const std::string& file) {
  uint64_t size = 0;
  std::memcpy(&size, file.data(), sizeof size);
  return file.substr(8, size);
}
void set_header(std::string& file, const std::string& header) {
  const size_t old = 8 + header_of(file).size();
  const uint64_t size = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &size, sizeof size);
  file = bytes + header + file.substr(old);
}
void replace_in_header(std::string& file, const std::string& from, const std::string& to) {
  std::string header = header_of(file);
  const size_t at = header.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  set_header(file, header.replace(at, from.size(), to));
}

// clang-format off
const Damage kTensorCases[] = {
    {"weight missing",
     [](Editor& e) { e.remove(kWeight); },
     "model.layers.1.mlp.down_proj.weight: missing, although model.layers.1.mlp.down_proj.weight_scale is stored\n"},
    {"weight misnamed",
     [](Editor& e) { e.rename(kWeight, "model.layers.1.mlp.down_projj.weight"); },
     "model.layers.1.mlp.down_proj.weight: missing, although model.layers.1.mlp.down_proj.weight_scale is stored\n"
     "model.layers.1.mlp.down_projj.weight_scale: missing; model.layers.1.mlp.down_projj.weight is stored as 4-bit codes and needs it\n"},
    {"block scales missing",
     [](Editor& e) { e.remove(kScale); },
     "model.layers.1.mlp.down_proj.weight_scale: missing; model.layers.1.mlp.down_proj.weight is stored as 4-bit codes and needs it\n"},
    {"block scales misnamed",
     [](Editor& e) { e.rename(kScale, kDown + ".weight_scales"); },
     "model.layers.1.mlp.down_proj.weight_scale: missing; model.layers.1.mlp.down_proj.weight is stored as 4-bit codes and needs it\n"},
    {"global scale missing",
     [](Editor& e) { e.remove(kGlobal); },
     "model.layers.1.mlp.down_proj.weight_scale_2: missing; model.layers.1.mlp.down_proj.weight is stored as 4-bit codes and needs it\n"},
    {"global scale NaN",
     [](Editor& e) { e.set_f32(kGlobal, NAN); },
     "model.layers.1.mlp.down_proj.weight_scale_2: expected a finite positive scale, found NaN\n"},
    {"global scale infinite",
     [](Editor& e) { e.set_f32(kGlobal, INFINITY); },
     "model.layers.1.mlp.down_proj.weight_scale_2: expected a finite positive scale, found Infinity\n"},
    {"global scale zero",
     [](Editor& e) { e.set_f32(kGlobal, 0.0f); },
     "model.layers.1.mlp.down_proj.weight_scale_2: expected a finite positive scale, found 0\n"},
    {"global scale negative",
     [](Editor& e) { e.set_f32(kGlobal, -0.001f); },
     "model.layers.1.mlp.down_proj.weight_scale_2: expected a finite positive scale, found -0.001\n"},
    {"global scale is a divisor",
     [](Editor& e) { e.set_f32(kGlobal, 3584.0f); },
     "model.layers.1.mlp.down_proj.weight_scale_2: found 3584, expected a multiplier (about amax / 2688); it looks like a divisor under the wrong name\n"},
    {"global scale of no weight",
     [](Editor& e) { e.set_f32(kGlobal, 1e-38f); },
     "model.layers.1.mlp.down_proj.weight_scale_2: found 1e-38, expected a multiplier (about amax / 2688); with this one all weights are next to zero, the file is damaged\n"},
    {"global scale subnormal",
     [](Editor& e) { e.set_f32(kGlobal, 1e-45f); },
     "model.layers.1.mlp.down_proj.weight_scale_2: found 1e-45, expected a multiplier (about amax / 2688); with this one all weights are next to zero, the file is damaged\n"},
    {"a tiny global scale over zeros is harmless",
     [](Editor& e) { e.set_f32(kGlobal, 1e-38f); auto& codes = e.tensor(kWeight).bytes; std::fill(codes.begin(), codes.end(), std::byte{0x08}); },
     ""},
    {"zero points",
     [](Editor& e) { resize(e, kDown + ".weight_zero_point", DType::U8, {128, 16}); e.tensor(kDown + ".weight_zero_point").bytes[77] = std::byte{5}; },
     "model.layers.1.mlp.down_proj.weight_zero_point: is not zero; weights with zero points are not supported\n"},
    {"columns out of order",
     [](Editor& e) { resize(e, kDown + ".weight_g_idx", DType::I32, {256}); },
     "model.layers.1.mlp.down_proj.weight_g_idx: gives columns to groups out of order; activation ordering is not supported\n"},
    {"a config group of 8 bits",
     [](Editor& e) { quant(e, "config_groups", json_of(R"({"group_0":{"weights":{"num_bits":8,"type":"float"},"targets":["Linear"]}})")); },
     "config.json.quantization_config.config_groups: says 8 bits for weights, but quant_algo says NVFP4\n"},
    {"bias of the wrong size",
     [](Editor& e) { resize(e, kDown + ".bias", DType::BF16, {64}); },
     "model.layers.1.mlp.down_proj.bias: expected bf16 [128], found bf16 [64]\n"},
    {"global scale is an integer",
     [](Editor& e) { e.tensor(kGlobal).dtype = DType::I32; },
     "model.layers.1.mlp.down_proj.weight_scale_2: expected one f32 number, found i32 []\n"},
    {"global scale has two values",
     [](Editor& e) { resize(e, kGlobal, DType::F32, {2}); },
     "model.layers.1.mlp.down_proj.weight_scale_2: expected one f32 number, found f32 [2]\n"},
    {"block scale NaN",
     [](Editor& e) { e.tensor(kScale).bytes[33] = std::byte{0x7F}; },
     "model.layers.1.mlp.down_proj.weight_scale: block scale [2, 1] is NaN; the file is damaged or not NVFP4\n"},
    {"block scale negative NaN",
     [](Editor& e) { e.tensor(kScale).bytes[0] = std::byte{0xFF}; },
     "model.layers.1.mlp.down_proj.weight_scale: block scale [0, 0] is NaN; the file is damaged or not NVFP4\n"},
    {"block scale negative",
     [](Editor& e) { e.tensor(kScale).bytes[2047] = std::byte{0xC0}; },
     "model.layers.1.mlp.down_proj.weight_scale: block scale [127, 15] is negative; the file is damaged or not NVFP4\n"},
    {"block scales of half the rows",
     [](Editor& e) { resize(e, kScale, DType::E4M3, {64, 16}); },
     "model.layers.1.mlp.down_proj.weight_scale: expected f8_e4m3 [128, 16] (or [128, 8] for group size 32) beside model.layers.1.mlp.down_proj.weight, found f8_e4m3 [64, 16]\n"},
    {"block scales for groups of 64",
     [](Editor& e) { resize(e, kScale, DType::E4M3, {128, 4}); },
     "model.layers.1.mlp.down_proj.weight_scale: expected f8_e4m3 [128, 16] (or [128, 8] for group size 32) beside model.layers.1.mlp.down_proj.weight, found f8_e4m3 [128, 4]; the checkpoint may use group size 64, 16 and 32 are supported\n"},
    {"block scales in a kernel's layout",
     [](Editor& e) { e.tensor(kScale).shape = {2048}; },
     "model.layers.1.mlp.down_proj.weight_scale: expected f8_e4m3 [128, 16] (or [128, 8] for group size 32) beside model.layers.1.mlp.down_proj.weight, found f8_e4m3 [2048]; the scales may be in the swizzled 128x4 layout of a kernel instead of row order\n"},
    {"block scales as floats",
     [](Editor& e) { resize(e, kScale, DType::F32, {128, 16}); },
     "model.layers.1.mlp.down_proj.weight_scale: expected f8_e4m3 [128, 16] (or [128, 8] for group size 32) beside model.layers.1.mlp.down_proj.weight, found f32 [128, 16]\n"},
    {"codes as signed bytes",
     [](Editor& e) { e.tensor(kWeight).dtype = DType::I8; },
     "model.layers.1.mlp.down_proj.weight: expected bf16, f16, f32, u8 (two 4-bit codes) or f8_e4m3, found i8 [128, 128]\n"},
    {"codes of half the columns",
     [](Editor& e) { resize(e, kWeight, DType::U8, {128, 64}); },
     "model.layers.1.mlp.down_proj.weight_scale: expected f8_e4m3 [128, 8] (or [128, 4] for group size 32) beside model.layers.1.mlp.down_proj.weight, found f8_e4m3 [128, 16]; the checkpoint may use group size 8, 16 and 32 are supported\n"},
    {"codes of three dimensions",
     [](Editor& e) { e.tensor(kWeight).shape = {2, 64, 128}; },
     "model.layers.1.mlp.down_proj.weight: expected a linear of shape [128, 256] (from hidden_size x intermediate_size), found u8 [2, 64, 128]\n"},
    {"weight of the wrong size",
     [](Editor& e) { resize(e, kWeight, DType::U8, {64, 128}); resize(e, kScale, DType::E4M3, {64, 16}); },
     "model.layers.1.mlp.down_proj.weight: expected [128, 256] (from hidden_size x intermediate_size), found [64, 128] u8, 4-bit codes of [64, 256]\n"},
    {"bf16 where the config says NVFP4",
     [](Editor& e) { resize(e, kWeight, DType::BF16, {128, 256}); e.remove(kScale); e.remove(kGlobal); },
     "model.layers.1.mlp.down_proj.weight: stored in full precision, but config.json.quantization_config says NVFP4; if that is meant, add the module to its list of excluded modules\n"},
    {"bf16 with the scales left behind",
     [](Editor& e) { resize(e, kWeight, DType::BF16, {128, 256}); },
     "model.layers.1.mlp.down_proj.weight: stored in full precision, but config.json.quantization_config says NVFP4; if that is meant, add the module to its list of excluded modules\n"},
    {"MXFP4 under NVFP4's name",
     [](Editor& e) { resize(e, kScale, DType::U8, {128, 8}); e.remove(kGlobal); },
     "model.layers.1.mlp.down_proj.weight: stored as MXFP4 (one power of two for 32 columns, no global scale), which is not supported\n"},
    {"GPTQ weights",
     [](Editor& e) { e.rename(kWeight, kDown + ".qweight"); },
     "model.layers.1.mlp.down_proj.qweight: stored in GPTQ or AWQ integer form, which is not supported\n"},
    {"norm missing",
     [](Editor& e) { e.remove(kNorm); },
     "model.layers.0.input_layernorm.weight: missing; expected bf16 [128] (from hidden_size)\n"},
    {"norm of the wrong size",
     [](Editor& e) { resize(e, kNorm, DType::BF16, {64}); },
     "model.layers.0.input_layernorm.weight: expected bf16 [128] (from hidden_size), found bf16 [64]\n"},
    {"norm as bytes",
     [](Editor& e) { resize(e, kNorm, DType::U8, {128}); },
     "model.layers.0.input_layernorm.weight: expected bf16 [128] (from hidden_size), found u8 [128]\n"},
    {"embedding missing",
     [](Editor& e) { e.remove("model.embed_tokens.weight"); },
     "model.embed_tokens.weight: missing; expected bf16 [512, 128] (from vocab_size x hidden_size)\n"},
    {"embedding of another vocabulary",
     [](Editor& e) { resize(e, "model.embed_tokens.weight", DType::BF16, {500, 128}); },
     "model.embed_tokens.weight: expected bf16 [512, 128] (from vocab_size x hidden_size), found bf16 [500, 128]\n"},
    {"untied head missing",
     [](Editor& e) { e.remove("lm_head.weight"); },
     "lm_head.weight: missing; expected a linear of shape [512, 128] (from vocab_size x hidden_size, tie_word_embeddings false)\n"},
    {"head of the wrong type",
     [](Editor& e) { e.tensor("lm_head.weight").dtype = DType::U8; e.tensor("lm_head.weight").shape = {512, 256}; },
     "lm_head.weight_scale: missing; lm_head.weight is stored as 4-bit codes and needs it\n"},
    {"a whole layer missing",
     [](Editor& e) { std::erase_if(e.tensors(), [](const auto& t) { return t.first.find("layers.1.self_attn.v") != std::string::npos; }); },
     "model.layers.1.self_attn.v_proj.weight: missing; expected a linear of shape [64, 128] (from num_key_value_heads * head_dim x hidden_size)\n"},
    {"unknown algorithm",
     [](Editor& e) { quant(e, "quant_algo", "NVFP3"); },
     "config.json.quantization_config.quant_algo: quantization algorithm 'NVFP3' is not supported; NVFP4, W4A16_NVFP4, NVFP4_AWQ, W4A8_NVFP4_FP8, FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO, MXFP8 and MIXED_PRECISION are\n"},
    {"algorithm of the wrong type",
     [](Editor& e) { quant(e, "quant_algo", 4); },
     "config.json.quantization_config.quant_algo: expected a string, found an integer\n"},
    {"low-rank algorithm",
     [](Editor& e) { quant(e, "quant_algo", "NVFP4_SVD"); },
     "config.json.quantization_config.quant_algo: NVFP4_SVD (a low-rank branch beside the 4-bit weights) is not supported; export the model with NVFP4 or NVFP4_AWQ\n"},
    {"algorithm that the tensors contradict",
     [](Editor& e) { quant(e, "quant_algo", "FP8"); quant(e, "ignore", boost::json::array{"lm_head", "*layers.0*", "*self_attn*", "*gate_proj", "*up_proj"}); },
     "model.layers.1.mlp.down_proj.weight: stored as NVFP4, but config.json.quantization_config says FP8\n"},
    {"unknown method",
     [](Editor& e) { quant(e, "quant_method", "quark"); },
     "config.json.quantization_config.quant_method: quantization method 'quark' is not supported; modelopt, compressed-tensors and fp8 are\n"},
    {"group size 8",
     [](Editor& e) { quant(e, "group_size", 8); },
     "config.json.quantization_config.group_size: group size 8 is not supported; 16 and 32 are\n"},
    {"group size as text",
     [](Editor& e) { quant(e, "group_size", "16"); },
     "config.json.quantization_config.group_size: expected an integer, found a string\n"},
    {"exclude list of numbers",
     [](Editor& e) { quant(e, "ignore", boost::json::array{1, 2}); },
     "config.json.quantization_config.ignore[0]: expected a string, found an integer\n"},
    {"exclude list with a broken expression",
     [](Editor& e) { quant(e, "ignore", boost::json::array{"re:["}); },
     "config.json.quantization_config.ignore: 're:[' is not a regular expression: missing terminating ] for character class at 1\n"},
    {"mixed precision without layers",
     [](Editor& e) { quant(e, "quant_algo", "MIXED_PRECISION"); quant(e, "config_groups", nullptr); e.side() = nullptr; set_quantization(e, R"({"quant_method":"modelopt","quant_algo":"MIXED_PRECISION"})", ""); },
     "config.json.quantization_config.quantized_layers: missing, and config_groups names no layers; MIXED_PRECISION needs one of them\n"},
    {"empty quantization block",
     [](Editor& e) { set_quantization(e, "{}", ""); },
     "config.json.quantization_config.quant_algo: missing; expected the name of an algorithm such as NVFP4 (quant_method is missing too)\n"},
    {"hidden_size missing",
     [](Editor& e) { e.config().erase("hidden_size"); },
     "config.json.hidden_size: required but missing\n"},
    {"hidden_size negative",
     [](Editor& e) { config(e, "hidden_size", -128); },
     "config.json.hidden_size: expected 1 to 16777216, found -128\n"},
    {"hidden_size as text",
     [](Editor& e) { config(e, "hidden_size", "128"); },
     "config.json.hidden_size: expected an integer, found a string\n"},
    {"hidden_size too large",
     [](Editor& e) { config(e, "hidden_size", 1e12); },
     "config.json.hidden_size: expected 1 to 16777216, found 1000000000000\n"},
    {"too many layers",
     [](Editor& e) { config(e, "num_hidden_layers", 3); },
     "model.layers.2.input_layernorm.weight: missing; expected bf16 [128] (from hidden_size)\n"
     "model.layers.2.self_attn.q_proj.weight: missing; expected a linear of shape [128, 128] (from num_attention_heads * head_dim x hidden_size)\n"
     "model.layers.2.self_attn.k_proj.weight: missing; expected a linear of shape [64, 128] (from num_key_value_heads * head_dim x hidden_size)\n"
     "model.layers.2.self_attn.v_proj.weight: missing; expected a linear of shape [64, 128] (from num_key_value_heads * head_dim x hidden_size)\n"
     "model.layers.2.self_attn.o_proj.weight: missing; expected a linear of shape [128, 128] (from hidden_size x num_attention_heads * head_dim)\n"
     "model.layers.2.post_attention_layernorm.weight: missing; expected bf16 [128] (from hidden_size)\n"
     "model.layers.2.mlp.gate_proj.weight: missing; expected a linear of shape [256, 128] (from intermediate_size x hidden_size)\n"
     "model.layers.2.mlp.up_proj.weight: missing; expected a linear of shape [256, 128] (from intermediate_size x hidden_size)\n"
     "model.layers.2.mlp.down_proj.weight: missing; expected a linear of shape [128, 256] (from hidden_size x intermediate_size)\n"},
    {"absurd number of layers",
     [](Editor& e) { config(e, "num_hidden_layers", 2000000000); },
     "config.json.num_hidden_layers: expected 1 to 4096, found 2000000000\n"},
    {"kv heads that do not divide",
     [](Editor& e) { config(e, "num_key_value_heads", 3); },
     "config.json.num_key_value_heads: num_attention_heads (4) is not a multiple of it (3)\n"},
    {"another head_dim",
     [](Editor& e) { config(e, "head_dim", 16); },
     "model.layers.0.self_attn.q_proj.weight: expected [64, 128] (from num_attention_heads * head_dim x hidden_size), found [128, 64] u8, 4-bit codes of [128, 128]\n"
     "model.layers.0.self_attn.k_proj.weight: expected [32, 128] (from num_key_value_heads * head_dim x hidden_size), found [64, 64] u8, 4-bit codes of [64, 128]\n"
     "model.layers.0.self_attn.v_proj.weight: expected [32, 128] (from num_key_value_heads * head_dim x hidden_size), found [64, 64] u8, 4-bit codes of [64, 128]\n"
     "model.layers.0.self_attn.o_proj.weight: expected [128, 64] (from hidden_size x num_attention_heads * head_dim), found [128, 64] u8, 4-bit codes of [128, 128]\n"
     "model.layers.1.self_attn.q_proj.weight: expected [64, 128] (from num_attention_heads * head_dim x hidden_size), found [128, 64] u8, 4-bit codes of [128, 128]\n"
     "model.layers.1.self_attn.k_proj.weight: expected [32, 128] (from num_key_value_heads * head_dim x hidden_size), found [64, 64] u8, 4-bit codes of [64, 128]\n"
     "model.layers.1.self_attn.v_proj.weight: expected [32, 128] (from num_key_value_heads * head_dim x hidden_size), found [64, 64] u8, 4-bit codes of [64, 128]\n"
     "model.layers.1.self_attn.o_proj.weight: expected [128, 64] (from hidden_size x num_attention_heads * head_dim), found [128, 64] u8, 4-bit codes of [128, 128]\n"},
    {"rope of an unknown type",
     [](Editor& e) { config(e, "rope_scaling", json_of(R"({"rope_type":"longrope","factor":2.0})")); },
     "config.json.rope_scaling.rope_type: 'longrope' is not supported; default, linear, llama3 and yarn are\n"},
    {"rms_norm_eps zero",
     [](Editor& e) { config(e, "rms_norm_eps", 0.0); },
     "config.json.rms_norm_eps: expected a positive number, found 0\n"},
    {"no architecture",
     [](Editor& e) { config(e, "architectures", nullptr); },
     "config.json.architectures: missing; expected the name of the model class\n"},
    {"end token outside the vocabulary",
     [](Editor& e) { config(e, "eos_token_id", 512); },
     "config.json.eos_token_id: expected 0 to 511, found 512\n"},
};

const FileDamage kFileCases[] = {
    {"empty",
     [](std::string& file) { file.clear(); },
     "DIR/model.safetensors: file has 0 bytes, too short for a safetensors file (truncated or not downloaded?)\n"},
    {"three bytes",
     [](std::string& file) { file.resize(3); },
     "DIR/model.safetensors: file has 3 bytes, too short for a safetensors file (truncated or not downloaded?)\n"},
    {"header length past the end",
     [](std::string& file) { file[7] = '\x7f'; },
     "DIR/model.safetensors: header length 9151314442816854504 does not fit a file of 436064 bytes (truncated, or not a safetensors file)\n"},
    {"header length one too long",
     [](std::string& file) { file[0] = static_cast<char>(file[0] + 1); },
     "DIR/model.safetensors: not valid JSON: extra text after the value at byte 6632\n"},
    {"truncated in the data",
     [](std::string& file) { file.resize(file.size() - 1); },
     "DIR/model.safetensors: model.norm.weight: data ends at byte 429424 of the data section, which has 429423 bytes (truncated file?)\n"},
    {"truncated in the header",
     [](std::string& file) { file.resize(500); },
     "DIR/model.safetensors: header length 6632 does not fit a file of 500 bytes (truncated, or not a safetensors file)\n"},
    {"a byte too many",
     [](std::string& file) { file += 'x'; },
     "DIR/model.safetensors: the header describes 436064 bytes, the file has 436065\n"},
    {"header is a list",
     [](std::string& file) { set_header(file, "[1]"); },
     "DIR/model.safetensors: not a safetensors file: the header is not a JSON object\n"},
    {"header is not JSON",
     [](std::string& file) { replace_in_header(file, "\"dtype\"", "dtype"); },
     "DIR/model.safetensors: not valid JSON: syntax error at byte 50\n"},
    {"header nested too deep",
     [](std::string& file) { set_header(file, "{\"a\":" + std::string(10000, '[') + "}"); },
     "DIR/model.safetensors: not valid JSON: too deep at byte 12\n"},
    {"a git-lfs pointer",
     [](std::string& file) { file = "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"; },
     "DIR/model.safetensors: header length 2336927755350992246 does not fit a file of 56 bytes (truncated, or not a safetensors file)\n"},
    {"scales of a type that nothing reads",
     [](std::string& file) { const std::string name = R"("model.layers.1.mlp.down_proj.weight_scale":{"dtype":")"; replace_in_header(file, name + "F8_E4M3", name + "F8_E5M2"); },
     "model.layers.1.mlp.down_proj.weight_scale: stored as F8_E5M2, which nothing here reads\n"},
    {"a tensor named twice",
     [](std::string& file) { replace_in_header(file, "model.layers.1.mlp.down_proj.weight_scale\"", "model.layers.1.mlp.down_proj.weight\""); },
     "DIR/model.safetensors: model.layers.1.mlp.down_proj.weight: the header names it twice\n"},
    {"overlapping tensors",
     [](std::string& file) { replace_in_header(file, R"("shape":[512,128],"data_offsets":[131072,)", R"("shape":[513,128],"data_offsets":[130816,)"); },
     "DIR/model.safetensors: model.embed_tokens.weight: its data overlaps the tensor stored before it\n"},
    {"a shape that does not fit its bytes",
     [](std::string& file) { replace_in_header(file, "\"shape\":[512,128]", "\"shape\":[513,128]"); },
     "DIR/model.safetensors: lm_head.weight: BF16 [513, 128] needs 131328 bytes, data_offsets give 131072\n"},
    {"a negative size",
     [](std::string& file) { replace_in_header(file, "\"shape\":[512,128]", "\"shape\":[-512,128]"); },
     "DIR/model.safetensors: lm_head.weight: shape [-512, 128] is out of range\n"},
    {"a size that overflows",
     [](std::string& file) { replace_in_header(file, "\"shape\":[512,128]", "\"shape\":[4611686018427387904,4]"); },
     "DIR/model.safetensors: lm_head.weight: shape [4611686018427387904, 4] is out of range\n"},
    {"offsets backwards",
     [](std::string& file) { replace_in_header(file, "\"data_offsets\":[0,", "\"data_offsets\":[999999999,"); },
     "DIR/model.safetensors: lm_head.weight: data_offsets must be two increasing positions\n"},
    {"offsets of the wrong type",
     [](std::string& file) { replace_in_header(file, "\"data_offsets\":[0,", "\"data_offsets\":[\"0\","); },
     "DIR/model.safetensors: lm_head.weight.data_offsets[0]: expected an integer, found a string\n"},
};

const DirectoryDamage kDirectoryCases[] = {
    {"config.json is gone",
     [](const test::TempDir& dir) { std::filesystem::remove(dir.file("config.json")); },
     "DIR: no config.json in this directory\n"},
    {"config.json is cut off",
     [](const test::TempDir& dir) { dir.write("config.json", dir.read("config.json").substr(0, 100)); },
     "DIR/config.json: not valid JSON: incomplete JSON at byte 100\n"},
    {"config.json is a list",
     [](const test::TempDir& dir) { dir.write("config.json", "[]"); },
     "config.json: expected an object, found an array\n"},
    {"the side file is cut off",
     [](const test::TempDir& dir) { dir.write("hf_quant_config.json", "{\"quantization\":"); },
     "DIR/hf_quant_config.json: not valid JSON: incomplete JSON at byte 16\n"},
    {"generation_config.json is broken",
     [](const test::TempDir& dir) { dir.write("generation_config.json", "{]"); },
     "DIR/generation_config.json: not valid JSON: syntax error at byte 1\n"},
    {"a shard is gone",
     [](const test::TempDir& dir) { std::filesystem::remove(dir.file("model-00001-of-00002.safetensors")); },
     "DIR/model-00001-of-00002.safetensors: cannot open: No such file or directory; the index says it holds 31 tensors, the first is lm_head.weight\n"},
    {"the index is not JSON",
     [](const test::TempDir& dir) { dir.write("model.safetensors.index.json", "{"); },
     "DIR/model.safetensors.index.json: not valid JSON: incomplete JSON at byte 1\n"},
    {"the index has no map",
     [](const test::TempDir& dir) { dir.write("model.safetensors.index.json", R"({"metadata":{}})"); },
     "model.safetensors.index.json.weight_map: required but missing\n"},
    {"the index leaves the directory",
     [](const test::TempDir& dir) { dir.write("model.safetensors.index.json", R"({"weight_map":{"a":"../model.safetensors"}})"); },
     "model.safetensors.index.json.weight_map.a: '../model.safetensors' is not the plain name of a safetensors file in this directory\n"},
    {"the index names an absolute path",
     [](const test::TempDir& dir) { dir.write("model.safetensors.index.json", R"({"weight_map":{"a":"/etc/passwd"}})"); },
     "model.safetensors.index.json.weight_map.a: '/etc/passwd' is not the plain name of a safetensors file in this directory\n"},
    {"the index names a number",
     [](const test::TempDir& dir) { dir.write("model.safetensors.index.json", R"({"weight_map":{"a":1}})"); },
     "model.safetensors.index.json.weight_map.a: expected a string, found an integer\n"},
    {"the index puts a tensor into the wrong shard",
     [](const test::TempDir& dir) { std::string text = dir.read("model.safetensors.index.json"); const std::string entry = "\"model.norm.weight\":\"model-00002"; text.replace(text.find(entry), entry.size(), "\"model.norm.weight\":\"model-00001"); dir.write("model.safetensors.index.json", text); },
     "model.norm.weight: model.safetensors.index.json says it is in model-00001-of-00002.safetensors, which does not have it; it is in model-00002-of-00002.safetensors\n"},
    {"the index lists a tensor that is nowhere",
     [](const test::TempDir& dir) { std::string text = dir.read("model.safetensors.index.json"); text.replace(text.find("\"lm_head.weight\""), 0, "\"ghost.weight\":\"model-00001-of-00002.safetensors\","); dir.write("model.safetensors.index.json", text); },
     "ghost.weight: model.safetensors.index.json says it is in model-00001-of-00002.safetensors, which does not have it\n"},
    {"no weights at all",
     [](const test::TempDir& dir) { for (const char* name : {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"}) { std::filesystem::remove(dir.file(name)); } },
     "DIR: no weights: looked for model.safetensors.index.json, model.safetensors, model-00001-of-0000N.safetensors and the same with 'consolidated'; found none\n"},
    {"one of two shards and no index",
     [](const test::TempDir& dir) { std::filesystem::remove(dir.file("model-00002-of-00002.safetensors")); std::filesystem::remove(dir.file("model.safetensors.index.json")); },
     "DIR: there is no index, and of 2 shards only 1 are here: model-00001-of-00002.safetensors\n"},
    {"a folder where the file should be",
     [](const test::TempDir& dir) { std::filesystem::remove(dir.file("model-00002-of-00002.safetensors")); std::filesystem::create_directory(dir.file("model-00002-of-00002.safetensors")); },
     "DIR/model-00002-of-00002.safetensors: not a regular file; the index says it holds 32 tensors, the first is model.layers.0.self_attn.v_proj.weight_scale_2\n"},
};
// clang-format on

TEST(DamagedCheckpoints, TheBaseOfTheTableIsServable) {
  Editor editor = golden("llama-nvfp4");
  EXPECT_EQ(errors_of(editor), "");
}

TEST(DamagedCheckpoints, TensorsAndConfigKeys) {
  for (const Damage& damage : kTensorCases) {
    Editor editor = golden("llama-nvfp4");
    damage.apply(editor);
    EXPECT_EQ(errors_of(editor), damage.words) << damage.what;
  }
}

TEST(DamagedCheckpoints, BytesOfTheFile) {
  for (const FileDamage& damage : kFileCases) {
    Editor editor = golden("llama-nvfp4");
    editor.write();
    std::string file = editor.directory().read("model.safetensors");
    damage.apply(file);
    editor.directory().write("model.safetensors", file);
    const std::string errors = errors_of(editor.directory().path());
    // What is missing because the file could not be read follows the first line.
    EXPECT_EQ(errors.substr(0, errors.find('\n') + 1), damage.words) << damage.what;
    EXPECT_NE(errors, "") << damage.what;
  }
}

TEST(DamagedCheckpoints, FilesAroundTheWeights) {
  for (const DirectoryDamage& damage : kDirectoryCases) {
    Editor editor = golden("llama-nvfp4");
    editor.write_shards(2);
    damage.apply(editor.directory());
    const std::string errors = errors_of(editor.directory().path());
    EXPECT_EQ(errors.substr(0, errors.find('\n') + 1), damage.words) << damage.what;
  }
}

TEST(DamagedCheckpoints, TheTableIsLongEnough) {
  EXPECT_GE(std::size(kTensorCases) + std::size(kFileCases) + std::size(kDirectoryCases), 60u);
}

}  // namespace
}  // namespace nibble::checkpoint
