#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <unordered_map>

#include "base/check.h"
#include "kernel/kernel.h"

namespace fuseloom::kernel {
namespace {

bool is_arg(op::Combine combine) { return combine == op::Combine::ArgMax || combine == op::Combine::ArgMin; }
bool is_grid_binding(Binding binding) {
  switch (binding) {
    case Binding::GridX: case Binding::GridY: case Binding::GridZ: case Binding::ClusterX: return true;
    case Binding::ThreadX: case Binding::ThreadY: case Binding::ThreadZ: case Binding::Serial: case Binding::Unroll:
    case Binding::Core: case Binding::Vector: return false;
  }
  return false;
}
// The thread dimension of a loop: 0 for x.
std::optional<size_t> thread_dimension(Binding binding) {
  switch (binding) {
    case Binding::ThreadX: return 0;
    case Binding::ThreadY: return 1;
    case Binding::ThreadZ: return 2;
    case Binding::GridX: case Binding::GridY: case Binding::GridZ: case Binding::ClusterX: case Binding::Serial:
    case Binding::Unroll: case Binding::Core: case Binding::Vector: return std::nullopt;
  }
  return std::nullopt;
}
constexpr int64_t kMaxBlock[] = {1024, 1024, 64};   // threads in each dimension
constexpr int64_t kMaxThreads = 1024;

template <class Visit>
void for_each_loop(const Body& statements, const Visit& visit) {
  for (const Statement& statement : statements) {
    if (const auto* loop = std::get_if<Loop>(&statement.what)) {
      visit(*loop);
      for_each_loop(loop->body, visit);
    } else if (const auto* reduce = std::get_if<Reduce>(&statement.what)) {
      for_each_loop(reduce->body, visit);
    } else if (const auto* branch = std::get_if<If>(&statement.what)) {
      for_each_loop(branch->then, visit);
    }
  }
}
std::set<size_t> thread_dimensions(const Body& statements) {
  std::set<size_t> dimensions;
  for_each_loop(statements, [&](const Loop& loop) {
    if (const std::optional<size_t> dimension = thread_dimension(loop.binding)) dimensions.insert(*dimension);
  });
  return dimensions;
}

// Walks the tree with the names in scope. Every failure names the statement as "kernel > for i > let %x".
class Verifier {
 public:
  explicit Verifier(const Kernel& kernel) : kernel_(kernel) {}

  void run() {
    path_.push_back("kernel " + kernel_.name);
    for (const std::string& symbol : kernel_.symbols)
      check(integers_.insert(symbol).second, "size symbol {} is listed twice", symbol);
    std::set<std::string> buffer_names;
    for (const Buffer& buffer : kernel_.buffers) {
      check(buffer_names.insert(buffer.name).second, "two buffers are named @{}", buffer.name);
      expression(buffer.size);
      check(buffer.space == Space::Global || buffer.access == Access::ReadWrite, "@{} is no argument but not readwrite",
            buffer.name);
    }
    std::set<std::string> scalar_names;
    for (const Scalar& scalar : kernel_.scalars)
      check(scalar_names.insert(scalar.name).second, "two scalars are named %{}", scalar.name);
    defined_.assign(kernel_.scalars.size(), false);
    visible_.assign(kernel_.scalars.size(), false);
    for_each_loop(kernel_.body, [&](const Loop& loop) {
      cuda_ = cuda_ || is_grid_binding(loop.binding) || thread_dimension(loop.binding);
    });
    if (cuda_) check_block();
    body(kernel_.body);
    check(core_loops_ <= 1, "{} core loops; one at most is allowed", core_loops_);
    if (core_loops_ == 1) {
      for (const Statement& statement : kernel_.body) {
        const auto* loop = std::get_if<Loop>(&statement.what);
        check((loop != nullptr && loop->binding == Binding::Core) || std::holds_alternative<Define>(statement.what) ||
                  std::holds_alternative<Let>(statement.what),
              "beside the core loop there may only be definitions: every worker runs them");
      }
    }
  }

 private:
  template <class... Args>
  void check(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    if (condition) return;
    throw InternalError(fmt::format("{}: {}", fmt::join(path_, " > "), fmt::format(format, std::forward<Args>(args)...)));
  }
  const std::string& name(ScalarId id) const { return kernel_.scalar(id).name; }
  DType type(ScalarId id) const { return kernel_.scalar(id).dtype; }

