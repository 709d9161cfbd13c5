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

struct ThreadPool::State {
  struct Job {
    int64_t count = 0;
    int64_t grain = 1;
    RangeBody body = nullptr;
    void* context = nullptr;
  };

  explicit State(int threads) : num_threads(threads) {}

  int num_threads;
  Job job;
  std::atomic<uint64_t> generation{0};
  std::atomic<int> pending{0};
  std::atomic<bool> stopping{false};
  std::vector<std::jthread> workers;

  void work(int thread_index) const {
    const int64_t units = (job.count + job.grain - 1) / job.grain;
    const int64_t begin = units * thread_index / num_threads * job.grain;
    const int64_t end = std::min(job.count, units * (thread_index + 1) / num_threads * job.grain);
    if (begin < end) {
      job.body(job.context, begin, end, thread_index);
    }
  }

  void loop(int thread_index) {
    uint64_t seen = 0;
    while (true) {
      int rounds = 0;
      while (generation.load(std::memory_order_acquire) == seen) {
        if (++rounds < kSpinRounds) {
          relax();
        } else {
          generation.wait(seen, std::memory_order_acquire);
        }
      }
      seen = generation.load(std::memory_order_acquire);
      if (stopping.load(std::memory_order_acquire)) {
        return;
      }
      work(thread_index);
      if (pending.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        pending.notify_one();
      }
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
  state.job = {count, grain, body, context};
  state.pending.store(state.num_threads - 1, std::memory_order_relaxed);
  state.generation.fetch_add(1, std::memory_order_acq_rel);
  state.generation.notify_all();
  state.work(0);
  int rounds = 0;
  int left = state.pending.load(std::memory_order_acquire);
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
