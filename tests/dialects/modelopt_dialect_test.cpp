// ModelOpt checkpoints as people have them. The stored tensors decide; the config is checked.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dialects/dialect_harness.h"
#include "support/data_dir.h"

namespace nibble::checkpoint {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const char* const kNestedText =
    R"({"producer":{"name":"modelopt","version":"0.29.0"},"quantization":{"quant_algo":"NVFP4",
        "kv_cache_quant_algo":"FP8","group_size":16,"exclude_modules":["lm_head"]}})";
const char* const kFlatText =
    R"({"quant_method":"modelopt","quant_algo":"NVFP4","config_groups":{"group_0":{
        "input_activations":{"dynamic":false,"num_bits":4,"type":"float","group_size":16},
        "weights":{"dynamic":false,"num_bits":4,"type":"float","group_size":16},
        "targets":["Linear"]}},"ignore":["lm_head"]})";

const Weights& original() {
  static const Weights kWeights =
      weights_of(*Checkpoint::open(test::stored_golden_path("llama-nvfp4")));
  return kWeights;
}

CheckpointEditor with_quantization(const std::string& block, const std::string& side = {}) {
  CheckpointEditor editor = golden("llama-nvfp4");
  set_quantization(editor, block, side);
  return editor;
}

TEST(ModelOptDialect, AllSpellingsOfOneConfigGiveTheSameWeights) {
  const std::string other_list = std::string(kFlatText).replace(
      std::string(kFlatText).find(R"(["lm_head"])"), 11, R"(["lm_head","model.norm"])");
  for (const auto& [block, side] : {std::pair<std::string, std::string>{"", kNestedText},
                                    {kFlatText, ""},
                                    {kFlatText, kNestedText},
                                    {other_list, kNestedText}}) {
    auto editor = with_quantization(block, side);
    EXPECT_TRUE(expect_servable(editor) == original()) << block << side;
  }
  auto different = with_quantization(other_list, kNestedText);
  EXPECT_THAT(warnings_of(different), HasSubstr("'model.norm'"));
}

TEST(ModelOptDialect, AConfigWithoutAQuantizationBlockIsReadFromTheTensors) {
  auto editor = with_quantization("", "");
  EXPECT_TRUE(expect_servable(editor) == original());
}

TEST(ModelOptDialect, WeightOnlyNeedsNoActivationScales) {
  const std::string no_activations = R"({"quant_method":"modelopt","quant_algo":"NVFP4",
      "config_groups":{"group_0":{"input_activations":null,"weights":{"num_bits":4,"type":"float",
      "group_size":16},"targets":["Linear"]}},"ignore":["lm_head"]})";
  for (const std::string& block :
       {std::string(
            R"({"quant_method":"modelopt","quant_algo":"W4A16_NVFP4","ignore":["lm_head"]})"),
        no_activations,
        std::string(R"({"quant_method":"modelopt","quant_algo":"NVFP4","with_input_scale":false,
                        "ignore":["lm_head"]})")}) {
    auto stripped = with_quantization(block);
    remove_ending_with(stripped, ".input_scale");
    EXPECT_TRUE(expect_servable(stripped) == original()) << block;
    EXPECT_EQ(warnings_of(stripped), "") << block;
    auto lingering = with_quantization(block);  // scales are there and mean nothing
    EXPECT_TRUE(expect_servable(lingering) == original()) << block;
    EXPECT_EQ(
        Checkpoint::open(lingering.directory().path())->linear(kDown, 128, 256, "")->input_scale,
        "");
  }
  auto silent = with_quantization(kFlatText);
  remove_ending_with(silent, ".input_scale");
  EXPECT_TRUE(expect_servable(silent) == original());
  EXPECT_THAT(warnings_of(silent), HasSubstr("missing here and for 13 other linears"));
}

