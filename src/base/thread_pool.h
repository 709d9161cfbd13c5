// The thread pool of the CPU kernels: shared ranges, workers that spin briefly and then sleep.
// One caller at a time (the engine thread or a tool); the caller works too, as worker 0.
// Not a task queue: server work uses asio's pool.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace nibble {

class ThreadPool {
 public:
  // num_threads counts the caller; at least 1. `pin`: bind worker i to the i-th allowed CPU.
  explicit ThreadPool(int num_threads, bool pin = false);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  int num_threads() const;

  // Calls body(context, begin, end, thread_index) with disjoint ranges that cover [0, count), often
  // several a thread. Borders are multiples of `grain` (the last range may be shorter) and depend
  // on count, grain and num_threads only; who takes which does not. Returns when all are done.
  using RangeBody = void (*)(void* context, int64_t begin, int64_t end, int thread_index);
  void run(int64_t count, int64_t grain, RangeBody body, void* context);

  template <typename Body>  // Body: void(int64_t begin, int64_t end, int thread_index)
  void parallel_for(int64_t count, int64_t grain, Body&& body) {
    run(
        count,
        grain,
        [](void* context, int64_t begin, int64_t end, int thread_index) {
          (*static_cast<std::remove_reference_t<Body>*>(context))(begin, end, thread_index);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

  // Says what a later run() will read in order, divided over the threads: while workers wait for
  // it they fetch the beginning of their share into their caches. A hint, never a read: the memory
  // may be gone. Costs the caller two stores.
  void announce(const void* memory, int64_t bytes);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// CPUs this process may run on (affinity mask and cgroup quota considered); at least 1.
int num_usable_cpus();

}  // namespace nibble
