#include "run/executable.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <mutex>
#include <shared_mutex>

#include "base/check.h"
#include "base/lexer.h"
#include "run/layout.h"

namespace fuseloom::run {

using program::BufferId;
using program::BufferKind;
using program::Program;

namespace {

constexpr int64_t kParallelWork = 20000;       // nanoseconds below which waking a thread costs more than it saves
constexpr size_t kAlignment = 64;

// 64-byte aligned memory that only grows.
class Block {
 public:
  char* ensure(int64_t bytes) {
    if (bytes > size_) {
      memory_.reset(static_cast<char*>(::operator new(static_cast<size_t>(bytes), std::align_val_t{kAlignment})));
      size_ = bytes;
    }
    return memory_.get();
  }
  int64_t size() const { return size_; }

 private:
  struct Free {
    void operator()(char* p) const { ::operator delete(p, std::align_val_t{kAlignment}); }
  };
  std::unique_ptr<char, Free> memory_;
  int64_t size_ = 0;
};

// What one run needs beside the entry; kept and reused.
struct Context {
  Block arena;
  std::vector<Block> scratch;                  // by worker
  std::vector<void*> pointers;                 // by buffer
  std::vector<Tensor> dynamic;                 // by buffer: memory whose size only the run knows
  std::vector<int64_t> symbols, evaluator_scratch, values;
  std::vector<void*> arguments;
  std::vector<Tensor> inputs;                  // contiguous copies where the caller's are not
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::string dims_text(const Dims& dims) { return fmt::format("[{}]", fmt::join(dims, ",")); }

bool overlaps(const Tensor& a, const Tensor& b) {
  if (a.bytes() == 0 || b.bytes() == 0) return false;
  const auto range = [](const Tensor& t) {
    int64_t low = 0, high = 0;
    for (int64_t d = 0; d < t.rank(); ++d) {
      const int64_t reach = (t.dim(d) - 1) * t.strides()[static_cast<size_t>(d)];
      (reach < 0 ? low : high) += reach;
    }
    const char* base = static_cast<const char*>(t.data());
    return std::pair(base + dtype_bytes(t.dtype(), std::abs(low)) * (low < 0 ? -1 : 1), base + dtype_bytes(t.dtype(), high + 1));
  };
  const auto [a_low, a_high] = range(a);
  const auto [b_low, b_high] = range(b);
  return a_low < b_high && b_low < a_high;
}

void check_finite(const std::string& name, const Tensor& tensor) {
  if (!is_float(tensor.dtype())) return;
  for (int64_t i = 0; i < tensor.count(); ++i) {
    FL_REQUIRE(std::isfinite(tensor.at(i)), "input '{}': element {} is {}; finite values are expected (check_finite)", name, i, tensor.at(i));
  }
}

}  // namespace

class Executable::Impl {
 public:
  Impl(Program program, const KernelLookup& lookup, std::shared_ptr<void> keep_alive, std::shared_ptr<ThreadPool> pool, RunOptions options)
      : program_(std::move(program)), layout_(program_), keep_alive_(std::move(keep_alive)), pool_(std::move(pool)), options_(options) {
    for (const program::KernelRef& kernel : program_.kernels) functions_.push_back(lookup(kernel.name));
    for (const program::Line& line : program_.lines) {
      nested_.emplace_back();
      if (const auto* branch = std::get_if<program::If>(&line.what)) {
        nested_.back().push_back(nested(*branch->then, lookup));
        nested_.back().push_back(nested(*branch->otherwise, lookup));
      } else if (const auto* loop = std::get_if<program::While>(&line.what)) {
        nested_.back().push_back(nested(*loop->body, lookup));
      }
    }
    statistics_.resize(program_.lines.size());
    for (Tensor& constant : program_.constants) constant = constant.to_contiguous();
    fixed_.assign(program_.buffers.size(), nullptr);
    for (size_t b = 0; b < program_.buffers.size(); ++b) {
      const program::Buffer& buffer = program_.buffers[b];
      if (buffer.kind == BufferKind::Constant) {
        fixed_[b] = program_.constants[static_cast<size_t>(buffer.index)].data();
      } else if (buffer.kind == BufferKind::Prepared) {
        Dims dims;
        for (const sym::Expr& size : buffer.type.shape) dims.push_back(sym::evaluate(size, {}));
        prepared_.push_back(Tensor(buffer.type.dtype, dims));
        fixed_[b] = prepared_.back().data();
      }
    }
    prepare();
  }

  const Program& program() const { return program_; }
  size_t entry_count() const {
    const std::shared_lock lock(entries_mutex_);
    return entries_.size();
  }

  // `outer`: the values of program().outer_symbols. `outputs`: where to write; an invalid tensor is allocated.
  // `detach`: results never share memory with inputs.
  void run(std::span<const Tensor> inputs, std::span<Tensor> outputs, std::span<const int64_t> outer, bool detach) const {
    check_types(inputs);
    const std::shared_ptr<const Entry> entry = find_entry(inputs, outer);
    std::unique_ptr<Context> context = take_context();
    try {
      execute(*entry, *context, inputs, outputs, detach);
    } catch (...) {
      for (Tensor& tensor : context->dynamic) tensor = Tensor();
      give_context(std::move(context));
      throw;
    }
    give_context(std::move(context));
  }

