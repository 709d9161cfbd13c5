#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <pthread.h>
#include <sched.h>

#include "base/check.h"

namespace nibble {

namespace {

// A decode step has a few hundred parallel regions some microseconds apart; sleeping between them
// would cost more than the work. Longer gaps (an idle server) must not burn a core.
constexpr int kSpinRounds = 4000;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void pin_to(int worker) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
    return;
  }
  int seen = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed) && seen++ == worker) {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      pthread_setaffinity_np(pthread_self(), sizeof one, &one);
      return;
    }
  }
}

int cgroup_cpu_quota() {  // 0: no limit found
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) {
    return 0;
  }
  return std::max(1, static_cast<int>(std::ceil(std::atof(quota.c_str()) / period)));
}

}  // namespace

int num_usable_cpus() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  int count = 0;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
    count = CPU_COUNT(&allowed);
  }
  if (count <= 0) {
    count = static_cast<int>(std::thread::hardware_concurrency());
  }
  const int quota = cgroup_cpu_quota();
  return std::max(1, quota > 0 ? std::min(quota, count) : count);
}

// Each thread owns a contiguous share of a region, cut into pieces of which it takes one after
// another; who is done takes pieces of the others. A worker whose core is busy elsewhere thus costs
// the pieces it has begun, not its whole share: with a fixed split, a foreign process on one of two
// cores made a decode step wait for the scheduler hundreds of times.
// Pieces shrink towards the end of a share, in equal steps: at the end of a region threads wait for
// each other no longer than the last takes, 1 / kPiecesPerShare^2 of a share.
constexpr int64_t kPiecesPerShare = 12;

// Of its share of announced memory a worker fetches so much: within any L2 cache of today, and
// more than memory gives during the few microseconds between two regions.
constexpr int64_t kFetchBytes = int64_t{96} << 10;
constexpr int64_t kFetchLine = 64;
constexpr int64_t kLinesARound = 8;

struct ThreadPool::State {
  struct Job {
    int64_t count = 0;
    int64_t grain = 1;
    int64_t units = 0;
    RangeBody body = nullptr;
    void* context = nullptr;
  };
  // generation << 32 | pieces left. Taking a piece is a compare-and-swap of the whole word, so a
  // worker that wakes late cannot take from a later region, and the job is read only by those who
  // hold a piece of it.
  struct alignas(64) Share {
    std::atomic<uint64_t> left{0};
  };

  explicit State(int threads) : num_threads(threads), shares(static_cast<size_t>(threads)) {}

  int num_threads;
  Job job;
  std::vector<Share> shares;
  std::atomic<uint32_t> generation{0};
  std::atomic<int64_t> pending{0};  // pieces not finished
  // Announced memory; a torn pair costs useless fetches.
  std::atomic<const char*> next_memory{nullptr};
  std::atomic<int64_t> next_bytes{0};
  std::atomic<bool> stopping{false};
  std::vector<std::jthread> workers;

  int64_t units_before(int64_t share) const { return job.units * share / num_threads; }
  int64_t pieces_of(int64_t share) const {
    return std::min(kPiecesPerShare, units_before(share + 1) - units_before(share));
  }
  // Of `units` in `pieces` pieces, those before `piece`.
  static int64_t units_before_piece(int64_t units, int64_t pieces, int64_t piece) {
    if (units == pieces) {
      return piece;
    }
    const int64_t left = pieces - piece;
    return units - (units * left * left + pieces * pieces - 1) / (pieces * pieces);
  }

  // Cuts the job and lets the workers see it.
  void publish(uint32_t next) {
    int64_t pieces = 0;
    for (int64_t share = 0; share < num_threads; ++share) {
      pieces += pieces_of(share);
    }
    pending.store(pieces, std::memory_order_relaxed);
    for (int64_t share = 0; share < num_threads; ++share) {
      const auto left = static_cast<uint64_t>(pieces_of(share));
      shares[static_cast<size_t>(share)].left.store(uint64_t{next} << 32 | left,
                                                    std::memory_order_release);
    }
    generation.store(next, std::memory_order_release);
    generation.notify_all();
  }

