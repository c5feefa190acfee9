#include "run/context.h"

#include <thread>

namespace fuseloom::run {
namespace {

size_t home_of_thread() {
  // Ids of threads are often addresses: multiply and take the upper bits.
  const uint64_t id = std::hash<std::thread::id>()(std::this_thread::get_id());
  return static_cast<size_t>((id * 0x9E3779B97F4A7C15ull) >> 32);
}

}  // namespace

ContextPool::~ContextPool() {
  for (Slot& slot : slots_) delete slot.context.load(std::memory_order_acquire);
}

std::unique_ptr<Context> ContextPool::take(CudaStream stream) {
  const size_t home = home_of_thread();
  for (size_t i = 0; i < kSlots; ++i) {
    std::atomic<Context*>& slot = slots_[(home + i) % kSlots].context;
    // Looking first keeps empty slots in the shared state of everybody's cache.
    if (slot.load(std::memory_order_relaxed) == nullptr) continue;
    std::unique_ptr<Context> context(slot.exchange(nullptr, std::memory_order_acquire));
    if (context == nullptr) continue;
    if (context->device == nullptr || context->device->stream == stream) return context;
    give_back(std::move(context));  // mostly to where it was
  }
  return nullptr;
}

void ContextPool::give_back(std::unique_ptr<Context> context) {
  const size_t home = home_of_thread();
  for (size_t i = 0; i < kSlots; ++i) {
    std::atomic<Context*>& slot = slots_[(home + i) % kSlots].context;
    Context* expected = nullptr;
    if (slot.compare_exchange_strong(expected, context.get(), std::memory_order_release, std::memory_order_relaxed)) {
      context.release();  // NOLINT: the slot owns it now
      return;
    }
  }
}

}  // namespace fuseloom::run
