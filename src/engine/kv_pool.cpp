#include "engine/kv_pool.h"

#include <algorithm>

#include "base/check.h"

namespace nibble::engine {

KvPool::KvPool(const KvGeometry& geometry, int64_t num_pages)
    : geometry_(geometry), taken_(static_cast<size_t>(num_pages), false) {
  free_.reserve(taken_.size());
  for (int64_t page = num_pages - 1; page >= 0; --page) {
    free_.push_back(static_cast<int32_t>(page));
  }
}

Result<KvPool> KvPool::create(const KvGeometry& geometry, int64_t num_pages, Stream stream) {
  KvPool pool(geometry, num_pages);
  pool.memory_ =
      TRY(Buffer::allocate_fixed("kv cache", static_cast<size_t>(pool.size_bytes()), stream));
  pool.point_layers();
  return pool;
}

Result<void> KvPool::resume(Stream stream) {
  CHECK(!resident(), "the KV cache already has memory");
  TRY(memory_.restore(stream));
  point_layers();
  return {};
}

void KvPool::release() {
  memory_.drop();
  layers_.clear();
}

void KvPool::point_layers() {
  layers_.clear();
  const Shape shape{num_pages(), geometry_.page_size, geometry_.kv_heads, geometry_.head_dim};
  const auto bytes = static_cast<size_t>(num_elements(shape) * size_of(geometry_.dtype));
  // A CPU thread walks one head: its slots of a page lie together, so that hardware prefetchers
  // follow. GPU kernels load whole slots.
  const bool by_head = memory_.device().kind == Device::Kind::Cpu;
  const auto view = [&](size_t begin) {
    Tensor cache = memory_.view(geometry_.dtype, shape, begin);
    if (by_head) {
      cache.stride[1] = geometry_.head_dim;
      cache.stride[2] = geometry_.page_size * geometry_.head_dim;
    }
    return cache;
  };
  for (int64_t layer = 0; layer < geometry_.layers; ++layer) {
    const size_t begin = static_cast<size_t>(layer) * 2 * bytes;
    layers_.push_back({view(begin), view(begin + bytes)});
  }
}

std::optional<std::vector<int32_t>> KvPool::take(int64_t count) {
  if (count > free_pages()) {
    return std::nullopt;
  }
  std::vector<int32_t> pages;
  pages.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    pages.push_back(free_.back());
    taken_[static_cast<size_t>(free_.back())] = true;
    free_.pop_back();
  }
  return pages;
}

void KvPool::give(std::span<const int32_t> pages) {
  for (const int32_t page : pages) {
    CHECK(page >= 0 && page < num_pages() && taken_[static_cast<size_t>(page)],
          "page given back twice: ",
          page);
    taken_[static_cast<size_t>(page)] = false;
    free_.push_back(page);
  }
}

}  // namespace nibble::engine
