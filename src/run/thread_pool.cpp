#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "run/executable.h"

namespace fuseloom::run {
namespace {

using Body = std::function<void(int32_t worker, int64_t begin, int64_t end)>;

// One parallel_for, on the stack of its caller. Guarded by the pool's mutex, except for `next`.
struct Job {
  const Body& body;
  const int64_t extent, grain;
  int32_t seats;                  // workers that may still join, the caller not counted
  int32_t active = 0;             // workers inside
  std::atomic<int64_t> next = 0;  // first index that nobody has taken
  std::exception_ptr error;       // of the first chunk that threw

  bool open() const { return seats > 0 && next.load(std::memory_order_relaxed) < extent; }

  void run_chunks(int32_t worker) {
    for (;;) {
      const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= extent) return;
      body(worker, begin, std::min(extent, begin + grain));
    }
  }
  // Chunks that nobody has taken stay undone.
  void stop() { next.store(extent, std::memory_order_relaxed); }
};

}  // namespace

struct ThreadPool::State {
  std::mutex mutex;
  std::condition_variable work, done;
  std::vector<Job*> jobs;  // oldest first
  bool closing = false;
  std::vector<std::thread> threads;

  void run_job(Job& job, int32_t worker, std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    std::exception_ptr error;
    try {
      job.run_chunks(worker);
    } catch (...) {
      error = std::current_exception();
      job.stop();
    }
    lock.lock();
    if (error != nullptr && job.error == nullptr) job.error = error;
  }

  void work_until_closed(int32_t worker) {
    std::unique_lock lock(mutex);
    for (;;) {
      const auto job = std::find_if(jobs.begin(), jobs.end(), [](const Job* each) { return each->open(); });
      if (job == jobs.end()) {
        if (closing) return;
        work.wait(lock);
        continue;
      }
      Job& joined = **job;
      --joined.seats;
      ++joined.active;
      run_job(joined, worker, lock);
      if (--joined.active == 0) done.notify_all();
    }
  }
};

ThreadPool::ThreadPool(int32_t threads) : state_(std::make_unique<State>()) {
  if (threads <= 0) threads = std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()));
  State* const state = state_.get();
  for (int32_t worker = 1; worker < threads; ++worker) {
    try {
      state->threads.emplace_back([state, worker] { state->work_until_closed(worker); });
    } catch (const std::system_error&) {
      break;  // the system gives no more: fewer threads compute the same results (R54)
    }
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->closing = true;
  }
  state_->work.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

int32_t ThreadPool::size() const { return static_cast<int32_t>(state_->threads.size()) + 1; }

void ThreadPool::parallel_for(int64_t extent, int64_t grain, const Body& body, int32_t threads) {
  if (extent <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  const int64_t chunks = (extent - 1) / grain + 1;
  const int32_t most = threads > 0 ? std::min(threads, size()) : size();
  const int32_t helpers = static_cast<int32_t>(std::min<int64_t>(most, chunks)) - 1;
  if (helpers == 0) {
    body(0, 0, extent);
    return;
  }
  Job job{.body = body, .extent = extent, .grain = grain, .seats = helpers};
  std::unique_lock lock(state_->mutex);
  state_->jobs.push_back(&job);
  for (int32_t i = 0; i < helpers; ++i) state_->work.notify_one();
  state_->run_job(job, 0, lock);
  // Nobody joins any more; those who have joined are still in the body that lives on the caller's stack.
  std::erase(state_->jobs, &job);
  state_->done.wait(lock, [&] { return job.active == 0; });
  lock.unlock();
  if (job.error != nullptr) std::rethrow_exception(job.error);
}

}  // namespace fuseloom::run
