// A program made ready to run: everything that does not depend on the sizes of a run is decided here, once.
//
//   symbols    belong to stages, see program/layout.h.
//   values     every expression that a run needs, compiled to one evaluator per stage. Those of stage 0 are evaluated when
//              an entry is made (entry.h), the others right after the line that opens their stage.
//   storages   what has memory of its own, as the layout says.
//   slots      the pointers of a run: slot 0 is the arena, then one for each storage outside it, and one for each view
//              whose offset is known at run time only. An argument of a kernel is a slot and an offset in bytes.
//   steps      the lines, with what happens around them: memory that is taken and given back, stages that open.
#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "program/layout.h"
#include "run/context.h"
#include "run/cuda_device.h"
#include "run/entry.h"
#include "run/executable.h"
#include "run/profiler.h"
#include "sym/evaluator.h"

namespace fuseloom::run {

// Some expressions of one stage, one after the other: at `base` of the entry's values (stage 0) or the context's.
struct ValueRef {
  int32_t stage = 0, base = 0;
};

// A storage of the layout, and its pointer's place among the slots.
struct Storage : program::Storage {
  int32_t slot = 0;

  Storage(const program::Storage& storage) : program::Storage(storage) {}  // NOLINT
};

// A storage of the arena, and those placed before it that live when it lives.
struct Placement {
  int32_t storage = -1;
  std::vector<int32_t> conflicts;
};

struct BufferPlan {
  int32_t storage = -1;
  int32_t rank = 0;
  ValueRef dims;
  ValueRef offset;               // bytes from the start of the storage
  int32_t view_slot = -1;        // a view whose offset is not of stage 0
  int64_t element_bytes = 1;
};

struct CudaVariantPlan {
  const CudaKernel* kernel = nullptr;
  std::array<int32_t, 3> block = {1, 1, 1}, cluster = {1, 1, 1};
  bool cooperative = false;
};
struct LaunchPlan {
  std::vector<KernelFunction> functions;  // by variant, on the cpu
  std::vector<CudaVariantPlan> cuda;      // by variant, on a device
  std::vector<program::BufferId> buffers; // of the kernel, then a library's workspace
  int32_t kernel_arguments = 0;
  int32_t first_argument = 0;    // in Entry::arguments
  int32_t size_count = 0;
  // sizes, work, bytes moved; then of each variant: condition, extent, scratch bytes; on a device: condition, grid, shared bytes
  // of a product then: batch, rows, columns, depth, workspace bytes, bias offset; of left, right, result: offset, three strides
  ValueRef values;
  const program::MatrixProduct* product = nullptr;   // of the program's launch
  DType product_dtype = DType::F32;
};
struct CallPlan {
  int32_t stage = 0;             // of the attributes
};

struct Step {
  enum class Kind : uint8_t { Launch, Call, Copy, Read, Assert, If, While };
  Kind kind = Kind::Launch;
  bool plain = true;             // nothing happens around the line
  int32_t index = -1;            // Launch: in launches; Call: in calls; Assert: in assert_values; If, While: in nested
  int32_t opens = 0;             // the stage it opens, or 0
  std::vector<int32_t> births;   // dynamic storages whose memory is taken before the line
  std::vector<int32_t> deaths;   // dynamic storages whose memory is given back after it
  std::vector<program::BufferId> views;  // views with run-time offsets that it uses
  std::vector<program::BufferId> written;
  std::vector<int32_t> arena_births, arena_deaths;  // for poisoning
};

struct OutputPlan {
  ValueRef dims, strides, offset;
  bool has_strides = false;
  program::BufferKind source = program::BufferKind::Temporary;  // kind of the storage it is taken from
  int32_t input = -1;            // source Input: which
  int32_t direct = -1;           // the storage that is computed in the result's memory
};

// How results may share memory with inputs.
enum class Sharing : uint8_t {
  Views,    // strided views of inputs are shared, everything else is not
  Never,    // every result has memory of its own
  Anything  // whole inputs are shared too: the caller never writes to them again
};
struct RunMode {
  std::span<const int64_t> outer;     // values of Program::outer_symbols
  Sharing sharing = Sharing::Views;
  bool offers = false;                // given results are used where they fit; else the caller must fit (UserError)
  bool profile = false;
  const LineHook* hook = nullptr;
  // ---- on a device
  CudaStream stream = nullptr;
  CallOptions::Results results = CallOptions::Results::LikeInputs;
};

class LoadedProgram {
 public:
  // `program` outlives the object. On the CPU it has no init lines left (prepare.h), on a device they are run. Resolves kernels,
  // loads nested programs.
  LoadedProgram(const program::Program& program, const Kernels& kernels, std::shared_ptr<ThreadPool> pool, const RunOptions& options);

