// Runs a model's forward by hand: one sequence, cut into chunks as a test likes, logits of every
// position.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/kv_pool.h"
#include "engine/runner.h"
#include "model/model.h"
#include "tensor/device_api.h"

namespace nibble::test {

struct HarnessOptions {
  Device device = {};
  Nvfp4Mode mode = Nvfp4Mode::Auto;
  std::string fp4_gemm_backend = "auto";
  std::string moe_runner_backend = "auto";
  std::string attention_backend = "auto";
  int num_threads = 2;
  int64_t page_size = 16;
  DType kv_dtype = DType::BF16;
};

class ForwardHarness {
 public:
  static Result<std::unique_ptr<ForwardHarness>> load(const std::string& directory,
                                                      const HarnessOptions& options = {});
  const model::Model& model() const { return *model_; }
  model::Model& model() { return *model_; }
  Stream stream() const { return stream_.get(); }

  // [tokens, vocab] logits of `ids`, fed `chunk` tokens a step (0: all at once).
  std::vector<float> logits(const std::vector<int32_t>& ids, int64_t chunk = 0);

 private:
  explicit ForwardHarness(StreamOwner stream) : stream_(std::move(stream)) {}
  StreamOwner stream_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<engine::KvPool> pool_;
  std::unique_ptr<engine::Runner> runner_;
};

// The highest level of the device, as ModelOptions wants it.
int best_isa(Device device = {});

// Whether this build and machine have such a device.
bool has_device(Device::Kind kind);

}  // namespace nibble::test
