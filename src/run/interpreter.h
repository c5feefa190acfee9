// One run of a loaded program: the lines, one after the other.
#pragma once
#include <span>
#include <vector>

#include "run/loaded_program.h"

namespace fuseloom::run {

class Run {
 public:
  Run(const LoadedProgram& loaded, const Entry& entry, Context& context, std::span<const Tensor> inputs, std::span<Tensor> results, const RunMode& mode)
      : loaded_(loaded),
        program_(loaded.program_),
        entry_(entry),
        context_(context),
        inputs_(inputs),
        results_(results),
        mode_(mode),
        device_(loaded.device_.get()),
        stream_(mode.stream) {}
  void execute();

 private:
  // ---- before and after the lines
  void bind_inputs();
  void bind_inputs_on_device();
  void check_finite(size_t input, const Tensor& tensor) const;
  void bind_results();
  void accept_result(size_t output);
  bool overlaps_input(const Tensor& tensor) const;
  void make_result(size_t output, const int64_t* dims);
  void finish_results();
  Tensor source_of(size_t output) const;
  bool shares_input(const OutputPlan& plan) const;
  bool is_on_host(size_t output) const;       // of a program on a device: the result is wanted there
  void give_to_host(std::span<const size_t> outputs);

  // ---- all lines
  void run_steps();
  bool replay();                               // false: the lines are to be run one by one
  std::shared_ptr<void> record();

  // ---- lines
  void run_step(size_t line);
  void run_step_with_instruments(size_t line);
  void before(const Step& step);
  void after(const Step& step);
  int64_t launch(const Step& step);
  int64_t launch_on_device(const Step& step);
  void profile(size_t line, double start, double end, int64_t bytes);
  void finish_profile();
  void call(const Step& step, const program::Call& call);
  void copy(const program::Copy& copy);
  void read(const program::ReadSymbols& read);
  void check(const Step& step, const program::Assert& check) const;
  void branch(const Step& step, const program::If& branch);
  void loop(const Step& step, const program::While& loop);
  struct LoopState;
  void iterate(const Step& step, const program::While& loop, LoopState& state);
  Tensor stacked(const LoopState& state, const program::While& loop, size_t scan) const;

  // ---- symbols and values
  const int64_t* values(ValueRef ref) const {
    return (ref.stage == 0 ? entry_.values.data() : context_.values.data()) + ref.base;
  }
  bool known(ValueRef ref) const { return ref.stage <= stage_; }
  void set_symbol(const std::string& symbol, int64_t value, std::string_view from);
  // After a line with results: binds its symbols and gives the results to their buffers.
  void finish_line(const Step& step, const std::vector<std::string>& defines, const std::vector<program::BufferId>& buffers, std::span<Tensor> results);
  void define_from(const std::vector<std::string>& defines, const std::vector<program::BufferId>& buffers, std::span<const Tensor> results);
  void open_stage(int32_t stage);
  std::vector<int64_t> outer_values(const LoadedProgram::Nested& nested) const;

  // ---- memory
  std::byte* pointer(program::BufferId id) const;
  Dims dims(program::BufferId id) const;
  Tensor tensor(program::BufferId id) const;
  Tensor optional_tensor(program::BufferId id) const { return id.valid() ? tensor(id) : Tensor(); }
  void take_storage(int32_t storage);
  void deliver(program::BufferId id, Tensor value, bool placed);
  void poison(void* data, int64_t bytes) const;
  void poison_storage(int32_t storage) const;
  Tensor on_host(const Tensor& tensor) const { return device_ == nullptr ? tensor : device_->to_host(tensor, stream_); }
  Tensor host_tensor(program::BufferId id) const { return on_host(tensor(id)); }
  void copy_elements(const Tensor& from, Tensor& to) const;
  Tensor share(DType dtype, Dims dims, Dims strides, void* data, std::shared_ptr<void> owner) const;
  const program::Buffer& buffer(program::BufferId id) const { return program_.buffer(id); }
  const Storage& storage_of(program::BufferId id) const { return loaded_.storages_[static_cast<size_t>(loaded_.plan_of(id).storage)]; }

  const LoadedProgram& loaded_;
  const program::Program& program_;
  const Entry& entry_;
  Context& context_;
  const std::span<const Tensor> inputs_;
  const std::span<Tensor> results_;
  const RunMode& mode_;
  CudaDevice* const device_;       // null: the cpu
  CudaStream stream_;
  bool results_on_host_ = false;   // of a program on a device: those that are not given
  int32_t stage_ = 0;              // the last one that is open
  int32_t next_symbol_ = 0;        // the first one that is not bound
  bool overlap_ = false;           // a given result lies over an input
  struct Timing {
    size_t line = 0;
    std::shared_ptr<void> begin, end;          // CudaEvents
    double start = 0, host_seconds = 0;
    int64_t bytes = 0;
  };
  std::vector<Timing> timings_;    // of launches on a device, while profiling
};

}  // namespace fuseloom::run