  // results.size() is the number of outputs; an invalid one is made.
  void run(std::span<const Tensor> inputs, std::span<Tensor> results, const RunMode& mode) const;

  std::shared_ptr<const Entry> entry_for(std::span<const Dims> input_dims) const;
  size_t entry_count() const { return entries_.size(); }
  void collect_statistics(Profile& profile) const;

  const program::Program& program() const { return program_; }
  int32_t thread_count() const { return threads_; }
  const BufferPlan& plan_of(program::BufferId id) const { return buffers_[static_cast<size_t>(id.index)]; }

 private:
  friend class Run;
  friend class LoadedProgramBuilder;
  friend class EntryMaker;
  void check_inputs(std::span<const Tensor> inputs) const;
  std::unique_ptr<Context> take_context(CudaStream stream) const;
  std::shared_ptr<const Entry> find_entry(std::span<const Tensor> inputs, std::span<const int64_t> outer, Context& context) const;
  std::shared_ptr<const Entry> entry_of_key(std::vector<int64_t> key) const;

  const program::Program& program_;
  std::shared_ptr<ThreadPool> pool_;
  const std::shared_ptr<CudaDevice> device_;  // null: the cpu
  std::vector<std::unique_ptr<CudaKernel>> cuda_kernels_;  // by kernel of the program
  bool recordable_ = false;                   // nothing but launches and copies of known sizes: a graph can hold a run
  const RunOptions options_;
  int32_t threads_ = 1;

  // ---- symbols and values
  std::vector<std::string> symbols_;          // in the order in which they are bound
  std::vector<int32_t> symbol_count_;         // by stage: symbols known then
  std::vector<std::vector<sym::Expr>> exprs_; // by stage
  std::vector<sym::Evaluator> evaluators_;    // by stage
  std::vector<int32_t> stage_base_;           // by stage: in Context::values
  int32_t dynamic_values_ = 0;
  int32_t evaluator_scratch_ = 0;
  // Where the symbols of stage 0 come from: the outer ones, then sizes as they are, then solved ones.
  struct Binding {
    int32_t key = -1;                         // index in the key: bound as it is
    std::optional<sym::Evaluator> solve;      // else: of the symbols so far and the size at `solve_key`
    int32_t solve_key = -1;
  };
  std::vector<Binding> bindings_;
  std::vector<int32_t> input_key_;            // by input: where its sizes start in the key
  int32_t key_size_ = 0;
  ValueRef input_dims_;                       // the sizes of all inputs, for the check

  // ---- memory
  std::vector<BufferPlan> buffers_;
  std::vector<Storage> storages_;
  std::vector<Placement> placements_;         // in order
  int32_t slot_count_ = 1;
  std::vector<std::pair<int32_t, int32_t>> input_slots_;  // (slot, input) of inputs that somebody reads
  std::vector<void*> fixed_slots_;            // by slot: memory of Fixed storages
  std::vector<Tensor> fixed_tensors_;         // owns it

  // ---- lines
  std::vector<Step> steps_;
  std::vector<LaunchPlan> launches_;
  std::vector<CallPlan> calls_;
  std::vector<std::pair<int32_t, int32_t>> call_lines_;  // (call, its line)
  std::vector<ValueRef> assert_values_;
  struct Nested {
    std::unique_ptr<LoadedProgram> program;
    std::vector<int32_t> outer;               // which of symbols_ its outer symbols are
  };
  std::vector<std::vector<Nested>> nested_;   // If: then, else; While: body
  std::vector<OutputPlan> outputs_;
  int32_t argument_count_ = 0;
  int32_t most_arguments_ = 0;                // of a launch, its sizes counted

  mutable EntryCache entries_;
  mutable ContextPool contexts_;
  mutable LineProfiler profiler_;
};

}  // namespace fuseloom::run
