// What is known once the sizes of the inputs are: one entry per distinct sizes (A7). A run with a known entry evaluates
// nothing: it fills in pointers and launches.
#pragma once
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "op/attrs.h"
#include "run/cuda_device.h"
#include "run/executable.h"

namespace fuseloom::run {

// A pointer that a run knows, and bytes from there.
struct Argument {
  int32_t slot = 0;
  int64_t offset = 0;
};

// A launch whose sizes are known.
struct PackedLaunch {
  KernelFunction function = nullptr;
  const Argument* arguments = nullptr;
  int32_t argument_count = 0;                 // of the kernel; a library's workspace follows behind
  const int64_t* sizes = nullptr;
  int64_t extent = 0;
  int64_t grain = 0;                          // of the parallel loop; 0: one thread does it all
  int64_t scratch_bytes = 0;                  // per worker, a multiple of the alignment
  int64_t bytes = 0;
};

// The same on a device. Its arguments and sizes are those of the PackedLaunch beside it.
struct PackedCudaLaunch {
  CudaLaunch launch;
  bool empty = false;                         // no blocks: nothing is launched
  // ---- a product that the device's library does
  std::shared_ptr<const ProductLibrary::Plan> product;   // null: the kernel does it
  std::string refused;                        // why a library that there is does not
  int64_t left = 0, right = 0, result = 0, bias = 0;     // bytes from the start of their buffers
};

struct Entry {
  std::vector<int64_t> key;                   // the outer symbols' values, then the sizes of all inputs
  std::vector<int64_t> strides;               // of contiguous inputs, laid out as the sizes in the key
  std::vector<int64_t> symbols;               // of stage 0
  std::vector<int64_t> values;                // of stage 0
  std::vector<int64_t> storage_bytes;         // by storage; known for those in the arena
  std::vector<int64_t> arena_offsets;         // by storage
  int64_t arena_bytes = 0, arena_lower_bound = 0;
  int64_t scratch_bytes = 0;                  // for all workers
  std::vector<Argument> arguments;
  std::vector<PackedLaunch> launches;         // by launch; those of later stages get their sizes in the run
  std::vector<PackedCudaLaunch> cuda_launches;  // by launch, on a device
  std::vector<op::Attrs> call_attrs;          // by call; empty for later stages
  std::vector<Dims> result_dims;              // by output; empty for later stages
};

// The least recently used entry leaves when there are more than `capacity`. Entries in use stay alive.
class EntryCache {
 public:
  explicit EntryCache(size_t capacity) : capacity_(capacity) {}
  std::shared_ptr<const Entry> find(const std::vector<int64_t>& key);
  // The entry that is kept: another thread may have been first.
  std::shared_ptr<const Entry> add(std::shared_ptr<const Entry> entry);
  size_t size() const;

 private:
  struct KeyHash {
    size_t operator()(const std::vector<int64_t>& key) const;
  };
  using Order = std::list<std::shared_ptr<const Entry>>;
  const size_t capacity_;
  mutable std::mutex mutex_;
  Order order_;                               // most recently used first
  std::unordered_map<std::vector<int64_t>, Order::iterator, KeyHash> entries_;
};

// Throws UserError "<where>: n = 3, expected 4 .. inf" when the facts exclude the value.
void check_symbol(const std::string& symbol, int64_t value, const sym::Facts& facts, const std::string& where);
// Throws UserError for a negative size and for more elements than fit.
int64_t bytes_of(const program::Buffer& buffer, const int64_t* dims);

class LoadedProgram;
// Binds and checks the sizes in the key, evaluates stage 0, places the arena. Throws UserError for sizes that do not fit.
std::shared_ptr<const Entry> make_entry(const LoadedProgram& program, std::vector<int64_t> key);

struct LaunchPlan;
struct RunOptions;
// Chooses the variant and fills in what follows from a launch's values (LaunchPlan::values).
void pack_launch(PackedLaunch& packed, const LaunchPlan& plan, const int64_t* values, int32_t threads);
// The same for a program on `device`, with the launch checked against its limits.
PackedCudaLaunch pack_cuda_launch(PackedLaunch& packed, const LaunchPlan& plan, const int64_t* values, const CudaDevice& device, const RunOptions& options);

}  // namespace fuseloom::run