  // ---- names
  void expression(const sym::Expr& expr) const {
    for (const std::string& symbol : sym::symbols_of(expr))
      check(integers_.contains(symbol), "{} reads {}, which is no integer in scope", sym::to_string(expr), symbol);
  }
  void expressions(const std::vector<sym::Expr>& exprs) const {
    for (const sym::Expr& expr : exprs) expression(expr);
  }
  void define_integer(const std::string& name) {
    check(integers_.insert(name).second, "the name {} is already taken", name);
    scope_integers_.push_back(name);
  }
  void define_scalar(ScalarId id) {
    check(id.valid() && id.index < static_cast<int32_t>(kernel_.scalars.size()), "scalar id {} does not exist", id.index);
    check(!defined_[static_cast<size_t>(id.index)], "%{} is defined twice", name(id));
    defined_[static_cast<size_t>(id.index)] = true;
    visible_[static_cast<size_t>(id.index)] = true;
    scope_scalars_.push_back(id);
    if (type(id) == DType::I64) define_integer(name(id));
  }
  void use(ScalarId id) const {
    check(id.valid() && id.index < static_cast<int32_t>(kernel_.scalars.size()), "scalar id {} does not exist", id.index);
    check(visible_[static_cast<size_t>(id.index)], "%{} is not in scope", name(id));
  }
  void buffer_access(BufferId id, Access access) const {
    check(id.valid() && id.index < static_cast<int32_t>(kernel_.buffers.size()), "buffer id {} does not exist", id.index);
    const Buffer& buffer = kernel_.buffer(id);
    check(buffer.access == access || buffer.access == Access::ReadWrite, "@{} is not {}", buffer.name,
          access == Access::Read ? "readable" : "writable");
  }

  // Runs `statements` in a scope of its own.
  void body(const Body& statements) {
    const size_t integers = scope_integers_.size(), scalars = scope_scalars_.size();
    inner(statements);
    close(integers, scalars);
  }
  void close(size_t integers, size_t scalars) {
    while (scope_integers_.size() > integers) {
      integers_.erase(scope_integers_.back());
      varying_.erase(scope_integers_.back());
      scope_integers_.pop_back();
    }
    while (scope_scalars_.size() > scalars) {
      visible_[static_cast<size_t>(scope_scalars_.back().index)] = false;
      scope_scalars_.pop_back();
    }
  }
  void inner(const Body& statements) {
    for (const Statement& statement : statements) std::visit([this](const auto& s) { visit(s); }, statement.what);
  }
  class Step {
   public:
    Step(Verifier& verifier, std::string text) : verifier_(verifier) { verifier_.path_.push_back(std::move(text)); }
    ~Step() { verifier_.path_.pop_back(); }
   private:
    Verifier& verifier_;
  };

  // ---- threads
  void check_block() {
    for_each_loop(kernel_.body, [&](const Loop& loop) {
      const std::optional<size_t> dimension = thread_dimension(loop.binding);
      if (!dimension) return;
      const std::optional<int64_t> end = loop.end.as_const();
      check(loop.begin.is_const(0) && end && *end >= 1 && *end <= kMaxBlock[*dimension],
            "the thread loop {} runs from {} to {}; 0 to a constant of at most {} is what a block has", loop.axis,
            sym::to_string(loop.begin), sym::to_string(loop.end), kMaxBlock[*dimension]);
    });
    block_ = block_of(kernel_);
    check(int64_t{block_[0]} * block_[1] * block_[2] <= kMaxThreads, "a block of {} x {} x {} threads; {} is the most", block_[0],
          block_[1], block_[2], kMaxThreads);
    for (const Buffer& buffer : kernel_.buffers)
      check(buffer.space != Space::Local || buffer.size.is_const(), "the local buffer @{} has {} elements, not a constant number",
            buffer.name, sym::to_string(buffer.size));
  }
  // Whether threads may disagree on it.
  bool varies(const sym::Expr& expr) const {
    const std::set<std::string> symbols = sym::symbols_of(expr);
    return std::any_of(symbols.begin(), symbols.end(), [&](const std::string& symbol) { return varying_.contains(symbol); });
  }
  // Where threads meet, nothing may keep some of them away. `meeting`: the dimensions that meet in it.
  void check_meeting(std::string_view what, const std::set<size_t>& meeting) const {
    check(diverged_ == 0, "{} under a condition, or in a loop, that differs between threads", what);
    for (const auto& [dimension, extent] : thread_loops_) {
      check(!meeting.empty() && dimension > *meeting.rbegin(), "{} inside a loop over threads that meet in it", what);
      check(extent == block_[dimension], "{} in a loop over {} of {} threads", what, extent, block_[dimension]);
    }
  }

