// attention_check: the paged attention kernels on random data, one self-contained program.
//
// Every answer against float64 on the device; keys and values in bf16 and e4m3, head_dim 64 and
// 128, groups of 1 to 16 heads, pages of 8, 16 and 64 in random order, ragged lengths. Whatever
// must not be read is poisoned (unused cache slots are NaN, unused page table entries out of range,
// workspace and outputs NaN). The bits of a row must not depend on the batch, on chunking or on the
// run; a captured launch must serve other lengths; rows that decode prepares itself must have the
// bits of prepare_qkv before it. A wrong scale must fail. Exit code 0: all passed.
//
// attention_check [--no-timing | --bench | --bench-prefill | --profile | --small]; --small is for
// compute-sanitizer

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>

#include "backends/cuda/attention_paged.h"
#include "base/error.h"
#include "base/number_formats.h"
#include "bench/gpu/common.cuh"
#include "ops/kernels.h"

namespace nibble {
extern const SmallOps kCudaSmallOps;
}

namespace nibble::bench {
namespace {

using cuda::PagedAttention;

int failures = 0;
int64_t checks = 0;

void expect(bool ok, const std::string& what) {
  ++checks;
  if (!ok && ++failures < 40) {
    std::printf("FAILED %s\n", what.c_str());
    std::fflush(stdout);
  }
}

struct Heads {
  int heads, kv_heads, head_dim, page_size;
  bool is_e4m3 = false;
  int value_bytes() const { return is_e4m3 ? 1 : 2; }
  std::string text() const {
    return std::to_string(heads) + "/" + std::to_string(kv_heads) + " heads of " +
           std::to_string(head_dim) + ", pages of " + std::to_string(page_size) +
           (is_e4m3 ? ", e4m3" : "");
  }
};

/// Sequence `id` feeds the rows that end at KV length `length`.
struct Sequence {
  int id, length, rows;
};

// ---- data: a function of (sequence id, position, head, channel) ----

__device__ float random_value(int kind, int id, int position, int head, int channel) {
  const uint64_t key =
      ((static_cast<uint64_t>(kind * 4096 + id) << 40) | (static_cast<uint64_t>(position) << 18) |
       (static_cast<uint64_t>(head) << 10) | channel) *
      4;
  float sum = -2.0f;
  for (int i = 0; i < 4; ++i) {
    sum += static_cast<float>(hash32(key + i)) * (1.0f / 4294967296.0f);
  }
  return sum * 1.7f;
}

constexpr float kKeyScale = 0.02f;  // of e4m3
constexpr float kValueScale = 0.3f;

struct Filling {
  __nv_bfloat16* q;
  void *k, *v;
  const int32_t *page_table, *q_begin, *kv_lens, *ids;
  int64_t q_stride, table_stride;
  int heads, kv_heads, head_dim, page_size;
  bool is_e4m3;
};

__device__ void set_value(void* cache, bool is_e4m3, int64_t at, float value, float scale) {
  if (is_e4m3) {
    static_cast<uint8_t*>(cache)[at] = float_to_e4m3(value / scale);
  } else {
    static_cast<__nv_bfloat16*>(cache)[at] = __float2bfloat16(value);
  }
}

__device__ double value_at(const void* cache, const float* scale, int64_t at) {
  return scale != nullptr
             ? static_cast<double>(e4m3_to_float(static_cast<const uint8_t*>(cache)[at])) * *scale
             : __bfloat162float(static_cast<const __nv_bfloat16*>(cache)[at]);
}

__global__ void fill_cache(Filling f) {
  const int s = blockIdx.y;
  const int width = f.kv_heads * f.head_dim;
  for (int position = blockIdx.x; position < f.kv_lens[s]; position += gridDim.x) {
    const int64_t page = f.page_table[s * f.table_stride + position / f.page_size];
    const int64_t to = (page * f.page_size + position % f.page_size) * width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
      const int head = i / f.head_dim, channel = i % f.head_dim;
      const auto value = [&](int kind) {
        return random_value(kind, f.ids[s], position, head, channel);
      };
      set_value(f.k, f.is_e4m3, to + i, value(1), kKeyScale);
      set_value(f.v, f.is_e4m3, to + i, value(2), kValueScale);
    }
  }
}

__global__ void fill_queries(Filling f) {
  const int s = blockIdx.y;
  const int width = f.heads * f.head_dim;
  const int rows = f.q_begin[s + 1] - f.q_begin[s];
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    const int position = f.kv_lens[s] - rows + row;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
      f.q[(f.q_begin[s] + row) * f.q_stride + i] =
          __float2bfloat16(random_value(0, f.ids[s], position, i / f.head_dim, i % f.head_dim));
    }
  }
}