TEST(ModelOptDialect, ScalesOfExpertsThatWereNeverRoutedMayBeMissing) {
  const std::string path = test::stored_golden_path("vendor/qwen3_moe-modelopt-nvfp4");
  CheckpointEditor editor(path);
  const std::string expert = "model.layers.0.mlp.experts.5.";
  for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
    editor.tensors().erase(expert + part + ".input_scale");
  }
  EXPECT_TRUE(expect_servable(editor) == weights_of(*Checkpoint::open(path)));
}

TEST(ModelOptDialect, EachLayerOfAMixedCheckpointGetsItsOwnScheme) {
  const std::string layers = R"("quantized_layers":{
      "model.layers.0.self_attn.q_proj":{"quant_algo":"FP8"},
      "model.layers.0.self_attn.o_proj":{"quant_algo":"MXFP8","group_size":32},
      "model.layers.0.mlp":{"quant_algo":"NVFP4","group_size":16},
      "model.layers.1":{"quant_algo":"NVFP4","group_size":16}})";
  const std::string targets = R"("config_groups":{
      "group_0":{"weights":{"num_bits":8,"type":"float"},"input_activations":{"num_bits":8},
      "targets":["model.layers.0.self_attn.q_proj"]},
      "group_1":{"weights":{"num_bits":8,"type":"float","group_size":32},
      "input_activations":{"num_bits":8},"targets":["model.layers.0.self_attn.o_proj"]},
      "group_2":{"weights":{"num_bits":4,"type":"float","group_size":16},
      "input_activations":{"num_bits":4},"targets":["model.layers.0.mlp","model.layers.1"]}})";
  for (const std::string& table : {layers, targets}) {
    auto editor = with_quantization(
        R"({"quant_method":"modelopt","quant_algo":"MIXED_PRECISION",)" + table + "}");
    Weights expected = original();
    expected[kQ] = to_fp8(editor, kQ, 128, 128, Fp8Form::Tensor);
    expected["model.layers.0.self_attn.o_proj"] =
        to_fp8(editor, "model.layers.0.self_attn.o_proj", 128, 128, Fp8Form::Mx);
    for (const char* part : {"k_proj", "v_proj"}) {  // not named: bf16
      const std::string module = std::string("model.layers.0.self_attn.") + part;
      expected[module] = to_bf16(editor, module, 64, 128);
    }
    EXPECT_EQ(warnings_of(editor), "");
    const auto checkpoint = Checkpoint::open(editor.directory().path());
    ASSERT_TRUE(checkpoint.has_value());
    EXPECT_TRUE(checkpoint->require_servable().has_value());
    EXPECT_TRUE(weights_of(*checkpoint) == expected);
    // Every matrix is understood; a model that runs q, k and v as one product refuses the mixture.
    EXPECT_EQ(errors_of(editor),
              "model.layers.0.self_attn.k_proj: stored unlike model.layers.0.self_attn.q_proj; the "
              "two share their input and are run as one product\n");
  }
}

TEST(ModelOptDialect, ALayerStoredUnlikeItsEntryIsNamed) {
  auto editor = with_quantization(R"({"quant_method":"modelopt","quant_algo":"MIXED_PRECISION",
      "quantized_layers":{"model.layers.0":{"quant_algo":"NVFP4"},
      "model.layers.1":{"quant_algo":"FP8"}}})");
  EXPECT_THAT(
      errors_of(editor),
      HasSubstr(kDown + ".weight: stored as NVFP4, but config.json.quantization_config says "
                        "FP8\n"));
}

TEST(ModelOptDialect, ExcludeListsOfAllSpellings) {
  for (const char* list :
       {R"(["model.layers.1.self_attn.q_proj","model.layers.1.self_attn.k_proj",
            "model.layers.1.self_attn.v_proj","model.layers.1.self_attn.o_proj"])",
        R"(["model.layers.1.self_attn*"])",
        R"(["model.layers.1.input_layernorm","model.layers.1.self_attn*","*lm_head*"])",
        R"(["*layers.1.self_attn.q_proj.weight","*.k_proj","*.v_proj","*.o_proj"])",
        R"(["re:.*layers\\.1\\.self_attn\\..*"])",
        R"(["model.language_model.layers.1.self_attn."])"}) {
    for (const char* key : {"exclude_modules", "ignore", "modules_to_not_convert", "exclude"}) {
      auto editor =
          with_quantization(std::string(R"({"quant_method":"modelopt","quant_algo":"NVFP4",")") +
                            key + "\":" + list + "}");
      Weights expected = original();
      for (const auto& [part, n] : {std::pair("q_proj", 128),
                                    std::pair("k_proj", 64),
                                    std::pair("v_proj", 64),
                                    std::pair("o_proj", 128)}) {
        const std::string module = std::string("model.layers.1.self_attn.") + part;
        expected[module] = to_bf16(editor, module, n, 128);
      }
      EXPECT_TRUE(expect_servable(editor) == expected) << list;
    }
  }
}

