#pragma once
// Times of the attention kernels: a part of attention_check.cu, inside its namespace. One call is a
// node of a CUDA graph over disjoint page sets, so that nothing is in L2 when it is asked for.

/// Reads everything once: what a decode call cannot be faster than by much.
__global__ void read_all(const uint4* data, int64_t count, uint4* sink) {
  uint4 sum{};
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i + 3 * stride < count; i += 4 * stride) {
    uint4 v[4];
    for (int j = 0; j < 4; ++j) {
      v[j] = __ldcs(data + i + j * stride);
    }
    for (int j = 0; j < 4; ++j) {
      sum.x ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
  }
  for (; i < count; i += stride) {
    const uint4 v = __ldcs(data + i);
    sum.x ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum.x == 0x12345678) {
    *sink = sum;
  }
}

/// Median microseconds of one of `calls` calls that a graph holds.
double graph_us(int calls, const std::function<void(int, cudaStream_t)>& call) {
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < calls; ++i) {
    call(i, stream);
  }
  CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t a, b;
  cudaEventCreate(&a);
  cudaEventCreate(&b);
  std::vector<double> times;
  double spent = 0;
  for (int i = 0; i < 200 && (i < 8 || spent < 60e3); ++i) {
    cudaEventRecord(a, stream);
    CUDA_CHECK(cudaGraphLaunch(exec, stream));
    cudaEventRecord(b, stream);
    CUDA_CHECK(cudaEventSynchronize(b));
    float ms = 0;
    cudaEventElapsedTime(&ms, a, b);
    spent += ms * 1e3;
    if (i >= 3) {
      times.push_back(ms * 1e3 / calls);
    }
  }
  cudaEventDestroy(a);
  cudaEventDestroy(b);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

/// Codes below 1 in magnitude: random values whose exponents do not overflow.
__global__ void fill_e4m3(uint8_t* out, int64_t count, uint64_t seed) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    out[i] = static_cast<uint8_t>(hash32(seed + static_cast<uint64_t>(i)) & 0xB7u);
  }
}

/// Several calls' worth of pages in one cache, in random order.
struct TimedBatch {
  Heads heads;
  std::vector<int> lengths;
  int calls;
  int64_t pages_a_call = 0, most_pages = 1, kv_bytes = 0;
  std::unique_ptr<DeviceArray<uint8_t>> k, v;
  std::unique_ptr<DeviceArray<__nv_bfloat16>> q;
  std::unique_ptr<DeviceArray<float>> one;
  std::unique_ptr<DeviceArray<uint16_t>> out;
  std::unique_ptr<DeviceArray<int32_t>> table, begin, lens;
  std::unique_ptr<DeviceArray<uint8_t>> workspace;
  std::unique_ptr<DeviceArray<uint32_t>> counters;

  TimedBatch(const Heads& h, std::vector<int> kv_lengths, int rows)
      : heads(h), lengths(std::move(kv_lengths)) {
    const auto seqs = static_cast<int64_t>(lengths.size());
    for (const int length : lengths) {
      const int64_t pages = (length + h.page_size - 1) / h.page_size;
      pages_a_call += pages;
      most_pages = std::max(most_pages, pages);
      kv_bytes += static_cast<int64_t>(length) * h.kv_heads * h.head_dim * 2 * h.value_bytes();
    }
    calls = static_cast<int>(std::clamp<int64_t>(400'000'000 / kv_bytes + 1, 2, 60));
    const int64_t values = pages_a_call * calls * h.page_size * h.kv_heads * h.head_dim;
    k = std::make_unique<DeviceArray<uint8_t>>(values * h.value_bytes());
    v = std::make_unique<DeviceArray<uint8_t>>(values * h.value_bytes());
    one = std::make_unique<DeviceArray<float>>(1);
    one->set(std::vector<float>{1.0f});
    const int64_t q_values = seqs * rows * (h.heads + 2 * h.kv_heads) * h.head_dim;
    q = std::make_unique<DeviceArray<__nv_bfloat16>>(q_values);
    for (const auto& [cache, seed] : {std::pair{k->get(), 1}, std::pair{v->get(), 2}}) {
      if (h.is_e4m3) {
        fill_e4m3<<<2048, 256>>>(cache, values, static_cast<uint64_t>(seed) << 40);
      } else {
        fill_activations<<<2048, 256>>>(
            reinterpret_cast<__nv_bfloat16*>(cache), values, static_cast<uint64_t>(seed), false);
      }
    }
    fill_activations<<<2048, 256>>>(q->get(), q_values, 3, false);
    CUDA_CHECK(cudaGetLastError());
    out = std::make_unique<DeviceArray<uint16_t>>(seqs * rows * h.heads * h.head_dim);
    std::vector<int32_t> order(pages_a_call * calls), tables(seqs * most_pages * calls), begins{0};
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937_64(1));
    size_t next = 0;
    for (int call = 0; call < calls; ++call) {
      for (int64_t s = 0; s < seqs; ++s) {
        for (int64_t i = 0; i * h.page_size < lengths[s]; ++i) {
          tables[(call * seqs + s) * most_pages + i] = order[next++];
        }
      }
    }
    for (int64_t s = 0; s < seqs; ++s) {
      begins.push_back(static_cast<int32_t>((s + 1) * rows));
    }
    table = std::make_unique<DeviceArray<int32_t>>(static_cast<int64_t>(tables.size()));
    table->set(tables);
    begin = std::make_unique<DeviceArray<int32_t>>(seqs + 1);
    begin->set(begins);
    lens = std::make_unique<DeviceArray<int32_t>>(seqs);
    lens->set(lengths);
    workspace = std::make_unique<DeviceArray<uint8_t>>(static_cast<int64_t>(
        cuda::attention_decode_workspace_bytes(h.heads, h.kv_heads, h.head_dim)));
    counters = std::make_unique<DeviceArray<uint32_t>>(cuda::attention_decode_counters());
    counters->poison(0);
    CUDA_CHECK(cudaDeviceSynchronize());
  }

  PagedAttention call(int which) const {
    PagedAttention c{};
    c.q = q->get();
    c.k = k->get();
    c.v = v->get();
    if (heads.is_e4m3) {
      c.k_scale = c.v_scale = one->get();
    }
    c.page_table = table->get() + which * static_cast<int64_t>(lengths.size()) * most_pages;
    c.q_begin = begin->get();
    c.kv_lens = lens->get();
    c.out = out->get();
    c.workspace = workspace->get();
    c.counters = counters->get();
    c.q_stride = (heads.heads + 2 * heads.kv_heads) * heads.head_dim;
    c.table_stride = most_pages;
    c.pages = pages_a_call * calls;
    c.seqs = static_cast<int>(lengths.size());
    c.tokens = static_cast<int>(out->count() / heads.heads / heads.head_dim);
    c.heads = heads.heads;
    c.kv_heads = heads.kv_heads;
    c.head_dim = heads.head_dim;
    c.page_size = heads.page_size;
    c.scale = 1.0f / std::sqrt(static_cast<float>(heads.head_dim));
    return c;
  }
};

