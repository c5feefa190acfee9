#include "run/loaded_program.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "base/check.h"
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
  LoadedProgramBuilder(LoadedProgram& out, const KernelLookup& lookup)
      : out_(out), program_(out.program_), lookup_(lookup), ranges_(program::live_ranges(out.program_)) {}

  void build() {
    bind_symbols();
    find_used_buffers();
    make_storages();
    choose_results();
    assign_slots();
    plan_buffers();
    plan_lines();
    plan_outputs();
    order_placement();
    compile_values();
    prepare();
  }

 private:
  // ---- symbols and values
  void bind_symbols() {
    const auto bind = [&](const std::string& symbol, int32_t stage) {
      FL_CHECK(stages_.emplace(symbol, stage).second, "program {}: the symbol {} is bound twice", program_.name, symbol);
      out_.symbols_.push_back(symbol);
    };
    for (const std::string& symbol : program_.outer_symbols) {
      bind(symbol, 0);
      out_.bindings_.push_back({.key = static_cast<int32_t>(out_.bindings_.size())});
    }
    struct Size {
      const Expr* expr;
      int32_t key;
    };
    std::vector<Size> sizes;
    std::vector<Expr> dims;
    int32_t key = static_cast<int32_t>(program_.outer_symbols.size());
    for (const op::TensorType& type : program_.input_types) {
      out_.input_key_.push_back(key);
      for (const Expr& size : type.shape) sizes.push_back({&size, key++});
      dims.insert(dims.end(), type.shape.begin(), type.shape.end());
    }
    out_.key_size_ = key;
    for (const Size& size : sizes) {
      if (!size.expr->is_symbol() || stages_.count(size.expr->name()) != 0) continue;
      bind(size.expr->name(), 0);
      out_.bindings_.push_back({.key = size.key});
    }
    // Compound sizes with one unknown are solved, until nothing moves; all are checked when an entry is made.
    for (bool moved = true; moved;) {
      moved = false;
      for (const Size& size : sizes) {
        std::vector<std::string> open;
        for (const std::string& symbol : sym::symbols_of(*size.expr)) {
          if (stages_.count(symbol) == 0) open.push_back(symbol);
        }
        if (open.size() != 1) continue;
        std::string target = "size";
        while (stages_.count(target) != 0 || target == open[0]) target += "_";
        const std::optional<Expr> solution = sym::solve_for(*size.expr, open[0], Expr::symbol(target), program_.facts);
        if (!solution) continue;
        std::vector<std::string> known = out_.symbols_;
        known.push_back(target);
        out_.bindings_.push_back({.solve = sym::Evaluator(known, {&*solution, 1}), .solve_key = size.key});
        bind(open[0], 0);
        moved = true;
      }
    }
    for (const Size& size : sizes) {
      for (const std::string& symbol : sym::symbols_of(*size.expr))
        FL_REQUIRE(stages_.count(symbol) != 0, "program {}: the sizes of the inputs do not determine {}, which {} needs", program_.name, symbol,
                   sym::to_string(*size.expr));
    }
    out_.symbol_count_.push_back(static_cast<int32_t>(out_.symbols_.size()));
    int32_t stage = 0;
    for (const Line& line : program_.lines) {
      const std::span<const std::string> defines = program::defines_of(line);
      opens_.push_back(defines.empty() ? 0 : ++stage);
      for (const std::string& symbol : defines) bind(symbol, stage);
      if (!defines.empty()) out_.symbol_count_.push_back(static_cast<int32_t>(out_.symbols_.size()));
    }
    out_.exprs_.resize(static_cast<size_t>(stage) + 1);
    out_.input_dims_ = add_values(dims);
  }

  int32_t stage_of(const Expr& expr) const {
    int32_t stage = 0;
    for (const std::string& symbol : sym::symbols_of(expr)) {
      const auto found = stages_.find(symbol);
      FL_CHECK(found != stages_.end(), "program {}: nothing binds the symbol {} of {}", program_.name, symbol, sym::to_string(expr));
      stage = std::max(stage, found->second);
    }
    return stage;
  }
  ValueRef add_values(std::span<const Expr> exprs) {
    int32_t stage = 0;
    for (const Expr& expr : exprs) stage = std::max(stage, stage_of(expr));
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

  void find_used_buffers() {
    used_.assign(program_.buffers.size(), 0);
    const auto use = [&](BufferId id) {
      for (;; id = buffer(id).base) {
        used_[static_cast<size_t>(id.index)] = 1;
        if (buffer(id).kind != BufferKind::View) return;
      }
    };
    for (const std::vector<Line>* lines : {&program_.init, &program_.lines}) {
      for (const Line& line : *lines) {
        for (const BufferId id : program::buffers_of(line)) use(id);
      }
    }
    for (const program::Output& output : program_.outputs) use(output.buffer);
  }

  bool is_dynamic(int32_t storage_buffer) const {
    const op::Shape& shape = program_.buffers[static_cast<size_t>(storage_buffer)].type.shape;
    return std::any_of(shape.begin(), shape.end(), [&](const Expr& size) { return stage_of(size) > 0; });
  }

  void make_storages() {
    storage_.assign(program_.buffers.size(), -1);
    const auto add = [&](std::span<const BufferId> buffers, Storage storage) {
      storage.buffer = buffers[0];
      for (const BufferId id : buffers) storage_[static_cast<size_t>(id.index)] = static_cast<int32_t>(out_.storages_.size());
      out_.storages_.push_back(storage);
    };
    for (const program::ArenaSlot& slot : program::arena_slots(program_))
      add(slot.buffers, {.place = Storage::Place::Arena, .first = slot.range.first, .last = slot.range.last});
    for (size_t b = 0; b < program_.buffers.size(); ++b) {
      const Buffer& each = program_.buffers[b];
      if (used_[b] == 0 || each.kind == BufferKind::View || storage_[b] >= 0) continue;
      Storage storage{.first = ranges_[b].first, .last = ranges_[b].last};
      switch (each.kind) {
        case BufferKind::Input:
          storage.place = Storage::Place::Input;
          storage.index = each.index;
          break;
        case BufferKind::Constant:
        case BufferKind::Prepared: storage.place = Storage::Place::Fixed; break;
        case BufferKind::Temporary:
        case BufferKind::View: storage.place = Storage::Place::Dynamic; break;
      }
      const BufferId id{static_cast<int32_t>(b)};
      add({&id, 1}, storage);
    }
    for (size_t b = 0; b < program_.buffers.size(); ++b) {
      if (used_[b] != 0) storage_[b] = storage_[static_cast<size_t>(root(BufferId{static_cast<int32_t>(b)}))];
    }
  }

  // The view is all of its storage.
  bool is_whole(BufferId id) const {
    for (BufferId at = id; buffer(at).kind == BufferKind::View; at = buffer(at).base) {
      if (!buffer(at).offset.is_const(0)) return false;
    }
    const auto bytes = [&](BufferId of) { return op::count_of(buffer(of).type.shape) * dtype_bytes(buffer(of).type.dtype); };
    return sym::prove_equal(bytes(id), bytes(BufferId{root(id)}), program_.facts) == sym::Proof::Yes;
  }

  // A temporary that is a whole result is computed in the result's memory. The first result gets it, others are copies.
  void choose_results() {
    direct_.assign(program_.outputs.size(), -1);
    std::set<int32_t> taken;
    for (size_t i = 0; i < program_.outputs.size(); ++i) {
      const program::Output& output = program_.outputs[i];
      if (output.strides) continue;
      const int32_t index = storage_[static_cast<size_t>(output.buffer.index)];
      Storage& storage = out_.storages_[static_cast<size_t>(index)];
      if (storage.place != Storage::Place::Dynamic || taken.count(index) != 0 || !is_whole(output.buffer)) continue;
      // The result's sizes must be known when its memory is needed: before the line, or when the line itself defines the
      // sizes, after it.
      int32_t known = 0, sized = 0, result_sized = 0;
      for (int32_t line = 0; line < storage.first; ++line) known = std::max(known, opens_[static_cast<size_t>(line)]);
      for (const Expr& size : buffer(storage.buffer).type.shape) sized = std::max(sized, stage_of(size));
      for (const Expr& size : output.type.shape) result_sized = std::max(result_sized, stage_of(size));
      if (result_sized > (sized <= known ? known : opens_[static_cast<size_t>(storage.first)])) continue;
      if (!is_dynamic(storage.buffer.index) && result_sized == 0) storage.place = Storage::Place::Result;
      storage.index = static_cast<int32_t>(i);
      taken.insert(index);
      direct_[i] = index;
    }
  }

  void assign_slots() {
    for (Storage& storage : out_.storages_) {
      if (storage.place != Storage::Place::Arena) storage.slot = out_.slot_count_++;
      if (storage.place == Storage::Place::Input) out_.input_slots_.emplace_back(storage.slot, storage.index);
    }
  }

  // ---- buffers
  void plan_buffers() {
    out_.buffers_.resize(program_.buffers.size());
    for (size_t b = 0; b < program_.buffers.size(); ++b) {
      if (used_[b] == 0) continue;
      const BufferId id{static_cast<int32_t>(b)};
      BufferPlan& plan = out_.buffers_[b];
      plan.storage = storage_[b];
      plan.rank = static_cast<int32_t>(buffer(id).type.rank());
      plan.dims = add_values(buffer(id).type.shape);
      plan.element_bytes = dtype_bytes(buffer(id).type.dtype);
      Expr offset = 0;
      for (BufferId at = id; buffer(at).kind == BufferKind::View; at = buffer(at).base)
        offset = offset + buffer(at).offset * dtype_bytes(buffer(at).type.dtype);
      plan.offset = add_values({&offset, 1});
    }
  }

  // ---- lines
  void plan_lines() {
    int32_t known = 0;  // the last stage that is open before the line
    for (size_t i = 0; i < program_.lines.size(); ++i) {
      const Line& line = program_.lines[i];
      Step step;
      step.opens = opens_[i];
      std::visit([&](const auto& what) { plan(what, static_cast<int32_t>(i), step); }, line.what);
      plan_memory(static_cast<int32_t>(i), known, step);
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
      known = std::max(known, step.opens);
      out_.steps_.push_back(std::move(step));
    }
  }

  void plan_memory(int32_t line, int32_t known, Step& step) const {
    for (size_t s = 0; s < out_.storages_.size(); ++s) {
      const Storage& storage = out_.storages_[s];
      const int32_t index = static_cast<int32_t>(s);
      if (storage.place == Storage::Place::Arena) {
        if (storage.first == line) step.arena_births.push_back(index);
        if (storage.last == line) step.arena_deaths.push_back(index);
      }
      if (storage.place != Storage::Place::Dynamic) continue;
      // What the line's own symbols size is allocated by the line.
      if (storage.first == line && out_.plan_of(storage.buffer).dims.stage <= known) step.births.push_back(index);
      if (storage.last == line) step.deaths.push_back(index);
    }
  }

  void note_written(const Line& line, int32_t index, Step& step) const {
    for (const BufferId id : program::buffers_of(line)) {
      const int32_t storage_buffer = root(id);
      if (program_.buffers[static_cast<size_t>(storage_buffer)].kind != BufferKind::Temporary) continue;
      bool written = range(storage_buffer).first == index;
      if (const auto* launch = std::get_if<program::Launch>(&line.what)) {
        for (const auto& [to, from] : launch->in_place) written = written || to == id;
      }
      if (written && std::find(step.written.begin(), step.written.end(), id) == step.written.end()) step.written.push_back(id);
    }
  }

  LaunchPlan plan_launch(const program::Launch& launch) {
    std::vector<Expr> exprs = launch.sizes;
    for (const Expr& expr : {launch.extent, launch.scratch_bytes, launch.work, launch.bytes}) exprs.push_back(expr);
    LaunchPlan plan{.function = function_of(launch.kernel), .buffers = launch.buffers, .size_count = static_cast<int32_t>(launch.sizes.size())};
    plan.values = add_values(exprs);
    return plan;
  }
  void plan(const program::Launch& launch, int32_t, Step& step) {
    step.kind = Step::Kind::Launch;
    step.index = static_cast<int32_t>(out_.launches_.size());
    LaunchPlan plan = plan_launch(launch);
    const int32_t count = static_cast<int32_t>(launch.buffers.size());
    plan.first_argument = out_.argument_count_;
    out_.argument_count_ += count;
    out_.most_arguments_ = std::max(out_.most_arguments_, count);
    out_.launches_.push_back(std::move(plan));
  }
  void plan(const program::Call& call, int32_t line, Step& step) {
    step.kind = Step::Kind::Call;
    step.index = static_cast<int32_t>(out_.calls_.size());
    CallPlan plan;
    for (const auto& [name, attr] : call.attrs.all()) {
      const op::Shape* sizes = std::get_if<op::Shape>(&attr);
      if (sizes == nullptr || name == "defines") continue;
      for (const Expr& size : *sizes) plan.stage = std::max(plan.stage, stage_of(size));
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
      out_.nested_.back().push_back({std::make_unique<LoadedProgram>(*nested, lookup_, out_.pool_, out_.options_), std::move(outer)});
    }
  }

  KernelFunction function_of(int32_t kernel) {
    if (functions_.empty()) functions_.resize(program_.kernels.size(), nullptr);
    KernelFunction& function = functions_[static_cast<size_t>(kernel)];
    if (function == nullptr) function = lookup_(program_.kernels[static_cast<size_t>(kernel)].name);
    FL_CHECK(function != nullptr, "program {}: there is no kernel {}", program_.name, program_.kernels[static_cast<size_t>(kernel)].name);
    return function;
  }

  // ---- results
  void plan_outputs() {
    for (size_t i = 0; i < program_.outputs.size(); ++i) {
      const program::Output& output = program_.outputs[i];
      const int32_t storage = root(output.buffer);
      OutputPlan plan{.dims = add_values(output.type.shape), .has_strides = output.strides.has_value(), .direct = direct_[i]};
      if (output.strides) plan.strides = add_values(*output.strides);
      const Expr offset = output.offset * dtype_bytes(output.type.dtype);
      plan.offset = add_values({&offset, 1});
      plan.source = program_.buffers[static_cast<size_t>(storage)].kind;
      if (plan.source == BufferKind::Input) plan.input = program_.buffers[static_cast<size_t>(storage)].index;
      out_.outputs_.push_back(plan);
    }
  }

  void order_placement() {
    std::vector<char> placed(out_.storages_.size(), 0);
    const auto place = [&](int32_t index) {
      if (index < 0) return;
      const Storage& storage = out_.storages_[static_cast<size_t>(index)];
      if (storage.place != Storage::Place::Arena || placed[static_cast<size_t>(index)] != 0) return;
      placed[static_cast<size_t>(index)] = 1;
      Placement placement{.storage = index};
      for (const Placement& before : out_.placements_) {
        const Storage& other = out_.storages_[static_cast<size_t>(before.storage)];
        if (other.first <= storage.last && storage.first <= other.last) placement.conflicts.push_back(before.storage);
      }
      out_.placements_.push_back(std::move(placement));
    };
    for (const int32_t b : program_.placement_order) place(storage_[static_cast<size_t>(b)]);
    for (size_t s = 0; s < out_.storages_.size(); ++s) place(static_cast<int32_t>(s));  // a program that was not planned
  }

  // ---- what exists before the first run
  void prepare() {
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
      out_.fixed_slots_[static_cast<size_t>(storage.slot)] = out_.fixed_tensors_.back().data();
    }
    for (const Line& line : program_.init) prepare(std::get<program::Launch>(line.what));
  }
  // Runs on the loading thread: a packed weight is made once, mostly while others compile.
  void prepare(const program::Launch& launch) {
    std::vector<void*> pointers;
    for (const BufferId id : launch.buffers) {
      const Storage& storage = out_.storages_[static_cast<size_t>(storage_[static_cast<size_t>(id.index)])];
      std::byte* start = static_cast<std::byte*>(out_.fixed_slots_[static_cast<size_t>(storage.slot)]);
      for (BufferId at = id; buffer(at).kind == BufferKind::View; at = buffer(at).base)
        start += sym::evaluate(buffer(at).offset, {}) * dtype_bytes(buffer(at).type.dtype);
      pointers.push_back(start);
    }
    std::vector<int64_t> sizes;
    for (const Expr& size : launch.sizes) sizes.push_back(sym::evaluate(size, {}));
    GrowingBlock scratch;
    char* const scratch_start = reinterpret_cast<char*>(scratch.reserve(sym::evaluate(launch.scratch_bytes, {})));
    const int64_t extent = sym::evaluate(launch.extent, {});
    if (extent > 0) function_of(launch.kernel)(pointers.data(), sizes.data(), scratch_start, 0, extent);
  }

  LoadedProgram& out_;
  const Program& program_;
  const KernelLookup& lookup_;
  const std::vector<LiveRange> ranges_;
  std::unordered_map<std::string, int32_t> stages_;  // by symbol
  std::vector<int32_t> opens_;                       // by line
  std::vector<char> used_;                           // by buffer
  std::vector<int32_t> storage_;                     // by buffer
  std::vector<int32_t> direct_;                      // by output
  std::vector<KernelFunction> functions_;            // by kernel
};

LoadedProgram::LoadedProgram(const Program& program, const KernelLookup& lookup, std::shared_ptr<ThreadPool> pool, const RunOptions& options)
    : program_(program),
      pool_(std::move(pool)),
      options_(options),
      threads_(options.threads > 0 ? std::min(options.threads, pool_->size()) : pool_->size()),
      entries_(options.max_entries),
      profiler_(program.lines.size()) {
  LoadedProgramBuilder(*this, lookup).build();
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
