#include "run/loaded_program.h"

#include <algorithm>

#include "base/check.h"
#include "program/layout.h"
#include "program/line.h"

namespace fuseloom::run {

using program::Buffer;
using program::BufferId;
using program::BufferKind;
using program::Line;
using program::LiveRange;
using program::Program;
using sym::Expr;

// Fills a LoadedProgram, in the order of the members.
class LoadedProgramBuilder {
 public:
  LoadedProgramBuilder(LoadedProgram& out, const Kernels& kernels)
      : out_(out), program_(out.program_), kernels_(kernels), ranges_(program::live_ranges(out.program_)), layout_(program::layout_of(out.program_)) {}

  void build() {
    const program::Device runs_on = out_.device_ != nullptr ? program::Device::Cuda : program::Device::Cpu;
    FL_CHECK(program_.device == runs_on, "program {} is for {}, its kernels are for {}", program_.name, program::device_name(program_.device),
             program::device_name(runs_on));
    if (out_.device_ != nullptr) out_.device_->make_current();
    bind_symbols();
    assign_slots();
    plan_buffers();
    plan_lines();
    plan_outputs();
    order_placement();
    out_.recordable_ = out_.exprs_.size() == 1 && !out_.steps_.empty() && std::all_of(out_.steps_.begin(), out_.steps_.end(), [](const Step& step) {
      return step.plain && (step.kind == Step::Kind::Launch || step.kind == Step::Kind::Copy);
    });
    compile_values();
    place_fixed();
  }

 private:
  // ---- symbols and values
  void bind_symbols() {
    std::vector<Expr> dims;
    int32_t key = static_cast<int32_t>(program_.outer_symbols.size());
    for (const op::TensorType& type : program_.input_types) {
      out_.input_key_.push_back(key);
      key += static_cast<int32_t>(type.shape.size());
      dims.insert(dims.end(), type.shape.begin(), type.shape.end());
    }
    out_.key_size_ = key;
    for (const program::SymbolBinding& binding : layout_.bindings) {
      const int32_t at = binding.outer >= 0 ? binding.outer : out_.input_key_[static_cast<size_t>(binding.input)] + binding.dimension;
      if (binding.solution) {
        std::vector<std::string> known = out_.symbols_;
        known.push_back(binding.size_name);
        out_.bindings_.push_back({.solve = sym::Evaluator(known, {&*binding.solution, 1}), .solve_key = at});
      } else {
        out_.bindings_.push_back({.key = at});
      }
      out_.symbols_.push_back(binding.symbol);
    }
    out_.symbol_count_.push_back(static_cast<int32_t>(out_.symbols_.size()));
    for (const Line& line : program_.lines) {
      const std::span<const std::string> defines = program::defines_of(line);
      out_.symbols_.insert(out_.symbols_.end(), defines.begin(), defines.end());
      if (!defines.empty()) out_.symbol_count_.push_back(static_cast<int32_t>(out_.symbols_.size()));
    }
    out_.exprs_.resize(out_.symbol_count_.size());
    out_.input_dims_ = add_values(dims);
  }

  ValueRef add_values(std::span<const Expr> exprs) {
    int32_t stage = 0;
    for (const Expr& expr : exprs) stage = std::max(stage, layout_.stage_of(expr));
    std::vector<Expr>& into = out_.exprs_[static_cast<size_t>(stage)];
    const ValueRef ref{stage, static_cast<int32_t>(into.size())};
    into.insert(into.end(), exprs.begin(), exprs.end());
    return ref;
  }

  // Until here a ValueRef counts within its stage.
  void compile_values() {
    for (size_t stage = 0; stage < out_.exprs_.size(); ++stage) {
      const std::span<const std::string> symbols(out_.symbols_.data(), static_cast<size_t>(out_.symbol_count_[stage]));
      out_.evaluators_.emplace_back(symbols, out_.exprs_[stage]);
      out_.evaluator_scratch_ = std::max(out_.evaluator_scratch_, static_cast<int32_t>(out_.evaluators_.back().scratch_size()));
      out_.stage_base_.push_back(stage == 0 ? 0 : out_.dynamic_values_);
      if (stage > 0) out_.dynamic_values_ += static_cast<int32_t>(out_.exprs_[stage].size());
    }
    const auto shift = [&](ValueRef& ref) { ref.base += out_.stage_base_[static_cast<size_t>(ref.stage)]; };
    for (BufferPlan& buffer : out_.buffers_) {
      shift(buffer.dims);
      shift(buffer.offset);
    }
    for (LaunchPlan& launch : out_.launches_) shift(launch.values);
    for (ValueRef& values : out_.assert_values_) shift(values);
    for (OutputPlan& output : out_.outputs_) {
      shift(output.dims);
      shift(output.strides);
      shift(output.offset);
    }
  }

