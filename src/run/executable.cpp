#include "run/executable.h"

#include <atomic>
#include <mutex>

#include "base/check.h"
#include "run/loaded_program.h"
#include "run/prepare.h"

namespace fuseloom::run {

struct Executable::Impl {
  Impl(program::Program taken, const Kernels& kernels, std::shared_ptr<void> held, std::shared_ptr<ThreadPool> pool, const RunOptions& options)
      : program(kernels.device == nullptr ? prepare_buffers(std::move(taken), kernels.cpu) : std::move(taken)),
        keep_alive(std::move(held)),
        device(kernels.device),
        loaded(program, kernels, std::move(pool), options) {}

  void run(std::span<const Tensor> inputs, std::span<Tensor> results, const CallOptions& call) const {
    if (device != nullptr) device->make_current();
    if (!instruments.load(std::memory_order_acquire)) {
      loaded.run(inputs, results, {.stream = call.stream, .results = call.results});
      return;
    }
    std::shared_ptr<const LineHook> held;
    bool profile = false;
    {
      const std::lock_guard lock(mutex);
      held = hook;
      profile = profiling;
    }
    const double start = seconds_now();
    loaded.run(inputs, results, {.profile = profile, .hook = held.get(), .stream = call.stream, .results = call.results});
    if (!profile) return;
    const std::lock_guard lock(mutex);
    ++runs;
    seconds += seconds_now() - start;
  }

  const program::Program program;
  const std::shared_ptr<void> keep_alive;
  const std::shared_ptr<CudaDevice> device;
  const LoadedProgram loaded;
  mutable std::atomic<bool> instruments = false;  // there is a hook, or profiling is on
  mutable std::mutex mutex;                       // guards what follows
  mutable std::shared_ptr<const LineHook> hook;
  mutable bool profiling = false;
  mutable int64_t runs = 0;
  mutable double seconds = 0;
};

Executable::Executable(program::Program program, const KernelLookup& lookup, std::shared_ptr<void> keep_alive, std::shared_ptr<ThreadPool> pool,
                       RunOptions options)
    : Executable(std::move(program), Kernels{.cpu = lookup}, std::move(keep_alive), std::move(pool), options) {}

Executable::Executable(program::Program program, const Kernels& kernels, std::shared_ptr<void> keep_alive, std::shared_ptr<ThreadPool> pool,
                       RunOptions options) {
  FL_CHECK(program.outer_symbols.empty(), "program {} is nested: the enclosing one binds {}", program.name, fmt::join(program.outer_symbols, ", "));
  if (pool == nullptr) pool = std::make_shared<ThreadPool>(1);
  impl_ = std::make_unique<Impl>(std::move(program), kernels, std::move(keep_alive), std::move(pool), options);
}
Executable::~Executable() = default;
Executable::Executable(Executable&&) noexcept = default;

const program::Program& Executable::program() const { return impl_->program; }
const std::shared_ptr<CudaDevice>& Executable::device() const { return impl_->device; }

std::vector<Tensor> Executable::run(std::span<const Tensor> inputs, std::span<const Tensor> outputs, const CallOptions& call) const {
  std::vector<Tensor> results(outputs.begin(), outputs.end());
  if (results.empty()) results.resize(impl_->program.outputs.size());
  run_into(inputs, results, call);
  return results;
}

void Executable::run_into(std::span<const Tensor> inputs, std::span<Tensor> outputs, const CallOptions& call) const {
  FL_REQUIRE(outputs.size() == impl_->program.outputs.size(), "program {} has {} outputs, {} are given", impl_->program.name,
             impl_->program.outputs.size(), outputs.size());
  impl_->run(inputs, outputs, call);
}

std::vector<Dims> Executable::output_dims(std::span<const Dims> input_dims) const {
  const std::shared_ptr<const Entry> entry = impl_->loaded.entry_for(input_dims);
  for (size_t i = 0; i < entry->result_dims.size(); ++i) {
    const program::Output& output = impl_->program.outputs[i];
    FL_SUPPORTED(static_cast<int64_t>(entry->result_dims[i].size()) == output.type.rank(),
                 "output '{}': the sizes of {} depend on the data, not on the sizes of the inputs alone", output.name, op::to_string(output.type));
  }
  return entry->result_dims;
}
int64_t Executable::arena_bytes(std::span<const Dims> input_dims) const { return impl_->loaded.entry_for(input_dims)->arena_bytes; }
int64_t Executable::arena_lower_bound(std::span<const Dims> input_dims) const { return impl_->loaded.entry_for(input_dims)->arena_lower_bound; }
size_t Executable::entry_count() const { return impl_->loaded.entry_count(); }
void Executable::prepare_entry(std::span<const Dims> input_dims) const { impl_->loaded.entry_for(input_dims); }

void Executable::set_profiling(bool on) const {
  const std::lock_guard lock(impl_->mutex);
  impl_->profiling = on;
  impl_->instruments.store(on || impl_->hook != nullptr, std::memory_order_release);
}

Profile Executable::profile() const {
  Profile profile;
  impl_->loaded.collect_statistics(profile);
  const std::lock_guard lock(impl_->mutex);
  profile.runs = impl_->runs;
  profile.seconds = impl_->seconds;
  return profile;
}

void Executable::set_line_hook(LineHook hook) const {
  const std::lock_guard lock(impl_->mutex);
  impl_->hook = hook ? std::make_shared<const LineHook>(std::move(hook)) : nullptr;
  impl_->instruments.store(impl_->profiling || impl_->hook != nullptr, std::memory_order_release);
}

}  // namespace fuseloom::run