void print_decode_time(const Heads& heads,
                       const std::string& name,
                       const std::vector<int>& lengths) {
  const TimedBatch batch(heads, lengths, 1);
  DeviceArray<uint4> sink(1);
  const double own = graph_us(batch.calls, [&](int i, cudaStream_t stream) {
    cuda::launch_attention_decode_paged(batch.call(i), stream);
  });
  const int64_t part = batch.kv_bytes / 32;  // uint4 of K, and of V
  const double read = graph_us(batch.calls, [&](int i, cudaStream_t stream) {
    const auto* data = reinterpret_cast<const uint4*>(batch.k->get());
    read_all<<<132 * 4, 512, 0, stream>>>(
        data + static_cast<int64_t>(i % (batch.calls / 2)) * 2 * part, 2 * part, sink.get());
  });
  std::printf("%-34s %6d/%-3d %4d %4d %9.1f %9.1f %9.1f %9.1f %7.0f %6.1f\n",
              (name + (heads.is_e4m3 ? ", e4m3" : "")).c_str(),
              heads.heads,
              heads.kv_heads,
              heads.head_dim,
              heads.page_size,
              batch.kv_bytes / 1e6,
              batch.kv_bytes / 4.59e6,
              read,
              own,
              batch.kv_bytes / own / 1e3,
              100 * read / own);
  std::fflush(stdout);
}

std::vector<int> log_uniform(int count, int low, int high) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> uniform(std::log(low), std::log(high));
  std::vector<int> lengths;
  for (int i = 0; i < count; ++i) {
    lengths.push_back(static_cast<int>(std::exp(uniform(random))));
  }
  return lengths;
}

/// A few calls outside of graphs, for a profiler.
void run_for_profile() {
  for (const auto& [seqs, context] :
       {std::pair{1, 1024}, std::pair{64, 1024}, std::pair{64, 8192}}) {
    const TimedBatch batch({32, 8, 128, 16}, std::vector<int>(seqs, context), 1);
    cuda::launch_attention_decode_paged(batch.call(0), nullptr);
    cuda::launch_attention_decode_paged(batch.call(1), nullptr);
    CUDA_CHECK(cudaDeviceSynchronize());
  }
  const TimedBatch batch({32, 8, 128, 16}, {8192}, 8192);
  cuda::launch_attention_prefill_sm90(batch.call(0), nullptr);
  cuda::launch_attention_prefill_sm90(batch.call(1), nullptr);
  CUDA_CHECK(cudaDeviceSynchronize());
}