  std::shared_ptr<const Entry> entry_for(std::span<const Dims> dims) const {
    FL_REQUIRE(dims.size() == program_.input_types.size(), "{} inputs expected, got the dims of {}", program_.input_types.size(), dims.size());
    std::vector<int64_t> key;
    for (size_t i = 0; i < dims.size(); ++i) {
      FL_REQUIRE(static_cast<int64_t>(dims[i].size()) == program_.input_types[i].rank(), "input '{}': expected rank {} ({}), got {}", program_.input_names[i],
                 program_.input_types[i].rank(), op::to_string(program_.input_types[i]), dims_text(dims[i]));
      key.insert(key.end(), dims[i].begin(), dims[i].end());
    }
    return find_entry(key);
  }

  void set_profiling(bool on) const {
    profiling_.store(on, std::memory_order_relaxed);
    for (const auto& programs : nested_) {
      for (const auto& each : programs) each->set_profiling(on);
    }
  }
  Profile profile() const {
    Profile out;
    collect(out);
    const std::lock_guard lock(profile_mutex_);
    out.runs = runs_;
    out.seconds = run_seconds_;
    return out;
  }
  void set_line_hook(std::function<void(size_t, const program::Line&, std::span<const Tensor>)> hook) const {
    const std::lock_guard lock(profile_mutex_);
    hook_ = hook ? std::make_shared<const std::function<void(size_t, const program::Line&, std::span<const Tensor>)>>(std::move(hook)) : nullptr;
    hooked_.store(hook_ != nullptr, std::memory_order_release);
  }

 private:
  std::unique_ptr<Impl> nested(const Program& source, const KernelLookup& lookup) {
    return std::make_unique<Impl>(program::clone(source), lookup, keep_alive_, pool_, options_);
  }

  // ---- before the first run: packed weights
  void prepare() {
    std::vector<int64_t> scratch, values;
    for (const program::Line& line : program_.init) {
      const auto* launch = std::get_if<program::Launch>(&line.what);
      FL_CHECK(launch != nullptr, "program {}: an init line that is no launch", program_.name);
      std::vector<void*> arguments;
      for (const BufferId id : launch->buffers) arguments.push_back(storage_pointer(fixed_, id));
      for (const sym::Expr& size : launch->sizes) values.push_back(sym::evaluate(size, {}));
      const int64_t extent = sym::evaluate(launch->extent, {});
      Block block;
      char* memory = block.ensure(std::max<int64_t>(64, sym::evaluate(launch->scratch_bytes, {})));
      functions_[static_cast<size_t>(launch->kernel)](arguments.data(), values.data(), memory, 0, extent);
      values.clear();
    }
  }
  void* storage_pointer(const std::vector<void*>& pointers, BufferId id) const {
    const program::Buffer& buffer = program_.buffer(id);
    if (buffer.kind != BufferKind::View) return pointers[static_cast<size_t>(id.index)];
    char* base = static_cast<char*>(storage_pointer(pointers, buffer.base));
    return base + dtype_bytes(buffer.type.dtype, sym::evaluate(buffer.offset, {}));
  }

  // ---- inputs and entries
  void check_types(std::span<const Tensor> inputs) const {
    FL_REQUIRE(inputs.size() == program_.input_types.size(), "{} inputs expected ({}), got {}", program_.input_types.size(), fmt::join(program_.input_names, ", "), inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      const op::TensorType& type = program_.input_types[i];
      FL_REQUIRE(inputs[i].valid(), "input '{}' is missing; expected {}", program_.input_names[i], op::to_string(type));
      FL_REQUIRE(inputs[i].dtype() == type.dtype, "input '{}': expected {}, got {}", program_.input_names[i], op::to_string(type), inputs[i].type_string());
      FL_REQUIRE(inputs[i].rank() == type.rank(), "input '{}': expected rank {} ({}), got {}", program_.input_names[i], type.rank(), op::to_string(type), inputs[i].type_string());
      if (options_.check_finite) check_finite(program_.input_names[i], inputs[i]);
    }
  }

  std::shared_ptr<const Entry> find_entry(std::span<const Tensor> inputs, std::span<const int64_t> outer) const {
    thread_local std::vector<int64_t> key;
    key.clear();
    for (const Tensor& input : inputs) key.insert(key.end(), input.dims().begin(), input.dims().end());
    key.insert(key.end(), outer.begin(), outer.end());
    return find_entry(key);
  }
  std::shared_ptr<const Entry> find_entry(const std::vector<int64_t>& key) const {
    if (options_.max_entries > 0) {
      const std::shared_lock lock(entries_mutex_);
      for (const std::shared_ptr<const Entry>& entry : entries_) {
        if (entry->key == key) {
          entry->last_used.store(clock_.fetch_add(1, std::memory_order_relaxed), std::memory_order_relaxed);
          return entry;
        }
      }
    }
    auto entry = std::make_shared<Entry>();
    entry->key = key;
    make_entry(program_, layout_, *entry);
    if (options_.max_entries == 0) return entry;
    entry->last_used = clock_.fetch_add(1, std::memory_order_relaxed);
    const std::unique_lock lock(entries_mutex_);
    if (entries_.size() >= options_.max_entries) {
      entries_.erase(std::min_element(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) { return a->last_used.load() < b->last_used.load(); }));
    }
    entries_.push_back(entry);
    return entry;
  }