  // ---- statements
  void visit(const Loop& loop) {
    const Step step(*this, "for " + loop.axis);
    expression(loop.begin);
    expression(loop.end);
    const std::optional<size_t> dimension = thread_dimension(loop.binding);
    if (is_grid_binding(loop.binding)) {
      check(loop.begin.is_const(0), "the grid loop starts at {}, not 0", sym::to_string(loop.begin));
      check(static_cast<int>(path_.size()) == 2 + grid_loops_, "the grid loop is not outermost");
      ++grid_loops_;
    }
    if (dimension) {
      check(!in_vector_, "a thread loop inside a vector loop");
      check(thread_loops_.empty() || thread_loops_.back().first > *dimension, "thread loops nest z, y, x");
      thread_loops_.emplace_back(*dimension, *loop.end.as_const());
    }
    const bool diverges = varies(loop.begin) || varies(loop.end);
    if (diverges) ++diverged_;
    if (loop.binding == Binding::Core) {
      ++core_loops_;
      check(path_.size() == 2, "the core loop is not outermost");
      check(!cuda_, "core and thread loops do not mix");
      for (const sym::Expr* bound : {&loop.begin, &loop.end})
        for (const std::string& symbol : sym::symbols_of(*bound))
          check(std::find(kernel_.symbols.begin(), kernel_.symbols.end(), symbol) != kernel_.symbols.end(),
                "the range of the core loop reads {}, which is no size symbol", symbol);
    }
    if (loop.binding == Binding::Unroll)
      check(loop.begin.is_const() && loop.end.is_const(), "an unrolled loop needs a constant range");
    if (loop.binding == Binding::Vector) {
      check(!in_vector_, "vector loops do not nest");
      check(loop.width >= 1 && loop.width <= 64 && (loop.width & (loop.width - 1)) == 0,
            "the vector width {} is not a power of two up to 64", loop.width);
      check(loop.unroll >= 1 && loop.unroll <= 16, "the unroll factor {} is not in 1..16", loop.unroll);
    }
    const bool outer_vector = in_vector_;
    const std::vector<ScalarId> outer_serial = serial_accumulators_;
    if (loop.binding == Binding::Vector) {
      in_vector_ = true;
      serial_accumulators_.clear();   // lanes have accumulators of their own: there is no running value
    } else if (loop.binding == Binding::Serial || loop.binding == Binding::Unroll) {
      serial_accumulators_ = open_accumulators_;
      if (in_vector_) std::erase_if(serial_accumulators_, [this](ScalarId id) { return !opened_in_vector_.contains(id.index); });
    }
    const size_t integers = scope_integers_.size(), scalars = scope_scalars_.size();
    define_integer(loop.axis);
    if (dimension || diverges) varying_.insert(loop.axis);
    inner(loop.body);
    close(integers, scalars);
    in_vector_ = outer_vector;
    serial_accumulators_ = outer_serial;
    if (dimension) thread_loops_.pop_back();
    if (diverges) --diverged_;
  }

  void visit(const Define& define) {
    const Step step(*this, "define " + define.name);
    expression(define.value);
    define_integer(define.name);
    if (varies(define.value)) varying_.insert(define.name);
  }

  void visit(const Let& let) {
    const Step step(*this, "let %" + (let.result.valid() ? name(let.result) : std::string("?")));
    std::visit([&](const auto& source) { check_source(source, type(let.result)); }, let.source);
    define_scalar(let.result);
    // Inside a thread loop, and from a thread's own memory, an integer is taken to be the thread's.
    const auto* load = std::get_if<Load>(&let.source);
    if (!thread_loops_.empty() || (load != nullptr && kernel_.buffer(load->buffer).space == Space::Local)) varying_.insert(name(let.result));
  }

