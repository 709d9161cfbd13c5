// Captured decode steps: one graph a batch size, replayed with other inputs at the same addresses.
// A batch takes the graph of the next size up; the rows that pad it have no KV, write none, and
// their logits are not read. Every address that a graph holds (weights, KV cache, scratch, these
// inputs) stays for the life of the engine, so graphs survive weight updates and released memory.
// Owned and used by the engine thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/error.h"
#include "engine/batch.h"
#include "engine/kv_pool.h"
#include "model/model.h"
#include "tensor/buffer.h"
#include "tensor/pinned_memory.h"

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
  // Where the tokens of a batch come from that the host does not know yet: slice i's is that of
  // results[rows[i]], drawn by the step before.
  struct Feed {
    Tensor results;
    std::vector<int32_t> rows;
  };
  // Enqueues the step of a batch that it takes: row i is that of slice i. turn: 0 or 1; the step
  // that was enqueued with the same turn before has to be over: the device reads the turn's host
  // memory until then.
  void run(const Batch& batch, const KvPool& pool, int turn, const Feed* feed, const SmallOps& ops);

  size_t count() const { return graphs_.size(); }
  size_t memory_bytes() const { return memory_bytes_; }  // what capturing took on the device
  size_t input_bytes() const { return inputs_.size_bytes(); }
  size_t pinned_bytes() const { return host_[0].size_bytes() + host_[1].size_bytes(); }

 private:
  struct Graph {
    int64_t size = 0;
    void* handle = nullptr;
  };
  model::BatchView view_of(int64_t size, std::span<const model::KvLayer> kv) const;
  void clear() noexcept;

  // Fields of a step: on the device each `most_` i32 one after another, then q_begin, rows and the
  // page table. On the host each as long as the graph has rows, so that those of a small step lie
  // next to each other; there kSources, of tokens that are fed, comes after those of the device.
  // NOLINTNEXTLINE(readability-identifier-naming): indices, used as the constants they are
  enum Field { kTokens, kPositions, kSlots, kLengths, kNumFields, kSources = kNumFields };
  int64_t pages_offset() const;  // of host_, in i32

  Stream stream_;
  std::vector<Graph> graphs_;  // by size
  int64_t most_ = 0;
  int64_t max_pages_ = 0;
  Buffer inputs_;
  std::array<PinnedMemory, 2> host_;  // by turn: fields and sources, then rows of pages
  size_t memory_bytes_ = 0;
};

}  // namespace nibble::engine
