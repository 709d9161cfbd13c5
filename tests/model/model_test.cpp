#include "model/model.h"

#include <numeric>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/observer.h"
#include "support/checkpoint_editor.h"
#include "support/data_dir.h"
#include "support/forward_harness.h"

namespace nibble::model {
namespace {

using ::testing::HasSubstr;

TEST(Model, StagesOnlyWhatComputesTheSameFunction) {
  checkpoint::CheckpointEditor editor(test::stored_golden_path("llama"));
  editor.config()["rope_scaling"] = boost::json::parse(
      R"({"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,
          "original_max_position_embeddings":64})");
  editor.write();
  const auto harness = test::ForwardHarness::load(editor.directory().path()).value();
  const auto stage = [&](std::string_view key, double value) {
    editor.config()["rope_scaling"].as_object()[key] = value;
    editor.write();
    const auto staged = harness->model().stage(editor.directory().path(), harness->stream());
    return staged ? "staged" : staged.error().text();
  };
  EXPECT_EQ(stage("low_freq_factor", 1), "staged");
  EXPECT_THAT(stage("low_freq_factor", 2), HasSubstr("other rope settings"));
  EXPECT_EQ(stage("low_freq_factor", 1), "staged");
  EXPECT_THAT(stage("factor", 4), HasSubstr("config.json: rope factor: expected 8"));
}

TEST(Model, AStoredHeadIsUsedWhateverTheConfigSaysOfTying) {
  checkpoint::CheckpointEditor editor(test::stored_golden_path("llama"));
  editor.write();
  const std::vector<int32_t> ids = {1, 9, 30, 77};
  const auto logits = [&] {
    return test::ForwardHarness::load(editor.directory().path()).value()->logits(ids);
  };
  const std::vector<float> own = logits();
  editor.config()["tie_word_embeddings"] = true;
  editor.write();
  EXPECT_TRUE(logits() == own);
  const auto with_head = test::ForwardHarness::load(editor.directory().path()).value();
  editor.remove("lm_head.weight");
  editor.write();
  const std::vector<float> shared = logits();
  EXPECT_FALSE(shared == own);
  // A reload decides anew, from what is stored then.
  const auto staged = with_head->model().stage(editor.directory().path(), with_head->stream());
  ASSERT_TRUE(staged.has_value()) << staged.error().text();
  with_head->model().parameters().commit(staged->staged, with_head->stream());
  EXPECT_TRUE(with_head->logits(ids) == shared);
}

TEST(Model, AReloadNamesTheKeyThatChangedInItsOwnWords) {
  checkpoint::CheckpointEditor editor(test::stored_golden_path("llama"));
  editor.config().erase("rope_scaling");
  editor.write();
  const auto harness = test::ForwardHarness::load(editor.directory().path()).value();
  const auto refusal = [&](std::string_view key, boost::json::value value) {
    const boost::json::value kept = std::exchange(editor.config()[key], std::move(value));
    editor.write();
    editor.config()[key] = kept;
    const auto staged = harness->model().stage(editor.directory().path(), harness->stream());
    return staged ? "staged" : staged.error().text();
  };
  EXPECT_THAT(refusal("tie_word_embeddings", true),
              HasSubstr("config.json: tie_word_embeddings: expected false, found true"));
  EXPECT_THAT(refusal("max_position_embeddings", 64),
              HasSubstr("config.json: max_position_embeddings: expected 2048, found 64"));
}

TEST(Model, InPlaceNothingIsOverwrittenBeforeEveryHeaderFits) {
  checkpoint::CheckpointEditor editor(test::stored_golden_path("llama-nvfp4"));
  editor.write();
  const auto harness = test::ForwardHarness::load(editor.directory().path()).value();
  const auto before = harness->model().parameters().checksums(harness->stream());
  const auto refused = [&](const std::string& words) {
    editor.write();
    bool touched = true;
    const auto loaded =
        harness->model().load_in_place(editor.directory().path(), harness->stream(), {}, touched);
    ASSERT_FALSE(loaded.has_value());
    EXPECT_THAT(loaded.error().text(), HasSubstr(words));
    EXPECT_FALSE(touched);
  };
  // The last that is read; all others have other values, which would be seen.
  for (auto& [name, stored] : editor.tensors()) {
    if (name.ends_with(".weight")) {
      stored.bytes[0] ^= std::byte{1};
    }
  }
  const auto head = editor.tensor("lm_head.weight");
  editor.remove("lm_head.weight");
  refused("lm_head.weight: missing");
  editor.tensors()["lm_head.weight"] = head;
  editor.tensor("lm_head.weight").dtype = DType::I8;
  editor.tensor("lm_head.weight").shape = {512, 256};
  refused("lm_head.weight");
  editor.tensors()["lm_head.weight"] = head;
  editor.tensor("model.norm.weight").shape = {1, 128};
  refused("model.norm.weight: expected bf16 [128]");
  const auto after = harness->model().parameters().checksums(harness->stream());
  ASSERT_EQ(after.size(), before.size());
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(after[i].value, before[i].value) << before[i].name;
  }
}