  // ---- storages
  const Buffer& buffer(BufferId id) const { return program_.buffer(id); }
  int32_t root(BufferId id) const { return program::storage_of(program_, id).index; }
  const LiveRange& range(int32_t storage_buffer) const { return ranges_[static_cast<size_t>(storage_buffer)]; }

  void assign_slots() {
    out_.storages_.assign(layout_.storages.begin(), layout_.storages.end());
    for (Storage& storage : out_.storages_) {
      if (storage.place != Storage::Place::Arena) storage.slot = out_.slot_count_++;
      if (storage.place == Storage::Place::Input) out_.input_slots_.emplace_back(storage.slot, storage.index);
    }
  }

  // ---- buffers
  void plan_buffers() {
    out_.buffers_.resize(program_.buffers.size());
    for (size_t b = 0; b < program_.buffers.size(); ++b) {
      if (layout_.used[b] == 0) continue;
      const BufferId id{static_cast<int32_t>(b)};
      BufferPlan& plan = out_.buffers_[b];
      plan.storage = layout_.storage[b];
      plan.rank = static_cast<int32_t>(buffer(id).type.rank());
      plan.dims = add_values(buffer(id).type.shape);
      plan.element_bytes = dtype_bytes(buffer(id).type.dtype);
      const Expr offset = program::byte_offset(program_, id);
      plan.offset = add_values({&offset, 1});
    }
  }

  // ---- lines
  void plan_lines() {
    for (size_t i = 0; i < program_.lines.size(); ++i) {
      const Line& line = program_.lines[i];
      Step step;
      step.opens = layout_.opens[i];
      std::visit([&](const auto& what) { plan(what, static_cast<int32_t>(i), step); }, line.what);
      step.births = layout_.births[i];
      step.deaths = layout_.deaths[i];
      note_arena(static_cast<int32_t>(i), step);
      for (const BufferId id : program::buffers_of(line)) {
        const bool run_time_view = buffer(id).kind == BufferKind::View && out_.plan_of(id).offset.stage > 0;
        if (step.kind == Step::Kind::Launch && run_time_view) {
          BufferPlan& plan = out_.buffers_[static_cast<size_t>(id.index)];
          if (plan.view_slot < 0) plan.view_slot = out_.slot_count_++;
          step.views.push_back(id);
        }
      }
      note_written(line, static_cast<int32_t>(i), step);
      step.plain = step.opens == 0 && step.births.empty() && step.deaths.empty() && step.views.empty();
      out_.steps_.push_back(std::move(step));
    }
  }

  void note_arena(int32_t line, Step& step) const {
    for (size_t s = 0; s < out_.storages_.size(); ++s) {
      const Storage& storage = out_.storages_[s];
      if (storage.place != Storage::Place::Arena) continue;
      if (storage.first == line) step.arena_births.push_back(static_cast<int32_t>(s));
      if (storage.last == line) step.arena_deaths.push_back(static_cast<int32_t>(s));
    }
  }

  // Of a buffer that `line` names: the line behind which its value is there. A group of nodes may be several launches, some of
  // which are skipped for some sizes, so that it is the last one of them that names the buffer and does not overwrite it.
  int32_t last_writer(const Line& line, int32_t first, BufferId id) const {
    const Line& writer = program_.lines[static_cast<size_t>(std::max(first, 0))];
    if (!std::holds_alternative<program::Launch>(line.what) || writer.nodes.empty() || first < 0) return first;
    int32_t last = first;
    for (size_t i = static_cast<size_t>(first) + 1; i < program_.lines.size(); ++i) {
      const auto* launch = std::get_if<program::Launch>(&program_.lines[i].what);
      if (launch == nullptr || program_.lines[i].nodes != writer.nodes) break;
      const bool named = std::find(launch->buffers.begin(), launch->buffers.end(), id) != launch->buffers.end();
      const bool overwritten = std::any_of(launch->in_place.begin(), launch->in_place.end(), [&](const auto& pair) { return pair.second == id; });
      if (overwritten) break;
      if (named) last = static_cast<int32_t>(i);
    }
    return last;
  }