TEST(ModelOptDialect, PlainWeightsOutsideTheListAreErrorsAndRoutersAreNot) {
  auto editor = with_quantization(
      R"({"quant_method":"modelopt","quant_algo":"NVFP4","ignore":["re:layers\\.1\\..*"]})");
  to_bf16(editor, kDown, 128, 256);
  EXPECT_EQ(errors_of(editor),
            kDown +
                ".weight: stored in full precision, but config.json.quantization_config says "
                "NVFP4; if that is meant, add the module to its list of excluded modules\n");

  const std::string moe = test::stored_golden_path("vendor/qwen3_moe-modelopt-nvfp4");
  CheckpointEditor routers(moe);
  set_quantization(routers, R"({"quant_method":"modelopt","quant_algo":"NVFP4","ignore":[]})", "");
  EXPECT_EQ(errors_of(routers), "");
}

TEST(ModelOptDialect, AQuantizedHeadLoadsWhateverTheListSays) {
  for (const char* list : {R"(["lm_head*"])", "[]"}) {
    CheckpointEditor editor = golden("qwen2-nvfp4");
    set_quantization(
        editor,
        std::string(R"({"quant_method":"modelopt","quant_algo":"NVFP4","ignore":)") + list + "}",
        "");
    EXPECT_EQ(errors_of(editor), "");
    const auto checkpoint = Checkpoint::open(editor.directory().path());
    EXPECT_EQ(checkpoint->linear("lm_head", 512, 128, "")->format, LinearInfo::Format::Nvfp4);
    EXPECT_EQ(warnings_of(editor).find("lm_head: stored quantized although") != std::string::npos,
              std::string(list) != "[]");
  }
}

TEST(ModelOptDialect, AQuantizedEmbeddingTableIsDecoded) {
  for (bool flag : {true, false}) {
    CheckpointEditor editor = golden("llama-nvfp4");
    if (flag) {
      editor.config().at("quantization_config").as_object()["nvfp4_embed"] = true;
    }
    for (const char* suffix : {".weight", ".weight_scale", ".weight_scale_2"}) {
      editor.tensors()["model.embed_tokens" + std::string(suffix)] =
          editor.tensor("model.layers.0.mlp.up_proj" + std::string(suffix));
    }
    editor.config()["vocab_size"] = 256;
    editor.tensor("lm_head.weight").shape = {256, 128};
    editor.tensor("lm_head.weight").bytes.resize(256 * 128 * 2);
    EXPECT_EQ(errors_of(editor), "");
    const auto checkpoint = Checkpoint::open(editor.directory().path());
    const auto table =
        checkpoint->read_as("model.embed_tokens.weight", DType::F32, {256, 128}, "vocab_size");
    ASSERT_TRUE(table.has_value()) << table.error().text();
    EXPECT_EQ(std::memcmp(
                  table->data(), original().at("model.layers.0.mlp.up_proj").data(), table->size()),
              0);
    EXPECT_FALSE(
        checkpoint->read_as("model.embed_tokens.weight", DType::F32, {512, 128}, "v").has_value());
  }
}