// A Context over memory that is large enough for the tiny models.
struct Scratch {
  std::vector<std::byte> memory = std::vector<std::byte>(size_t{8} << 20);
  Arena arena{memory.data(), memory.size(), Device{}};
};

class CountingObserver final : public Observer {
 public:
  void linear(const LinearSpec& spec, const Tensor& x) override {
    names.push_back(spec.name);
    EXPECT_EQ(x.shape[1], spec.desc.k);
  }
  void attention(const LinearSpec& qkv,
                 const AttentionDesc& desc,
                 const Tensor& q,
                 const Tensor& k,
                 const Tensor& x) override {
    names.push_back("attention");
    EXPECT_EQ(qkv.parts.size(), 3u);
    EXPECT_EQ(q.shape[1], desc.heads);
    EXPECT_EQ(k.shape[1], desc.kv_heads);
    EXPECT_EQ(x.shape[1], qkv.desc.k);
  }
  void experts(const ExpertsSpec&, const Tensor&, const Tensor&) override {
    names.emplace_back("experts");
  }
  std::vector<std::string> names;
};

TEST(Model, SlicesOneAfterAnotherGiveTheBitsOfTheWhole) {
  const std::string directory = test::stored_golden_path("vendor/llama-base");
  const auto harness = test::ForwardHarness::load(directory).value();
  std::vector<int32_t> ids;
  ids.reserve(48);
  for (int32_t i = 0; i < 48; ++i) {
    ids.push_back(i * 5 % 90 + 1);
  }
  const std::vector<float> expected = harness->logits(ids);

  const auto source = checkpoint::Checkpoint::open(directory).value();
  const Stream stream = harness->stream();
  const SmallOps& ops = small_ops(Device::Kind::Cpu, test::best_isa());
  const checkpoint::ModelConfig& config = source.config();
  const auto tokens = static_cast<int64_t>(ids.size());
  const auto slice = [&](ModelSlice part) {
    ModelOptions options;
    options.isa = test::best_isa();
    options.slice = part;
    return load_slice(source, options, stream).value();
  };
  std::vector<uint16_t> residual(static_cast<size_t>(tokens * config.hidden_size));
  const Tensor state(residual.data(), DType::BF16, {tokens, config.hidden_size}, Device{});
  Scratch scratch;
  Context context{scratch.arena, stream, ops};
  const Tensor id_view(ids.data(), DType::I32, Shape{tokens}, Device{});
  slice({.embedding = true, .layer_begin = 0, .layer_end = 0, .head = false})
      ->embed(context, id_view, state);

  std::vector<int32_t> positions(ids.size());
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<int32_t> pages{0, 1, 2};
  std::vector<int32_t> borders{0, 48};
  std::vector<int32_t> lengths{48};
  const auto ints = [](std::vector<int32_t>& values, Shape shape) {
    return Tensor(values.data(), DType::I32, shape, Device{});
  };
  const Shape cache_shape{3, 16, config.num_key_value_heads, config.head_dim};
  std::vector<uint16_t> k(static_cast<size_t>(num_elements(cache_shape)));
  std::vector<uint16_t> v(k.size());
  const KvLayer cache{Tensor(k.data(), DType::BF16, cache_shape, Device{}),
                      Tensor(v.data(), DType::BF16, cache_shape, Device{})};
  BatchView batch;
  batch.tokens = id_view;
  batch.positions = ints(positions, {tokens});
  batch.kv_slots = ints(positions, {tokens});
  batch.page_table = ints(pages, {1, 3});
  batch.q_begin = ints(borders, {2});
  batch.kv_lens = ints(lengths, {1});
  batch.kv = std::span(&cache, 1);
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    CountingObserver observer;
    context.observer = &observer;
    slice({.embedding = false, .layer_begin = l, .layer_end = l + 1, .head = false})
        ->run_layers(context, batch, state);
    const std::string layer = "model.layers." + std::to_string(l);
    EXPECT_THAT(observer.names,
                ::testing::ElementsAre(layer + ".self_attn.qkv_proj",
                                       "attention",
                                       layer + ".self_attn.o_proj",
                                       layer + ".mlp.gate_up_proj",
                                       layer + ".mlp.down_proj"));
    context.observer = nullptr;
  }
  const auto last = slice({.embedding = false,
                           .layer_begin = config.num_hidden_layers,
                           .layer_end = config.num_hidden_layers,
                           .head = true});
  const int64_t rows = tokens - 1;  // the harness gives all but the last, then the last
  std::vector<uint16_t> hidden(residual.size());
  const Tensor out(hidden.data(), DType::BF16, {tokens, config.hidden_size}, Device{});
  last->finish(context, state, ints(positions, {tokens}), out);
  std::vector<float> logits(static_cast<size_t>(rows * config.vocab_size));
  last->logits(context,
               out.rows(0, rows),
               Tensor(logits.data(), DType::F32, {rows, config.vocab_size}, Device{}));
  ASSERT_GE(expected.size(), logits.size());
  EXPECT_TRUE(std::equal(logits.begin(), logits.end(), expected.begin()));
}