  void check_source(const Constant&, DType) const {}
  void check_source(const IndexValue& source, DType) const { expression(source.value); }
  void check_source(const Load& load, DType type) const {
    buffer_access(load.buffer, Access::Read);
    expression(load.index);
    expressions(load.guards);
    const DType stored = kernel_.buffer(load.buffer).dtype;
    check(type == stored, "loads {} from @{} of {}", dtype_name(type), kernel_.buffer(load.buffer).name, dtype_name(stored));
  }
  void check_source(const Apply& apply, DType result) const {
    check(apply.op != nullptr, "an apply without an op");
    const op::OpRecord& record = *apply.op;
    check(record.family == op::Family::Elementwise && record.rule.empty(), "{} is no elementwise primitive", record.name);
    for (const ScalarId arg : apply.args) use(arg);
    const bool conversion = record.name == "cast" || record.name == "bitcast";
    std::vector<op::TensorType> inputs;
    for (const ScalarId arg : apply.args) inputs.push_back({.dtype = type(arg), .shape = {}});
    if (!conversion) {
      for (const op::TensorType& input : inputs)
        check(compute_dtype(input.dtype) == input.dtype, "{} computes in {}; convert to f32 first", record.name,
              dtype_name(input.dtype));
    }
    op::Attrs attrs = apply.attrs;
    if (conversion) attrs.set("to", result);
    const std::vector<char> present(inputs.size(), 1);
    std::vector<op::TensorType> inferred;
    try {
      inferred = op::infer_types(record, inputs, present, attrs);
    } catch (const UserError& error) {
      check(false, "{}", error.what());
    }
    check(inferred.size() == 1 && inferred[0].dtype == result, "{} gives {}, not {}", record.name,
          dtype_name(inferred.at(0).dtype), dtype_name(result));
  }
  void check_source(const Current& current, DType type_of_result) const {
    use_open(current.accumulator);
    check(std::find(serial_accumulators_.begin(), serial_accumulators_.end(), current.accumulator) !=
              serial_accumulators_.end(),
          "the running value of %{} exists only in a serial loop of its scope", name(current.accumulator));
    check(type_of_result == type(current.accumulator), "the running value of %{} is {}", name(current.accumulator),
          dtype_name(type(current.accumulator)));
  }
  void check_source(const Philox& philox, DType type) const {
    expression(philox.seed);
    expression(philox.counter);
    check(type == DType::U32, "philox gives u32, not {}", dtype_name(type));
  }

  void visit(const Store& store) {
    const Step step(*this, "store");
    buffer_access(store.buffer, Access::Write);
    expression(store.index);
    expressions(store.guards);
    use(store.value);
    const Buffer& buffer = kernel_.buffer(store.buffer);
    check(type(store.value) == buffer.dtype, "stores %{} of {} to @{} of {}", name(store.value),
          dtype_name(type(store.value)), buffer.name, dtype_name(buffer.dtype));
    check(!cuda_ || !thread_loops_.empty() || buffer.space == Space::Local, "every thread of the block stores to @{}", buffer.name);
    check(!is_arg(store.combine), "a store cannot combine with argmax or argmin");
    check(store.combine == op::Combine::None || buffer.access == Access::ReadWrite, "a combining store to @{}, which is not "
          "readwrite", buffer.name);
    check(store.combine == op::Combine::None || cuda_ || !in_vector_, "a combining store in a vector loop has no order");
  }

  void use_open(ScalarId id) const {
    check(std::find(open_accumulators_.begin(), open_accumulators_.end(), id) != open_accumulators_.end(),
          "%{} is no accumulator of an enclosing reduce", id.valid() ? name(id) : "?");
  }