  std::unique_ptr<Context> take_context() const {
    {
      const std::lock_guard lock(contexts_mutex_);
      if (!contexts_.empty()) {
        std::unique_ptr<Context> context = std::move(contexts_.back());
        contexts_.pop_back();
        return context;
      }
    }
    auto context = std::make_unique<Context>();
    context->scratch.resize(static_cast<size_t>(pool_->size()));
    context->pointers.resize(program_.buffers.size());
    context->dynamic.resize(program_.buffers.size());
    context->symbols.resize(layout_.symbols.size());
    return context;
  }
  void give_context(std::unique_ptr<Context> context) const {
    const std::lock_guard lock(contexts_mutex_);
    contexts_.push_back(std::move(context));
  }

  // ---- one run
  void execute(const Entry& entry, Context& context, std::span<const Tensor> inputs, std::span<Tensor> outputs, bool detach) const {
    const double started = profiling_.load(std::memory_order_relaxed) ? now() : 0;
    char* arena = context.arena.ensure(entry.arena_bytes);
    if (options_.poison && entry.arena_bytes > 0) std::memset(arena, 0xFF, static_cast<size_t>(entry.arena_bytes));
    std::copy(entry.symbols.begin(), entry.symbols.end(), context.symbols.begin());
    for (Tensor& output : outputs) {
      const size_t o = static_cast<size_t>(&output - outputs.data());
      if (!output.valid() && !program_.outputs[o].strides && layout_.output_begin[o] >= 0) output = Tensor(program_.outputs[o].type.dtype, entry.output_dims[o]);
      if (options_.poison && output.valid()) std::memset(output.data(), 0xFF, static_cast<size_t>(output.bytes()));
    }
    context.inputs.clear();
    for (size_t b = 0; b < program_.buffers.size(); ++b) {
      const program::Buffer& buffer = program_.buffers[b];
      void* pointer = fixed_[b];
      switch (buffer.kind) {
        case BufferKind::Constant:
        case BufferKind::Prepared: break;
        case BufferKind::Input: {
          const Tensor& input = inputs[static_cast<size_t>(buffer.index)];
          if (input.contiguous()) {
            pointer = const_cast<void*>(input.data());
          } else {
            context.dynamic[b] = input.contiguous_copy();
            pointer = context.dynamic[b].data();
          }
          break;
        }
        case BufferKind::Temporary:
          if (layout_.slot_of[b] >= 0) {
            pointer = arena + entry.slot_offset[static_cast<size_t>(layout_.slot_of[b])];
          } else if (layout_.result_of[b] >= 0) {
            pointer = outputs[static_cast<size_t>(layout_.result_of[b])].data();
          }
          break;
        case BufferKind::View: {
          char* base = static_cast<char*>(context.pointers[static_cast<size_t>(buffer.base.index)]);
          if (base != nullptr && layout_.is_static[b] != 0) {
            pointer = base + dtype_bytes(buffer.type.dtype, entry.buffer_values[static_cast<size_t>(layout_.offset_at[b])]);
          }
          break;
        }
      }
      context.pointers[b] = pointer;
    }
    for (size_t i = 0; i < program_.lines.size(); ++i) execute_line(entry, context, i);
    finish_outputs(entry, context, inputs, outputs, detach);
    for (Tensor& tensor : context.dynamic) {
      if (tensor.valid()) tensor = Tensor();
    }
    if (profiling_.load(std::memory_order_relaxed)) {
      const std::lock_guard lock(profile_mutex_);
      ++runs_;
      run_seconds_ += now() - started;
    }
  }

  void execute_line(const Entry& entry, Context& context, size_t i) const {
    const program::Line& line = program_.lines[i];
    const bool timed = profiling_.load(std::memory_order_relaxed);
    const double started = timed ? now() : 0;
    int64_t bytes = 0;
    if (const auto* launch = std::get_if<program::Launch>(&line.what)) {
      bytes = execute_launch(entry, context, i, *launch);
    } else if (const auto* call = std::get_if<program::Call>(&line.what)) {
      execute_call(entry, context, *call);
    } else if (const auto* copy = std::get_if<program::Copy>(&line.what)) {
      const Tensor from = tensor(entry, context, copy->from);
      ensure(entry, context, copy->to);
      if (from.bytes() > 0) std::memcpy(pointer(entry, context, copy->to), from.data(), static_cast<size_t>(from.bytes()));
    } else if (const auto* read = std::get_if<program::ReadSymbols>(&line.what)) {
      read_symbols(entry, context, *read);
    } else if (const auto* check = std::get_if<program::Assert>(&line.what)) {
      check_assert(entry, context, i, *check);
    } else if (const auto* branch = std::get_if<program::If>(&line.what)) {
      execute_if(entry, context, i, *branch);
    } else if (const auto* loop = std::get_if<program::While>(&line.what)) {
      execute_while(entry, context, i, *loop);
    }
    if (timed) {
      const std::lock_guard lock(profile_mutex_);
      ++statistics_[i].calls;
      statistics_[i].seconds += now() - started;
      statistics_[i].bytes = bytes;
    }
    if (hooked_.load(std::memory_order_acquire)) call_hook(entry, context, i);
    for (const int32_t b : layout_.dying[i]) {
      context.dynamic[static_cast<size_t>(b)] = Tensor();
      context.pointers[static_cast<size_t>(b)] = nullptr;
    }
  }

