// The layers of a dense decoder as one call for a generated token (ops/decode_step.h): whether they
// can be, and the call.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/dense_layer.h"
#include "model/model.h"
#include "ops/decode_step.h"

namespace nibble::model {

class FusedStep {
 public:
  FusedStep() = default;  // op by op
  // For a whole model that was declared without an error; `layers` must outlive it.
  FusedStep(std::span<const DenseLayer> layers, const ModelOptions& options);

  bool available() const { return backend_ != nullptr; }
  std::string_view kernel() const { return available() ? backend_->name : std::string_view(); }
  const std::string& why_not() const { return why_not_; }  // empty where available

  int64_t state_bytes() const { return available() ? backend_->state_bytes(desc_) : 0; }
  // As of Model::prepare_decode_step().
  void prepare(const Tensor& state, std::span<const KvLayer> kv, Stream stream) const;
  // Whether run() computes these tokens; otherwise the layers do, one after another.
  bool takes(const Context& context, const BatchView& batch) const;
  // residual: [1, hidden] bf16, as of Model::run_layers().
  void run(Context& context, const BatchView& batch, const Tensor& residual) const;

 private:
  std::span<const DenseLayer> layers_;
  DecodeStepDesc desc_;
  const DecodeStepBackend* backend_ = nullptr;
  std::string why_not_;
};

}  // namespace nibble::model
