#include "support/forward_harness.h"

#include <algorithm>

namespace nibble::test {

int best_isa(Device device) { return device_api(device).isa(device); }

bool has_device(Device::Kind kind) {
  const DeviceApi* api = find_device_api(kind);
  return api != nullptr && api->num_devices() > 0;
}

Result<std::unique_ptr<ForwardHarness>> ForwardHarness::load(const std::string& directory,
                                                             const HarnessOptions& options) {
  std::unique_ptr<ForwardHarness> harness(
      new ForwardHarness(StreamOwner(options.device, options.num_threads)));
  const Stream stream = harness->stream();
  model::ModelOptions model_options;
  model_options.device = options.device;
  model_options.isa = best_isa(options.device);
  model_options.nvfp4_mode = options.mode;
  model_options.fp4_gemm_backend = options.fp4_gemm_backend;
  model_options.moe_runner_backend = options.moe_runner_backend;
  model_options.attention_backend = options.attention_backend;
  model_options.page_size = options.page_size;
  model_options.kv_dtype = options.kv_dtype;
  harness->model_ = TRY(model::load_model(directory, model_options, stream));
  const model::ModelFacts& facts = harness->model_->facts();
  const int64_t pages = (facts.context_length + options.page_size - 1) / options.page_size;
  harness->pool_ = std::make_unique<engine::KvPool>(TRY(engine::KvPool::create(
      {facts.layers, facts.kv_heads, facts.head_dim, options.page_size, facts.kv_dtype},
      pages,
      stream)));
  harness->runner_ = std::make_unique<engine::Runner>(
      TRY(engine::Runner::create(*harness->model_, {128, 4, pages}, stream)));
  return harness;
}

std::vector<float> ForwardHarness::logits(const std::vector<int32_t>& ids, int64_t chunk) {
  engine::Sequence sequence;
  sequence.tokens = ids;
  sequence.prompt_tokens = sequence.num_tokens();
  sequence.request.logprobs.prompt_start = 0;  // every position's logits are wanted
  sequence.pages = *pool_->take(pool_->pages_of(sequence.num_tokens()));
  std::vector<float> all;
  const int64_t step = chunk == 0 ? sequence.num_tokens() : chunk;
  while (sequence.computed < sequence.num_tokens()) {
    const int64_t count = std::min(step, sequence.num_tokens() - sequence.computed);
    engine::Batch batch;
    // Prompt tokens stay with the prefill kernel where decode has one of its own.
    batch.decode = count == 1 && stream().device.kind == Device::Kind::Cpu;
    batch.slices.push_back(
        {&sequence, sequence.computed, count, sequence.computed + count == sequence.num_tokens()});
    runner_->run(batch, *pool_, [&](std::span<const engine::LogitRow> rows) {
      for (const engine::LogitRow& row : rows) {
        all.insert(all.end(), row.logits.begin(), row.logits.end());
      }
    });
    sequence.computed += count;
  }
  pool_->give(sequence.pages);
  return all;
}

}  // namespace nibble::test
