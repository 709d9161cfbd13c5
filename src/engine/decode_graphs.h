// Captured decode steps: one graph a batch size, replayed with other inputs at the same addresses.
// A batch takes the graph of the next size up; the rows that pad it have no KV, write none, and
// their logits are not read. Every address that a graph holds (weights, KV cache, scratch, these
// inputs) stays for the life of the engine, so graphs survive weight updates and released memory.
// Owned and used by the engine thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/error.h"
#include "engine/batch.h"
#include "engine/kv_pool.h"
#include "model/model.h"
#include "tensor/buffer.h"

namespace nibble::engine {

// Batch sizes worth a graph up to `most`, which is one of them: upstream's list (1, 2, 4, then
// steps of 4, 8 and 16 up to 512).
std::vector<int64_t> decode_graph_sizes(int64_t most);

class DecodeGraphs {
 public:
  // Enqueues one step of the view: what is captured.
  using Step = std::function<void(const model::BatchView&)>;

  DecodeGraphs() = default;  // takes no batch
  DecodeGraphs(DecodeGraphs&& other) noexcept;
  DecodeGraphs& operator=(DecodeGraphs&& other) noexcept;
  DecodeGraphs(const DecodeGraphs&) = delete;
  DecodeGraphs& operator=(const DecodeGraphs&) = delete;
  ~DecodeGraphs();

  // Every size is run once before it is captured. sizes: ascending.
  static Result<DecodeGraphs> capture(const std::vector<int64_t>& sizes,
                                      int64_t max_pages_per_seq,
                                      std::span<const model::KvLayer> kv,
                                      Stream stream,
                                      const Step& step);

  bool takes(const Batch& batch) const;
  // Enqueues the step of a batch that it takes: row i is that of slice i.
  void run(const Batch& batch, const KvPool& pool);

  size_t count() const { return graphs_.size(); }
  size_t memory_bytes() const { return memory_bytes_; }  // what capturing took on the device

 private:
  struct Graph {
    int64_t size = 0;
    void* handle = nullptr;
  };
  model::BatchView view_of(int64_t size, std::span<const model::KvLayer> kv) const;
  void clear() noexcept;

  // Fields of a step, each `most_` i32 one after another; then q_begin, rows and the page table.
  enum Field { kTokens, kPositions, kSlots, kLengths, kNumFields };

  Stream stream_;
  std::vector<Graph> graphs_;  // by size
  int64_t most_ = 0;
  int64_t max_pages_ = 0;
  Buffer inputs_;
  std::vector<int32_t> fields_;
  std::vector<int32_t> pages_;
  size_t memory_bytes_ = 0;
};

}  // namespace nibble::engine
