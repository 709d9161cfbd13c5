// overlap_check: kernels that start before the kernel before them has ended must wait for it before
// they read what it writes.
//
// Every operation of a small model's step (bench/gpu/step_model.cuh): first alone. Then all that a
// kernel may have written before it is poisoned, and a kernel that lets the next one start at once
// but restores the memory only later comes directly before the operation. The results must have the
// same bits. Keys and values of earlier steps, weights, lengths and page tables may be read early:
// they stay. An operation that waits for nothing must be noticed.
//
// overlap_check [--small]; --small is for compute-sanitizer: fewer batches, no poison
#include <cstring>

#include "backends/cuda/launch.cuh"
#include "bench/gpu/step_model.cuh"

namespace nibble::bench {
namespace {

constexpr ModelShape kSmallShapes[] = {
    {"heads of 128", 1, 1024, 8, 2, 128, 1536, 2048, true},
    {"heads of 64", 1, 1024, 16, 4, 64, 1536, 2048, false},
};

int failures = 0;
int checks = 0;

void expect(bool ok, const std::string& what) {
  ++checks;
  if (!ok && ++failures < 40) {
    std::printf("FAILED %s\n", what.c_str());
    std::fflush(stdout);
  }
}

struct Piece {
  uint8_t* to;
  const uint8_t* from;
  int64_t bytes;
};
constexpr int kMostPieces = 16;
struct Pieces {
  Piece piece[kMostPieces];
  int count;
};

__device__ void copy_pieces(const Pieces& pieces) {
  for (int i = 0; i < pieces.count; ++i) {
    const Piece piece = pieces.piece[i];
    for (int64_t at = blockIdx.x * 256ll + threadIdx.x; at < piece.bytes; at += gridDim.x * 256ll) {
      piece.to[at] = piece.from[at];
    }
  }
}

/// Lets the next kernel start, and restores the memory 60 us later.
__global__ void __launch_bounds__(256) restore_late(const Pieces pieces) {
  cuda::allow_next_kernel();
  cuda::wait_for_previous_kernel();
  const long long begin = clock64();
  while (clock64() - begin < 100000) {
  }
  copy_pieces(pieces);
}

/// Reads what it should wait for.
__global__ void __launch_bounds__(256) copy_without_waiting(const Pieces pieces) {
  copy_pieces(pieces);
}

/// Keys and values of this step.
__global__ void poison_slots(uint8_t* cache,
                             const int32_t* slots,
                             int64_t count,
                             int64_t token_bytes) {
  for (int64_t i = threadIdx.x; i < count * token_bytes; i += blockDim.x) {
    cache[slots[i / token_bytes] * token_bytes + i % token_bytes] = 0xFF;
  }
}

class Memory {
 public:
  explicit Memory(const Buffers& b) {
    for (const Tensor* tensor :
         {&b.x, &b.residual, &b.projected, &b.attended, &b.gated, &b.hidden, &b.logits}) {
      add(*tensor, false);
    }
    for (const Tensor& cache : b.kv.front()) {
      add(cache, true);
    }
    slots_ = b.slots;
  }
  /// The content from now on is what is restored.
  void keep() { copy(true); }
  void restore() { copy(false); }
  void restore_later() const {
    cuda::launch_overlapped(restore_late, dim3(8), 256, native, restoring());
  }
  void poison() {
    for (const Entry& entry : entries_) {
      if (entry.is_cache) {
        const int64_t token =
            entry.tensor.shape[2] * entry.tensor.shape[3] * size_of(entry.tensor.dtype);
        poison_slots<<<1, 256, 0, native>>>(static_cast<uint8_t*>(entry.tensor.data),
                                            slots_.as<int32_t>(),
                                            slots_.num_elements(),
                                            token);
      } else {
        CUDA_CHECK(cudaMemsetAsync(
            entry.tensor.data, 0xFF, static_cast<size_t>(entry.tensor.size_bytes()), native));
      }
    }
    CUDA_CHECK(cudaStreamSynchronize(native));
  }
  std::vector<std::vector<uint8_t>> content() const {
    std::vector<std::vector<uint8_t>> all;
    for (const Entry& entry : entries_) {
      all.emplace_back(static_cast<size_t>(entry.tensor.size_bytes()));
      CUDA_CHECK(cudaMemcpy(
          all.back().data(), entry.tensor.data, all.back().size(), cudaMemcpyDeviceToHost));
    }
    return all;
  }
  Pieces restoring() const {
    Pieces pieces{};
    for (const Entry& entry : entries_) {
      pieces.piece[pieces.count++] = {static_cast<uint8_t*>(entry.tensor.data),
                                      static_cast<const uint8_t*>(entry.kept.data),
                                      entry.tensor.size_bytes()};
    }
    return pieces;
  }