TEST(ModelOptDialect, HeadsAreSharedOrStoredOrMissed) {
  for (const char* list : {R"(["lm_head"])", "[]"}) {
    CheckpointEditor tied = golden("llama-nvfp4");
    set_quantization(
        tied,
        std::string(R"({"quant_method":"modelopt","quant_algo":"NVFP4","ignore":)") + list + "}",
        "");
    tied.remove("lm_head.weight");
    tied.config()["tie_word_embeddings"] = true;
    EXPECT_EQ(errors_of(tied), "");
    tied.config()["tie_word_embeddings"] = false;
    EXPECT_THAT(errors_of(tied), HasSubstr("lm_head.weight: missing"));
  }
}

TEST(ModelOptDialect, AHeadOfItsOwnBesideTiedEmbeddingsIsSaidAndChecked) {
  CheckpointEditor editor = golden("llama-nvfp4");
  EXPECT_THAT(warnings_of(editor), Not(HasSubstr("lm_head.weight")));
  editor.config()["tie_word_embeddings"] = true;
  EXPECT_EQ(errors_of(editor), "");
  EXPECT_THAT(warnings_of(editor),
              HasSubstr("lm_head.weight: stored although config.json says tie_word_embeddings "
                        "true; the stored head is used"));
  auto& head = editor.tensor("lm_head.weight");
  head.bytes[10] = std::byte{0xC0};
  head.bytes[11] = std::byte{0x7F};
  EXPECT_EQ(errors_of(editor),
            "lm_head.weight: expected finite values, found NaN or infinity at element 5\n");
  head.shape = {256, 256};
  EXPECT_THAT(errors_of(editor), HasSubstr("lm_head.weight: expected [512, 128] (from vocab_size"));
}

TEST(ModelOptDialect, ScalesOfTheKvCacheAreKnownAndUnknownOnesAreNamed) {
  CheckpointEditor editor = golden("llama-nvfp4");
  const std::string attention = "model.layers.0.self_attn.";
  for (const char* name : {"k_proj.k_scale", "v_proj.v_scale", "k_scale", "v_scale", "kv_scale"}) {
    editor.set_f32(attention + name, 0.5f);
  }
  EXPECT_TRUE(expect_servable(editor) == original());
  EXPECT_EQ(warnings_of(editor), "");
  editor.set_f32("model.layers.0.mlp.gate_proj.foo_scale", 1.0f);
  EXPECT_TRUE(expect_servable(editor) == original());
  EXPECT_THAT(warnings_of(editor), HasSubstr("model.layers.0.mlp.gate_proj.foo_scale: named like"));
}

TEST(ModelOptDialect, LowRankBranchesAreRefusedByNameWhereverTheyShow) {
  CheckpointEditor by_config = golden("llama-nvfp4");
  set_quantization(by_config,
                   R"({"quant_method":"modelopt","quant_algo":"NVFP4_SVD",
      "lora_rank":32,"ignore":["lm_head"]})",
                   "");
  EXPECT_THAT(errors_of(by_config), HasSubstr("quant_algo: NVFP4_SVD"));
  for (const char* name : {".svdquant_lora_a",
                           ".weight_quantizer._svdquant_lora_b",
                           ".weight_quantizer._svdquant_lora_a"}) {
    CheckpointEditor by_tensor = golden("llama-nvfp4");
    by_tensor.tensors()[kDown + name] = {DType::BF16, {4, 256}, std::vector<std::byte>(2048)};
    EXPECT_THAT(errors_of(by_tensor), HasSubstr(kDown + ": has a low-rank branch")) << name;
  }
}

TEST(ModelOptDialect, W4A8AndGroupsOf32AreServedWithExactWeights) {
  for (const char* algo : {"W4A8_NVFP4_FP8", "W4A16_NVFP4"}) {
    CheckpointEditor editor = golden("vendor/llama-modelopt-mlp-weight-only");
    const Weights expected = expect_servable(editor);
    set_quantization(editor,
                     std::string(R"({"quant_method":"modelopt","group_size":32,"quant_algo":")") +
                         algo + R"(","ignore":["lm_head","*self_attn*"]})",
                     "");
    editor.set_f32(kDown + ".input_scale", 3.0f);  // for 8-bit activations: means nothing here
    EXPECT_TRUE(expect_servable(editor) == expected);
    EXPECT_EQ(Checkpoint::open(editor.directory().path())->linear(kDown, 128, 256, "")->input_scale,
              "");
    const bool said = std::string_view(algo) == "W4A8_NVFP4_FP8";
    EXPECT_EQ(warnings_of(editor).find("activations in bf16 instead of FP8") != std::string::npos,
              said);
  }
}

