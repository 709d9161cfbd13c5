// A loaded model: forward over one batch, and the weights behind it. What the engine sees; the
// architectures are in arch/, listed in registry.cpp. One thread runs it; stage() may run on
// another meanwhile.
//
// Contract: a row of hidden states or logits depends on the tokens of its own sequence only, bit
// for bit, whatever shares the batch and however the sequence was cut into steps.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/manifest.h"
#include "model/parameter_store.h"
#include "ops/kernels.h"
#include "quant/mode_rules.h"
#include "quant/quant_mode.h"
#include "tensor/arena.h"
#include "tensor/tensor.h"

namespace nibble::model {

// The part of a model that is built: for tools that go through a model layer by layer.
struct ModelSlice {
  bool embedding = true;
  int64_t layer_begin = 0;
  int64_t layer_end = -1;  // -1: all layers from layer_begin on
  bool head = true;        // the last norm and the output head
  bool whole() const { return embedding && layer_begin == 0 && layer_end < 0 && head; }
};

struct ModelOptions {
  Device device;
  int isa = 0;  // CpuIsa on the CPU, 10 * major + minor on CUDA
  Nvfp4Mode nvfp4_mode = Nvfp4Mode::Auto;
  Nvfp4ModeRules nvfp4_rules;  // of single linears; the others take nvfp4_mode
  std::string fp4_gemm_backend = "auto";
  std::string moe_runner_backend = "auto";
  std::string attention_backend = "auto";
  DType kv_dtype = DType::BF16;  // of the KV cache: BF16 or E4M3
  int64_t page_size = 16;
  int64_t context_length = 0;  // 0: from config.json
  // Decode steps of one token as one kernel, where there is one; unset: where that is expected to
  // be faster.
  std::optional<bool> fused_step;
  ModelSlice slice;
  bool online_nvfp4 = false;  // quantize BF16 and FP8 weights while loading
  int read_threads = -1;      // ParameterStore::set_read_threads(); negative: as it is
};

struct ModelFacts {  // fixed after load
  int isa = 0;       // as in ModelOptions
  std::string architecture;
  std::string model_type;
  std::string quantization;  // "nvfp4 (w4a16)", "bf16"
  // Registry names of the kernels that were chosen, "a, b" where there are several; empty where the
  // model has no such layer.
  std::string fp4_gemm_kernels;
  std::string moe_kernels;
  std::string attention_kernels;
  std::string step_kernel;   // of whole decode steps of one token; empty: op by op, because
  std::string step_refusal;  // of this
  int64_t vocab_size = 0;
  int64_t context_length = 0;
  int64_t layers = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  DType kv_dtype = DType::BF16;
  std::vector<int32_t> eos_token_ids;
  std::vector<std::string> layer_table;  // module pattern, format, mode, kernel, why
};

// Keys and values of one layer: [pages, page_size, kv_heads, head_dim] bf16, or e4m3 where the
// model was loaded for that.
struct KvLayer {
  Tensor k;
  Tensor v;
};

// The tokens of one step. With a measuring arena all tensors have sizes but no data.
struct BatchView {
  Tensor tokens;      // [tokens] i32
  Tensor positions;   // [tokens] i32
  Tensor kv_slots;    // [tokens] i32: page * page_size + offset
  Tensor page_table;  // [seqs, max_pages] i32
  Tensor q_begin;     // [seqs + 1] i32
  Tensor kv_lens;     // [seqs] i32, after this step
  Tensor rows;        // [rows] i32: tokens whose final hidden state is wanted, each once, in order
  bool decode = false;          // every sequence has one token
  std::span<const KvLayer> kv;  // one per layer of the slice
  // Of Model::prepare_decode_step() with `kv`; empty: the layers run op by op.
  Tensor step_state;
};

class Observer;

// What a layer runs with. While the arena measures, nothing is run.
struct Context {
  Arena& arena;
  Stream stream;
  const SmallOps& ops;
  Observer* observer = nullptr;  // of calibration, see model/observer.h
  bool runs() const { return !arena.measuring(); }
};

// How a checkpoint's files are checked before anything is read from them.
struct SourceCheck {
  const Manifest* manifest = nullptr;  // else the directory's own, where it has one
  bool require_manifest = false;       // no manifest: refused
};

// Where the weights came from.
struct Source {
  std::string directory;
  std::vector<FileStamp> stamps;       // of the weight files
  int64_t files_verified = 0;          // against a manifest; 0: there was none
  std::vector<int32_t> eos_token_ids;  // of its config
};

// Weights of another checkpoint of the same model, ready to be committed.
struct StagedWeights {
  Source source;
  Staged staged;
};

struct InPlaceReport {
  Source source;
  LoadReport report;
};

// Where the time of load_model() went.
struct LoadTimes {
  double open_seconds = 0;      // configs and headers; hashes, where there is a manifest
  double declare_seconds = 0;   // kernels chosen
  double allocate_seconds = 0;  // memory for the weights
  LoadReport weights;
};

class Model {
 public:
  virtual ~Model() = default;
  const ModelFacts& facts() const { return facts_; }
  ParameterStore& parameters() { return *parameters_; }
  const ParameterStore& parameters() const { return *parameters_; }