  void visit(const Reduce& reduce) {
    const Step step(*this, "reduce");
    check(!reduce.accumulators.empty(), "no accumulators");
    const std::set<size_t> meeting = thread_dimensions(reduce.body);
    if (!meeting.empty()) {
      check(!in_vector_, "a reduction over threads inside a vector loop");
      check_meeting("a reduction over threads", meeting);
    }
    for (const Accumulator& accumulator : reduce.accumulators) {
      const DType dtype = type(accumulator.result);
      check(accumulator.combine != op::Combine::None, "%{} has no combine", name(accumulator.result));
      if (is_arg(accumulator.combine)) {
        check(dtype == DType::I64, "%{} is an index and must be i64", name(accumulator.result));
        check(accumulator.value.valid(), "%{} has no value beside the index", name(accumulator.result));
        check(!is_complex(type(accumulator.value)), "complex numbers have no order");
        check(type(accumulator.value) != DType::Bool, "%{} compares truth values; cast them to numbers", name(accumulator.result));
      } else {
        check(!accumulator.last_of_equals, "%{}: only argmax and argmin know the last of equals", name(accumulator.result));
        const bool logical = accumulator.combine == op::Combine::Or || accumulator.combine == op::Combine::And;
        check(!logical || dtype == DType::Bool, "%{} combines logically but is {}", name(accumulator.result), dtype_name(dtype));
        const bool ordered = accumulator.combine == op::Combine::Max || accumulator.combine == op::Combine::Min;
        check(!ordered || !is_complex(dtype), "complex numbers have no order");
      }
      check(compute_dtype(dtype) == dtype, "%{} accumulates in {}", name(accumulator.result), dtype_name(dtype));
      define_accumulator(accumulator.result);
      open_accumulators_.push_back(accumulator.result);
      if (in_vector_) opened_in_vector_.insert(accumulator.result.index);
      by_result_[accumulator.result.index] = &accumulator;
    }
    body(reduce.body);
    open_accumulators_.resize(open_accumulators_.size() - reduce.accumulators.size());
    for (const Accumulator& accumulator : reduce.accumulators) {
      publish(accumulator.result);
      if (!thread_loops_.empty()) varying_.insert(name(accumulator.result));
      if (is_arg(accumulator.combine)) {
        define_accumulator(accumulator.value);
        publish(accumulator.value);
      }
    }
  }
  // Inside its scope an accumulator has no value (but see Current); behind it, it is an ordinary scalar.
  void define_accumulator(ScalarId id) {
    define_scalar(id);
    visible_[static_cast<size_t>(id.index)] = false;
    if (type(id) == DType::I64) integers_.erase(name(id));
  }
  void publish(ScalarId id) {
    visible_[static_cast<size_t>(id.index)] = true;
    if (type(id) == DType::I64) integers_.insert(name(id));
  }

  void visit(const Accumulate& accumulate) {
    const Step step(*this,
              "accumulate %" + (accumulate.accumulator.valid() ? name(accumulate.accumulator) : std::string("?")));
    use_open(accumulate.accumulator);
    use(accumulate.value);
    expression(accumulate.index);
    const Accumulator& accumulator = *by_result_.at(accumulate.accumulator.index);
    const ScalarId target = is_arg(accumulator.combine) ? accumulator.value : accumulator.result;
    check(type(accumulate.value) == type(target), "%{} of {} into an accumulator of {}", name(accumulate.value),
          dtype_name(type(accumulate.value)), dtype_name(type(target)));
  }

  void visit(const If& statement) {
    const Step step(*this, "if");
    expression(statement.condition);
    const bool diverges = varies(statement.condition);
    if (diverges) ++diverged_;
    body(statement.then);
    if (diverges) --diverged_;
  }

  void visit(const Barrier&) {
    const Step step(*this, "barrier");
    check(cuda_, "a barrier in a kernel without threads");
    check_meeting("a barrier", {});
  }

  void visit(const Transpose& t) {
    const Step step(*this, "transpose");
    check(!cuda_ && !in_vector_, "a transpose belongs outside vector and thread loops");
    buffer_access(t.target, Access::Write);
    buffer_access(t.source, Access::Read);
    const Buffer &target = kernel_.buffer(t.target), &source = kernel_.buffer(t.source);
    check(t.target != t.source, "@{} is both sides", target.name);
    check(target.dtype == source.dtype && !is_complex(target.dtype), "copies @{} of {} to @{} of {}", source.name, dtype_name(source.dtype),
          target.name, dtype_name(target.dtype));
    for (const sym::Expr* expr : {&t.target_index, &t.target_pitch, &t.source_index, &t.source_pitch, &t.rows, &t.columns}) expression(*expr);
  }

  void visit(const Prefetch& prefetch) {
    const Step step(*this, "prefetch");
    buffer_access(prefetch.buffer, Access::Read);
    expression(prefetch.index);
  }

