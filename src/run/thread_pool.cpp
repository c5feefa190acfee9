#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/check.h"
#include "run/executable.h"

namespace fuseloom::run {

namespace {

// One parallel_for: chunks are taken from a counter, so the split never depends on who takes them.
struct Job {
  const std::function<void(int32_t, int64_t, int64_t)>* body = nullptr;
  int64_t extent = 0, grain = 1;
  std::atomic<int64_t> next{0};
  int32_t helpers = 0;                 // workers inside; guarded by State::mutex
  std::mutex error_mutex;
  std::exception_ptr error;

  void work(int32_t worker) {
    try {
      while (true) {
        const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
        if (begin >= extent) return;
        (*body)(worker, begin, std::min(extent, begin + grain));
      }
    } catch (...) {
      next.store(extent, std::memory_order_relaxed);
      const std::lock_guard lock(error_mutex);
      if (!error) error = std::current_exception();
    }
  }
};

}  // namespace

struct ThreadPool::State {
  std::mutex mutex;
  std::condition_variable wake, done;
  std::vector<Job*> jobs;              // open ones; the caller removes its own
  std::vector<std::thread> threads;
  bool stop = false;

  void run(int32_t worker) {
    std::unique_lock lock(mutex);
    while (true) {
      Job* job = nullptr;
      for (Job* candidate : jobs) {
        if (candidate->next.load(std::memory_order_relaxed) < candidate->extent) {
          job = candidate;
          break;
        }
      }
      if (job == nullptr) {
        if (stop) return;
        wake.wait(lock);
        continue;
      }
      ++job->helpers;
      lock.unlock();
      job->work(worker);
      lock.lock();
      if (--job->helpers == 0) done.notify_all();
    }
  }
};

ThreadPool::ThreadPool(int32_t threads) : state_(std::make_unique<State>()) {
  FL_REQUIRE(threads >= 0 && threads <= 4096, "{} threads asked for; expected 0 (one per core) to 4096", threads);
  if (threads == 0) threads = std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()));
  for (int32_t worker = 1; worker < threads; ++worker) {
    try {
      state_->threads.emplace_back([state = state_.get(), worker] { state->run(worker); });
    } catch (const std::system_error&) {
      break;   // the system gives no more threads: fewer do the same work
    }
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->wake.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

int32_t ThreadPool::size() const { return static_cast<int32_t>(state_->threads.size()) + 1; }

void ThreadPool::parallel_for(int64_t extent, int64_t grain, const std::function<void(int32_t, int64_t, int64_t)>& body) {
  if (extent <= 0) return;
  Job job;
  job.body = &body;
  job.extent = extent;
  job.grain = std::max<int64_t>(1, grain);
  const bool alone = state_->threads.empty() || extent <= job.grain;
  if (!alone) {
    {
      const std::lock_guard lock(state_->mutex);
      state_->jobs.push_back(&job);
    }
    state_->wake.notify_all();
  }
  job.work(0);
  if (!alone) {
    std::unique_lock lock(state_->mutex);
    std::erase(state_->jobs, &job);
    state_->done.wait(lock, [&] { return job.helpers == 0; });
  }
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace fuseloom::run
