// The pages of the KV cache: memory of all layers and a free list of page numbers. Who owns a page
// (a sequence or the prefix cache) is not known here. Owned by the engine thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "model/model.h"
#include "tensor/buffer.h"

namespace nibble::engine {

struct KvGeometry {
  int64_t layers = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t page_size = 16;
  DType dtype = DType::BF16;
  // Of all layers, keys and values.
  int64_t page_bytes() const {
    return layers * 2 * page_size * kv_heads * head_dim * size_of(dtype);
  }
};

class KvPool {
 public:
  static Result<KvPool> create(const KvGeometry& geometry, int64_t num_pages, Stream stream);
  // Bookkeeping without memory, for tests of the scheduler.
  explicit KvPool(const KvGeometry& geometry, int64_t num_pages);

  int64_t page_size() const { return geometry_.page_size; }
  int64_t num_pages() const { return static_cast<int64_t>(taken_.size()); }
  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  int64_t size_bytes() const { return num_pages() * geometry_.page_bytes(); }
  int64_t pages_of(int64_t tokens) const {
    return (tokens + geometry_.page_size - 1) / geometry_.page_size;
  }

  // Lowest free numbers first, so that a fresh pool is filled in order; nullopt when too few.
  std::optional<std::vector<int32_t>> take(int64_t count);
  void give(std::span<const int32_t> pages);

  std::span<const model::KvLayer> layers() const { return layers_; }

  // Gives the memory back; page numbers stay valid, contents do not.
  void release();
  Result<void> resume(Stream stream);
  bool resident() const { return memory_.data() != nullptr; }

 private:
  void point_layers();

  KvGeometry geometry_;
  Buffer memory_;
  std::vector<model::KvLayer> layers_;
  std::vector<int32_t> free_;  // a stack
  std::vector<bool> taken_;
};

}  // namespace nibble::engine