/// A row and head to compare: row of q, sequence, head, keys it sees.
struct Where {
  int row, sequence, head, keys;
};

/// One block of head_dim threads an entry, float64 throughout; scores: [entries, most keys].
__global__ void reference(
    PagedAttention c, const Where* where, double* scores, int64_t most, double* out) {
  const Where at = where[blockIdx.x];
  double* score = scores + blockIdx.x * most;
  const int d = c.head_dim;
  const int kv_head = at.head / (c.heads / c.kv_heads);
  const auto* q = static_cast<const __nv_bfloat16*>(c.q) + at.row * c.q_stride + at.head * d;
  const auto base = [&](int position) {
    const int64_t page = c.page_table[at.sequence * c.table_stride + position / c.page_size];
    return ((page * c.page_size + position % c.page_size) * c.kv_heads + kv_head) * d;
  };
  __shared__ double shared[128];
  double top = -1e300;
  for (int position = threadIdx.x; position < at.keys; position += blockDim.x) {
    double sum = 0;
    for (int i = 0; i < d; ++i) {
      sum += static_cast<double>(__bfloat162float(q[i])) *
             value_at(c.k, c.k_scale, base(position) + i);
    }
    score[position] = sum * c.scale;
    top = max(top, score[position]);
  }
  shared[threadIdx.x] = top;
  __syncthreads();
  for (int i = 0; i < blockDim.x; ++i) {
    top = max(top, shared[i]);
  }
  double sum = 0, value = 0;
  for (int position = 0; position < at.keys; ++position) {
    const double weight = exp(score[position] - top);
    sum += weight;
    value += weight * value_at(c.v, c.v_scale, base(position) + threadIdx.x);
  }
  out[static_cast<int64_t>(blockIdx.x) * d + threadIdx.x] = value / sum;
}

// ---- a batch on the device ----

enum class Kind { Decode, Prefill };

class Batch {
 public:
  /// Room for `most_pages` pages a sequence at least, so that lengths can change later.
  Batch(const Heads& heads, std::vector<Sequence> sequences, uint64_t seed, int64_t most_pages = 1)
      : heads_(heads), sequences_(std::move(sequences)) {
    for (const Sequence& s : sequences_) {
      most_pages =
          std::max<int64_t>(most_pages, (s.length + heads.page_size - 1) / heads.page_size);
      tokens_ += s.rows;
      all_ = std::max(all_, s.length);
    }
    const auto seqs = static_cast<int64_t>(sequences_.size());
    pages_ = 3;  // some that nobody uses
    for (const Sequence& s : sequences_) {
      pages_ += std::max<int64_t>(1, (s.length + heads.page_size - 1) / heads.page_size);
    }
    table_stride_ = most_pages;
    const int64_t slots = pages_ * heads.page_size * heads.kv_heads * heads.head_dim;
    q_stride_ = (heads.heads + 2 * heads.kv_heads) * heads.head_dim;
    q_ = std::make_unique<DeviceArray<__nv_bfloat16>>(std::max<int64_t>(1, tokens_) * q_stride_);
    k_ = std::make_unique<DeviceArray<uint8_t>>(slots * heads.value_bytes());
    v_ = std::make_unique<DeviceArray<uint8_t>>(slots * heads.value_bytes());
    scales_ = std::make_unique<DeviceArray<float>>(2);
    scales_->set(std::vector<float>{kKeyScale, kValueScale});
    table_ = std::make_unique<DeviceArray<int32_t>>(seqs * table_stride_);
    begin_ = std::make_unique<DeviceArray<int32_t>>(seqs + 1);
    lens_ = std::make_unique<DeviceArray<int32_t>>(seqs);
    ids_ = std::make_unique<DeviceArray<int32_t>>(seqs);
    out_ = std::make_unique<DeviceArray<uint16_t>>(std::max<int64_t>(1, tokens_) * heads.heads *
                                                   heads.head_dim);
    workspace_ = std::make_unique<DeviceArray<uint8_t>>(std::max<size_t>(
        16, cuda::attention_decode_workspace_bytes(heads.heads, heads.kv_heads, heads.head_dim)));
    counters_ = std::make_unique<DeviceArray<uint32_t>>(cuda::attention_decode_counters());
    counters_->poison(0);
    order_.resize(pages_);
    std::iota(order_.begin(), order_.end(), 0);
    std::shuffle(order_.begin(), order_.end(), std::mt19937_64(seed));
    fill();
  }

