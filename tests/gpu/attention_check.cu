// attention_check: the paged attention kernels on random data, one self-contained program.
//
// Every answer against float64 on the device; head_dim 64 and 128, groups of 1 to 16 heads, pages
// of 8, 16 and 64 in random order, ragged lengths. Whatever must not be read is poisoned (unused
// cache slots are NaN, unused page table entries out of range, workspace and outputs NaN). The bits
// of a row must not depend on the batch, on chunking or on the run; a captured launch must serve
// other lengths. A wrong scale must fail. Exit code 0: all passed.
//
// attention_check [--no-timing | --bench | --bench-prefill | --profile]

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>

#include "backends/cuda/attention_paged.h"
#include "base/error.h"
#include "bench/gpu/common.cuh"

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
  std::string text() const {
    return std::to_string(heads) + "/" + std::to_string(kv_heads) + " heads of " +
           std::to_string(head_dim) + ", pages of " + std::to_string(page_size);
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

struct Filling {
  __nv_bfloat16 *q, *k, *v;
  const int32_t *page_table, *q_begin, *kv_lens, *ids;
  int64_t q_stride, table_stride;
  int heads, kv_heads, head_dim, page_size;
};

__global__ void fill_cache(Filling f) {
  const int s = blockIdx.y;
  const int width = f.kv_heads * f.head_dim;
  for (int position = blockIdx.x; position < f.kv_lens[s]; position += gridDim.x) {
    const int64_t page = f.page_table[s * f.table_stride + position / f.page_size];
    const int64_t to = (page * f.page_size + position % f.page_size) * width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
      const int head = i / f.head_dim, channel = i % f.head_dim;
      f.k[to + i] = __float2bfloat16(random_value(1, f.ids[s], position, head, channel));
      f.v[to + i] = __float2bfloat16(random_value(2, f.ids[s], position, head, channel));
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
    const auto* k = static_cast<const __nv_bfloat16*>(c.k) + base(position);
    double sum = 0;
    for (int i = 0; i < d; ++i) {
      sum += static_cast<double>(__bfloat162float(q[i])) * __bfloat162float(k[i]);
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
    value += weight *
             __bfloat162float(static_cast<const __nv_bfloat16*>(c.v)[base(position) + threadIdx.x]);
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
    k_ = std::make_unique<DeviceArray<__nv_bfloat16>>(slots);
    v_ = std::make_unique<DeviceArray<__nv_bfloat16>>(slots);
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
                    heads_.page_size};
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
  std::unique_ptr<DeviceArray<__nv_bfloat16>> q_, k_, v_;
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
    if (mode.rfind("--bench", 0) != 0) {
      check_decode();
      std::printf("decode done, %d failures\n", failures);
      std::fflush(stdout);
      check_prefill();
      std::printf("prefill done, %d failures\n", failures);
    }
    if (failures == 0 && mode != "--no-timing") {
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
