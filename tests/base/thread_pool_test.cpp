#include "base/thread_pool.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>

namespace nibble {
namespace {

TEST(ThreadPool, CoversEveryIndexOnceForAnyThreadCount) {
  for (int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    for (int64_t count : {int64_t{0}, int64_t{1}, int64_t{15}, int64_t{16}, int64_t{1000}}) {
      for (int64_t grain : {int64_t{1}, int64_t{8}, int64_t{2000}}) {
        std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
        pool.parallel_for(count, grain, [&](int64_t begin, int64_t end, int thread_index) {
          EXPECT_EQ(begin % grain, 0);
          EXPECT_LT(thread_index, threads);
          for (int64_t i = begin; i < end; ++i) {
            ++seen[static_cast<size_t>(i)];
          }
        });
        for (const auto& hits : seen) {
          EXPECT_EQ(hits, 1);
        }
      }
    }
  }
}

// Who ends last is waited for by all others: it must be with little in hand.
TEST(ThreadPool, PiecesShrinkTowardsTheEndOfAShare) {
  constexpr int64_t kCount = 2000;
  for (const int threads : {2, 3}) {
    ThreadPool pool(threads);
    std::vector<std::atomic<int64_t>> end_of(kCount);
    pool.parallel_for(kCount, 1, [&](int64_t begin, int64_t end, int) {
      end_of[static_cast<size_t>(begin)] = end;
    });
    for (int64_t share = 0; share < threads; ++share) {
      const int64_t begin = kCount * share / threads;
      const int64_t end = kCount * (share + 1) / threads;
      int64_t last = end - begin;
      int64_t pieces = 0;
      for (int64_t at = begin; at < end; at = end_of[static_cast<size_t>(at)]) {
        const int64_t size = end_of[static_cast<size_t>(at)] - at;
        ASSERT_GT(size, 0) << at;
        EXPECT_LE(size, last + 1) << at;  // rounding
        last = size;
        ++pieces;
      }
      EXPECT_GE(pieces, 8);
      EXPECT_LE(last, (end - begin) / 50);
    }
  }
}

// A hint is never a read: memory that is gone, too small or nowhere changes nothing.
TEST(ThreadPool, AnnouncedMemoryNeedNotBeThere) {
  ThreadPool pool(3);
  constexpr size_t kBytes = size_t{1} << 20;
  void* memory = mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(munmap(memory, kBytes), 0);
  for (const void* where : std::array<const void*, 3>{memory, nullptr, &pool}) {
    for (const int64_t bytes : {int64_t{0}, int64_t{64}, int64_t{1} << 30}) {
      pool.announce(where, bytes);
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      std::atomic<int64_t> sum{0};
      pool.parallel_for(1000, 1, [&](int64_t begin, int64_t end, int) { sum += end - begin; });
      EXPECT_EQ(sum, 1000);
    }
  }
}

// Calls region until each worker has taken part: who takes which piece is not fixed.
std::vector<int> allowed_cpus_of_workers(ThreadPool& pool) {
  std::vector<int> counts(static_cast<size_t>(pool.num_threads()), 0);
  for (int round = 0; round < 2000; ++round) {
    pool.parallel_for(16, 1, [&](int64_t, int64_t, int thread_index) {
      cpu_set_t allowed;
      CPU_ZERO(&allowed);
      sched_getaffinity(0, sizeof allowed, &allowed);
      counts[static_cast<size_t>(thread_index)] = CPU_COUNT(&allowed);
      std::this_thread::yield();
    });
    if (std::find(counts.begin(), counts.end(), 0) == counts.end()) {
      break;
    }
  }
  return counts;
}

TEST(ThreadPool, PinnedWorkersHaveOneCpuAndOthersKeepTheirChoice) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof allowed, &allowed);
  if (CPU_COUNT(&allowed) < 2) {
    GTEST_SKIP() << "one cpu: nothing to see";
  }
  ThreadPool pinned(2, true);
  EXPECT_EQ(allowed_cpus_of_workers(pinned)[1], 1);
  ThreadPool free(2);
  EXPECT_EQ(allowed_cpus_of_workers(free)[1], CPU_COUNT(&allowed));
}

TEST(ThreadPool, RunsManySmallRegionsInARow) {
  ThreadPool pool(3);
  std::atomic<int64_t> sum{0};
  for (int round = 0; round < 2000; ++round) {
    pool.parallel_for(3, 1, [&](int64_t begin, int64_t end, int) { sum += end - begin; });
  }
  EXPECT_EQ(sum, 6000);
}

// A worker that is held up (its core is busy elsewhere) must cost the piece it holds, not its
// share.
TEST(ThreadPool, OthersTakeThePiecesOfAThreadThatIsHeldUp) {
  ThreadPool pool(2);
  constexpr int64_t kCount = 64;
  std::atomic<int64_t> by_the_held{0};
  std::atomic<int64_t> by_the_other{0};
  std::atomic<int> first{-1};
  pool.parallel_for(kCount, 1, [&](int64_t begin, int64_t end, int thread_index) {
    int nobody = -1;
    if (first.compare_exchange_strong(nobody, thread_index) || first == thread_index) {
      by_the_held += end - begin;
      // Until the other has done all that can be taken from this thread.
      while (by_the_other + by_the_held < kCount) {
        std::this_thread::yield();
      }
    } else {
      by_the_other += end - begin;
    }
  });
  EXPECT_EQ(by_the_held + by_the_other, kCount);
  EXPECT_LT(by_the_held, kCount / 2);
}

}  // namespace
}  // namespace nibble