  const int64_t* line_values(const Entry& entry, Context& context, size_t i) const {
    if (layout_.line_begin[i] >= 0) return entry.line_values.data() + layout_.line_begin[i];
    const sym::Evaluator& evaluator = layout_.line_evaluator[i];
    context.evaluator_scratch.resize(std::max(context.evaluator_scratch.size(), evaluator.scratch_size()));
    context.values.resize(std::max(context.values.size(), evaluator.result_count()));
    evaluator.evaluate(context.symbols, context.evaluator_scratch, std::span(context.values.data(), evaluator.result_count()));
    return context.values.data();
  }

  // Returns the bytes the launch moves.
  int64_t execute_launch(const Entry& entry, Context& context, size_t i, const program::Launch& launch) const {
    context.arguments.clear();
    for (const BufferId id : launch.buffers) {
      void* at = context.pointers[static_cast<size_t>(id.index)];
      if (at == nullptr) {
        ensure(entry, context, id);
        at = pointer(entry, context, id);
      }
      context.arguments.push_back(at);
    }
    const int64_t* values = line_values(entry, context, i);
    const int64_t* sizes = values;
    const int64_t extent = values[launch.sizes.size()], scratch = values[launch.sizes.size() + 1], work = values[launch.sizes.size() + 2];
    const KernelFunction function = functions_[static_cast<size_t>(launch.kernel)];
    const int32_t threads = std::min(pool_->size(), options_.threads > 0 ? options_.threads : pool_->size());
    const auto scratch_of = [&](int32_t worker) {
      Block& block = context.scratch[static_cast<size_t>(worker)];
      char* memory = block.ensure(scratch);
      if (options_.poison && scratch > 0) std::memset(memory, 0xFF, static_cast<size_t>(scratch));
      return memory;
    };
    if (extent <= 0) return values[launch.sizes.size() + 3];
    if (threads <= 1 || extent == 1 || work < kParallelWork) {
      function(context.arguments.data(), sizes, scratch_of(0), 0, extent);
    } else {
      const int64_t grain = std::max<int64_t>(1, extent / (static_cast<int64_t>(threads) * 4));
      pool_->parallel_for(extent, grain, [&](int32_t worker, int64_t begin, int64_t end) { function(context.arguments.data(), sizes, scratch_of(worker), begin, end); });
    }
    return values[launch.sizes.size() + 3];
  }

  // ---- buffers whose size only the run knows
  Dims dims_of(const Entry& entry, Context& context, BufferId id, int64_t* offset = nullptr) const {
    const size_t b = static_cast<size_t>(id.index);
    const size_t rank = program_.buffers[b].type.shape.size();
    if (layout_.is_static[b] != 0) {
      const int64_t* values = entry.buffer_values.data() + layout_.dims_begin[b];
      if (offset != nullptr) *offset = values[rank];
      return Dims(values, values + rank);
    }
    const sym::Evaluator& evaluator = layout_.dynamic_dims[b];
    std::vector<int64_t> scratch(evaluator.scratch_size()), results(evaluator.result_count());
    evaluator.evaluate(context.symbols, scratch, results);
    if (offset != nullptr) *offset = results[rank];
    results.resize(rank);
    for (size_t d = 0; d < rank; ++d) {
      FL_REQUIRE(results[d] >= 0, "'{}' would have the size {} ({}) in dimension {}", program_.buffers[b].name, results[d], sym::to_string(program_.buffers[b].type.shape[d]), d);
    }
    return results;
  }
  void ensure(const Entry& entry, Context& context, BufferId id) const {
    const program::Buffer& buffer = program_.buffer(id);
    const size_t b = static_cast<size_t>(id.index);
    if (buffer.kind == BufferKind::View) return ensure(entry, context, buffer.base);
    if (context.pointers[b] != nullptr || context.dynamic[b].valid() || buffer.kind != BufferKind::Temporary) return;
    if (layout_.slot_of[b] >= 0 || layout_.result_of[b] >= 0) return;
    adopt(context, id, Tensor(buffer.type.dtype, dims_of(entry, context, id)));
    if (options_.poison) std::memset(context.dynamic[b].data(), 0xFF, static_cast<size_t>(context.dynamic[b].bytes()));
  }
  void adopt(Context& context, BufferId id, Tensor value) const {
    const size_t b = static_cast<size_t>(id.index);
    context.dynamic[b] = std::move(value);
    context.pointers[b] = context.dynamic[b].data();
  }
  void* pointer(const Entry& entry, Context& context, BufferId id) const {
    const size_t b = static_cast<size_t>(id.index);
    if (context.pointers[b] != nullptr || program_.buffers[b].kind != BufferKind::View) return context.pointers[b];
    int64_t offset = 0;
    dims_of(entry, context, id, &offset);
    char* base = static_cast<char*>(pointer(entry, context, program_.buffers[b].base));
    return base == nullptr ? nullptr : base + dtype_bytes(program_.buffers[b].type.dtype, offset);
  }
  Tensor tensor(const Entry& entry, Context& context, BufferId id) const {
    return Tensor::borrow(program_.buffer(id).type.dtype, dims_of(entry, context, id), pointer(entry, context, id));
  }

