// Runs a host program, its kernels on the CPU or on a CUDA device. Links without the compiler.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "program/program.h"
#include "run/cuda_driver.h"

namespace fuseloom::run {

using KernelFunction = void (*)(void* const* buffers, const int64_t* sizes, char* scratch, int64_t begin, int64_t end);
// Finds a kernel's function by name; called when the program is loaded, and throws when it is missing.
using KernelLookup = std::function<KernelFunction(const std::string& name)>;

class CudaDevice;
// The kernels of a program: functions of this process, or of a device's module.
struct Kernels {
  KernelLookup cpu;
  std::shared_ptr<CudaDevice> device;            // null: the cpu
  std::function<CudaFunction(const std::string& name)> cuda;
};

// The threads of a process's fuseloom programs. Nothing spins: idle workers sleep on a condition variable.
class ThreadPool {
 public:
  explicit ThreadPool(int32_t threads);          // including the caller; 0: as many as there are cores
  ~ThreadPool();
  int32_t size() const;
  // Calls body(worker, begin, end) until [0, extent) is covered in chunks of `grain` (or larger ones, when one thread does
  // it all); the caller takes part as worker 0. Any number of threads may call at once. worker < size(). At most `threads`
  // take part (0: all). An exception of the body stops the loop and is thrown to the caller.
  void parallel_for(int64_t extent, int64_t grain, const std::function<void(int32_t worker, int64_t begin, int64_t end)>& body,
                    int32_t threads = 0);
 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct RunOptions {
  int32_t threads = 0;                           // 0: all of the pool
  bool poison = false;                           // A12: fill uninitialised memory with NaN / 0xFF before use and after free
  bool check_inputs = true;                      // B3
  bool check_finite = false;                     // NaN and Inf in inputs are errors
  size_t max_entries = 64;                       // A7: 0 switches the entry cache off
  // ---- on a device
  bool graphs = false;                           // record programs without decisions of the host as CUDA graphs: one for each
                                                 // shape and set of pointers that comes twice
  bool products = true;                          // products go to the device's library where it has one and takes them
  bool tf32 = false;                             // f32 operands of the library's products are rounded to 10 bits of mantissa
  bool synchronous = false;                      // wait after every line, so that a fault names the line it happened in
};

// Of one call of a program on a device.
struct CallOptions {
  CudaStream stream = nullptr;
  // Where results that are not given are made. When all results are on the device the call returns without waiting for it.
  enum class Results : uint8_t {
    LikeInputs,                                  // on the device if an input is, or there is none; else on the host
    Host,
    Device,
  };
  Results results = Results::LikeInputs;
};

struct KernelStatistics {                        // A17
  std::string name, origin;
  int64_t calls = 0;
  double seconds = 0;
  int64_t bytes = 0;                             // of one call (the last shape)
  // ---- a kernel on a device: `seconds` is the device's time
  double host_seconds = 0;                       // until the call that launches it returns
  int32_t registers = 0, local_bytes = 0;        // per thread; local: spilled registers and arrays
  int64_t shared_bytes = 0;                      // per block, of the last shape
  double occupancy = 0;                          // of the last shape
  bool library = false;                          // a library did it, of the last shape
  std::string note;                              // why a library that could have did not
};
struct ProfileEvent {
  size_t kernel = 0;                             // in Profile::kernels
  double start = 0, seconds = 0;                 // start: on the steady clock
  uint64_t thread = 0;
};
struct Profile {
  std::vector<KernelStatistics> kernels;         // launches, calls, copies, branches and loops in program order, nested programs after
  std::vector<ProfileEvent> events;              // the first 65536 of every program
  int64_t runs = 0;
  double seconds = 0;
  std::string chrome_trace() const;              // JSON
};

// Shows what a line wrote (B20): temporaries, with `written[i]` the contents of `buffers[i]`. The lines of branches and bodies
// come with their own program, before the if or while they belong to.
using LineHook = std::function<void(const program::Program& program, size_t line, std::span<const program::BufferId> buffers,
                                    std::span<const Tensor> written)>;

class Executable {
 public:
  // Takes the program and runs its init lines (prepare.h). `keep_alive` holds the kernels' library.
  Executable(program::Program program, const KernelLookup& lookup, std::shared_ptr<void> keep_alive, std::shared_ptr<ThreadPool> pool,
             RunOptions options = {});
  Executable(program::Program program, const Kernels& kernels, std::shared_ptr<void> keep_alive, std::shared_ptr<ThreadPool> pool,
             RunOptions options = {});
  ~Executable();
  Executable(Executable&&) noexcept;

  const program::Program& program() const;
  const std::shared_ptr<CudaDevice>& device() const;   // null: the cpu
  // Inputs in the program's order. Results are fresh tensors, or written into `outputs[i]` where that is valid (right dtype,
  // dims, contiguous). Thread-safe. Throws UserError for inputs that do not fit.
  // On a device, inputs and results may be on it or on the host, each by itself.
  std::vector<Tensor> run(std::span<const Tensor> inputs, std::span<const Tensor> outputs = {}, const CallOptions& call = {}) const;
  // Lean call (≤ 1 µs for a one-kernel program): contiguous inputs of the shapes of the last call of this thread are looked
  // up without allocation.
  void run_into(std::span<const Tensor> inputs, std::span<Tensor> outputs, const CallOptions& call = {}) const;

  // Before any run, from the sizes of the inputs. Throws Unsupported where sizes of results depend on the data.
  std::vector<Dims> output_dims(std::span<const Dims> input_dims) const;
  int64_t arena_bytes(std::span<const Dims> input_dims) const;       // planned peak of temporaries
  int64_t arena_lower_bound(std::span<const Dims> input_dims) const; // largest sum of live temporaries
  size_t entry_count() const;
  // Does what the first call with inputs of these sizes would do before it runs.
  void prepare_entry(std::span<const Dims> input_dims) const;

  void set_profiling(bool on) const;
  Profile profile() const;
  void set_line_hook(LineHook hook) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fuseloom::run
