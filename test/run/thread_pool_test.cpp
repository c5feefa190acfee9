#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "run/executable.h"

namespace fuseloom::run {
namespace {

TEST(ThreadPool, CoversTheRangeOnceWithWorkersBelowItsSize) {
  for (const int32_t threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (const int64_t extent : {0, 1, 7, 1000}) {
      for (const int64_t grain : {1, 3, 2000}) {
        std::vector<std::atomic<int>> visits(static_cast<size_t>(extent));
        pool.parallel_for(extent, grain, [&](int32_t worker, int64_t begin, int64_t end) {
          EXPECT_GE(worker, 0);
          EXPECT_LT(worker, pool.size());
          for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
        });
        for (const std::atomic<int>& each : visits) ASSERT_EQ(each, 1);
      }
    }
  }
}

TEST(ThreadPool, AWorkerIsNeverTwoThreadsAtOnce) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> busy(4);
  pool.parallel_for(200, 1, [&](int32_t worker, int64_t, int64_t) {
    EXPECT_EQ(busy[static_cast<size_t>(worker)].fetch_add(1), 0);
    std::this_thread::yield();
    busy[static_cast<size_t>(worker)].fetch_sub(1);
  });
}

TEST(ThreadPool, TakesAsFewThreadsAsAskedFor) {
  ThreadPool pool(4);
  std::mutex mutex;
  std::set<std::thread::id> seen;
  const auto body = [&](int32_t, int64_t, int64_t) {
    const std::lock_guard lock(mutex);
    seen.insert(std::this_thread::get_id());
  };
  pool.parallel_for(100, 1, body, 2);
  EXPECT_LE(seen.size(), 2u);
}

TEST(ThreadPool, ThrowsToTheCallerAndServesOn) {
  ThreadPool pool(3);
  for (const int64_t thrower : {0, 50, 99}) {
    const auto body = [&](int32_t, int64_t begin, int64_t) {
      if (begin == thrower) throw std::runtime_error("no");
    };
    EXPECT_THROW(pool.parallel_for(100, 1, body), std::runtime_error);
  }
  std::atomic<int64_t> sum = 0;
  pool.parallel_for(100, 1, [&](int32_t, int64_t begin, int64_t) { sum += begin; });
  EXPECT_EQ(sum, 4950);
}

TEST(ThreadPool, ManyCallersAndNestedLoops) {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  std::atomic<int64_t> sum = 0;
  const auto inner = [&](int32_t, int64_t begin, int64_t end) { sum += end - begin; };
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int repeat = 0; repeat < 20; ++repeat) pool.parallel_for(10, 1, [&](int32_t, int64_t, int64_t) { pool.parallel_for(10, 2, inner); });
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 4 * 20 * 100);
}

}  // namespace
}  // namespace fuseloom::run
