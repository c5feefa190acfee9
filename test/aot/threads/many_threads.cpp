// Many threads on one instance of a model that is linked in (test/aot/threads_test.cpp), built with -fsanitize=thread:
//
//   1. every run gives the bits that one thread alone got, whatever the sizes of the others; instances that share its weights
//      come and go meanwhile
//   2. no lock is held during kernels: the model's own kernel waits until kernels of all callers are running at once
#include <pthread.h>
#include <time.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "fuseloom/model.hpp"

extern "C" const fuseloom_api* model_model(uint32_t abi_version);

namespace {

constexpr int kCallers = 8;
constexpr int64_t kColumns = 16;

[[noreturn]] void give_up(const char* words) {
  std::printf("%s\n", words);
  std::exit(1);
}

// Where kernels meet. The first `expected` that come wait for each other; later ones pass.
struct Meeting {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t all_here = PTHREAD_COND_INITIALIZER;
  int expected = 0, here = 0;
} meeting;

void call_meeting(int expected) {
  pthread_mutex_lock(&meeting.mutex);
  meeting.expected = expected;
  meeting.here = 0;
  pthread_mutex_unlock(&meeting.mutex);
}

std::vector<float> numbers(int64_t rows) {
  std::vector<float> values(static_cast<size_t>(rows * kColumns));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((i * 2654435761u + static_cast<size_t>(rows)) % 1000) / 500.0f - 1.0f;
  return values;
}

std::vector<std::vector<char>> answers(const fuseloom::Instance& instance, int64_t rows) {
  const std::vector<float> x = numbers(rows);
  std::vector<std::vector<char>> bytes;
  for (const fuseloom::Result& result : instance.run({{"x", x.data(), {rows, kColumns}}})) {
    const char* const data = static_cast<const char*>(result.data());
    bytes.emplace_back(data, data + result.bytes);
  }
  return bytes;
}

void on_callers(const std::function<void(int)>& work) {
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) callers.emplace_back(work, caller);
  for (std::thread& caller : callers) caller.join();
}

}  // namespace

// What the kernel of the model calls.
extern "C" void in_kernel() {
  pthread_mutex_lock(&meeting.mutex);
  ++meeting.here;
  if (meeting.here >= meeting.expected) pthread_cond_broadcast(&meeting.all_here);
  timespec limit;
  clock_gettime(CLOCK_REALTIME, &limit);
  limit.tv_sec += 60;
  while (meeting.here < meeting.expected) {
    if (pthread_cond_timedwait(&meeting.all_here, &meeting.mutex, &limit) != 0) give_up("kernels of different callers wait for each other");
  }
  pthread_mutex_unlock(&meeting.mutex);
}

int main() {
  const fuseloom::Model model(model_model(FUSELOOM_ABI_VERSION));
  for (const int32_t threads : {1, 3}) {   // kernels in the caller's thread alone, and in a pool too
    fuseloom::InstanceOptions options;
    options.threads = threads;
    const fuseloom::Instance instance = model.instance(options);
    std::vector<std::vector<std::vector<char>>> expected;
    for (int64_t rows = 0; rows < 40; ++rows) expected.push_back(answers(instance, rows * 7));
    std::atomic<int> wrong{0};
    on_callers([&](int caller) {
      for (int turn = 0; turn < 30; ++turn) {
        const int rows = (caller * 11 + turn * 3) % 40;
        if (answers(instance, rows * 7) != expected[static_cast<size_t>(rows)]) ++wrong;
        if (turn % 10 == caller % 10) {
          const fuseloom::Instance sharing = model.instance(options, instance);
          if (answers(sharing, rows * 7) != expected[static_cast<size_t>(rows)]) ++wrong;
        }
      }
    });
    if (wrong != 0) give_up("wrong bits");
    call_meeting(kCallers);
    on_callers([&](int) { answers(instance, 64); });
    call_meeting(0);
  }
  std::printf("%d callers met\n", kCallers);
  return 0;
}