 private:
  struct Entry {
    Tensor tensor, kept;
    bool is_cache;
  };
  void add(const Tensor& tensor, bool is_cache) {
    entries_.push_back({tensor, take(tensor.dtype, tensor.shape), is_cache});
  }
  void copy(bool keep) {
    for (const Entry& entry : entries_) {
      CUDA_CHECK(cudaMemcpyAsync(keep ? entry.kept.data : entry.tensor.data,
                                 keep ? entry.tensor.data : entry.kept.data,
                                 static_cast<size_t>(entry.tensor.size_bytes()),
                                 cudaMemcpyDeviceToDevice,
                                 native));
    }
    CUDA_CHECK(cudaStreamSynchronize(native));
  }
  std::vector<Entry> entries_;
  Tensor slots_;
};

void check_step(
    const Model& model, int64_t seqs, int64_t rows, int64_t context, DType kv, bool small) {
  const Step step = make_step(model, seqs, rows, context, kv);
  Memory memory(*step.buffers);
  CUDA_CHECK(cudaDeviceSynchronize());
  std::vector<Op> ops = step.before;
  ops.insert(ops.end(), step.layer.begin(), step.layer.end());
  ops.insert(ops.end(), step.after.begin(), step.after.end());
  const std::string batch = std::string(", ") + model.shape.name + ", " + std::to_string(rows) +
                            " rows on " + std::to_string(context) +
                            (kv == DType::E4M3 ? ", e4m3" : "");
  for (const Op& op : ops) {
    memory.keep();
    op.run(0);
    CUDA_CHECK(cudaStreamSynchronize(native));
    const auto want = memory.content();
    if (!small) {
      memory.restore();
      memory.poison();
      memory.restore_later();
      op.run(0);
      CUDA_CHECK(cudaStreamSynchronize(native));
      expect(memory.content() == want, op.name + batch);
    } else {
      memory.restore_later();
      op.run(0);
      CUDA_CHECK(cudaStreamSynchronize(native));
      expect(memory.content() == want, op.name + batch);
    }
  }
}

/// The check itself: a kernel that does not wait finds poison.
void check_the_check(const Model& model) {
  const Step step = make_step(model, 4, 4, 20, DType::BF16);
  Memory memory(*step.buffers);
  const Tensor copied = take(DType::BF16, step.buffers->x.shape);
  Pieces copy{};
  copy.count = 1;
  copy.piece[0] = {static_cast<uint8_t*>(copied.data),
                   static_cast<const uint8_t*>(step.buffers->x.data),
                   copied.size_bytes()};
  std::vector<uint8_t> want(static_cast<size_t>(copied.size_bytes())), got(want);
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaMemcpy(want.data(), step.buffers->x.data, want.size(), cudaMemcpyDeviceToHost));
  memory.keep();
  // Loaded by now, so that it is there while the other kernel runs.
  cuda::launch_overlapped(copy_without_waiting, dim3(8), 256, native, copy);
  memory.restore_later();
  memory.poison();
  memory.restore_later();
  cuda::launch_overlapped(copy_without_waiting, dim3(8), 256, native, copy);
  CUDA_CHECK(cudaStreamSynchronize(native));
  CUDA_CHECK(cudaMemcpy(got.data(), copied.data, got.size(), cudaMemcpyDeviceToHost));
  expect(got != want, "a kernel that does not wait was not noticed");
}

int run(bool small) {
  CUDA_CHECK(cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking));
  stream = {kGpu, native};
  for (const ModelShape& shape : kSmallShapes) {
    const Model model = make_model(shape, 128);
    CUDA_CHECK(cudaDeviceSynchronize());
    if (!small) {
      check_the_check(model);
    }
    for (const DType kv : {DType::BF16, DType::E4M3}) {
      for (const int64_t seqs : {1, 3, 17, 64}) {
        if (!small || seqs == 3 || (seqs == 17 && kv == DType::BF16)) {
          check_step(model, seqs, seqs, small ? 270 : 700, kv, small);
        }
      }
      if (!small || kv == DType::E4M3) {
        check_step(model, 1, small ? 40 : 128, 0, kv, small);
      }
    }
  }
  std::printf(
      "%s: %d checks, %d failures\n", failures == 0 ? "passed" : "FAILED", checks, failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skip: no CUDA device\n");
    return 77;
  }
  return nibble::bench::run(argc > 1 && std::strcmp(argv[1], "--small") == 0);
}
