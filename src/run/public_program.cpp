#include "run/public_program.h"

#include "program/line.h"
#include "run/archive.h"

namespace fuseloom {
inline namespace v0 {

ValueInfo value_info(std::string name, const op::TensorType& type) {
  ValueInfo info{.name = std::move(name), .dtype = type.dtype};
  for (const sym::Expr& size : type.shape) info.sizes.emplace_back(sym::to_string(size));
  return info;
}

const std::vector<ValueInfo>& Program::inputs() const { return impl_->inputs; }
const std::vector<ValueInfo>& Program::outputs() const { return impl_->outputs; }

std::vector<Tensor> Program::run(std::span<const Tensor> inputs) const { return impl_->executable->run(inputs); }
void Program::run_into(std::span<const Tensor> inputs, std::span<Tensor> outputs) const { impl_->executable->run_into(inputs, outputs); }
std::vector<Dims> Program::output_dims(std::span<const Dims> input_dims) const { return impl_->executable->output_dims(input_dims); }
int64_t Program::arena_bytes(std::span<const Dims> input_dims) const { return impl_->executable->arena_bytes(input_dims); }
int64_t Program::arena_lower_bound(std::span<const Dims> input_dims) const { return impl_->executable->arena_lower_bound(input_dims); }

const CompileInfo& Program::info() const { return impl_->info; }
const std::string& Program::explain() const { return impl_->explanation; }
const std::string& Program::source() const { return impl_->source; }

void Program::set_profiling(bool on) const { impl_->executable->set_profiling(on); }
std::vector<KernelProfile> Program::profile() const {
  std::vector<KernelProfile> kernels;
  for (const run::KernelStatistics& kernel : impl_->executable->profile().kernels) {
    kernels.push_back({.name = kernel.name, .origin = kernel.origin, .calls = kernel.calls, .seconds = kernel.seconds, .bytes = kernel.bytes});
  }
  return kernels;
}
std::string Program::chrome_trace() const { return impl_->executable->profile().chrome_trace(); }

namespace {

Program load(const run::Archive& archive, const ArchiveOptions& options) {
  run::ArchiveOptions internal{.threads = options.threads, .isa = options.isa, .check_tensors = options.check_weights};
  internal.run.poison = options.poison;
  internal.run.check_finite = options.check_finite;
  auto impl = std::make_shared<Program::Impl>();
  if (options.ops != nullptr) impl->ops = OpsAccess::table(*options.ops);
  impl->executable = archive.load(internal, impl->ops != nullptr ? *impl->ops : op::standard_ops());
  const program::Program& program = impl->executable->program();
  for (size_t i = 0; i < program.input_types.size(); ++i) impl->inputs.push_back(value_info(program.input_names[i], program.input_types[i]));
  for (const program::Output& output : program.outputs) impl->outputs.push_back(value_info(output.name, output.type));
  impl->info.kernels = program::launch_count(program);
  impl->info.distinct_kernels = program.kernels.size();
  impl->info.from_cache = true;
  return ProgramAccess::wrap(std::move(impl));
}

}  // namespace

Program load(const std::string& path, const ArchiveOptions& options) { return load(run::Archive::open(path), options); }
Program load(std::span<const std::byte> bytes, const ArchiveOptions& options) { return load(run::Archive::from_bytes(bytes), options); }

}  // namespace v0
}  // namespace fuseloom