  /// Other lengths at the same addresses.
  void relabel(std::vector<Sequence> sequences) {
    sequences_ = std::move(sequences);
    fill();
  }

  PagedAttention call() const {
    PagedAttention c{};
    c.q = q_->get();
    c.k = k_->get();
    c.v = v_->get();
    if (heads_.is_e4m3) {
      c.k_scale = scales_->get();
      c.v_scale = scales_->get() + 1;
    }
    c.page_table = table_->get();
    c.q_begin = begin_->get();
    c.kv_lens = lens_->get();
    c.out = out_->get();
    c.workspace = workspace_->get();
    c.counters = counters_->get();
    c.q_stride = q_stride_;
    c.table_stride = table_stride_;
    c.pages = pages_;
    c.tokens = static_cast<int>(tokens_);
    c.seqs = static_cast<int>(sequences_.size());
    c.heads = heads_.heads;
    c.kv_heads = heads_.kv_heads;
    c.head_dim = heads_.head_dim;
    c.page_size = heads_.page_size;
    c.scale = 1.0f / std::sqrt(static_cast<float>(heads_.head_dim));
    return c;
  }

  void poison() {
    out_->poison(0xFF);
    workspace_->poison(0xFF);
  }

  std::vector<uint16_t> run(Kind kind, float scale_by = 1.0f) {
    poison();
    PagedAttention c = call();
    c.scale *= scale_by;
    launch(kind, c, nullptr);
    CUDA_CHECK(cudaDeviceSynchronize());
    return out_->host();
  }

  static void launch(Kind kind, const PagedAttention& c, cudaStream_t stream) {
    if (kind == Kind::Decode) {
      cuda::launch_attention_decode_paged(c, stream);
    } else {
      cuda::launch_attention_prefill_sm90(c, stream);
    }
  }

  std::vector<uint16_t> out() const { return out_->host(); }
  std::vector<uint8_t> cache() const {
    std::vector<uint8_t> both = k_->host();
    const std::vector<uint8_t> v = v_->host();
    both.insert(both.end(), v.begin(), v.end());
    return both;
  }
  /// The pages in the order in which sequences take them.
  const std::vector<int32_t>& pages() const { return order_; }
  DeviceArray<__nv_bfloat16>& rows() { return *q_; }
  int64_t width() const { return static_cast<int64_t>(heads_.heads) * heads_.head_dim; }
  std::vector<uint16_t> row(const std::vector<uint16_t>& out, int64_t row) const {
    return {out.begin() + row * width(), out.begin() + (row + 1) * width()};
  }

  /// The worst relative error of the rows compared (at most `most` of row and head).
  double error(const std::vector<uint16_t>& out, size_t most, uint64_t seed) const {
    std::vector<Where> where;
    int row = 0;
    for (size_t s = 0; s < sequences_.size(); ++s) {
      for (int i = 0; i < sequences_[s].rows; ++i, ++row) {
        const int keys = sequences_[s].length - sequences_[s].rows + i + 1;
        for (int head = 0; keys > 0 && head < heads_.heads; ++head) {
          where.push_back({row, static_cast<int>(s), head, keys});
        }
      }
    }
    std::mt19937_64 random(seed);
    std::shuffle(where.begin(), where.end(), random);
    where.resize(std::min(where.size(), most));
    if (where.empty()) {
      return 0;
    }
    const auto count = static_cast<int64_t>(where.size());
    DeviceArray<Where> device_where(count);
    device_where.set(where);
    DeviceArray<double> scores(count * all_), want(count * heads_.head_dim);
    reference<<<static_cast<unsigned>(count), heads_.head_dim>>>(
        call(), device_where.get(), scores.get(), all_, want.get());
    CUDA_CHECK(cudaGetLastError());
    CUDA_CHECK(cudaDeviceSynchronize());
    const std::vector<double> expected = want.host();
    double worst = 0;
    for (int64_t i = 0; i < count; ++i) {
      double wrong = 0, norm = 1e-30;
      for (int d = 0; d < heads_.head_dim; ++d) {
        const double e = expected[i * heads_.head_dim + d];
        const double g =
            bf16_to_float(out[where[i].row * width() + where[i].head * heads_.head_dim + d]);
        wrong += (g - e) * (g - e);
        norm += e * e;
      }
      const double relative = std::sqrt(wrong / norm);
      worst = relative == relative ? std::max(worst, relative) : 1e9;
    }
    return worst;
  }