TEST(Model, RulesGiveSingleLinearsTheirMode) {
  const std::string directory = test::stored_golden_path("llama-nvfp4");
  StreamOwner own(Device{}, 1);
  ModelOptions options;
  options.isa = test::best_isa();
  options.nvfp4_mode = Nvfp4Mode::W4A16;
  options.nvfp4_rules = {{"model.layers.1.*", Nvfp4Mode::W4A4}};
  const auto model = load_model(directory, options, own.get());
  ASSERT_TRUE(model.has_value()) << model.error().text();
  int w4a4 = 0;
  int w4a16 = 0;
  for (const std::string& line : (*model)->facts().layer_table) {
    w4a4 += line.find("w4a4 ") != std::string::npos ? 1 : 0;
    w4a16 += line.find("w4a16 ") != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(w4a4, 0);
  EXPECT_GT(w4a16, 0);
  options.nvfp4_rules = {{"*.no_such_proj", Nvfp4Mode::W4A4}};
  const auto refused = load_model(directory, options, own.get());
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().text(), HasSubstr("*.no_such_proj: matches no linear"));
}

TEST(Model, QuantizesWhileLoadingAndWhileReloading) {
  const std::string directory = test::stored_golden_path("vendor/llama-base");
  StreamOwner own(Device{}, 2);
  ModelOptions options;
  options.isa = test::best_isa();
  options.online_nvfp4 = true;
  const auto online = load_model(directory, options, own.get());
  ASSERT_TRUE(online.has_value()) << online.error().text();
  EXPECT_EQ((*online)->facts().quantization, "nvfp4 (w4a16)");
  bool said = false;
  for (const std::string& line : (*online)->facts().layer_table) {
    said = said || line.find("quantized while loading") != std::string::npos;
  }
  EXPECT_TRUE(said);
  // The same checkpoint again gives the same bits in memory.
  const auto before = (*online)->parameters().checksums(own.get());
  const auto staged = (*online)->stage(directory, own.get());
  ASSERT_TRUE(staged.has_value()) << staged.error().text();
  (*online)->parameters().commit(staged->staged, own.get());
  const auto after = (*online)->parameters().checksums(own.get());
  ASSERT_EQ(before.size(), after.size());
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(before[i].value, after[i].value) << before[i].name;
  }
  options.online_nvfp4 = false;
  EXPECT_EQ((*load_model(directory, options, own.get()))->facts().quantization, "bf16");
}

TEST(Model, TakesTheScalesOfAnE4m3CacheWhereTheCheckpointHasThem) {
  checkpoint::CheckpointEditor editor(test::stored_golden_path("llama-nvfp4"));
  const std::vector<int32_t> ids{3, 40, 41, 5, 9, 77, 12, 300, 4, 6};
  const auto logits = [&]() {
    editor.write();
    test::HarnessOptions options;
    options.kv_dtype = DType::E4M3;
    auto harness = test::ForwardHarness::load(editor.directory().path(), options);
    return harness ? (*harness)->logits(ids) : std::vector<float>();
  };
  const std::vector<float> without = logits();
  ASSERT_FALSE(without.empty());
  const std::string attention = "model.layers.0.self_attn.";
  editor.set_f32(attention + "k_proj.k_scale", 1.0f);
  editor.set_f32(attention + "v_proj.v_scale", 1.0f);
  EXPECT_EQ(logits(), without);                          // what is missing is 1
  editor.set_f32(attention + "v_proj.v_scale", 0.001f);  // values over 448 steps are cut off
  const std::vector<float> scaled = logits();
  EXPECT_NE(scaled, without);
  editor.remove(attention + "v_proj.v_scale");
  editor.set_f32(attention + "v_scale", 0.001f);  // its other name
  editor.tensor(attention + "v_scale").shape = {1};
  EXPECT_EQ(logits(), scaled);
  editor.set_f32(attention + "v_scale", 0.0f);
  EXPECT_TRUE(logits().empty());
}

}  // namespace
}  // namespace nibble::model