  // Gives a line's result to its buffer: into its planned memory, or as it is.
  void deliver(const Entry& entry, Context& context, BufferId id, Tensor value) const {
    if (!id.valid()) return;
    const size_t b = static_cast<size_t>(id.index);
    const program::Buffer& buffer = program_.buffers[b];
    FL_CHECK(value.dtype() == buffer.type.dtype, "'{}': {} delivered where {} was expected", buffer.name, value.type_string(), op::to_string(buffer.type));
    const Dims expected = dims_of(entry, context, id);
    FL_REQUIRE(value.dims() == expected, "'{}': the run gave {}, expected {} ({})", buffer.name, value.type_string(), dims_text(expected), op::to_string(buffer.type));
    if (context.pointers[b] == nullptr) {
      adopt(context, id, value.contiguous() ? std::move(value) : value.contiguous_copy());
    } else {
      const Tensor flat = value.to_contiguous();
      if (flat.bytes() > 0) std::memcpy(context.pointers[b], flat.data(), static_cast<size_t>(flat.bytes()));
    }
  }
  // Symbols in `defines` take their values from the sizes of the results they appear in.
  void bind_defined(Context& context, const std::vector<std::string>& defines, std::span<const BufferId> buffers, std::span<const Tensor> values) const {
    for (const std::string& name : defines) {
      bool bound = false;
      for (size_t i = 0; i < buffers.size() && !bound; ++i) {
        if (!buffers[i].valid() || !values[i].valid()) continue;
        const op::Shape& shape = program_.buffer(buffers[i]).type.shape;
        for (size_t d = 0; d < shape.size() && !bound; ++d) {
          if (!shape[d].is_symbol() || shape[d].name() != name) continue;
          context.symbols[layout_.symbol_index.at(name)] = values[i].dim(static_cast<int64_t>(d));
          bound = true;
        }
      }
      FL_CHECK(bound, "program {}: no result has the size '{}' that its line defines", program_.name, name);
    }
  }

  std::map<std::string, int64_t> known_symbols(const Context& context) const {
    std::map<std::string, int64_t> values;
    for (size_t s = 0; s < layout_.symbols.size(); ++s) values[layout_.symbols[s]] = context.symbols[s];
    return values;
  }

  void execute_call(const Entry& entry, Context& context, const program::Call& call) const {
    std::vector<Tensor> inputs, outputs;
    for (const BufferId id : call.inputs) inputs.push_back(id.valid() ? tensor(entry, context, id) : Tensor());
    const op::Attrs attrs = op::concrete(call.attrs, known_symbols(context));
    if (!call.defines.empty() || std::any_of(call.outputs.begin(), call.outputs.end(), [](BufferId id) { return !id.valid(); })) {
      outputs = op::run_reference(*call.op, inputs, attrs, static_cast<int64_t>(call.outputs.size()));
      bind_defined(context, call.defines, call.outputs, outputs);
      for (size_t i = 0; i < outputs.size(); ++i) deliver(entry, context, call.outputs[i], std::move(outputs[i]));
      return;
    }
    for (const BufferId id : call.outputs) {
      ensure(entry, context, id);
      outputs.push_back(tensor(entry, context, id));
    }
    call.op->reference({.record = call.op, .inputs = inputs, .attrs = attrs, .outputs = outputs});
  }

  void read_symbols(const Entry& entry, Context& context, const program::ReadSymbols& read) const {
    const Tensor from = tensor(entry, context, read.from);
    FL_REQUIRE(from.count() == static_cast<int64_t>(read.defines.size()), "'{}' has {} elements; {} sizes are read from it", program_.buffer(read.from).name, from.count(), read.defines.size());
    for (size_t i = 0; i < read.defines.size(); ++i) {
      context.symbols[layout_.symbol_index.at(read.defines[i])] = from.int_at(static_cast<int64_t>(i));
    }
  }