 private:
  void fill() {
    const auto seqs = static_cast<int64_t>(sequences_.size());
    std::vector<int32_t> table(seqs * table_stride_, 0x7FFFFFF0);
    std::vector<int32_t> begin{0}, lens, ids;
    int64_t next = 0;
    for (int64_t s = 0; s < seqs; ++s) {
      const Sequence& q = sequences_[s];
      for (int64_t i = 0; i * heads_.page_size < q.length; ++i) {
        table[s * table_stride_ + i] = order_.at(next++);
      }
      begin.push_back(begin.back() + q.rows);
      lens.push_back(q.length);
      ids.push_back(q.id);
    }
    table_->set(table);
    begin_->set(begin);
    lens_->set(lens);
    ids_->set(ids);
    q_->poison(0xFF);
    k_->poison(0xFF);
    v_->poison(0xFF);
    const Filling f{q_->get(),
                    k_->get(),
                    v_->get(),
                    table_->get(),
                    begin_->get(),
                    lens_->get(),
                    ids_->get(),
                    q_stride_,
                    table_stride_,
                    heads_.heads,
                    heads_.kv_heads,
                    heads_.head_dim,
                    heads_.page_size,
                    heads_.is_e4m3};
    const dim3 grid(64, static_cast<unsigned>(seqs));
    fill_cache<<<grid, 256>>>(f);
    fill_queries<<<grid, 256>>>(f);
    CUDA_CHECK(cudaGetLastError());
    CUDA_CHECK(cudaDeviceSynchronize());
  }

  Heads heads_;
  std::vector<Sequence> sequences_;
  int64_t tokens_ = 0, pages_ = 0, table_stride_ = 0, q_stride_ = 0;
  int all_ = 1;
  std::vector<int32_t> order_;
  std::unique_ptr<DeviceArray<__nv_bfloat16>> q_;
  std::unique_ptr<DeviceArray<uint8_t>> k_, v_;
  std::unique_ptr<DeviceArray<float>> scales_;
  std::unique_ptr<DeviceArray<int32_t>> table_, begin_, lens_, ids_;
  std::unique_ptr<DeviceArray<uint16_t>> out_;
  std::unique_ptr<DeviceArray<uint8_t>> workspace_;
  std::unique_ptr<DeviceArray<uint32_t>> counters_;
};

/// The answers one row late.
std::vector<uint16_t> shifted(std::vector<uint16_t> out, int64_t width) {
  std::rotate(out.begin(), out.end() - width, out.end());
  return out;
}

// bf16 output and bf16 weights of the second product.
constexpr double kTolerance = 6e-3;

#include "tests/gpu/attention_decode_checks.cuh"
#include "tests/gpu/attention_prefill_checks.cuh"
#include "tests/gpu/attention_times.cuh"

/// Every kernel once or twice, on little data.
void check_few_small() {
  for (const bool is_e4m3 : {false, true}) {
    for (const int dim : {128, 64}) {
      check_decode_prepared({8, 2, dim, 16, is_e4m3}, {300, 0, 17}, dim / 2, HeadNorm::Bf16);
      check_decode_values({8, 2, dim, 16, is_e4m3}, {300, 1, 20, 257});
      std::vector<int> many(20, 30);
      many[3] = 600;
      many[7] = 0;
      check_decode_values({8, 2, dim, 16, is_e4m3}, many);
      check_decode_values({12, 1, dim, 16, is_e4m3}, {300, 33});
      Batch batch({8, 2, dim, 16, is_e4m3}, {{0, 70, 70}, {1, 200, 40}, {2, 31, 0}}, 7);
      expect(batch.error(batch.run(Kind::Prefill), 300, 1) < kTolerance, "prefill of little");
    }
  }
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  using namespace nibble::bench;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skip: no CUDA device\n");
    return 77;
  }
  const std::string mode = argc > 1 ? argv[1] : "";
  try {
    if (mode == "--profile") {
      run_for_profile();
      return 0;
    }
    if (mode == "--small") {
      check_few_small();
    } else if (mode.rfind("--bench", 0) != 0) {
      check_decode();
      std::printf("decode done, %d failures\n", failures);
      std::fflush(stdout);
      check_prefill();
      std::printf("prefill done, %d failures\n", failures);
    }
    if (failures == 0 && mode != "--no-timing" && mode != "--small") {
      if (mode != "--bench-prefill") {
        print_decode_times();
      }
      print_prefill_times();
    }
  } catch (const std::exception& error) {
    std::printf("FAILED with %s\n", error.what());
    return 2;
  }
  std::printf(
      "%s: %ld checks, %d failures\n", failures == 0 ? "passed" : "FAILED", (long)checks, failures);
  return failures == 0 ? 0 : 1;
}
