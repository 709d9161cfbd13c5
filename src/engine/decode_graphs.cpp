#include "engine/decode_graphs.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/progress.h"
#include "tensor/device_api.h"

namespace nibble::engine {

std::vector<int64_t> decode_graph_sizes(int64_t most) {
  std::vector<int64_t> sizes;
  const auto add = [&](int64_t first, int64_t last, int64_t step) {
    for (int64_t size = first; size <= last && size < most; size += step) {
      sizes.push_back(size);
    }
  };
  add(1, 2, 1);
  add(4, 16, 4);
  add(24, 256, 8);
  add(272, 512, 16);
  add(544, most, 32);
  if (most > 0) {
    sizes.push_back(most);
  }
  return sizes;
}

DecodeGraphs::DecodeGraphs(DecodeGraphs&& other) noexcept { *this = std::move(other); }

DecodeGraphs& DecodeGraphs::operator=(DecodeGraphs&& other) noexcept {
  std::swap(stream_, other.stream_);
  std::swap(graphs_, other.graphs_);
  std::swap(most_, other.most_);
  std::swap(max_pages_, other.max_pages_);
  std::swap(inputs_, other.inputs_);
  std::swap(host_, other.host_);
  std::swap(memory_bytes_, other.memory_bytes_);
  return *this;
}

DecodeGraphs::~DecodeGraphs() { clear(); }

void DecodeGraphs::clear() noexcept {
  for (const Graph& graph : graphs_) {
    device_api(stream_.device).destroy_graph(graph.handle);
  }
  graphs_.clear();
}

int64_t DecodeGraphs::pages_offset() const {
  return ((kSources + 1) * most_ + 3) / 4 * 4;  // of 16 bytes, which the device reads at once
}

model::BatchView DecodeGraphs::view_of(int64_t size, std::span<const model::KvLayer> kv) const {
  const auto part = [this](int64_t offset, Shape shape) {
    return inputs_.view(DType::I32, shape, static_cast<size_t>(offset) * sizeof(int32_t));
  };
  model::BatchView view;
  view.tokens = part(kTokens * most_, {size});
  view.positions = part(kPositions * most_, {size});
  view.kv_slots = part(kSlots * most_, {size});
  view.kv_lens = part(kLengths * most_, {size});
  view.q_begin = part(kNumFields * most_, {size + 1});
  view.rows = part(kNumFields * most_, {size});  // row i is sequence i, as q_begin says
  view.page_table = part((kNumFields + 1) * most_ + 1, {size, max_pages_});
  view.decode = true;
  view.kv = kv;
  return view;
}

Result<DecodeGraphs> DecodeGraphs::capture(const std::vector<int64_t>& sizes,
                                           int64_t max_pages_per_seq,
                                           std::span<const model::KvLayer> kv,
                                           Stream stream,
                                           const Step& step) {
  const DeviceApi& api = device_api(stream.device);
  CHECK(api.begin_capture != nullptr && !sizes.empty(), "graphs of a device that has none");
  DecodeGraphs graphs;
  graphs.stream_ = stream;
  graphs.most_ = sizes.back();
  graphs.max_pages_ = max_pages_per_seq;
  const int64_t ints = (kNumFields + 1 + max_pages_per_seq) * graphs.most_ + 1;
  std::vector<int32_t> all(static_cast<size_t>(ints), 0);
  // Padding until a batch comes: no slot, no KV. q_begin counts up.
  std::fill_n(all.begin() + kSlots * graphs.most_, graphs.most_, -1);
  for (int64_t i = 0; i <= graphs.most_; ++i) {
    all[static_cast<size_t>(kNumFields * graphs.most_ + i)] = static_cast<int32_t>(i);
  }
  graphs.inputs_ = TRY(Buffer::allocate("graph inputs", all.size() * sizeof(int32_t), stream));
  for (PinnedMemory& host : graphs.host_) {
    host = TRY(PinnedMemory::allocate(
        "graph inputs",
        static_cast<size_t>(graphs.pages_offset() + max_pages_per_seq * graphs.most_) *
            sizeof(int32_t),
        stream.device));
  }
  api.copy_to_device(graphs.inputs_.data(), all.data(), all.size() * sizeof(int32_t), stream);
  api.synchronize(stream);

  size_t free_before = 0;
  size_t total = 0;
  api.memory_info(stream.device, &free_before, &total);
  Progress progress("capturing decode graphs", sizes.size(), "graphs");
  // Largest first: smaller ones find what the driver set up for it.
  for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
    const model::BatchView view = graphs.view_of(*size, kv);
    step(view);
    api.synchronize(stream);
    api.begin_capture(stream);
    step(view);
    graphs.graphs_.insert(graphs.graphs_.begin(), {*size, api.end_capture(stream)});
    progress.advance(1);
  }
  progress.finish();
  size_t free_after = 0;
  api.memory_info(stream.device, &free_after, &total);
  graphs.memory_bytes_ = free_before > free_after ? free_before - free_after : 0;
  return graphs;
}