  void note_written(const Line& line, int32_t index, Step& step) const {
    for (const BufferId id : program::buffers_of(line)) {
      const int32_t storage_buffer = root(id);
      if (program_.buffers[static_cast<size_t>(storage_buffer)].kind != BufferKind::Temporary) continue;
      const auto* product = std::get_if<program::Launch>(&line.what);
      if (product != nullptr && product->product && product->product->workspace == id) continue;
      bool written = last_writer(line, range(storage_buffer).first, id) == index;
      if (const auto* launch = std::get_if<program::Launch>(&line.what)) {
        for (const auto& [to, from] : launch->in_place) written = written || to == id;
      }
      if (written && std::find(step.written.begin(), step.written.end(), id) == step.written.end()) step.written.push_back(id);
    }
  }

  // In the order of LaunchPlan::values.
  std::vector<Expr> launch_exprs(const program::Launch& launch) const {
    std::vector<Expr> exprs = launch.sizes;
    exprs.insert(exprs.end(), {launch.work, launch.bytes});
    for (const program::Variant& variant : launch.variants) {
      exprs.push_back(variant.condition);
      if (out_.device_ != nullptr) {
        exprs.insert(exprs.end(), variant.grid.begin(), variant.grid.end());
        exprs.push_back(variant.shared_bytes);
      } else {
        exprs.insert(exprs.end(), {variant.extent, variant.scratch_bytes});
      }
    }
    if (launch.product) {
      const program::MatrixProduct& product = *launch.product;
      exprs.insert(exprs.end(), {product.batch, product.rows, product.columns, product.depth, buffer(product.workspace).type.shape[0], product.bias_offset});
      for (const program::MatrixProduct::Operand* each : {&product.left, &product.right, &product.result})
        exprs.insert(exprs.end(), {each->offset, each->batch_stride, each->row_stride, each->column_stride});
    }
    return exprs;
  }
  LaunchPlan plan_launch(const program::Launch& launch) {
    LaunchPlan plan{.buffers = launch.buffers, .kernel_arguments = static_cast<int32_t>(launch.buffers.size()), .size_count = static_cast<int32_t>(launch.sizes.size())};
    if (launch.product && out_.device_ != nullptr) {
      plan.buffers.push_back(launch.product->workspace);
      plan.product = &*launch.product;
      plan.product_dtype = buffer(launch.buffers[static_cast<size_t>(launch.product->result.buffer)]).type.dtype;
    }
    for (const program::Variant& variant : launch.variants) {
      if (out_.device_ != nullptr) {
        plan.cuda.push_back({.kernel = &cuda_kernel_of(variant.kernel), .block = variant.block, .cluster = variant.cluster, .cooperative = variant.cooperative});
      } else {
        plan.functions.push_back(function_of(variant.kernel));
      }
    }
    return plan;
  }
  void plan(const program::Launch& launch, int32_t, Step& step) {
    step.kind = Step::Kind::Launch;
    step.index = static_cast<int32_t>(out_.launches_.size());
    LaunchPlan plan = plan_launch(launch);
    plan.values = add_values(launch_exprs(launch));
    const int32_t count = static_cast<int32_t>(plan.buffers.size());
    plan.first_argument = out_.argument_count_;
    out_.argument_count_ += count;
    out_.most_arguments_ = std::max(out_.most_arguments_, count + plan.size_count);
    out_.launches_.push_back(std::move(plan));
  }
  void plan(const program::Call& call, int32_t line, Step& step) {
    step.kind = Step::Kind::Call;
    step.index = static_cast<int32_t>(out_.calls_.size());
    CallPlan plan;
    for (const auto& [name, attr] : call.attrs.all()) {
      const op::Shape* sizes = std::get_if<op::Shape>(&attr);
      if (sizes == nullptr || name == "defines") continue;
      for (const Expr& size : *sizes) plan.stage = std::max(plan.stage, layout_.stage_of(size));
    }
    out_.calls_.push_back(plan);
    out_.call_lines_.emplace_back(step.index, line);
  }
  void plan(const program::Copy&, int32_t, Step& step) { step.kind = Step::Kind::Copy; }
  void plan(const program::ReadSymbols&, int32_t, Step& step) { step.kind = Step::Kind::Read; }
  void plan(const program::Assert& check, int32_t, Step& step) {
    step.kind = Step::Kind::Assert;
    step.index = static_cast<int32_t>(out_.assert_values_.size());
    out_.assert_values_.push_back(add_values({&check.condition, 1}));
  }
  void plan(const program::If& branch, int32_t, Step& step) {
    step.kind = Step::Kind::If;
    plan_nested({branch.then.get(), branch.otherwise.get()}, step);
  }
  void plan(const program::While& loop, int32_t, Step& step) {
    step.kind = Step::Kind::While;
    plan_nested({loop.body.get()}, step);
  }
  void plan_nested(std::initializer_list<const Program*> programs, Step& step) {
    step.index = static_cast<int32_t>(out_.nested_.size());
    out_.nested_.emplace_back();
    for (const Program* nested : programs) {
      std::vector<int32_t> outer;
      for (const std::string& symbol : nested->outer_symbols) {
        const auto at = std::find(out_.symbols_.begin(), out_.symbols_.end(), symbol);
        FL_CHECK(at != out_.symbols_.end(), "program {}: nothing binds the outer symbol {} of {}", program_.name, symbol, nested->name);
        outer.push_back(static_cast<int32_t>(at - out_.symbols_.begin()));
      }
      out_.nested_.back().push_back({std::make_unique<LoadedProgram>(*nested, kernels_, out_.pool_, out_.options_), std::move(outer)});
    }
  }

