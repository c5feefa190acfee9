// The memory that one run at a time needs. Contexts are pooled, so that any number of threads can run a program at once
// and a thread that runs it again finds warm memory and the entry of its last call.
#pragma once
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "run/entry.h"
#include "run/memory.h"

namespace fuseloom::run {

struct Context {
  GrowingBlock arena, scratch;
  BlockCache blocks;                          // dynamic storages
  std::vector<void*> slots;
  std::vector<void*> pointers;                // the arguments of the running launch
  std::vector<int64_t> symbols, values;       // all symbols; values of stages above 0
  std::vector<int64_t> evaluator_scratch;
  std::vector<Tensor> copies;                 // by input: made contiguous
  std::vector<Tensor> adopted;                // by storage: memory that came with a line's result
  std::vector<void*> taken;                   // by storage: from `blocks`
  std::vector<char> direct;                   // by output: computed in the result's memory in this run
  bool used = false;                          // copies, adopted or taken hold something
  std::shared_ptr<const Entry> last;

  void end_run() {
    if (!used) return;
    for (Tensor& tensor : copies) tensor = Tensor();
    for (Tensor& tensor : adopted) tensor = Tensor();
    for (void*& block : taken) block = nullptr;
    blocks.end_run();
    used = false;
  }
};

// Lock-free: a slot holds a context that nobody uses. A thread starts at a slot of its own, so that it mostly gets the
// context back that it had. When all slots are full, a context that comes back is freed.
class ContextPool {
 public:
  ContextPool() = default;
  ~ContextPool();
  std::unique_ptr<Context> take();            // null: the pool is empty
  void give_back(std::unique_ptr<Context> context);

 private:
  static constexpr size_t kSlots = 64;
  struct alignas(64) Slot {
    std::atomic<Context*> context = nullptr;
  };
  std::array<Slot, kSlots> slots_;
};

}  // namespace fuseloom::run