  void check_assert(const Entry& entry, Context& context, size_t i, const program::Assert& check) const {
    if (line_values(entry, context, i)[0] != 0) return;
    std::string values;
    for (const std::string& name : sym::symbols_of(check.condition)) {
      values += fmt::format("{}{} = {}", values.empty() ? "" : ", ", name, context.symbols[layout_.symbol_index.at(name)]);
    }
    throw UserError(fmt::format("{} ({})", check.message, values));
  }

  std::vector<int64_t> outer_values(const Context& context, const Impl& nested) const {
    std::vector<int64_t> values;
    for (const std::string& name : nested.program_.outer_symbols) values.push_back(context.symbols[layout_.symbol_index.at(name)]);
    return values;
  }

  void execute_if(const Entry& entry, Context& context, size_t i, const program::If& branch) const {
    const Tensor condition = tensor(entry, context, branch.condition);
    FL_REQUIRE(condition.count() == 1, "{}: a condition of {} elements; expected one", program_.lines[i].origin, condition.count());
    const Impl& chosen = *nested_[i][condition.int_at(0) != 0 ? 0 : 1];
    std::vector<Tensor> inputs, outputs(branch.outputs.size());
    for (const BufferId id : branch.inputs) inputs.push_back(tensor(entry, context, id));
    const std::vector<int64_t> outer = outer_values(context, chosen);
    chosen.run(inputs, outputs, outer, true);
    bind_defined(context, branch.defines, branch.outputs, outputs);
    for (size_t o = 0; o < outputs.size(); ++o) deliver(entry, context, branch.outputs[o], std::move(outputs[o]));
  }

  void execute_while(const Entry& entry, Context& context, size_t i, const program::While& loop) const {
    const Impl& body = *nested_[i][0];
    int64_t trips = -1;
    if (loop.trip_count.valid()) trips = std::max<int64_t>(0, tensor(entry, context, loop.trip_count).int_at(0));
    bool condition = !loop.condition.valid() || tensor(entry, context, loop.condition).int_at(0) != 0;
    std::vector<Tensor> inputs(2);
    for (const BufferId id : loop.inputs) inputs.push_back(tensor(entry, context, id));
    const size_t carried = static_cast<size_t>(loop.carried), scans = static_cast<size_t>(loop.scans);
    std::vector<std::vector<Tensor>> collected(scans);
    const std::vector<int64_t> outer = outer_values(context, body);
    for (int64_t iteration = 0; condition && (trips < 0 || iteration < trips); ++iteration) {
      inputs[0] = Tensor::of_ints(DType::I64, {}, std::span(&iteration, 1));
      inputs[1] = Tensor::scalar(DType::Bool, 1);
      std::vector<Tensor> outputs(1 + carried + scans);
      body.run(inputs, outputs, outer, true);
      condition = outputs[0].int_at(0) != 0;
      for (size_t c = 0; c < carried; ++c) inputs[2 + c] = std::move(outputs[1 + c]);
      for (size_t s = 0; s < scans; ++s) collected[s].push_back(std::move(outputs[1 + carried + s]));
    }
    std::vector<Tensor> results;
    // Values that were never replaced still are the caller's: the loop's results never alias them (R4).
    for (size_t c = 0; c < carried; ++c) results.push_back(inputs[2 + c].contiguous_copy());
    for (size_t s = 0; s < scans; ++s) results.push_back(stack(entry, context, loop.outputs[carried + s], collected[s]));
    bind_defined(context, loop.defines, loop.outputs, results);
    for (size_t o = 0; o < results.size(); ++o) deliver(entry, context, loop.outputs[o], std::move(results[o]));
  }

  Tensor stack(const Entry&, Context& context, BufferId id, const std::vector<Tensor>& parts) const {
    const op::TensorType& type = program_.buffer(id).type;
    Dims dims{static_cast<int64_t>(parts.size())};
    if (parts.empty()) {
      // Nothing ran: sizes that only an iteration would have decided are 0.
      for (size_t d = 1; d < type.shape.size(); ++d) {
        bool known = true;
        for (const std::string& name : sym::symbols_of(type.shape[d])) known = known && layout_.symbol_index.at(name) < layout_.static_symbols;
        dims.push_back(known ? sym::evaluate(type.shape[d], known_symbols(context)) : 0);
      }
      return Tensor(type.dtype, dims);
    }
    dims.insert(dims.end(), parts[0].dims().begin(), parts[0].dims().end());
    Tensor out(type.dtype, dims);
    char* at = static_cast<char*>(out.data());
    for (const Tensor& part : parts) {
      FL_REQUIRE(part.dims() == parts[0].dims(), "'{}': an iteration gave {}, the first gave {}; they cannot be stacked", program_.buffer(id).name, part.type_string(), parts[0].type_string());
      if (part.bytes() > 0) std::memcpy(at, part.data(), static_cast<size_t>(part.bytes()));
      at += part.bytes();
    }
    return out;
  }