  // hidden: [rows, hidden] bf16, normalised, of the wanted rows.
  virtual void forward(Context& context, const BatchView& batch, const Tensor& hidden) const = 0;
  // logits: [rows, vocab] f32.
  virtual void logits(Context& context, const Tensor& hidden, const Tensor& logits) const = 0;
  virtual int64_t hidden_size() const = 0;

  // The pieces of forward(), for slices: embed(), then run_layers() of every layer, then finish()
  // give the same bits. residual: [tokens, hidden] bf16.
  virtual void embed(Context& context, const Tensor& tokens, const Tensor& residual) const = 0;
  virtual void run_layers(Context& context,
                          const BatchView& batch,
                          const Tensor& residual) const = 0;
  // rows: as in BatchView, so as many as tokens are all. hidden: [rows, hidden] bf16, normalised.
  virtual void finish(Context& context,
                      const Tensor& residual,
                      const Tensor& rows,
                      const Tensor& hidden) const = 0;

  // ---- decode steps of one token as one kernel (ModelFacts::step_kernel), the same bits ----
  // Of the memory that such steps need beside the arena; 0: this model has none.
  virtual int64_t step_state_bytes() const { return 0; }
  // Makes `state` [step_state_bytes()] u8 what BatchView::step_state wants. After load, not while a
  // graph is captured, once for all: weights and cache keep their addresses on the devices that
  // have such a kernel, whatever is loaded or released.
  virtual void prepare_decode_step(const Tensor& /*state*/,
                                   std::span<const KvLayer> /*kv*/,
                                   Stream /*stream*/) const {}

  // Reads and checks the checkpoint in `directory` against this model; changes nothing.
  Result<StagedWeights> stage(const std::string& directory,
                              Stream stream,
                              const SourceCheck& check = {},
                              const StageLimits& limits = {}) const;
  // Overwrites the weights; `touched` says whether it had begun to when it failed.
  Result<InPlaceReport> load_in_place(const std::string& directory,
                                      Stream stream,
                                      const SourceCheck& check,
                                      bool& touched);
  const Source& first_source() const { return first_source_; }
  const LoadTimes& load_times() const { return load_times_; }

 protected:
  friend Result<std::unique_ptr<Model>> declare_model(const checkpoint::Checkpoint&,
                                                      const ModelOptions&);
  friend Result<std::unique_ptr<Model>> load_model(const std::string&,
                                                   const ModelOptions&,
                                                   Stream,
                                                   const ParameterStore::Progress&);
  friend Result<std::unique_ptr<Model>> load_slice(const checkpoint::Checkpoint&,
                                                   const ModelOptions&,
                                                   Stream);
  ModelFacts facts_;
  std::unique_ptr<ParameterStore> parameters_;  // layers point to it
  // Of the checkpoint it was declared from: later checkpoints must agree.
  std::unique_ptr<checkpoint::ModelConfig> config_;
  Source first_source_;
  LoadTimes load_times_;
  bool online_nvfp4_ = false;  // later checkpoints are quantized like the first
};

// The model that the checkpoint's config names, with kernels chosen and parameters declared but
// without memory: what can be refused before a weight is read.
Result<std::unique_ptr<Model>> declare_model(const checkpoint::Checkpoint& checkpoint,
                                             const ModelOptions& options);

// Opens the checkpoint, declares the model and loads the weights.
Result<std::unique_ptr<Model>> load_model(const std::string& directory,
                                          const ModelOptions& options,
                                          Stream stream,
                                          const ParameterStore::Progress& progress = {});

// The part of a model that options.slice names, from an open checkpoint. Manifests are not looked
// at.
Result<std::unique_ptr<Model>> load_slice(const checkpoint::Checkpoint& checkpoint,
                                          const ModelOptions& options,
                                          Stream stream);

}  // namespace nibble::model
