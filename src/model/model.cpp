#include "model/model.h"

#include <chrono>
#include <optional>
#include <utility>

#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/verify.h"
#include "model/builder.h"
#include "model/registry.h"

namespace nibble::model {

namespace {

using checkpoint::Checkpoint;
using checkpoint::ModelConfig;

struct Opened {
  Checkpoint checkpoint;
  Source source;
};

std::vector<int32_t> eos_token_ids_of(const ModelConfig& config) {
  std::vector<int32_t> ids;
  ids.reserve(config.eos_token_ids.size());
  for (const int64_t id : config.eos_token_ids) {
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

Result<Opened> open_servable(const std::string& directory,
                             bool online_nvfp4,
                             const SourceCheck& check = {},
                             const std::stop_token& stop = {}) {
  Checkpoint checkpoint =
      TRY(online_nvfp4 ? Checkpoint::open_online(directory) : Checkpoint::open(directory));
  TRY(checkpoint.require_servable());
  Source source{directory, checkpoint.stamps(), 0, eos_token_ids_of(checkpoint.config())};
  std::optional<Manifest> own;
  const Manifest* manifest = check.manifest;
  if (manifest == nullptr) {
    own = TRY(read_manifest(directory));
    manifest = own ? &*own : nullptr;
  }
  if (manifest != nullptr) {
    TRY(checkpoint::verify_files(checkpoint, *manifest, checkpoint::VerifyDepth::Hashes, stop));
    source.files_verified = static_cast<int64_t>(manifest->files.size());
  } else if (check.require_manifest) {
    return fail(ErrorCode::NotFound,
                "a manifest is asked for, and there is no " + std::string(kManifestName),
                directory);
  }
  for (const checkpoint::Problem& problem : checkpoint.problems()) {
    LOG(warn, "checkpoint", {"path", directory}, {"problem", problem.error.text()});
  }
  return Opened{std::move(checkpoint), std::move(source)};
}

template <typename T>
Result<void> require_same(const char* key, const T& ours, const T& theirs) {
  if (ours == theirs) {
    return {};
  }
  std::string expected;
  std::string found;
  if constexpr (std::is_same_v<T, std::string>) {
    expected = ours;
    found = theirs;
  } else if constexpr (std::is_same_v<T, bool>) {
    expected = ours ? "true" : "false";
    found = theirs ? "true" : "false";
  } else {
    expected = std::to_string(ours);
    found = std::to_string(theirs);
  }
  return invalid("expected " + expected + ", found " + found +
                     "; another architecture or shape needs a restart of the server",
                 std::string("config.json: ") + key);
}

// The first difference that would change what the loaded program computes.
Result<void> require_same_model(const ModelConfig& ours, const ModelConfig& theirs) {
  TRY(require_same("architectures", ours.architecture, theirs.architecture));
  TRY(require_same("hidden_size", ours.hidden_size, theirs.hidden_size));
  TRY(require_same("intermediate_size", ours.intermediate_size, theirs.intermediate_size));
  TRY(require_same("num_hidden_layers", ours.num_hidden_layers, theirs.num_hidden_layers));
  TRY(require_same("num_attention_heads", ours.num_attention_heads, theirs.num_attention_heads));
  TRY(require_same("num_key_value_heads", ours.num_key_value_heads, theirs.num_key_value_heads));
  TRY(require_same("head_dim", ours.head_dim, theirs.head_dim));
  TRY(require_same("vocab_size", ours.vocab_size, theirs.vocab_size));
  TRY(require_same("rms_norm_eps", ours.rms_norm_eps, theirs.rms_norm_eps));
  TRY(require_same("tie_word_embeddings", ours.tie_word_embeddings, theirs.tie_word_embeddings));
  TRY(require_same("hidden_act", ours.hidden_act, theirs.hidden_act));
  if (ours.rope.original_max_position != theirs.rope.original_max_position) {
    // Where the config states none, it is taken from there.
    TRY(require_same(
        "max_position_embeddings", ours.max_position_embeddings, theirs.max_position_embeddings));
  }
  TRY(require_same(
      "rope type", static_cast<int>(ours.rope.type), static_cast<int>(theirs.rope.type)));
  TRY(require_same("rope_theta", ours.rope.theta, theirs.rope.theta));
  TRY(require_same("rope factor", ours.rope.factor, theirs.rope.factor));
  TRY(require_same("rope original_max_position_embeddings",
                   ours.rope.original_max_position,
                   theirs.rope.original_max_position));
  TRY(require_same("other rope settings are as they were", true, ours.rope == theirs.rope));
  TRY(require_same("num_experts", ours.moe.num_experts, theirs.moe.num_experts));
  TRY(require_same(
      "num_experts_per_tok", ours.moe.num_experts_per_tok, theirs.moe.num_experts_per_tok));
  TRY(require_same(
      "moe_intermediate_size", ours.moe.moe_intermediate_size, theirs.moe.moe_intermediate_size));
  TRY(require_same("norm_topk_prob", ours.moe.norm_topk_prob, theirs.moe.norm_topk_prob));
  TRY(require_same("other expert settings are as they were", true, ours.moe == theirs.moe));
  return {};
}

const Architecture* find_architecture(std::string_view name) {
  for (const Architecture& architecture : architectures()) {
    if (architecture.name == name) {
      return &architecture;
    }
  }
  return nullptr;
}

std::string known_architectures() {
  std::string names;
  for (const Architecture& architecture : architectures()) {
    names += (names.empty() ? "" : ", ") + std::string(architecture.name);
  }
  return names;
}

}  // namespace

Result<std::unique_ptr<Model>> declare_model(const Checkpoint& checkpoint,
                                             const ModelOptions& options) {
  const ModelConfig& config = checkpoint.config();
  const Architecture* architecture = find_architecture(config.architecture);
  if (architecture == nullptr) {
    return unsupported(
        "expected one of " + known_architectures() + ", found " + config.architecture,
        "config.json: architectures");
  }
  if (config.hidden_act != "silu") {
    return unsupported("expected silu, found " + config.hidden_act, "config.json: hidden_act");
  }
  Builder builder(checkpoint, options);
  std::unique_ptr<Model> model = architecture->make(builder);
  TRY(builder.finish());
  if (options.slice.whole()) {
    TRY(builder.refuse_unread_weights());
  }

  ModelFacts& facts = model->facts_;
  facts.isa = options.isa;
  facts.architecture = config.architecture;
  facts.model_type = config.model_type;
  facts.quantization = builder.quantization();
  facts.fp4_gemm_kernels = builder.kernels(Builder::Op::Fp4Gemm);
  facts.moe_kernels = builder.kernels(Builder::Op::Experts);
  facts.attention_kernels = builder.kernels(Builder::Op::Attention);
  facts.vocab_size = config.vocab_size;
  facts.context_length = builder.context_length();
  facts.layers =
      (options.slice.layer_end < 0 ? config.num_hidden_layers : options.slice.layer_end) -
      options.slice.layer_begin;
  facts.kv_heads = config.num_key_value_heads;
  facts.head_dim = config.head_dim;
  facts.kv_dtype = options.kv_dtype;
  facts.eos_token_ids = eos_token_ids_of(config);
  facts.layer_table = builder.layer_table();

  model->parameters_ = builder.take_store();
  model->parameters_->set_read_threads(options.read_threads);
  model->config_ = std::make_unique<ModelConfig>(config);
  return model;
}

Result<std::unique_ptr<Model>> load_model(const std::string& directory,
                                          const ModelOptions& options,
                                          Stream stream,
                                          const ParameterStore::Progress& progress) {
  LoadTimes times;
  auto since = std::chrono::steady_clock::now();
  const auto lap = [&since] {
    const auto begin = std::exchange(since, std::chrono::steady_clock::now());
    return std::chrono::duration<double>(since - begin).count();
  };
  Opened opened = TRY(open_servable(directory, options.online_nvfp4));
  times.open_seconds = lap();
  std::unique_ptr<Model> model = TRY(declare_model(opened.checkpoint, options));
  times.declare_seconds = lap();
  TRY(model->parameters_->seal(stream));
  times.allocate_seconds = lap();
  times.weights = TRY(model->parameters_->load(opened.checkpoint, stream, progress));
  model->load_times_ = std::move(times);
  model->first_source_ = std::move(opened.source);
  model->online_nvfp4_ = options.online_nvfp4;
  return model;
}

Result<std::unique_ptr<Model>> load_slice(const Checkpoint& checkpoint,
                                          const ModelOptions& options,
                                          Stream stream) {
  std::unique_ptr<Model> model = TRY(declare_model(checkpoint, options));
  TRY(model->parameters_->seal(stream));
  TRY(model->parameters_->load(checkpoint, stream, {}));
  return model;
}

Result<StagedWeights> Model::stage(const std::string& directory,
                                   Stream stream,
                                   const SourceCheck& check,
                                   const StageLimits& limits) const {
  Opened opened = TRY(open_servable(directory, online_nvfp4_, check, limits.stop));
  TRY(require_same_model(*config_, opened.checkpoint.config()));
  TRY(parameters_->check_headers(opened.checkpoint));  // before memory is asked for
  Staged staged = TRY(parameters_->stage(opened.checkpoint, stream, limits));
  return StagedWeights{std::move(opened.source), std::move(staged)};
}

Result<InPlaceReport> Model::load_in_place(const std::string& directory,
                                           Stream stream,
                                           const SourceCheck& check,
                                           bool& touched) {
  touched = false;
  Opened opened = TRY(open_servable(directory, online_nvfp4_, check));
  TRY(require_same_model(*config_, opened.checkpoint.config()));
  TRY(parameters_->check_headers(opened.checkpoint));
  touched = true;
  LoadReport report = TRY(parameters_->load_in_place(opened.checkpoint, stream));
  return InPlaceReport{std::move(opened.source), std::move(report)};
}

}  // namespace nibble::model
