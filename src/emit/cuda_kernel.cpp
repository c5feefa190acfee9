#include "emit/cuda_kernel.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace fuseloom::emit {

using kernel::Accumulate;
using kernel::Accumulator;
using kernel::Apply;
using kernel::Barrier;
using kernel::Binding;
using kernel::Body;
using kernel::Buffer;
using kernel::BufferId;
using kernel::Constant;
using kernel::Contract;
using kernel::Current;
using kernel::Define;
using kernel::If;
using kernel::IndexValue;
using kernel::Let;
using kernel::Load;
using kernel::Loop;
using kernel::Philox;
using kernel::Prefetch;
using kernel::Reduce;
using kernel::ScalarId;
using kernel::Space;
using kernel::Statement;
using kernel::Store;
using kernel::Transpose;

namespace {

constexpr int kWarp = 32;
constexpr int64_t kVectorBytes = 16;       // the widest access of a thread
constexpr int64_t kSharedAlignment = 16;

bool is_arg(op::Combine combine) { return combine == op::Combine::ArgMax || combine == op::Combine::ArgMin; }
bool is_or(op::Combine combine) { return combine == op::Combine::Or || combine == op::Combine::Add || combine == op::Combine::Max; }
bool is_power_of_two(int64_t value) { return value > 0 && (value & (value - 1)) == 0; }
DType part_of(DType dtype) { return dtype == DType::C64 ? DType::F32 : DType::F64; }

std::optional<size_t> thread_dimension(Binding binding) {
  switch (binding) {
    case Binding::ThreadX: return 0;
    case Binding::ThreadY: return 1;
    case Binding::ThreadZ: return 2;
    case Binding::Serial: case Binding::Unroll: case Binding::Core: case Binding::Vector: case Binding::GridX: case Binding::GridY: case Binding::GridZ:
    case Binding::ClusterX: return std::nullopt;
  }
  return std::nullopt;
}

// Every loop of a body, whatever it is nested in.
void for_each_loop(const Body& statements, const std::function<void(const Loop&)>& visit) {
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

// Where each Shared buffer starts in the block's dynamic shared memory, and the end of the last one.
std::vector<sym::Expr> shared_offsets(const kernel::Kernel& kernel, sym::Expr& end) {
  std::vector<sym::Expr> offsets(kernel.buffers.size());
  end = 0;
  for (size_t i = 0; i < kernel.buffers.size(); ++i) {
    const Buffer& buffer = kernel.buffers[i];
    if (buffer.space != Space::Shared) continue;
    offsets[i] = end;
    end = end + sym::ceil_div(buffer.size * dtype_bytes(buffer.dtype), kSharedAlignment) * kSharedAlignment;
  }
  return offsets;
}

// The operator that is the op on floats.
std::string_view float_operator(std::string_view op) { return op == "add" ? "+" : op == "sub" ? "-" : op == "mul" ? "*" : op == "div" ? "/" : ""; }

// Bool ops as an operator of C.
std::string_view bool_operator(std::string_view op) {
  if (op == "and" || op == "mul" || op == "min" || op == "bit_and") return "&&";
  if (op == "or" || op == "add" || op == "max" || op == "bit_or") return "||";
  if (op == "xor" || op == "ne" || op == "bit_xor") return "!=";
  if (op == "eq") return "==";
  return "";
}

std::string_view combine_op(op::Combine combine) {
  switch (combine) {
    case op::Combine::Add: return "add";
    case op::Combine::Mul: return "mul";
    case op::Combine::Max: return "max";
    case op::Combine::Min: return "min";
    case op::Combine::Or: return "or";
    case op::Combine::And: return "and";
    case op::Combine::None: case op::Combine::ArgMax: case op::Combine::ArgMin: break;
  }
  throw InternalError("combine_op: not a binary op");
}

}  // namespace

sym::Expr shared_bytes(const kernel::Kernel& kernel) {
  sym::Expr end;
  shared_offsets(kernel, end);
  return end;
}

CudaKernelWriter::CudaKernelWriter(const kernel::Kernel& kernel, CppPrelude& prelude)
    : kernel_(kernel), prelude_(prelude), block_(block_of(kernel)), narrow_(kernel), facts_(kernel.facts) {}

// ---- the function ----------------------------------------------------------------------------------------------------

std::string CudaKernelWriter::write() {
  prelude_.type(DType::I32, 0);
  prelude_.type(DType::I64, 0);
  names_.open();
  scopes_.emplace_back();
  std::vector<std::string> parameters, host_arguments;
  for (const Buffer& buffer : kernel_.buffers) {
    buffer_names_.push_back(names_.declare(buffer.name));
    if (buffer.space != Space::Global) continue;
    const std::string pointer = fmt::format("{}{}*", buffer.access == kernel::Access::Read ? "const " : "", prelude_.storage_type(buffer.dtype, 0));
    host_arguments.push_back(fmt::format("({})words[{}]", pointer, parameters.size()));
    parameters.push_back(fmt::format("{} __restrict__ {}", pointer, buffer_names_.back()));
  }
  out_.open("");
  std::string head;
  for (const std::string& symbol : kernel_.symbols) {
    const sym::Range range = sym::bounds(sym::Expr::symbol(symbol), facts_);
    const bool narrow = range.low >= INT32_MIN && range.high <= INT32_MAX;
    const std::string name = names_.declare(symbol), parameter = narrow ? names_.declare(symbol + "_size") : name;
    host_arguments.push_back(fmt::format("(i64)words[{}]", parameters.size()));
    parameters.push_back("const i64 " + parameter);
    if (narrow) head += fmt::format("  const i32 {} = (i32){};\n", name, parameter);
    integers_[symbol] = {.text = name, .wide = !narrow};
  }
  sym::Expr end;
  const std::vector<sym::Expr> offsets = shared_offsets(kernel_, end);
  for (size_t i = 0; i < kernel_.buffers.size(); ++i) {
    const Buffer& buffer = kernel_.buffers[i];
    const std::string element = prelude_.storage_type(buffer.dtype, 0);
    if (buffer.space == Space::Shared) {
      out_.line("SHARED({}) const {} = (SHARED({}))(shared_memory + ({}));", element, buffer_names_[i], element, integer(offsets[i]));
    } else if (buffer.space == Space::Local) {
      FL_CHECK(buffer.size.is_const(), "{}: the local buffer @{} has {} elements, expected a constant", kernel_.name, buffer.name, sym::to_string(buffer.size));
      out_.line("{} {}[{}];", element, buffer_names_[i], std::max<int64_t>(*buffer.size.as_const(), 1));
    }
  }
  body(kernel_.body);
  std::string text = out_.text().substr(2);   // without "{\n"
  if (!end.is_const(0)) head += "  DYNAMIC_SHARED_MEMORY\n";
  const int threads = block_[0] * block_[1] * block_[2];
  for (const auto& [type, count] : partials_) {
    const int slots = threads % kWarp == 0 ? threads / kWarp : threads;
    for (int i = 0; i < count; ++i) head += fmt::format("  SHARED_ARRAY({}, partial{}_{}, {});\n", type, i, type, slots);
  }
  std::string function = fmt::format("extern \"C\" __global__ void __launch_bounds__({}) {}({}) {{\n{}{}}}\n", threads, kernel_.name,
                                     fmt::join(parameters, ", "), head, text);
  // The arguments unpacked, for every block of the grid.
  function += fmt::format(
      "#ifndef __CUDACC_RTC__\nextern \"C\" void {}(const u64* words, const u32* grid, const u32* block, const u32* cluster, u32 shared_bytes) {{\n"
      "  host_grid(grid, block, cluster, shared_bytes, [&] {{ {}({}); }});\n}}\n#endif\n",
      host_entry_name(kernel_.name), kernel_.name, fmt::join(host_arguments, ", "));
  return function;
}

void CudaKernelWriter::open_scope() {
  names_.open();
  scopes_.emplace_back();
}
void CudaKernelWriter::close_scope() {
  for (const std::string& name : scopes_.back().integers) {
    integers_.erase(name);
    facts_.symbols.erase(name);
  }
  scopes_.pop_back();
  names_.close();
}

void CudaKernelWriter::body(const Body& statements) {
  for (const Statement& statement : statements) std::visit([this](const auto& s) { this->statement(s); }, statement.what);
}

// ---- loops -----------------------------------------------------------------------------------------------------------

void CudaKernelWriter::declare_integer(const std::string& name, Integer integer, const sym::Range& range) {
  integers_[name] = std::move(integer);
  scopes_.back().integers.push_back(name);
  facts_.symbols[name] = range;
}

void CudaKernelWriter::statement(const Loop& loop) {
  switch (loop.binding) {
    case Binding::GridX: index_loop(loop, "blockIdx.x"); return;
    case Binding::GridY: index_loop(loop, "blockIdx.y"); return;
    case Binding::GridZ: index_loop(loop, "blockIdx.z"); return;
    case Binding::ThreadX:
    case Binding::ThreadY:
    case Binding::ThreadZ: thread_loop(loop, *thread_dimension(loop.binding)); return;
    case Binding::Serial:
    case Binding::Unroll: counted_loop(loop); return;
    case Binding::Vector: vector_loop(loop); return;
    case Binding::Core:
    case Binding::ClusterX: break;
  }
  throw Unsupported(fmt::format("generated CUDA has no core and no cluster loops (axis {} of {})", loop.axis, kernel_.name));
}

namespace {
sym::Range range_of(const sym::Expr& begin, const sym::Expr& end, const sym::Facts& facts) {
  const sym::Range low = sym::bounds(begin, facts), high = sym::bounds(end, facts);
  return {.low = low.low, .high = high.high == sym::Range::kMax ? high.high : high.high - 1, .divisor = 1};
}
}  // namespace

void CudaKernelWriter::index_loop(const Loop& loop, std::string_view builtin) {
  FL_CHECK(loop.begin.is_const(0), "{}: the grid loop {} starts at {}, expected 0", kernel_.name, loop.axis, sym::to_string(loop.begin));
  open_scope();
  const std::string name = names_.declare(loop.axis);
  out_.line("const i32 {} = (i32){};", name, builtin);
  sym::Range range = range_of(loop.begin, loop.end, facts_);
  range.high = std::min<int64_t>(range.high, INT32_MAX - 1);  // a grid has no more
  declare_integer(loop.axis, {.text = name, .wide = false}, range);
  body(loop.body);
  close_scope();
}

void CudaKernelWriter::thread_loop(const Loop& loop, size_t dimension) {
  constexpr const char* kIndex[] = {"threadIdx.x", "threadIdx.y", "threadIdx.z"};
  const int64_t extent = *loop.end.as_const();
  open_scope();
  const std::string name = names_.declare(loop.axis);
  const bool all = extent == block_[dimension];
  if (all) {
    out_.open("");
    out_.line("const i32 {} = (i32){};", name, kIndex[dimension]);
  } else {
    out_.open("if (const i32 {} = (i32){}; {} < {})", name, kIndex[dimension], name, extent);
  }
  declare_integer(loop.axis, {.text = name, .wide = false}, {.low = 0, .high = extent - 1, .divisor = 1});
  if (!all) ++partial_loops_;
  body(loop.body);
  if (!all) --partial_loops_;
  out_.close();
  close_scope();
}

void CudaKernelWriter::counted_loop(const Loop& loop) {
  FL_CHECK(!varies(loop.begin) && !varies(loop.end), "{}: the bounds of the loop {} vary over lanes", kernel_.name, loop.axis);
  open_scope();
  const std::string name = names_.declare(loop.axis);
  const bool wide = !fits_32_bits(loop.begin) || !fits_32_bits(loop.end);
  if (loop.binding == Binding::Unroll) out_.line("UNROLL");
  out_.open("for ({} {} = {}; {} < {}; ++{})", wide ? "i64" : "i32", name, integer(loop.begin), name, integer(loop.end), name);
  declare_integer(loop.axis, {.text = name, .wide = wide}, range_of(loop.begin, loop.end, facts_));
  ++counted_loops_;
  body(loop.body);
  --counted_loops_;
  out_.close();
  close_scope();
}

void CudaKernelWriter::vector_loop(const Loop& loop) {
  FL_CHECK(!vector_, "{}: nested vector loops ({})", kernel_.name, loop.axis);
  const std::optional<int64_t> begin = loop.begin.as_const(), end = loop.end.as_const();
  FL_CHECK(begin && end && *end - *begin >= 1 && *end - *begin <= 64, "{}: the vector loop {} runs from {} to {}, expected constants, 64 lanes at most",
           kernel_.name, loop.axis, sym::to_string(loop.begin), sym::to_string(loop.end));
  vector_ = Vector{.axis = loop.axis, .begin = *begin, .lanes = static_cast<int>(*end - *begin), .active = {}};
  for (int lane = 0; lane < vector_->lanes; ++lane) vector_->active.push_back(lane);
  open_scope();
  out_.open("");
  declare_integer(loop.axis, {.varying = true}, {.low = *begin, .high = *end - 1, .divisor = 1});
  body(loop.body);
  out_.close();
  close_scope();
  vector_.reset();
}

void CudaKernelWriter::statement(const Define& define) {
  const sym::Range range = sym::bounds(define.value, facts_);
  if (varies(define.value)) {
    declare_integer(define.name, {.varying = true, .value = define.value}, range);
    return;
  }
  // What fits 32 bits is kept in them, even where it is computed in 64.
  const bool wide = range.low < INT32_MIN || range.high > INT32_MAX, computed_wide = !fits_32_bits(define.value);
  const std::string name = names_.declare(define.name);
  const std::string value = integer(define.value);
  out_.line("const {} {} = {};", wide ? "i64" : "i32", name, !wide && computed_wide ? "(i32)(" + value + ")" : value);
  declare_integer(define.name, {.text = name, .wide = wide}, range);
}

void CudaKernelWriter::statement(const If& branch) {
  const auto write = [&](int lane) {
    const std::string text = condition(branch.condition, lane);
    open_scope();
    out_.open("if ({})", text);
    body(branch.then);
    out_.close();
    close_scope();
  };
  if (!varies(branch.condition)) {
    write(0);
    return;
  }
  const std::vector<int> active = vector_->active;
  for (const int lane : active) {
    vector_->active = {lane};
    write(lane);
  }
  vector_->active = active;
}

void CudaKernelWriter::statement(const Barrier&) { out_.line("__syncthreads();"); }

void CudaKernelWriter::statement(const Contract&) {
  throw Unsupported(fmt::format("generated CUDA has no contraction of the cpu's kind (kernel {})", kernel_.name));
}

void CudaKernelWriter::statement(const Transpose&) {
  throw Unsupported(fmt::format("generated CUDA has no block transpose of the cpu's kind (kernel {})", kernel_.name));
}

void CudaKernelWriter::statement(const Prefetch&) {}   // other warps run while one waits

// ---- integers --------------------------------------------------------------------------------------------------------

bool CudaKernelWriter::varies(const sym::Expr& expr) const {
  if (!vector_) return false;
  for (const std::string& symbol : sym::symbols_of(expr)) {
    const auto found = integers_.find(symbol);
    if (found != integers_.end() && found->second.varying) return true;
  }
  return false;
}

sym::Expr CudaKernelWriter::at_lane(const sym::Expr& expr, int lane) const {
  if (!vector_ || !varies(expr)) return expr;
  sym::Expr expanded = expr;
  for (bool again = true; again;) {
    again = false;
    sym::Substitution values;
    for (const std::string& symbol : sym::symbols_of(expanded)) {
      const auto found = integers_.find(symbol);
      if (found == integers_.end() || !found->second.varying) continue;
      if (symbol == vector_->axis) {
        values[symbol] = vector_->begin + lane;
      } else if (found->second.value) {
        values[symbol] = *found->second.value;
        again = true;
      }
    }
    if (!values.empty()) expanded = sym::substitute(expanded, values);
  }
  return sym::simplify(expanded, facts_);
}

bool CudaKernelWriter::fits_32_bits(const sym::Expr& expr) const {
  const sym::Range range = sym::bounds(expr, facts_);
  if (range.low < INT32_MIN || range.high > INT32_MAX) return false;
  if (expr.is_symbol()) {
    const auto found = integers_.find(expr.name());
    return found == integers_.end() || found->second.varying || !found->second.wide;
  }
  const auto args = expr.args();
  // A sum or product is computed term by term.
  if ((expr.kind() == sym::Kind::Add || expr.kind() == sym::Kind::Mul) && args.size() > 2) {
    double most = expr.kind() == sym::Kind::Add ? 0 : 1;
    for (const sym::Expr& arg : args) {
      const sym::Range part = sym::bounds(arg, facts_);
      const double size = std::max(std::abs(static_cast<double>(part.low)), std::abs(static_cast<double>(part.high)));
      most = expr.kind() == sym::Kind::Add ? most + size : most * std::max(size, 1.0);
    }
    if (most > INT32_MAX) return false;
  }
  return std::all_of(args.begin(), args.end(), [&](const sym::Expr& arg) { return fits_32_bits(arg); });
}

template <class Print>
std::string CudaKernelWriter::print(const sym::Expr& expr, int lane, const Print& with) {
  const sym::Expr here = at_lane(expr, lane);
  const bool narrow = fits_32_bits(here);
  IntegerText text;
  text.name = [&](const std::string& symbol) -> std::string {
    const auto found = integers_.find(symbol);
    FL_CHECK(found != integers_.end(), "{}: the expression {} reads {}, which is not in scope", kernel_.name, sym::to_string(expr), symbol);
    const Integer& integer = found->second;
    if (integer.varying) return this->text(integer.scalar, lane);
    // 64-bit arithmetic from the leaves on.
    return narrow || integer.wide ? integer.text : "(i64)" + integer.text;
  };
  text.helper = [&](std::string_view function) { return prelude_.function("index_" + std::string(function), narrow ? DType::I32 : DType::I64, 0); };
  text.facts = &facts_;
  return with(text, here);
}

std::string CudaKernelWriter::integer(const sym::Expr& expr, int lane) {
  return print(expr, lane, [](const IntegerText& text, const sym::Expr& here) { return text.value(here); });
}
std::string CudaKernelWriter::condition(const sym::Expr& expr, int lane) {
  return print(expr, lane, [](const IntegerText& text, const sym::Expr& here) { return text.condition(here); });
}
std::string CudaKernelWriter::conditions(const std::vector<sym::Expr>& exprs, int lane) {
  std::string all;
  for (const sym::Expr& expr : exprs) {
    const sym::Expr here = sym::simplify(at_lane(expr, lane), facts_);
    if (here.is_const() && !here.is_const(0)) continue;
    all += (all.empty() ? "" : " && ") + condition(expr, lane);
  }
  return all;
}

// ---- scalars ---------------------------------------------------------------------------------------------------------

const std::string& CudaKernelWriter::text(ScalarId id, int lane) const {
  const Value& held = value(id);
  return held.text[held.varying ? static_cast<size_t>(lane) : 0];
}

void CudaKernelWriter::publish(ScalarId id, Value value) {
  if (dtype_of(id) == DType::I64) {
    const std::string& name = kernel_.scalar(id).name;
    Integer integer{.text = value.varying ? "" : value.text[0], .varying = value.varying, .scalar = id};
    declare_integer(name, std::move(integer), {});
  }
  values_[id.index] = std::move(value);
}

void CudaKernelWriter::define(ScalarId id, bool varying, const std::function<std::string(int lane)>& text) {
  const std::string& wanted = kernel_.scalar(id).name;
  const std::string type = prelude_.type(dtype_of(id), 0);
  Value made{.text = {}, .varying = varying};
  if (!varying) {
    made.text = {names_.declare(wanted)};
    out_.line("const {} {} = {};", type, made.text[0], text(vector_ ? vector_->active[0] : 0));
  } else {
    made.text.resize(static_cast<size_t>(vector_->lanes));
    for (const int lane : vector_->active) {
      std::string& name = made.text[static_cast<size_t>(lane)];
      name = names_.declare(fmt::format("{}_{}", wanted, lane));
      out_.line("const {} {} = {};", type, name, text(lane));
    }
  }
  publish(id, std::move(made));
}

void CudaKernelWriter::statement(const Let& let) {
  std::visit([&](const auto& source) { this->let(let.result, source); }, let.source);
}

void CudaKernelWriter::let(ScalarId id, const Constant& constant) {
  prelude_.type(dtype_of(id), 0);
  publish(id, {.text = {constant_text(dtype_of(id), constant.real, constant.imag, constant.integer)}});
}

std::string CudaKernelWriter::constant_text(DType dtype, double real, double imag, int64_t integer) const {
  if (dtype == DType::F16 || dtype == DType::BF16) {
    // What a constant of these is: the bits, by the tensor's own rounding.
    Tensor bits(dtype, {1});
    bits.set(0, real);
    return fmt::format("(u16){}", *bits.as<uint16_t>());
  }
  if (is_complex(dtype)) return fmt::format("{}{{{}, {}}}", c_type(dtype), float_literal(dtype, real), float_literal(dtype, imag));
  if (is_float(dtype)) return float_literal(dtype, real);
  return integer_literal(dtype, integer);
}

void CudaKernelWriter::let(ScalarId id, const IndexValue& index) {
  const DType dtype = dtype_of(id);
  define(id, varies(index.value), [&](int lane) {
    const std::string text = integer(index.value, lane);
    return dtype == DType::I64 ? text : fmt::format("{}({})", prelude_.cast(DType::I64, dtype, 0), text);
  });
}

void CudaKernelWriter::let(ScalarId id, const Philox& philox) {
  const std::string function = prelude_.function("philox", DType::U64, 0);
  define(id, varies(philox.seed) || varies(philox.counter),
         [&](int lane) { return fmt::format("{}((u64)({}), (u64)({}))", function, integer(philox.seed, lane), integer(philox.counter, lane)); });
}

void CudaKernelWriter::let(ScalarId id, const Current& current) {
  const OpenAccumulator& open = open_.at(current.accumulator.index);
  const std::vector<std::string>& running = is_arg(open.accumulator->combine) ? open.index : open.value;
  define(id, running.size() > 1, [&](int lane) { return running[running.size() > 1 ? static_cast<size_t>(lane) : 0]; });
}

void CudaKernelWriter::let(ScalarId id, const Apply& apply) {
  const bool varying = std::any_of(apply.args.begin(), apply.args.end(), [&](ScalarId arg) { return value(arg).varying; });
  const bool halves = in_words(dtype_of(id)) && apply.op->name == "cast" && dtype_of(apply.args[0]) == DType::F32;
  if (halves && varying && vector_->lanes % 2 == 0 && static_cast<int>(vector_->active.size()) == vector_->lanes) {
    define_words(id, apply.args[0]);
    return;
  }
  define(id, varying, [&](int lane) { return apply_text(id, apply, lane); });
}

void CudaKernelWriter::define_words(ScalarId id, ScalarId from) {
  const std::string pack = prelude_.function(dtype_of(id) == DType::F16 ? "pack_f16" : "pack_bf16", DType::F32, 0);
  prelude_.type(DType::U16, 0);
  Value made{.text = {}, .varying = true, .words = {}};
  for (int lane = 0; lane < vector_->lanes; lane += 2) {
    const std::string name = names_.declare(fmt::format("{}_{}", kernel_.scalar(id).name, lane));
    out_.line("const u32 {} = {}({}, {});", name, pack, text(from, lane), text(from, lane + 1));
    made.words.push_back(name);
    made.text.push_back(fmt::format("(u16){}", name));
    made.text.push_back(fmt::format("(u16)({} >> 16)", name));
  }
  publish(id, std::move(made));
}

const Apply* CudaKernelWriter::made_by(ScalarId id, std::string_view op) const {
  const kernel::Source* source = narrow_.sources[static_cast<size_t>(id.index)];
  const Apply* apply = source != nullptr ? std::get_if<Apply>(source) : nullptr;
  return apply != nullptr && apply->op->name == op ? apply : nullptr;
}

// 1 + exp(x), the divisor of a sigmoid.
bool CudaKernelWriter::is_one_or_more(ScalarId id) const {
  const Apply* sum = made_by(id, "add");
  if (sum == nullptr) return false;
  for (const size_t i : {0, 1}) {
    const kernel::Source* source = narrow_.sources[static_cast<size_t>(sum->args[i].index)];
    const Constant* constant = source != nullptr ? std::get_if<Constant>(source) : nullptr;
    if (constant != nullptr && constant->real >= 1 && made_by(sum->args[1 - i], "exp") != nullptr) return true;
  }
  return false;
}

std::string CudaKernelWriter::coarse_text(ScalarId id, const Apply& apply, int lane) {
  if (!narrow_.coarse[static_cast<size_t>(id.index)]) return "";
  const std::string& op = apply.op->name;
  const auto arg = [&](size_t i) -> const std::string& { return text(apply.args[i], lane); };
  const auto call = [&](std::string_view function) { return prelude_.function(function, DType::F32, 0); };
  const bool only_bf16 = narrow_.only_bf16[static_cast<size_t>(id.index)];
  // Of these the results below the normal numbers of f32 can be told from zero in bf16 alone.
  if (op == "exp") return fmt::format("{}({})", call(only_bf16 ? "coarse_exp_subnormal" : "coarse_exp"), arg(0));
  if (op == "tanh" && only_bf16) return fmt::format("{}({})", call("coarse_tanh"), arg(0));
  if (op == "div") return fmt::format("{}({}, {})", call(is_one_or_more(apply.args[1]) ? "coarse_div_from_one" : "coarse_div"), arg(0), arg(1));
  if (op == "reciprocal") return fmt::format("{}({})", call(is_one_or_more(apply.args[0]) ? "coarse_reciprocal_from_one" : "coarse_reciprocal"), arg(0));
  if (op != "add") return "";
  // One product: rounded with the sum. Of two, one would be rounded and the other not.
  const Apply *left = made_by(apply.args[0], "mul"), *right = made_by(apply.args[1], "mul");
  if ((left == nullptr) == (right == nullptr)) return "";
  const Apply& product = left != nullptr ? *left : *right;
  return fmt::format("{}({}, {}, {})", call("fma"), text(product.args[0], lane), text(product.args[1], lane), arg(left != nullptr ? 1 : 0));
}

std::string CudaKernelWriter::apply_text(ScalarId id, const Apply& apply, int lane) {
  if (const std::string coarse = coarse_text(id, apply, lane); !coarse.empty()) return coarse;
  const std::string& op = apply.op->name;
  const DType result = dtype_of(id), first = dtype_of(apply.args[0]);
  const auto arg = [&](size_t i) -> const std::string& { return text(apply.args[i], lane); };
  std::string args;
  for (size_t i = 0; i < apply.args.size(); ++i) args += (i == 0 ? "" : ", ") + arg(i);
  if (op == "cast" || op == "bitcast") {
    if (first == result) return args;
    if (const Value& from = value(apply.args[0]); op == "cast" && result == DType::F32 && !from.words.empty()) {
      const std::string half = fmt::format("{}_{}", lane % 2 == 0 ? "low" : "high", first == DType::F16 ? "f16" : "bf16");
      return fmt::format("{}({})", prelude_.function(half, DType::U32, 0), from.words[static_cast<size_t>(lane / 2)]);
    }
    const bool cast = op == "cast" || first == DType::Bool;
    return fmt::format("{}({})", cast ? prelude_.cast(first, result, 0) : prelude_.bitcast(first, result, 0), args);
  }
  if (op == "pow") return fmt::format("{}({})", prelude_.pow(first, dtype_of(apply.args[1]), 0), args);
  if (op == "select") return fmt::format("{} ? {} : {}", arg(0), arg(1), arg(2));
  if (op == "is_inf") {
    const bool positive = apply.attrs.integer("positive", 1) != 0, negative = apply.attrs.integer("negative", 1) != 0;
    if (!positive && !negative) return "false";
    return fmt::format("{}({})", prelude_.function(positive && negative ? "is_inf" : positive ? "is_positive_inf" : "is_negative_inf", first, 0), args);
  }
  if (first == DType::Bool) {
    if (op == "not" || op == "bit_not") return "!" + args;
    const std::string_view symbol = bool_operator(op);
    FL_SUPPORTED(!symbol.empty() && apply.args.size() == 2, "generated CUDA has no {} of bool", op);
    return fmt::format("{} {} {}", arg(0), symbol, arg(1));
  }
  const std::string_view symbol = float_operator(op);
  if (!symbol.empty() && is_float(first)) return fmt::format("{} {} {}", arg(0), symbol, arg(1));
  return fmt::format("{}({})", prelude_.function(op, first, 0), args);
}

// ---- memory ----------------------------------------------------------------------------------------------------------

std::string CudaKernelWriter::element(BufferId buffer, const sym::Expr& index, int lane) {
  return fmt::format("{}[{}]", buffer_names_[static_cast<size_t>(buffer.index)], integer(index, lane));
}

std::string CudaKernelWriter::fill_text(DType dtype, double fill) const {
  if (dtype == DType::Bool) return fill != 0 ? "1" : "0";
  const int64_t integer = is_int(dtype) && std::isfinite(fill) ? static_cast<int64_t>(fill) : 0;
  return constant_text(dtype, fill, 0, integer);
}

// struct alignas(16) lanes_f32x4 { f32 v[4]; };   f16 and bf16: words of two.
std::string CudaKernelWriter::lanes_type(DType dtype, int count) {
  if (in_words(dtype)) return lanes_type(DType::U32, count / 2);
  const std::string element = prelude_.storage_type(dtype, 0), name = fmt::format("lanes_{}x{}", element, count);
  prelude_.write_once(name, fmt::format("struct alignas({}) {} {{ {} v[{}]; }} MAY_ALIAS;\n", dtype_bytes(dtype, count), name, element, count));
  return name;
}

std::string CudaKernelWriter::lanes_place(BufferId id, const std::string& type, const sym::Expr& index, int lane) {
  const Buffer& buffer = kernel_.buffer(id);
  const std::string pointer = buffer.space == Space::Shared ? fmt::format("SHARED({})", type)
                                                            : fmt::format("{}{}*", buffer.access == kernel::Access::Read ? "const " : "", type);
  return fmt::format("*({})({} + ({}))", pointer, buffer_names_[static_cast<size_t>(id.index)], integer(index, lane));
}

int CudaKernelWriter::chunk_of(BufferId id, const sym::Expr& index, const std::vector<sym::Expr>& guards) const {
  const Buffer& buffer = kernel_.buffer(id);
  if (!vector_ || vector_->lanes == 1 || static_cast<int>(vector_->active.size()) != vector_->lanes || buffer.space == Space::Local || is_complex(buffer.dtype)) return 1;
  for (const sym::Expr& guard : guards) {
    if (varies(guard)) return 1;
  }
  for (const std::string& symbol : sym::symbols_of(index)) {
    const auto found = integers_.find(symbol);
    if (found != integers_.end() && found->second.varying && symbol != vector_->axis && !found->second.value) return 1;  // data
  }
  const sym::Expr first = at_lane(index, 0);
  for (int lane = 1; lane < vector_->lanes; ++lane) {
    if (!sym::simplify(at_lane(index, lane) - first, facts_).is_const(lane)) return 1;
  }
  for (int count = static_cast<int>(std::bit_floor(static_cast<unsigned>(vector_->lanes))); count > 1; count /= 2) {
    const bool fits = dtype_bytes(buffer.dtype, count) <= kVectorBytes && vector_->lanes % count == 0;
    if (fits && sym::prove_divisible(first, count, facts_) == sym::Proof::Yes) return count;
  }
  return 1;
}

void CudaKernelWriter::let(ScalarId id, const Load& load) {
  const DType dtype = dtype_of(id);
  const std::string_view truth = dtype == DType::Bool ? " != 0" : "";
  const bool varying = varies(load.index) || std::any_of(load.guards.begin(), load.guards.end(), [&](const sym::Expr& guard) { return varies(guard); });
  const std::string fill = fill_text(dtype, load.fill);
  const int chunk = varying ? chunk_of(load.buffer, load.index, load.guards) : 1;
  if (chunk == 1) {
    define(id, varying, [&](int lane) {
      const std::string guard = conditions(load.guards, lane), read = element(load.buffer, load.index, lane);
      if (guard.empty()) return fmt::format("{}{}", read, truth);
      return fmt::format("({} ? {} : {}){}", guard, read, fill, truth);
    });
    return;
  }
  const std::string type = lanes_type(kernel_.buffer(load.buffer).dtype, chunk), guard = conditions(load.guards, 0);
  const bool words = in_words(dtype);
  prelude_.type(DType::U16, 0);
  Value made{.text = {}, .varying = true, .words = {}};
  for (int from = 0; from < vector_->lanes; from += chunk) {
    const std::string name = names_.declare(fmt::format("{}_{}", kernel_.scalar(id).name, from));
    const std::string read = lanes_place(load.buffer, type, load.index, from);
    if (guard.empty()) {
      out_.line("const {} {} = {};", type, name, read);
    } else {
      const std::string one = words ? fmt::format("(u32){0} | (u32){0} << 16", fill) : fill;
      std::string fills = one;
      for (int i = 1; i < (words ? chunk / 2 : chunk); ++i) fills += ", " + one;
      out_.line("{} {} = {{{{{}}}}};", type, name, fills);
      out_.line("if ({}) {} = {};", guard, name, read);
    }
    for (int i = 0; words && i < chunk / 2; ++i) {
      made.words.push_back(fmt::format("{}.v[{}]", name, i));
      made.text.push_back(fmt::format("(u16){}", made.words.back()));
      made.text.push_back(fmt::format("(u16)({} >> 16)", made.words.back()));
    }
    for (int i = 0; !words && i < chunk; ++i) made.text.push_back(dtype == DType::Bool ? fmt::format("({}.v[{}] != 0)", name, i) : fmt::format("{}.v[{}]", name, i));
  }
  publish(id, std::move(made));
}

void CudaKernelWriter::statement(const Store& store) {
  const bool varying = vector_ && (varies(store.index) || value(store.value).varying ||
                                   std::any_of(store.guards.begin(), store.guards.end(), [&](const sym::Expr& guard) { return varies(guard); }));
  const DType dtype = kernel_.buffer(store.buffer).dtype;
  const auto stored = [&](int lane) {
    const std::string& held = text(store.value, lane);
    return dtype == DType::Bool ? fmt::format("(u8)({})", held) : held;
  };
  const int chunk = varying && store.combine == op::Combine::None ? chunk_of(store.buffer, store.index, store.guards) : 1;
  if (chunk > 1) {
    const std::string type = lanes_type(dtype, chunk), guard = conditions(store.guards, 0);
    if (!guard.empty()) out_.open("if ({})", guard);
    for (int from = 0; from < vector_->lanes; from += chunk) {
      std::string list;
      const std::vector<std::string>& words = value(store.value).words;
      for (int i = 0; in_words(dtype) && i < chunk; i += 2) {
        list += i == 0 ? "" : ", ";
        list += words.empty() ? fmt::format("(u32)({}) | (u32)({}) << 16", stored(from + i), stored(from + i + 1)) : words[static_cast<size_t>((from + i) / 2)];
      }
      for (int i = 0; !in_words(dtype) && i < chunk; ++i) list += (i == 0 ? "" : ", ") + stored(from + i);
      out_.line("{} = {{{{{}}}}};", lanes_place(store.buffer, type, store.index, from), list);
    }
    if (!guard.empty()) out_.close();
    return;
  }
  const std::vector<int> lanes = varying ? vector_->active : std::vector<int>{vector_ ? vector_->active[0] : 0};
  for (const int lane : lanes) {
    const std::string guard = conditions(store.guards, lane), target = element(store.buffer, store.index, lane);
    std::string line = fmt::format("{} = {};", target, stored(lane));
    if (store.combine != op::Combine::None) {
      const std::string type = prelude_.storage_type(dtype, 0);
      const std::string function = fmt::format("atomic_{}_{}", combine_op(store.combine), dtype == DType::F16 ? "f16" : dtype == DType::BF16 ? "bf16" : c_type(dtype));
      const DType compute = dtype == DType::F16 || dtype == DType::BF16 ? DType::F32 : dtype;
      const auto computed = [&](const std::string& bits) { return compute == dtype ? (dtype == DType::Bool ? "(" + bits + " != 0)" : bits) : fmt::format("{}({})", prelude_.cast(dtype, compute, 0), bits); };
      const std::string next = combine(store.combine, compute, computed("old"), computed("value"));
      const std::string back = compute == dtype ? (dtype == DType::Bool ? fmt::format("(u8)({})", next) : next) : fmt::format("{}({})", prelude_.cast(compute, dtype, 0), next);
      prelude_.type(DType::U8, 0);
      prelude_.type(DType::U32, 0);
      prelude_.type(DType::U64, 0);
      // The word that holds the element is exchanged until nobody was in between.
      const std::string word = dtype_bytes(dtype) == 8 ? "u64" : "u32";
      FL_SUPPORTED(dtype_bytes(dtype) <= 8, "generated CUDA has no atomic {} of {}", combine_op(store.combine), dtype_name(dtype));
      prelude_.write_once(function, fmt::format(
          "static inline void {}({}* p, {} value) {{\n"
          "  const unsigned long long address = (unsigned long long)p, inside = address % sizeof({});\n"
          "  {}* const word = ({}*)(address - inside);\n"
          "  {} seen = *(volatile {}*)word;\n"
          "  for (;;) {{\n"
          "    {} next = seen;\n"
          "    {} old;\n"
          "    __builtin_memcpy(&old, (const char*)&seen + inside, sizeof(old));\n"
          "    const {} combined = {};\n"
          "    __builtin_memcpy((char*)&next + inside, &combined, sizeof(combined));\n"
          "    const {} found = atomicCAS(word, seen, next);\n"
          "    if (found == seen) return;\n"
          "    seen = found;\n"
          "  }}\n}}\n",
          function, type, type, word, word, word, word, word, word, type, type, back, word));
      line = fmt::format("{}(&{}, {});", function, target, stored(lane));
    }
    if (guard.empty()) {
      out_.text_line(line);
    } else {
      out_.line("if ({}) {}", guard, line);
    }
  }
}

// ---- reductions ------------------------------------------------------------------------------------------------------

std::string CudaKernelWriter::combine(op::Combine how, DType dtype, const std::string& a, const std::string& b) {
  // Both sides are evaluated: b may be an exchange, where all threads meet.
  if (dtype == DType::Bool) return fmt::format("({} {} {})", a, is_or(how) ? "|" : "&", b);
  if (is_float(dtype) && (how == op::Combine::Add || how == op::Combine::Mul)) return fmt::format("({} {} {})", a, how == op::Combine::Add ? "+" : "*", b);
  return fmt::format("{}({}, {})", prelude_.function(combine_op(how), dtype, 0), a, b);
}

std::string CudaKernelWriter::identity(const Accumulator& accumulator, DType dtype) const {
  const op::Combine how = accumulator.combine;
  if (dtype == DType::Bool) return is_or(how) ? "false" : "true";
  const auto lowest = [&](bool low) -> std::string {
    if (is_float(dtype)) return float_literal(dtype, low ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity());
    if (is_unsigned_int(dtype)) return integer_literal(dtype, low ? 0 : -1);
    const int bits = static_cast<int>(dtype_bits(dtype));
    const int64_t least = bits == 64 ? INT64_MIN : -(int64_t{1} << (bits - 1));
    return integer_literal(dtype, low ? least : -(least + 1));
  };
  switch (how) {
    case op::Combine::Add: return constant_text(dtype, 0, 0, 0);
    case op::Combine::Mul: return constant_text(dtype, 1, 0, 1);
    case op::Combine::Max: case op::Combine::ArgMax: return lowest(true);
    case op::Combine::Min: case op::Combine::ArgMin: return lowest(false);
    case op::Combine::Or: case op::Combine::And: case op::Combine::None: break;
  }
  throw InternalError("identity: unknown combine");
}

// Combines into the running value; of argmax and argmin, the pair.
void CudaKernelWriter::accumulate(const OpenAccumulator& open, size_t at, const std::string& value, const std::string& index) {
  const Accumulator& accumulator = *open.accumulator;
  if (!is_arg(accumulator.combine)) {
    out_.line("{} = {};", open.value[at], combine(accumulator.combine, open.dtype, open.value[at], value));
    return;
  }
  const std::string how = fmt::format("{}_{}", accumulator.combine == op::Combine::ArgMax ? "argmax" : "argmin", accumulator.last_of_equals ? "last" : "first");
  out_.open("if ({}({}, {}, {}, {}))", prelude_.function(how, open.dtype, 0), value, index, open.value[at], open.index[at]);
  out_.line("{} = {};", open.value[at], value);
  out_.line("{} = {};", open.index[at], index);
  out_.close();
}

void CudaKernelWriter::statement(const Accumulate& accumulate) {
  const OpenAccumulator& open = open_.at(accumulate.accumulator.index);
  const bool arg = is_arg(open.accumulator->combine);
  const auto index = [&](int lane) { return arg ? fmt::format("(i64)({})", integer(accumulate.index, lane)) : std::string(); };
  if (!vector_) {
    this->accumulate(open, 0, text(accumulate.value, 0), index(0));
    return;
  }
  if (open.value.size() > 1 || arg) {
    for (const int lane : vector_->active)
      this->accumulate(open, open.value.size() > 1 ? static_cast<size_t>(lane) : 0, text(accumulate.value, lane), index(lane));
    return;
  }
  // The lanes pairwise, then into the thread's value.
  std::vector<std::string> level;
  for (const int lane : vector_->active) level.push_back(text(accumulate.value, lane));
  while (level.size() > 1) {
    std::vector<std::string> next;
    for (size_t i = 0; i + 1 < level.size(); i += 2) next.push_back(combine(open.accumulator->combine, open.dtype, level[i], level[i + 1]));
    if (level.size() % 2 != 0) next.push_back(level.back());
    level = std::move(next);
  }
  this->accumulate(open, 0, level[0], "");
}

void CudaKernelWriter::statement(const Reduce& reduce) {
  std::vector<OpenAccumulator> opened;
  for (const Accumulator& accumulator : reduce.accumulators) {
    const bool arg = is_arg(accumulator.combine);
    OpenAccumulator open{.accumulator = &accumulator, .dtype = dtype_of(arg ? accumulator.value : accumulator.result)};
    const int copies = vector_ ? vector_->lanes : 1;
    for (int copy = 0; copy < copies; ++copy) {
      const std::string suffix = copies == 1 ? "" : fmt::format("_{}", copy);
      open.value.push_back(names_.declare(kernel_.scalar(arg ? accumulator.value : accumulator.result).name + suffix));
      out_.line("{} {} = {};", prelude_.type(open.dtype, 0), open.value.back(), identity(accumulator, open.dtype));
      if (!arg) continue;
      // No index yet: worse than every index.
      open.index.push_back(names_.declare(kernel_.scalar(accumulator.result).name + suffix));
      out_.line("i64 {} = {};", open.index.back(), accumulator.last_of_equals ? "-1" : "0x7fffffffffffffff");
    }
    opened.push_back(open);
    open_[accumulator.result.index] = std::move(open);
  }
  std::set<size_t> dimensions;
  for_each_loop(reduce.body, [&](const Loop& loop) {
    if (const std::optional<size_t> dimension = thread_dimension(loop.binding)) dimensions.insert(*dimension);
  });
  open_scope();
  out_.open("");
  body(reduce.body);
  out_.close();
  close_scope();
  if (!dimensions.empty()) combine_threads(opened, dimensions);
  for (const OpenAccumulator& open : opened) {
    const Accumulator& accumulator = *open.accumulator;
    open_.erase(accumulator.result.index);
    const bool varying = open.value.size() > 1;
    if (!is_arg(accumulator.combine)) {
      publish(accumulator.result, {.text = open.value, .varying = varying});
      continue;
    }
    // Over nothing: 0.
    for (const std::string& index : open.index) out_.line("{} = {} == {} ? 0 : {};", index, index, accumulator.last_of_equals ? "-1" : "0x7fffffffffffffff", index);
    publish(accumulator.result, {.text = open.index, .varying = varying});
    publish(accumulator.value, {.text = open.value, .varying = varying});
  }
}

std::string CudaKernelWriter::exchange(DType dtype) {
  const std::string type = prelude_.type(dtype, 0), name = "exchange_" + type;
  if (is_complex(dtype)) {
    const std::string part = exchange(part_of(dtype));
    prelude_.write_once(name, fmt::format("static inline {} {}({} v, int d) {{ return {{{}(v.re, d), {}(v.im, d)}}; }}\n", type, name, type, part, part));
  } else {
    const bool small = dtype_bytes(dtype) < 4;  // bool too
    prelude_.write_once(name, fmt::format("static inline {} {}({} v, int d) {{ return ({})__shfl_xor_sync(0xffffffffu, {}v, d); }}\n", type, name, type, type,
                                          small ? "(int)" : ""));
  }
  return name;
}

// Every thread's part with those of the other threads of its group: by shuffles within a warp, then, where a group has more
// than a warp, by shared memory. The tree is fixed; all threads know the result.
void CudaKernelWriter::combine_threads(const std::vector<OpenAccumulator>& accumulators, const std::set<size_t>& dimensions) {
  // Threads are numbered x first. A group is a run of them: the combined dimensions are the first ones, or others are 1.
  int64_t group = 1, threads = 1;
  bool inside = true;
  for (size_t d = 0; d < 3; ++d) {
    threads *= block_[d];
    if (dimensions.count(d) != 0) {
      FL_SUPPORTED(inside || block_[d] == 1, "generated CUDA combines neighbouring threads only (kernel {})", kernel_.name);
      group *= block_[d];
    } else if (block_[d] > 1) {
      inside = false;
    }
  }
  FL_CHECK(!vector_, "{}: threads meet inside a vector loop", kernel_.name);
  const auto exchange_all = [&](int64_t most) {
    for (int64_t distance = most / 2; distance > 0; distance /= 2) {
      for (const OpenAccumulator& open : accumulators) {
        const std::string value = fmt::format("{}({}, {})", exchange(open.dtype), open.value[0], distance);
        if (!is_arg(open.accumulator->combine)) {
          // All combinations commute: both of a pair compute the same bits.
          accumulate(open, 0, value, "");
          continue;
        }
        out_.open("");
        out_.line("const {} other_value = {};", prelude_.type(open.dtype, 0), value);
        out_.line("const i64 other_index = {}({}, {});", exchange(DType::I64), open.index[0], distance);
        accumulate(open, 0, "other_value", "other_index");
        out_.close();
      }
    }
  };
  if (is_power_of_two(group) && group <= kWarp) {
    exchange_all(group);
    return;
  }
  FL_CHECK(partial_loops_ == 0, "{}: a reduction over threads meets in a loop that not all threads run", kernel_.name);
  const bool whole_warps = group % kWarp == 0;
  if (whole_warps) exchange_all(kWarp);
  const int64_t parts = whole_warps ? group / kWarp : group;
  std::vector<std::string> value_slots, index_slots;
  const auto slot = [&](DType dtype) {
    const std::string type = prelude_.storage_type(dtype, 0);
    return fmt::format("partial{}_{}", partials_[type]++, type);
  };
  for (const OpenAccumulator& open : accumulators) {
    value_slots.push_back(slot(open.dtype));
    index_slots.push_back(is_arg(open.accumulator->combine) ? slot(DType::I64) : "");
  }
  out_.open("");
  out_.line("const i32 thread = (i32)(threadIdx.x + {} * (threadIdx.y + {} * threadIdx.z));", block_[0], block_[1]);
  out_.line("const i32 part = {};", whole_warps ? "thread / 32" : "thread");
  const bool one_group = group == threads;
  out_.line("const i32 first = {};", one_group ? "0" : fmt::format("part / {} * {}", parts, parts));
  if (whole_warps) out_.open("if (thread % 32 == 0)");
  for (size_t i = 0; i < accumulators.size(); ++i) {
    out_.line("{}[part] = {};", value_slots[i], accumulators[i].value[0]);
    if (!index_slots[i].empty()) out_.line("{}[part] = {};", index_slots[i], accumulators[i].index[0]);
  }
  if (whole_warps) out_.close();
  out_.line("__syncthreads();");
  const auto read = [&](size_t i, const std::string& at) {
    const std::string_view truth = accumulators[i].dtype == DType::Bool ? " != 0" : "";
    return fmt::format("{}[{}]{}", value_slots[i], at, truth);
  };
  if (is_power_of_two(parts) && parts <= kWarp) {
    for (size_t i = 0; i < accumulators.size(); ++i) {
      const std::string at = fmt::format("first + thread % {}", parts);
      out_.line("{} = {};", accumulators[i].value[0], read(i, at));
      if (!index_slots[i].empty()) out_.line("{} = {}[{}];", accumulators[i].index[0], index_slots[i], at);
    }
    exchange_all(parts);
  } else {
    for (size_t i = 0; i < accumulators.size(); ++i) {
      out_.line("{} = {};", accumulators[i].value[0], read(i, "first"));
      if (!index_slots[i].empty()) out_.line("{} = {}[first];", accumulators[i].index[0], index_slots[i]);
    }
    out_.open("for (i32 at = first + 1; at < first + {}; ++at)", parts);
    for (size_t i = 0; i < accumulators.size(); ++i)
      accumulate(accumulators[i], 0, "(" + read(i, "at") + ")", index_slots[i].empty() ? "" : index_slots[i] + "[at]");
    out_.close();
  }
  // Each reduction has its own slots. In a loop they serve the next iteration.
  if (counted_loops_ > 0) out_.line("__syncthreads();");
  out_.close();
}

}  // namespace fuseloom::emit