  KernelFunction function_of(int32_t kernel) {
    if (functions_.empty()) functions_.resize(program_.kernels.size(), nullptr);
    KernelFunction& function = functions_[static_cast<size_t>(kernel)];
    if (function == nullptr) function = kernels_.cpu(program_.kernels[static_cast<size_t>(kernel)].name);
    FL_CHECK(function != nullptr, "program {}: there is no kernel {}", program_.name, program_.kernels[static_cast<size_t>(kernel)].name);
    return function;
  }

  const CudaKernel& cuda_kernel_of(int32_t kernel) {
    out_.cuda_kernels_.resize(program_.kernels.size());
    std::unique_ptr<CudaKernel>& held = out_.cuda_kernels_[static_cast<size_t>(kernel)];
    const std::string& name = program_.kernels[static_cast<size_t>(kernel)].name;
    if (held == nullptr) held = std::make_unique<CudaKernel>(out_.device_->describe(kernels_.cuda(name), name));
    return *held;
  }

  // ---- results
  void plan_outputs() {
    for (size_t i = 0; i < program_.outputs.size(); ++i) {
      const program::Output& output = program_.outputs[i];
      const int32_t storage = root(output.buffer);
      OutputPlan plan{.dims = add_values(output.type.shape), .has_strides = output.strides.has_value(), .direct = layout_.direct[i]};
      if (output.strides) plan.strides = add_values(*output.strides);
      const Expr offset = output.offset * dtype_bytes(output.type.dtype);
      plan.offset = add_values({&offset, 1});
      plan.source = program_.buffers[static_cast<size_t>(storage)].kind;
      if (plan.source == BufferKind::Input) plan.input = program_.buffers[static_cast<size_t>(storage)].index;
      out_.outputs_.push_back(plan);
    }
  }

  void order_placement() {
    for (const int32_t index : layout_.placement) {
      const Storage& storage = out_.storages_[static_cast<size_t>(index)];
      Placement placement{.storage = index};
      for (const Placement& before : out_.placements_) {
        const Storage& other = out_.storages_[static_cast<size_t>(before.storage)];
        if (other.first <= storage.last && storage.first <= other.last) placement.conflicts.push_back(before.storage);
      }
      out_.placements_.push_back(std::move(placement));
    }
  }