  void finish_outputs(const Entry& entry, Context& context, std::span<const Tensor> inputs, std::span<Tensor> outputs, bool detach) const {
    for (size_t o = 0; o < program_.outputs.size(); ++o) {
      const program::Output& output = program_.outputs[o];
      const BufferId storage = program::storage_of(program_, output.buffer);
      if (layout_.result_of[static_cast<size_t>(storage.index)] == static_cast<int32_t>(o)) continue;   // computed there
      if (output.strides) {
        Tensor window = window_of(entry, context, o, inputs);
        if (outputs[o].valid()) {
          copy_into(window, outputs[o]);
        } else {
          outputs[o] = detach ? window.contiguous_copy() : std::move(window);
        }
        continue;
      }
      const Tensor value = Tensor::borrow(output.type.dtype, dims_of(entry, context, output.buffer), pointer(entry, context, output.buffer));
      if (!outputs[o].valid()) outputs[o] = Tensor(output.type.dtype, value.dims());
      copy_into(value, outputs[o]);
    }
  }
  static void copy_into(const Tensor& from, Tensor& to) {
    FL_REQUIRE(from.dims() == to.dims(), "an output tensor of {} was given for a result of {}", to.type_string(), from.type_string());
    const Tensor flat = from.to_contiguous();
    if (flat.bytes() > 0) std::memmove(to.data(), flat.data(), static_cast<size_t>(flat.bytes()));
  }
  Tensor window_of(const Entry& entry, Context& context, size_t o, std::span<const Tensor> inputs) const {
    const program::Output& output = program_.outputs[o];
    Dims dims = entry.output_dims[o], strides = entry.output_strides[o];
    int64_t offset = entry.output_offset[o];
    if (layout_.output_begin[o] < 0) {
      const std::map<std::string, int64_t> values = known_symbols(context);
      dims.clear();
      strides.clear();
      for (const sym::Expr& size : output.type.shape) dims.push_back(sym::evaluate(size, values));
      for (const sym::Expr& stride : *output.strides) strides.push_back(sym::evaluate(stride, values));
      offset = sym::evaluate(output.offset, values);
    }
    const size_t b = static_cast<size_t>(output.buffer.index);
    const Tensor& input = inputs[static_cast<size_t>(program_.buffers[b].index)];
    const Tensor& held = context.dynamic[b].valid() ? context.dynamic[b] : input;
    char* base = static_cast<char*>(context.pointers[b]) + dtype_bytes(output.type.dtype, offset);
    return Tensor::share(output.type.dtype, dims, strides, base, held.owner());
  }

  // ---- observation
  void call_hook(const Entry& entry, Context& context, size_t i) const {
    std::shared_ptr<const std::function<void(size_t, const program::Line&, std::span<const Tensor>)>> hook;
    {
      const std::lock_guard lock(profile_mutex_);
      hook = hook_;
    }
    if (hook == nullptr) return;
    std::vector<Tensor> written;
    const std::vector<program::LiveRange> ranges = program::live_ranges(program_);
    for (size_t b = 0; b < program_.buffers.size(); ++b) {
      const BufferId id{static_cast<int32_t>(b)};
      if (program_.buffers[b].kind == BufferKind::Temporary && ranges[b].first == static_cast<int32_t>(i) && pointer(entry, context, id) != nullptr) {
        written.push_back(tensor(entry, context, id));
      }
    }
    (*hook)(i, program_.lines[i], written);
  }
  void collect(Profile& out) const {
    {
      const std::lock_guard lock(profile_mutex_);
      for (size_t i = 0; i < program_.lines.size(); ++i) {
        KernelStatistics each = statistics_[i];
        const program::Line& line = program_.lines[i];
        if (const auto* launch = std::get_if<program::Launch>(&line.what)) {
          each.name = program_.kernels[static_cast<size_t>(launch->kernel)].name;
        } else if (const auto* call = std::get_if<program::Call>(&line.what)) {
          each.name = "call " + call->op->name;
        } else if (std::holds_alternative<program::If>(line.what)) {
          each.name = "if";
        } else if (std::holds_alternative<program::While>(line.what)) {
          each.name = "while";
        } else {
          continue;
        }
        each.origin = line.origin;
        out.kernels.push_back(std::move(each));
      }
    }
    for (const auto& programs : nested_) {
      for (const auto& each : programs) each->collect(out);
    }
  }

  Program program_;
  const Layout layout_;
  std::shared_ptr<void> keep_alive_;
  std::shared_ptr<ThreadPool> pool_;
  RunOptions options_;
  std::vector<KernelFunction> functions_;
  std::vector<std::vector<std::unique_ptr<Impl>>> nested_;   // by line
  std::vector<void*> fixed_;                                 // by buffer: constants and prepared ones
  std::vector<Tensor> prepared_;