TEST(ModelOptDialect, AwqScalesAreKeptWhereTheyAreStored) {
  CheckpointEditor editor = golden("llama-nvfp4-awq");
  EXPECT_EQ(errors_of(editor), "");
  const auto checkpoint = Checkpoint::open(editor.directory().path());
  const auto q = checkpoint->linear(kQ, 128, 128, "");
  EXPECT_EQ(checkpoint->read_linear(*q)->pre_quant_scale_dtype, DType::F32);
  const auto down = checkpoint->read_linear(*checkpoint->linear(kDown, 128, 256, ""));
  EXPECT_EQ(down->pre_quant_scale_dtype, DType::BF16);
  EXPECT_EQ(down->pre_quant_scale.size(), size_t{256 * 2});
  const auto gate = checkpoint->linear("model.layers.0.mlp.gate_proj", 256, 128, "");
  EXPECT_EQ(gate->pre_quant_scale, "");
  editor.tensor(kDown + ".pre_quant_scale").shape = {128};
  editor.tensor(kDown + ".pre_quant_scale").bytes.resize(256);
  EXPECT_THAT(errors_of(editor), HasSubstr(kDown + ".pre_quant_scale: expected [256]"));
}

TEST(ModelOptDialect, InputFactorsThatAreNoFactorsOrDifferBetweenPartsAreNamed) {
  const std::string name = "model.layers.0.self_attn.o_proj.pre_quant_scale";
  for (const float bad : {NAN, INFINITY, 0.0f, -1e-20f, 1e38f}) {
    CheckpointEditor editor = golden("llama-nvfp4-awq");
    CheckpointEditor::Stored& stored = editor.tensor(name);
    stored = {DType::F32, stored.shape, std::vector<std::byte>()};
    for (int64_t i = 0; i < num_elements(stored.shape); ++i) {
      const float value = i == 3 ? bad : 1.0f;
      const auto* bytes = reinterpret_cast<const std::byte*>(&value);
      stored.bytes.insert(stored.bytes.end(), bytes, bytes + sizeof value);
    }
    EXPECT_THAT(errors_of(editor),
                HasSubstr(name + ": expected factors of 1e-10 to 1e10 in size, found"))
        << bad;
    EXPECT_FALSE(Checkpoint::open(editor.directory().path())->require_servable().has_value());
  }
  CheckpointEditor apart = golden("llama-nvfp4-awq");
  const std::string k = "model.layers.0.self_attn.k_proj.pre_quant_scale";
  apart.tensor(k).bytes[1] ^= std::byte{1};
  EXPECT_EQ(errors_of(apart),
            k + ": the parts of a fused linear need the same pre_quant_scale, found one unlike " +
                kQ + ".pre_quant_scale\n");
}

TEST(ModelOptDialect, PartsOfAFusedMatrixKeepTheirOwnGlobalScales) {
  CheckpointEditor editor = golden("llama-nvfp4");
  Weights expected = original();
  const std::string up = "model.layers.0.mlp.up_proj";
  set_scalar(editor, up + ".weight_scale_2", scalar(editor, up + ".weight_scale_2") * 4.0f);
  for (float& value : expected[up]) {
    value *= 4.0f;
  }
  EXPECT_TRUE(expect_servable(editor) == expected);
}

