// The inputs of a captured decode step, from where the host wrote them to where the graph reads
// them, in one kernel: copies would each be an operation of the stream that the next one waits for,
// and the tokens that the step before drew want a kernel anyway. The device reads the pinned memory
// itself, 16 bytes a thread and neighbours by neighbours, so the bus carries whole lines and large
// page tables come at about the speed of a copy: there is no second way for them.
#include <algorithm>
#include <cstdint>

#include <cuda_runtime.h>

#include "backends/cuda/draw_tokens.h"
#include "backends/cuda/launch.cuh"
#include "base/check.h"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 8;

struct Params {
  const int32_t* fields;   // [num_fields, rows], of the host
  const int32_t* sources;  // [rows], of the host; nullptr: none
  const int32_t* pages;    // [seqs, width], of the host
  const DrawResult* results;
  int32_t* to_fields;
  int32_t* to_pages;
  int64_t fields_stride, pages_stride;  // of what is written
  int rows, width;
  int num_values, num_pages;  // of all fields, of all rows of the table
  int num_chunks;             // of four pages; what is left goes one by one
};

__device__ __forceinline__ void put_page(const Params& p, int at, int32_t page) {
  p.to_pages[at / p.width * p.pages_stride + at % p.width] = page;
}

__device__ __forceinline__ void put_chunk(const Params& p, int chunk, const int4& pages) {
  put_page(p, 4 * chunk, pages.x);
  put_page(p, 4 * chunk + 1, pages.y);
  put_page(p, 4 * chunk + 2, pages.z);
  put_page(p, 4 * chunk + 3, pages.w);
}

// What the host wrote is read before the wait: it was there before the launch, and no kernel writes
// it. Past all caches, as the host writes it anew for every second step. The next kernel is not let
// in early: kernels of a step read their inputs before they wait.
__global__ void __launch_bounds__(kThreads) place_inputs_kernel(const Params p) {
  const int thread = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int step = static_cast<int>(gridDim.x) * kThreads;
  const int rest = 4 * p.num_chunks + thread;  // the page of this thread that is in no chunk
  const auto* chunks = reinterpret_cast<const int4*>(p.pages);
  int4 first{};
  int32_t value = 0;
  int32_t source = -1;
  int32_t page = 0;
  if (thread < p.num_chunks) {
    first = __ldcv(chunks + thread);
  }
  if (thread < p.num_values) {
    value = __ldcv(p.fields + thread);
  }
  if (p.sources != nullptr && thread < p.rows) {
    source = __ldcv(p.sources + thread);
  }
  if (rest < p.num_pages) {
    page = __ldcv(p.pages + rest);
  }
#if __CUDA_ARCH__ >= 900
  wait_for_previous_kernel();
#endif
  if (thread < p.num_values) {
    if (source >= 0) {
      value = max(p.results[source].token, 0);
    }
    p.to_fields[thread / p.rows * p.fields_stride + thread % p.rows] = value;
  }
  if (thread < p.num_chunks) {
    put_chunk(p, thread, first);
  }
  for (int i = thread + step; i < p.num_chunks; i += step) {
    put_chunk(p, i, __ldcv(chunks + i));
  }
  if (rest < p.num_pages) {
    put_page(p, rest, page);
  }
  for (int i = rest + step; i < p.num_pages; i += step) {
    put_page(p, i, __ldcv(p.pages + i));
  }
}

}  // namespace

void place_inputs(const StepInputs& inputs, Stream stream) {
  const int64_t rows = inputs.fields.shape[1];
  const int64_t num_values = inputs.fields.shape[0] * rows;
  const int64_t width = inputs.pages.shape[1];
  const int64_t num_pages = inputs.pages.shape[0] * width;
  CHECK(inputs.to_fields.shape == inputs.fields.shape, "fields of a step of another size");
  CHECK(inputs.sources.empty() || inputs.sources.shape[0] == rows, "a source for each row");
  CHECK(width <= inputs.to_pages.shape[1] && inputs.pages.shape[0] <= inputs.to_pages.shape[0],
        "a page table wider or longer than its place");
  Params p{};
  p.fields = inputs.fields.as<int32_t>();
  p.pages = inputs.pages.as<int32_t>();
  if (!inputs.sources.empty()) {
    p.sources = inputs.sources.as<int32_t>();
    p.results = reinterpret_cast<const DrawResult*>(inputs.results.as<uint8_t>());
  }
  p.to_fields = inputs.to_fields.as<int32_t>();
  p.to_pages = inputs.to_pages.as<int32_t>();
  p.fields_stride = inputs.to_fields.stride[0];
  p.pages_stride = inputs.to_pages.stride[0];
  p.rows = static_cast<int>(rows);
  p.width = static_cast<int>(width);
  p.num_values = static_cast<int>(num_values);
  p.num_pages = static_cast<int>(num_pages);
  const bool aligned = reinterpret_cast<uintptr_t>(p.pages) % sizeof(int4) == 0;
  p.num_chunks = aligned ? p.num_pages / 4 : 0;
  // Every field has a thread of its own; pages go round where there are more than fit at once.
  const int64_t most =
      static_cast<int64_t>(kBlocksPerMultiprocessor) * multiprocessors() * kThreads;
  const int64_t threads = std::max<int64_t>(
      {num_values,
       std::min<int64_t>(std::max(p.num_chunks, p.num_pages - 4 * p.num_chunks), most),
       1});
  launch_overlapped(place_inputs_kernel,
                    dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads)),
                    kThreads,
                    static_cast<cudaStream_t>(stream.native),
                    p);
}

}  // namespace nibble::cuda
