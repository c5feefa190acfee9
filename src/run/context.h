// The memory that one run at a time needs. Contexts are pooled, so that any number of threads can run a program at once
// and a thread that runs it again finds warm memory and the entry of its last call.
#pragma once
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "run/cuda_driver.h"
#include "run/entry.h"
#include "run/memory.h"

namespace fuseloom::run {

class CudaDevice;

// A sequence of launches that was recorded for one entry and one set of pointers.
struct RecordedGraph {
  std::shared_ptr<const Entry> entry;
  std::vector<void*> slots;
  std::shared_ptr<void> graph;                // CudaGraphExec; null: seen once, not recorded yet
};

// What a context has on a device. All of its work is on one stream, so that memory may serve the next run while the device
// is still busy with this one.
struct DeviceContext {
  CudaStream stream = nullptr;
  GrowingBlock inputs;                        // copies of inputs that a kernel cannot take as they are
  GrowingBlock staging;                       // pinned host memory
  std::shared_ptr<void> staging_free;         // CudaEvent: what was queued has read the staging
  bool staging_busy = false;
  std::vector<uint64_t> words;                // the arguments of the running launch
  std::vector<RecordedGraph> graphs;          // most recently used first
};

struct Context {
  GrowingBlock arena, scratch;
  BlockCache blocks;                          // dynamic storages
  std::unique_ptr<DeviceContext> device;      // null on the cpu
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
  std::unique_ptr<Context> take(CudaStream stream = nullptr);  // null: the pool has none for this stream
  void give_back(std::unique_ptr<Context> context);

 private:
  static constexpr size_t kSlots = 64;
  struct alignas(64) Slot {
    std::atomic<Context*> context = nullptr;
  };
  std::array<Slot, kSlots> slots_;
};

}  // namespace fuseloom::run