// Rows of several linears one below the other, as Phi-3 stores them.
void fuse(CheckpointEditor& editor,
          const std::string& prefix,
          const std::vector<std::string>& parts,
          const std::string& fused) {
  for (const char* suffix : {".weight", ".weight_scale"}) {
    CheckpointEditor::Stored whole = editor.tensor(prefix + parts[0] + suffix);
    whole.shape[0] = 0;
    whole.bytes.clear();
    for (const std::string& part : parts) {
      const auto& stored = editor.tensor(prefix + part + suffix);
      whole.shape[0] += stored.shape[0];
      whole.bytes.insert(whole.bytes.end(), stored.bytes.begin(), stored.bytes.end());
    }
    editor.tensors()[prefix + fused + suffix] = whole;
  }
  for (const char* suffix : {".weight_scale_2", ".input_scale"}) {
    editor.tensors()[prefix + fused + suffix] = editor.tensor(prefix + parts[0] + suffix);
  }
  for (const std::string& part : parts) {
    std::erase_if(editor.tensors(),
                  [&](const auto& entry) { return entry.first.starts_with(prefix + part + "."); });
  }
}

TEST(ModelOptDialect, MatricesFusedInTheFileAreTakenApart) {
  CheckpointEditor editor = golden("llama-nvfp4");
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    fuse(editor, std::string(layer) + "self_attn.", {"q_proj", "k_proj", "v_proj"}, "qkv_proj");
    fuse(editor, std::string(layer) + "mlp.", {"gate_proj", "up_proj"}, "gate_up_proj");
  }
  EXPECT_TRUE(expect_servable(editor) == original());
  const auto checkpoint = Checkpoint::open(editor.directory().path());
  const auto k = checkpoint->linear("model.layers.0.self_attn.k_proj", 64, 128, "");
  ASSERT_TRUE(k.has_value()) << k.error().text();
  EXPECT_EQ(k->row_begin, 128);
  const auto data = checkpoint->read_linear(*k);
  EXPECT_EQ(data->weight.size(), size_t{64 * 64});
  EXPECT_EQ(data->weight_scale.size(), size_t{64 * 8});
  editor.config()["num_key_value_heads"] = 4;  // the rows no longer add up
  EXPECT_THAT(errors_of(editor), HasSubstr("model.layers.0.self_attn.k_proj.weight: missing"));
}

TEST(ModelOptDialect, DraftLayersAreLeftAloneInAnyForm) {
  CheckpointEditor editor = golden("llama-nvfp4");
  editor.tensors()["model.layers.2.mlp.up_proj.weight"] = {
      DType::BF16, {4, 16}, std::vector<std::byte>(128)};
  editor.tensors()["model.layers.2.eh_proj.weight"] = {
      DType::U8, {4, 16}, std::vector<std::byte>(64)};  // without its scales
  editor.tensors()["mtp.fc.weight"] = {DType::BF16, {4, 16}, std::vector<std::byte>(128)};
  editor.tensors()["mtp.layers.0.mlp.experts.gate_up_proj"] = {
      DType::BF16, {2, 4, 16}, std::vector<std::byte>(256)};
  EXPECT_EQ(errors_of(editor), "");
  EXPECT_THAT(warnings_of(editor), HasSubstr("model.layers.2.eh_proj.weight_scale: missing"));
}

TEST(ModelOptDialect, NamesOfAdapterTrainingAndOddScaleShapesAreUnderstood) {
  CheckpointEditor editor = golden("llama-nvfp4");
  editor.rename(kDown + ".weight", kDown + ".base_layer.weight");
  editor.tensor(kDown + ".weight_scale").shape = {1, 128, 16};
  editor.tensor(kDown + ".weight_scale_2").shape = {1};
  editor.tensor(kQ + ".weight_scale").dtype = DType::U8;  // the same bytes under another name
  EXPECT_TRUE(expect_servable(editor) == original());
}

TEST(ModelOptDialect, OtherMethodsAreRefusedByName) {
  for (const char* method : {"quark", "gptq", "awq", "fp_quant", "bitsandbytes", "mxfp4"}) {
    auto editor =
        with_quantization(std::string(R"({"quant_method":")") + method + R"(","exclude":[]})");
    EXPECT_THAT(errors_of(editor), HasSubstr("'" + std::string(method) + "' is not supported"));
  }
}

}  // namespace
}  // namespace nibble::checkpoint