bool DecodeGraphs::takes(const Batch& batch) const {
  return batch.decode && static_cast<int64_t>(batch.slices.size()) <= most_;
}

void DecodeGraphs::run(
    const Batch& batch, const KvPool& pool, int turn, const Feed* feed, const SmallOps& ops) {
  const auto count = static_cast<int64_t>(batch.slices.size());
  const auto graph = std::find_if(
      graphs_.begin(), graphs_.end(), [count](const Graph& g) { return g.size >= count; });
  CHECK(graph != graphs_.end(), "a batch of ", count, " has no graph");
  const int64_t page_size = pool.page_size();
  int64_t width = 1;
  for (const Slice& slice : batch.slices) {
    width = std::max(width, pool.pages_of(slice.begin + 1));
  }
  CHECK(width <= max_pages_, "a sequence exceeds what the graphs were captured for");

  // The host writes here while the step of the other turn is under way, which reads its own memory;
  // what read this one, the step of the same turn before, is over.
  const int64_t size = graph->size;
  auto* fields = reinterpret_cast<int32_t*>(host_[static_cast<size_t>(turn)].data());
  int32_t* pages = fields + pages_offset();
  std::fill_n(fields, (kSources + 1) * size, 0);
  std::fill_n(fields + kSlots * size, size, -1);
  std::fill_n(fields + kSources * size, size, -1);
  std::fill_n(pages, count * width, 0);
  for (int64_t i = 0; i < count; ++i) {
    const Slice& slice = batch.slices[static_cast<size_t>(i)];
    const Sequence& sequence = *slice.sequence;
    const auto set = [&](Field field, int64_t value) {
      fields[field * size + i] = static_cast<int32_t>(value);
    };
    const int64_t page = sequence.pages[static_cast<size_t>(slice.begin / page_size)];
    if (feed != nullptr) {
      set(kSources, feed->rows[static_cast<size_t>(i)]);
    } else {
      set(kTokens, sequence.tokens[static_cast<size_t>(slice.begin)]);
    }
    set(kPositions, slice.begin);
    set(kSlots, page * page_size + slice.begin % page_size);
    set(kLengths, slice.begin + 1);
    std::copy_n(sequence.pages.begin(), pool.pages_of(slice.begin + 1), pages + i * width);
  }
  const auto of_host = [this](int32_t* data, Shape shape) {
    return Tensor(data, DType::I32, shape, stream_.device);
  };
  StepInputs inputs;
  inputs.fields = of_host(fields, {kNumFields, size});
  inputs.pages = of_host(pages, {count, width});
  if (feed != nullptr) {
    inputs.sources = of_host(fields + kSources * size, {size});
    inputs.results = feed->results;
  }
  inputs.to_fields = inputs_.view(DType::I32, {kNumFields, most_});
  inputs.to_fields.shape[1] = size;
  inputs.to_pages = view_of(size, {}).page_table;
  ops.place_inputs(inputs, stream_);
  device_api(stream_.device).launch_graph(graph->handle, stream_);
}

}  // namespace nibble::engine