  mutable std::shared_mutex entries_mutex_;
  mutable std::vector<std::shared_ptr<const Entry>> entries_;
  mutable std::atomic<int64_t> clock_{0};
  mutable std::mutex contexts_mutex_;
  mutable std::vector<std::unique_ptr<Context>> contexts_;
  mutable std::mutex profile_mutex_;
  mutable std::vector<KernelStatistics> statistics_;
  mutable std::atomic<bool> profiling_{false}, hooked_{false};
  mutable std::shared_ptr<const std::function<void(size_t, const program::Line&, std::span<const Tensor>)>> hook_;
  mutable int64_t runs_ = 0;
  mutable double run_seconds_ = 0;
};

Executable::Executable(Program program, const KernelLookup& lookup, std::shared_ptr<void> keep_alive, std::shared_ptr<ThreadPool> pool, RunOptions options)
    : impl_(std::make_unique<Impl>(std::move(program), lookup, std::move(keep_alive), std::move(pool), options)) {
  FL_REQUIRE(impl_->program().outer_symbols.empty(), "a nested program cannot run by itself: it needs the sizes {}", fmt::join(impl_->program().outer_symbols, ", "));
}
Executable::~Executable() = default;
Executable::Executable(Executable&&) noexcept = default;

const Program& Executable::program() const { return impl_->program(); }

std::vector<Tensor> Executable::run(std::span<const Tensor> inputs, std::span<const Tensor> outputs) const {
  std::vector<Tensor> results(outputs.begin(), outputs.end());
  results.resize(program().outputs.size());
  run_into(inputs, results);
  return results;
}

void Executable::run_into(std::span<const Tensor> inputs, std::span<Tensor> outputs) const {
  const Program& program = impl_->program();
  FL_REQUIRE(outputs.size() == program.outputs.size(), "{} outputs expected, got room for {}", program.outputs.size(), outputs.size());
  bool any_overlap = false;
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (!outputs[o].valid()) continue;
    FL_REQUIRE(outputs[o].dtype() == program.outputs[o].type.dtype && outputs[o].rank() == program.outputs[o].type.rank(),
               "output '{}': expected {}, got room for {}", program.outputs[o].name, op::to_string(program.outputs[o].type), outputs[o].type_string());
    FL_REQUIRE(outputs[o].contiguous(), "output '{}': the given tensor is not contiguous", program.outputs[o].name);
    for (const Tensor& input : inputs) any_overlap = any_overlap || (input.valid() && overlaps(input, outputs[o]));
    for (size_t other = 0; other < o; ++other) {
      FL_REQUIRE(!outputs[other].valid() || !overlaps(outputs[other], outputs[o]), "outputs '{}' and '{}' were given the same memory", program.outputs[other].name, program.outputs[o].name);
    }
  }
  bool any_given = std::any_of(outputs.begin(), outputs.end(), [](const Tensor& t) { return t.valid(); });
  if (any_given) {
    thread_local std::vector<Dims> dims;
    dims.clear();
    for (const Tensor& input : inputs) dims.push_back(input.dims());
    const std::vector<Dims> expected = output_dims(dims);
    for (size_t o = 0; o < outputs.size(); ++o) {
      FL_REQUIRE(!outputs[o].valid() || expected[o].empty() || outputs[o].dims() == expected[o], "output '{}': expected {}, got room for {}", program.outputs[o].name, dims_text(expected[o]), outputs[o].type_string());
    }
  }
  if (!any_overlap) {
    impl_->run(inputs, outputs, {}, false);
    return;
  }
  // The caller updates its tensors in place: compute beside them, then copy.
  std::vector<Tensor> fresh(outputs.size());
  impl_->run(inputs, fresh, {}, true);
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (!outputs[o].valid()) {
      outputs[o] = fresh[o];
    } else if (fresh[o].bytes() > 0) {
      std::memcpy(outputs[o].data(), fresh[o].data(), static_cast<size_t>(fresh[o].bytes()));
    }
  }
}

std::vector<Dims> Executable::output_dims(std::span<const Dims> input_dims) const { return impl_->entry_for(input_dims)->output_dims; }
int64_t Executable::arena_bytes(std::span<const Dims> input_dims) const { return impl_->entry_for(input_dims)->arena_bytes; }
int64_t Executable::arena_lower_bound(std::span<const Dims> input_dims) const { return impl_->entry_for(input_dims)->lower_bound; }
size_t Executable::entry_count() const { return impl_->entry_count(); }
void Executable::set_profiling(bool on) const { impl_->set_profiling(on); }
Profile Executable::profile() const { return impl_->profile(); }
void Executable::set_line_hook(std::function<void(size_t, const program::Line&, std::span<const Tensor>)> hook) const { impl_->set_line_hook(std::move(hook)); }

std::string Profile::chrome_trace() const {
  std::string out = "{\"traceEvents\":[";
  double at = 0;
  for (size_t i = 0; i < kernels.size(); ++i) {
    const double micros = kernels[i].calls > 0 ? kernels[i].seconds / static_cast<double>(kernels[i].calls) * 1e6 : 0;
    out += fmt::format("{}{{\"name\":{},\"cat\":\"kernel\",\"ph\":\"X\",\"ts\":{:.3f},\"dur\":{:.3f},\"pid\":1,\"tid\":1,\"args\":{{\"origin\":{},\"bytes\":{},\"calls\":{}}}}}",
                       i == 0 ? "" : ",", base::quote(kernels[i].name), at, micros, base::quote(kernels[i].origin), kernels[i].bytes, kernels[i].calls);
    at += micros;
  }
  return out + "]}";
}

}  // namespace fuseloom::run