  bool take_piece(int64_t share, uint32_t of_generation, int64_t& left) {
    std::atomic<uint64_t>& word = shares[static_cast<size_t>(share)].left;
    uint64_t seen = word.load(std::memory_order_acquire);
    while (seen >> 32 == of_generation && (seen & 0xFFFFFFFFu) > 0) {
      if (word.compare_exchange_weak(
              seen, seen - 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
        left = static_cast<int64_t>(seen & 0xFFFFFFFFu);
        return true;
      }
    }
    return false;
  }

  void work(int thread_index, uint32_t of_generation) {
    for (int64_t i = 0; i < num_threads; ++i) {
      const int64_t share = (thread_index + i) % num_threads;
      int64_t left = 0;
      while (take_piece(share, of_generation, left)) {
        const int64_t pieces = pieces_of(share);
        const int64_t piece = pieces - left;
        const int64_t first = units_before(share);
        const int64_t units = units_before(share + 1) - first;
        const int64_t begin = (first + units_before_piece(units, pieces, piece)) * job.grain;
        const int64_t end = (first + units_before_piece(units, pieces, piece + 1)) * job.grain;
        if (begin < end) {
          job.body(job.context, begin, std::min(end, job.count), thread_index);
        }
        if (pending.fetch_sub(1, std::memory_order_acq_rel) == 1) {
          pending.notify_one();
        }
      }
    }
  }

  // What of the announced memory a worker has fetched.
  struct Fetched {
    const char* memory = nullptr;
    int64_t bytes = 0;
  };

  void fetch(int thread_index, Fetched& fetched) const {
    const char* memory = next_memory.load(std::memory_order_relaxed);
    if (memory == nullptr) {
      return;
    }
    if (memory != fetched.memory) {
      fetched = {memory, 0};
    }
    const int64_t bytes = next_bytes.load(std::memory_order_relaxed);
    const int64_t first = bytes * thread_index / num_threads;
    const int64_t end = std::min(bytes * (thread_index + 1) / num_threads, first + kFetchBytes);
    for (int64_t i = 0; i < kLinesARound && first + fetched.bytes < end; ++i) {
      __builtin_prefetch(memory + first + fetched.bytes, 0, 2);  // L2
      fetched.bytes += kFetchLine;
    }
  }

  void loop(int thread_index) {
    uint32_t seen = 0;
    Fetched fetched;
    while (true) {
      int rounds = 0;
      while (generation.load(std::memory_order_acquire) == seen) {
        if (++rounds < kSpinRounds) {
          fetch(thread_index, fetched);
          relax();
        } else {
          generation.wait(seen, std::memory_order_acquire);
        }
      }
      seen = generation.load(std::memory_order_acquire);
      if (stopping.load(std::memory_order_acquire)) {
        return;
      }
      work(thread_index, seen);
    }
  }
};

ThreadPool::ThreadPool(int num_threads, bool pin) : state_(std::make_unique<State>(num_threads)) {
  CHECK(num_threads >= 1, "a thread pool needs at least one thread, got ", num_threads);
  state_->workers.reserve(static_cast<size_t>(num_threads - 1));
  for (int i = 1; i < num_threads; ++i) {
    state_->workers.emplace_back([state = state_.get(), i, pin] {
      if (pin) {
        pin_to(i);
      }
      state->loop(i);
    });
  }
}

ThreadPool::~ThreadPool() {
  state_->stopping.store(true, std::memory_order_release);
  state_->generation.fetch_add(1, std::memory_order_acq_rel);
  state_->generation.notify_all();
}

void ThreadPool::announce(const void* memory, int64_t bytes) {
  state_->next_bytes.store(bytes, std::memory_order_relaxed);
  state_->next_memory.store(static_cast<const char*>(memory), std::memory_order_relaxed);
}

int ThreadPool::num_threads() const { return state_->num_threads; }

void ThreadPool::run(int64_t count, int64_t grain, RangeBody body, void* context) {
  DCHECK(grain > 0, "grain must be positive, got ", grain);
  if (count <= 0) {
    return;
  }
  State& state = *state_;
  if (state.num_threads == 1 || count <= grain) {
    body(context, 0, count, 0);
    return;
  }
  state.job = {count, grain, (count + grain - 1) / grain, body, context};
  const uint32_t generation = state.generation.load(std::memory_order_relaxed) + 1;
  state.publish(generation);
  state.work(0, generation);
  int rounds = 0;
  int64_t left = state.pending.load(std::memory_order_acquire);
  while (left != 0) {
    if (++rounds < kSpinRounds) {
      relax();
    } else {
      state.pending.wait(left, std::memory_order_acquire);
    }
    left = state.pending.load(std::memory_order_acquire);
  }
}

}  // namespace nibble