void print_decode_times() {
  std::printf("\ndecode, us\n%-34s %10s %4s %4s %9s %9s %9s %9s %7s %6s\n",
              "batch x context",
              "heads",
              "dim",
              "page",
              "KV MB",
              "floor",
              "read",
              "kernel",
              "GB/s",
              "% read");
  const Heads usual{32, 8, 128, 16};
  for (const auto& [seqs, context] : {std::pair{1, 128},
                                      std::pair{1, 1024},
                                      std::pair{1, 2048},
                                      std::pair{1, 8192},
                                      std::pair{1, 32768},
                                      std::pair{1, 131072},
                                      std::pair{8, 1024},
                                      std::pair{32, 1024},
                                      std::pair{64, 1024},
                                      std::pair{128, 1024},
                                      std::pair{256, 1024},
                                      std::pair{8, 8192},
                                      std::pair{32, 8192},
                                      std::pair{64, 8192},
                                      std::pair{128, 8192}}) {
    print_decode_time(usual,
                      std::to_string(seqs) + " x " + std::to_string(context),
                      std::vector<int>(seqs, context));
  }
  std::vector<int> one_long(63, 512);
  one_long.push_back(65536);
  print_decode_time(usual, "63 x 512 + 1 x 65536", one_long);
  std::vector<int> some_long(28, 512);
  some_long.insert(some_long.end(), 4, 16384);
  print_decode_time(usual, "28 x 512 + 4 x 16384", some_long);
  print_decode_time(usual, "64 log-uniform 128..32768", log_uniform(64, 128, 32768));
  print_decode_time(usual, "256 log-uniform 64..8192", log_uniform(256, 64, 8192));
  for (const auto& [seqs, context] : {std::pair{1, 128},
                                      std::pair{1, 1024},
                                      std::pair{1, 8192},
                                      std::pair{1, 32768},
                                      std::pair{8, 1024},
                                      std::pair{32, 1024},
                                      std::pair{64, 1024},
                                      std::pair{256, 1024},
                                      std::pair{8, 8192},
                                      std::pair{32, 8192},
                                      std::pair{64, 8192},
                                      std::pair{128, 8192}}) {
    print_decode_time({32, 8, 128, 16, true},
                      std::to_string(seqs) + " x " + std::to_string(context),
                      std::vector<int>(seqs, context));
  }
  for (const Heads& heads : {Heads{64, 8, 128, 16},
                             Heads{64, 8, 128, 16, true},
                             Heads{32, 8, 64, 16, true},
                             Heads{32, 8, 64, 16},
                             Heads{32, 2, 128, 16},
                             Heads{32, 8, 128, 64}}) {
    for (const auto& [seqs, context] :
         {std::pair{1, 8192}, std::pair{8, 1024}, std::pair{64, 1024}, std::pair{64, 8192}}) {
      print_decode_time(heads,
                        std::to_string(seqs) + " x " + std::to_string(context),
                        std::vector<int>(seqs, context));
    }
  }
}

/// Chunks of `rows` tokens, each the end of a sequence of `length`.
void print_prefill_time(const Heads& heads, int seqs, int rows, int length) {
  const TimedBatch batch(heads, std::vector<int>(static_cast<size_t>(seqs), length), rows);
  const double own = graph_us(std::min(batch.calls, 20), [&](int i, cudaStream_t stream) {
    cuda::launch_attention_prefill_sm90(batch.call(i), stream);
  });
  const double pairs = static_cast<double>(rows) * (length - rows) + 0.5 * rows * (rows + 1.0);
  const double flops = 4.0 * pairs * seqs * heads.heads * heads.head_dim;
  std::printf("%d x %d on %-6d %10d/%-3d %4d %4d %10.1f %10.1f %9.0f %6.1f%s\n",
              seqs,
              rows,
              length - rows,
              heads.heads,
              heads.kv_heads,
              heads.head_dim,
              heads.page_size,
              flops / 790e6,
              own,
              flops / own / 1e6,
              flops / own / 7.9e6,
              heads.is_e4m3 ? "  e4m3" : "");
  std::fflush(stdout);
}

void print_prefill_times() {
  std::printf("\nprefill, us\n%-18s %10s %4s %4s %10s %10s %9s %6s\n",
              "batch x rows on",
              "heads",
              "dim",
              "page",
              "floor",
              "kernel",
              "TFLOP/s",
              "% 790");
  for (const Heads& heads :
       {Heads{32, 8, 128, 16}, Heads{32, 8, 128, 16, true}, Heads{64, 8, 128, 16}}) {
    print_prefill_time(heads, 1, 512, 512);
    print_prefill_time(heads, 1, 2048, 2048);
    print_prefill_time(heads, 1, 8192, 8192);
    print_prefill_time(heads, 8, 1024, 1024);
    print_prefill_time(heads, 1, 512, 4608);
    print_prefill_time(heads, 1, 2048, 32048);
  }
  print_prefill_time({32, 8, 128, 64}, 1, 2048, 2048);
  print_prefill_time({32, 8, 128, 64}, 1, 8192, 8192);
  print_prefill_time({32, 8, 64, 16}, 1, 2048, 2048);
  print_prefill_time({32, 8, 64, 16}, 1, 8192, 8192);
  print_prefill_time({32, 8, 64, 16, true}, 1, 8192, 8192);
  print_prefill_time({32, 32, 128, 16}, 1, 2048, 2048);
}