  void visit(const Contract& c) {
    const Step step(*this, "contract");
    check(!cuda_ && !in_vector_, "a contraction belongs outside vector and thread loops");
    check(c.dtype == DType::F32 || c.dtype == DType::F64 || c.dtype == DType::I32, "contracts in {}; f32, f64 and i32 exist",
          dtype_name(c.dtype));
    check(c.tile_m >= 1 && c.tile_n >= 1 && c.block_k >= 1, "tiles and blocks must be positive");
    check(c.block_m >= c.tile_m && c.block_m % c.tile_m == 0, "block_m {} is no multiple of tile_m {}", c.block_m, c.tile_m);
    check(c.block_n >= c.tile_n && c.block_n % c.tile_n == 0, "block_n {} is no multiple of tile_n {}", c.block_n, c.tile_n);
    expression(c.m_size);
    expression(c.n_size);
    expression(c.k_size);
    if (!c.row_axis.empty()) {
      expression(c.row_pitch);
      expression(c.row_size);
    }
    const bool outer_vector = in_vector_;
    in_vector_ = true;   // the bodies are run by vector loops of the emitter
    operand("lhs", c.lhs, c.lhs_value, c.lhs_packed, c.lhs_offset, c.dtype, {c.m_axis, c.k_axis});
    operand("rhs", c.rhs, c.rhs_value, c.rhs_packed, c.rhs_offset, c.dtype, {c.k_axis, c.n_axis});
    const Step epilogue(*this, "epilogue");
    const size_t integers = scope_integers_.size(), scalars = scope_scalars_.size();
    define_integer(c.m_axis);
    define_integer(c.n_axis);
    if (!c.row_axis.empty()) define_integer(c.row_axis);
    check(type(c.accumulator) == c.dtype, "%{} is {}, not {}", name(c.accumulator), dtype_name(type(c.accumulator)),
          dtype_name(c.dtype));
    define_scalar(c.accumulator);
    inner(c.epilogue);
    close(integers, scalars);
    in_vector_ = outer_vector;
  }
  void operand(std::string side, const Body& statements, ScalarId value, BufferId packed, const sym::Expr& offset, DType dtype,
               const std::vector<std::string>& axes) {
    const Step step(*this, std::move(side));
    if (packed.valid()) {
      buffer_access(packed, Access::Read);
      expression(offset);
      check(kernel_.buffer(packed).dtype == dtype, "the packed buffer @{} is not {}", kernel_.buffer(packed).name,
            dtype_name(dtype));
      check(statements.empty(), "a packed operand needs no body");
      return;
    }
    const size_t integers = scope_integers_.size(), scalars = scope_scalars_.size();
    for (const std::string& axis : axes) define_integer(axis);
    for (const Statement& statement : statements)
      check(std::holds_alternative<Let>(statement.what) || std::holds_alternative<Define>(statement.what),
            "an operand is made of definitions only");
    inner(statements);
    use(value);
    check(type(value) == dtype, "%{} is {}, not {}", name(value), dtype_name(type(value)), dtype_name(dtype));
    close(integers, scalars);
  }

  const Kernel& kernel_;
  std::vector<std::string> path_;
  std::set<std::string> integers_;                 // names usable in expressions
  std::vector<std::string> scope_integers_;        // those to forget when scopes close, in order
  std::vector<ScalarId> scope_scalars_;
  std::vector<char> defined_, visible_;            // by ScalarId
  std::vector<ScalarId> open_accumulators_;        // of the enclosing reduces
  std::vector<ScalarId> serial_accumulators_;      // those whose running value can be read here
  std::set<int32_t> opened_in_vector_;
  std::unordered_map<int32_t, const Accumulator*> by_result_;
  std::set<std::string> varying_;                  // integers that may differ between the threads of a block
  std::vector<std::pair<size_t, int64_t>> thread_loops_;   // open ones: dimension and extent
  std::array<int32_t, 3> block_ = {1, 1, 1};
  int core_loops_ = 0, grid_loops_ = 0;
  int diverged_ = 0;                               // open conditions and loops that differ between threads
  bool in_vector_ = false;
  bool cuda_ = false;
};

}  // namespace

void verify(const Kernel& kernel) { Verifier(kernel).run(); }

std::array<int32_t, 3> block_of(const Kernel& kernel) {
  std::array<int32_t, 3> block = {1, 1, 1};
  for_each_loop(kernel.body, [&](const Loop& loop) {
    const std::optional<size_t> dimension = thread_dimension(loop.binding);
    if (dimension && loop.end.is_const()) block[*dimension] = std::max(block[*dimension], static_cast<int32_t>(*loop.end.as_const()));
  });
  return block;
}

}  // namespace fuseloom::kernel