  // ---- what exists before the first run
  void place_fixed() {
    out_.fixed_slots_.assign(static_cast<size_t>(out_.slot_count_), nullptr);
    for (const Storage& storage : out_.storages_) {
      if (storage.place != Storage::Place::Fixed) continue;
      const Buffer& each = buffer(storage.buffer);
      if (each.kind == BufferKind::Constant) {
        out_.fixed_tensors_.push_back(program_.constants[static_cast<size_t>(each.index)].to_contiguous());
      } else {
        Dims dims;
        for (const Expr& size : each.type.shape) dims.push_back(sym::evaluate(size, {}));
        out_.fixed_tensors_.emplace_back(each.type.dtype, std::move(dims));
      }
      if (out_.device_ != nullptr) out_.fixed_tensors_.back() = out_.device_->to_device(out_.fixed_tensors_.back(), nullptr);
      out_.fixed_slots_[static_cast<size_t>(storage.slot)] = out_.fixed_tensors_.back().data();
    }
    FL_CHECK(program_.init.empty() || out_.device_ != nullptr, "program {}: its buffers are not prepared", program_.name);
    for (const Line& line : program_.init) prepare_on_device(std::get<program::Launch>(line.what));
    // Runs are on other streams.
    if (out_.device_ != nullptr) out_.device_->synchronize(nullptr);
  }
  void prepare_on_device(const program::Launch& launch) {
    std::vector<uint64_t> words;
    for (const BufferId id : launch.buffers) {
      const Storage& storage = out_.storages_[static_cast<size_t>(layout_.storage[static_cast<size_t>(id.index)])];
      std::byte* start = static_cast<std::byte*>(out_.fixed_slots_[static_cast<size_t>(storage.slot)]);
      start += sym::evaluate(program::byte_offset(program_, id), {});
      words.push_back(reinterpret_cast<uint64_t>(start));
    }
    const LaunchPlan plan = plan_launch(launch);
    std::vector<int64_t> values;
    for (const Expr& expr : launch_exprs(launch)) values.push_back(sym::evaluate(expr, {}));
    PackedLaunch packed;
    const PackedCudaLaunch cuda = pack_cuda_launch(packed, plan, values.data(), *out_.device_, out_.options_);
    for (int32_t i = 0; i < plan.size_count; ++i) words.push_back(static_cast<uint64_t>(packed.sizes[i]));
    if (!cuda.empty) out_.device_->launch(cuda.launch, words.data(), words.size(), nullptr);
  }

  LoadedProgram& out_;
  const Program& program_;
  const Kernels& kernels_;
  const std::vector<LiveRange> ranges_;
  const program::Layout layout_;
  std::vector<KernelFunction> functions_;            // by kernel
};

LoadedProgram::LoadedProgram(const Program& program, const Kernels& kernels, std::shared_ptr<ThreadPool> pool, const RunOptions& options)
    : program_(program),
      pool_(std::move(pool)),
      device_(kernels.device),
      options_(options),
      threads_(options.threads > 0 ? std::min(options.threads, pool_->size()) : pool_->size()),
      entries_(options.max_entries),
      profiler_(program.lines.size()) {
  LoadedProgramBuilder(*this, kernels).build();
}

std::shared_ptr<const Entry> LoadedProgram::entry_of_key(std::vector<int64_t> key) const {
  if (std::shared_ptr<const Entry> known = entries_.find(key)) return known;
  return entries_.add(make_entry(*this, std::move(key)));
}

std::shared_ptr<const Entry> LoadedProgram::entry_for(std::span<const Dims> input_dims) const {
  FL_REQUIRE(input_dims.size() == program_.input_types.size(), "program {} takes {} inputs, {} are given", program_.name, program_.input_types.size(),
             input_dims.size());
  std::vector<int64_t> key;
  for (size_t i = 0; i < input_dims.size(); ++i) {
    FL_REQUIRE(static_cast<int64_t>(input_dims[i].size()) == program_.input_types[i].rank(), "input '{}': expected rank {} ({}), got rank {}",
               program_.input_names[i], program_.input_types[i].rank(), op::to_string(program_.input_types[i]), input_dims[i].size());
    key.insert(key.end(), input_dims[i].begin(), input_dims[i].end());
  }
  return entry_of_key(std::move(key));
}

void LoadedProgram::collect_statistics(Profile& profile) const {
  profiler_.collect(program_, profile);
  for (const std::vector<Nested>& programs : nested_) {
    for (const Nested& each : programs) each.program->collect_statistics(profile);
  }
}

}  // namespace fuseloom::run
