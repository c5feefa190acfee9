#include "emit/cpp_kernel.h"

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

constexpr int kBoolAccumulatorBits = 32;   // masks of running or/and: most come from comparisons of f32

bool is_arg(op::Combine combine) { return combine == op::Combine::ArgMax || combine == op::Combine::ArgMin; }
int bits_of(DType dtype) { return static_cast<int>(dtype_bits(dtype)); }
DType part_of(DType dtype) { return dtype == DType::C64 ? DType::F32 : DType::F64; }
// Width of the masks that belong to values of this type.
int mask_bits_of(DType dtype) { return is_complex(dtype) ? bits_of(part_of(dtype)) : bits_of(dtype); }

std::vector<sym::Expr> terms_of(const sym::Expr& expr) {
  if (expr.kind() == sym::Kind::Add) return {expr.args().begin(), expr.args().end()};
  return {expr};
}

// Products over sums, multiplied out: every term of the sum can then be looked at on its own.
sym::Expr distribute(const sym::Expr& expr) {
  if (expr.kind() == sym::Kind::Add) {
    sym::Expr sum = 0;
    for (const sym::Expr& term : expr.args()) sum = sum + distribute(term);
    return sum;
  }
  if (expr.kind() != sym::Kind::Mul) return expr;
  std::vector<sym::Expr> products = {1};
  for (const sym::Expr& factor : expr.args()) {
    std::vector<sym::Expr> next;
    for (const sym::Expr& term : terms_of(distribute(factor)))
      for (const sym::Expr& product : products) next.push_back(product * term);
    products = std::move(next);
  }
  sym::Expr sum = 0;
  for (const sym::Expr& product : products) sum = sum + product;
  return sum;
}

bool mentions_any(const sym::Expr& expr, const std::set<std::string>& names) {
  for (const std::string& symbol : sym::symbols_of(expr))
    if (names.contains(symbol)) return true;
  return false;
}

// The indices of every load and store below (`in_loop`: else only of those in loops), and the names that are defined there.
void collect_inner(const Body& statements, const kernel::Kernel& kernel, bool in_loop, std::set<std::string>& names,
                   std::vector<sym::Expr>& indices) {
  for (const Statement& statement : statements) {
    if (const auto* loop = std::get_if<Loop>(&statement.what)) {
      names.insert(loop->axis);
      collect_inner(loop->body, kernel, true, names, indices);
    } else if (const auto* define = std::get_if<Define>(&statement.what)) {
      names.insert(define->name);
    } else if (const auto* let = std::get_if<Let>(&statement.what)) {
      names.insert(kernel.scalar(let->result).name);
      const auto* load = std::get_if<Load>(&let->source);
      if (load != nullptr && in_loop) indices.push_back(load->index);
    } else if (const auto* store = std::get_if<Store>(&statement.what)) {
      if (in_loop) indices.push_back(store->index);
    } else if (const auto* prefetch = std::get_if<Prefetch>(&statement.what)) {
      if (in_loop) indices.push_back(prefetch->index);
    } else if (const auto* reduce = std::get_if<Reduce>(&statement.what)) {
      for (const Accumulator& accumulator : reduce->accumulators) names.insert(kernel.scalar(accumulator.result).name);
      collect_inner(reduce->body, kernel, in_loop, names, indices);
    } else if (const auto* branch = std::get_if<If>(&statement.what)) {
      collect_inner(branch->then, kernel, in_loop, names, indices);
    } else if (const auto* contract = std::get_if<Contract>(&statement.what)) {
      names.insert({contract->m_axis, contract->n_axis, contract->k_axis});
      for (const Body* body : {&contract->lhs, &contract->rhs, &contract->epilogue}) collect_inner(*body, kernel, true, names, indices);
    }
  }
}

}  // namespace

// ---- the function ----------------------------------------------------------------------------------------------------
CppKernelWriter::CppKernelWriter(const kernel::Kernel& kernel, const CppTarget& target, CppPrelude& prelude)
    : kernel_(kernel), target_(target), prelude_(prelude), scratch_(layout_scratch(kernel)), facts_(kernel.facts) {}

std::string CppKernelWriter::write() {
  const std::string i64 = prelude_.type(DType::I64, 0);
  names_.open();
  scopes_.emplace_back();
  for (const Buffer& buffer : kernel_.buffers) buffer_names_.push_back(names_.declare(buffer.name));
  for (const Buffer& buffer : kernel_.buffers) stream_names_.push_back(names_.declare("stream_" + buffer.name));
  for (const std::string& symbol : kernel_.symbols) integers_[symbol] = {.text = names_.declare(symbol)};
  SourceWriter head;
  // The body is indented like the head's lines.
  out_.open("");
  body(kernel_.body);
  const std::string text = out_.text().substr(2);   // without "{\n"

  std::string declarations;
  int argument = 0;
  for (size_t i = 0; i < kernel_.buffers.size(); ++i) {
    const Buffer& buffer = kernel_.buffers[i];
    FL_SUPPORTED(buffer.space != Space::Shared, "generated C++ has no shared memory (buffer @{} of {})", buffer.name, kernel_.name);
    const int position = argument;
    if (buffer.space == Space::Global) ++argument;
    if (!mentions(text, buffer_names_[i])) continue;
    const std::string element = prelude_.storage_type(buffer.dtype, 0);
    if (buffer.space == Space::Global) {
      const std::string_view constant = buffer.access == kernel::Access::Read ? "const " : "";
      declarations += fmt::format("  {}{}* const {} = ({}{}*)buffers[{}];\n", constant, element, buffer_names_[i], constant, element, position);
    } else {
      const sym::Expr offset = scratch_.local_offset.at(static_cast<int32_t>(i));
      declarations += fmt::format("  {}* const {} = ({}*)(scratch + {});\n", element, buffer_names_[i], element, integer_term(offset));
    }
  }
  std::string streamed;   // whether any result passes the caches by
  for (const int32_t buffer : streamed_) {
    const Buffer& of = kernel_.buffers[static_cast<size_t>(buffer)];
    const std::string& flag = stream_names_[static_cast<size_t>(buffer)];
    declarations += fmt::format("  const bool {} = {} >= {};\n", flag, integer_term(of.size), target_.streamed_bytes / dtype_bytes(of.dtype));
    streamed += (streamed.empty() ? "" : " || ") + flag;
  }
  const std::string fence = streamed.empty() ? "" : fmt::format("  if ({}) __builtin_ia32_sfence();\n", streamed);
  std::string sizes;
  for (size_t i = 0; i < kernel_.symbols.size(); ++i) {
    const std::string& name = integers_.at(kernel_.symbols[i]).text;
    if (mentions(text, name) || mentions(declarations, name)) sizes += fmt::format("  const {} {} = sizes[{}];\n", i64, name, i);
  }
  const std::string body_text = sizes + declarations + text + fence;
  const auto parameter = [&](std::string_view type, std::string_view name) {
    return mentions(body_text, name) ? fmt::format("{} {}", type, name) : std::string(type);
  };
  return fmt::format("{} void {}({}, {}, {}, {}, {}) {{\n{}}}\n", target_.internal ? "static" : "extern \"C\"", kernel_.name, parameter("void* const*", "buffers"),
                     parameter("const i64*", "sizes"), parameter("char*", "scratch"), parameter("i64", "begin"),
                     parameter("i64", "end"), body_text);
}

void CppKernelWriter::open_scope() {
  names_.open();
  scopes_.emplace_back();
  scopes_.back().hoisted = hoisted_.size();
}

void CppKernelWriter::close_scope() {
  for (const std::string& name : scopes_.back().integers) {
    integers_.erase(name);
    facts_.symbols.erase(name);
  }
  hoisted_.resize(scopes_.back().hoisted);
  scopes_.pop_back();
  names_.close();
}

void CppKernelWriter::body(const Body& statements) {
  for (const Statement& statement : statements) std::visit([this](const auto& s) { this->statement(s); }, statement.what);
}

// ---- loops -----------------------------------------------------------------------------------------------------------
void CppKernelWriter::declare_axis(const std::string& axis, const std::string& text, const sym::Expr& begin, const sym::Expr& end) {
  integers_[axis] = {.text = text};
  scopes_.back().integers.push_back(axis);
  const sym::Range low = sym::bounds(begin, facts_), high = sym::bounds(end, facts_);
  facts_.symbols[axis] = {.low = low.low, .high = high.high == sym::Range::kMax ? high.high : high.high - 1, .divisor = 1};
}

void CppKernelWriter::statement(const Loop& loop) {
  switch (loop.binding) {
    case Binding::Core: {
      open_scope();
      const std::string axis = names_.declare(loop.axis);
      const std::string first = loop.begin.is_const(0) ? "begin" : integer(loop.begin) + " + begin";
      const std::string last = loop.begin.is_const(0) ? "end" : integer_term(loop.begin) + " + end";
      out_.open("for (i64 {} = {}; {} < {}; ++{})", axis, first, axis, last, axis);
      declare_axis(loop.axis, axis, loop.begin, loop.end);
      hoist(loop.body, {}, false);
      body(loop.body);
      out_.close();
      close_scope();
      return;
    }
    case Binding::Serial: serial_loop(loop); return;
    case Binding::Unroll:
      for (int64_t i = *loop.begin.as_const(); i < *loop.end.as_const(); ++i) {
        open_scope();
        out_.open("");
        declare_axis(loop.axis, int64_literal(i), i, i + 1);
        body(loop.body);
        out_.close();
        close_scope();
      }
      return;
    case Binding::Vector:
      if (is_vectorizable(loop)) vector_loop(loop);
      else serial_loop(loop);
      return;
    case Binding::GridX: case Binding::GridY: case Binding::GridZ: case Binding::ClusterX:
    case Binding::ThreadX: case Binding::ThreadY: case Binding::ThreadZ:
      throw Unsupported(fmt::format("generated C++ has no grid and no threads (axis {} of {})", loop.axis, kernel_.name));
  }
}

void CppKernelWriter::serial_loop(const Loop& loop) {
  hoist(loop.body, {loop.axis});
  open_scope();
  const std::string axis = names_.declare(loop.axis);
  std::string end = integer(loop.end);
  if (!loop.end.is_const() && !loop.end.is_symbol()) {
    // Computed once, in front of the loop.
    const std::string name = names_.declare(loop.axis + "_end");
    out_.open("for (i64 {} = {}, {} = {}; {} < {}; ++{})", axis, integer(loop.begin), name, end, axis, name, axis);
  } else {
    out_.open("for (i64 {} = {}; {} < {}; ++{})", axis, integer(loop.begin), axis, end, axis);
  }
  declare_axis(loop.axis, axis, loop.begin, loop.end);
  hoist(loop.body, {}, false);
  body(loop.body);
  out_.close();
  close_scope();
}

bool CppKernelWriter::is_vectorizable(const Loop& loop) const {
  if (loop.width <= 1) return false;
  std::set<std::string> varying = {loop.axis};
  return is_vectorizable(loop.body, varying);
}

bool CppKernelWriter::is_vectorizable(const Body& statements, std::set<std::string>& varying) const {
  for (const Statement& statement : statements) {
    if (const auto* loop = std::get_if<Loop>(&statement.what)) {
      if (mentions_any(loop->begin, varying) || mentions_any(loop->end, varying)) return false;
      if (!is_vectorizable(loop->body, varying)) return false;
    } else if (const auto* define = std::get_if<Define>(&statement.what)) {
      if (mentions_any(define->value, varying)) varying.insert(define->name);
    } else if (const auto* let = std::get_if<Let>(&statement.what)) {
      if (dtype_of(let->result) == DType::I64) varying.insert(kernel_.scalar(let->result).name);
    } else if (const auto* store = std::get_if<Store>(&statement.what)) {
      if (store->combine != op::Combine::None) return false;
    } else if (const auto* reduce = std::get_if<Reduce>(&statement.what)) {
      for (const Accumulator& accumulator : reduce->accumulators) varying.insert(kernel_.scalar(accumulator.result).name);
      if (!is_vectorizable(reduce->body, varying)) return false;
    } else if (const auto* branch = std::get_if<If>(&statement.what)) {
      if (!is_vectorizable(branch->then, varying)) return false;
    } else if (std::holds_alternative<Contract>(statement.what) || std::holds_alternative<Transpose>(statement.what)) {
      return false;
    }
  }
  return true;
}

void CppKernelWriter::vector_loop(const Loop& loop) {
  FL_CHECK(!vector_, "{}: nested vector loops ({})", kernel_.name, loop.axis);
  hoist(loop.body, {loop.axis});
  vector_versions(loop.axis, loop.begin, loop.end, loop.width, loop.unroll, [&] { body(loop.body); });
}

void CppKernelWriter::vector_versions(const std::string& axis, const sym::Expr& begin, const sym::Expr& end, int width, int unroll,
                                      const std::function<void()>& write_body) {
  const sym::Expr extent = sym::simplify(end - begin, facts_);
  const sym::Range range = sym::bounds(extent, facts_);
  const int step = width * unroll;
  const std::string first = integer(begin), last = integer(end);
  // Where the loop that runs `by` elements at a time stops.
  const auto rest = [&](int by) {
    const std::string whole = fmt::format("{}/{}*{}", integer_text().factor(extent), by, by);
    return begin.is_const(0) ? whole : fmt::format("{} + {}", integer_term(begin), whole);
  };
  const auto version = [&](const std::string& position, int copies, const std::string& count) {
    declare_axis(axis, position, begin, end);
    integers_[axis].varying = true;
    vector_ = Vector{.axis = axis, .position = position, .width = width, .copies = copies, .count = count};
    write_body();
    vector_.reset();
    out_.close();
    close_scope();
  };
  const auto loop_of = [&](const std::string& from, int copies) {
    open_scope();
    const std::string position = names_.declare(axis);
    out_.open("for (i64 {} = {}; {} + {} <= {}; {} += {})", position, from, position, width * copies, last, position, width * copies);
    version(position, copies, "");
  };

  const bool main_runs = range.high >= step;
  if (main_runs) loop_of(first, unroll);
  if (sym::prove_divisible(extent, step, facts_) == sym::Proof::Yes) return;
  const std::string behind_main = main_runs ? rest(step) : first;
  const bool whole_vectors = sym::prove_divisible(extent, width, facts_) == sym::Proof::Yes;
  if (unroll > 1 && range.high >= width && (whole_vectors || !target_.avx512)) loop_of(behind_main, 1);
  if (whole_vectors) return;
  open_scope();
  const std::string position = names_.declare(axis);
  const std::string count = names_.declare(axis + "_n");
  if (target_.avx512 && unroll > 1 && range.high > width) {
    // Masked moves cost about as much as whole ones: one loop runs all that is left.
    out_.open("for (i64 {} = {}; {} < {}; {} += {})", position, behind_main, position, last, position, width);
    out_.line("const i64 {} = {}({} - {}, {});", count, prelude_.integer("min", 0), last, position, width);
  } else {
    out_.open("if (const i64 {} = {}; {} < {})", position, range.high >= width ? rest(width) : first, position, last);
    out_.line("const i64 {} = {} - {};", count, last, position);
  }
  version(position, 1, count);
}

void CppKernelWriter::statement(const Define& define) {
  scopes_.back().integers.push_back(define.name);
  if (varies(define.value)) {
    integers_[define.name] = {.varying = true, .value = expand(define.value)};
    return;
  }
  const std::string text = integer(define.value);
  const std::string name = names_.declare(define.name);
  out_.line("const i64 {} = {};", name, text);
  integers_[define.name] = {.text = name};
  facts_.symbols[define.name] = sym::bounds(define.value, facts_);
}

void CppKernelWriter::statement(const If& branch) {
  open_scope();
  if (varies(branch.condition)) {
    // The lanes for which it does not hold are off in every access and accumulation inside.
    varying_conditions_.push_back(branch.condition);
    out_.open("");
    body(branch.then);
    out_.close();
    varying_conditions_.pop_back();
  } else {
    out_.open("if ({})", condition(branch.condition));
    body(branch.then);
    out_.close();
  }
  close_scope();
}

void CppKernelWriter::statement(const Barrier&) {
  throw Unsupported(fmt::format("generated C++ has no barriers ({})", kernel_.name));
}

void CppKernelWriter::statement(const Transpose& transpose) {
  const DType dtype = kernel_.buffer(transpose.target).dtype;
  out_.line("{}({}, {}, {}, {}, {}, {});", prelude_.transpose_block(dtype), address(transpose.target, transpose.target_index),
            integer(transpose.target_pitch), address(transpose.source, transpose.source_index), integer(transpose.source_pitch),
            integer(transpose.rows), integer(transpose.columns));
}

void CppKernelWriter::statement(const Prefetch& prefetch) {
  constexpr int kLine = 64;   // bytes of a cache line
  if (!vector_) {
    out_.line("__builtin_prefetch({});", address(prefetch.buffer, prefetch.index));
    return;
  }
  const Access access = access_of(prefetch.index);
  if (access.kind != Access::Kind::Unit) return;
  const int bytes = static_cast<int>(dtype_bytes(kernel_.buffer(prefetch.buffer).dtype)) * vector_->width;
  for (int copy = 0; copy < vector_->copies; ++copy) {
    if (copy * bytes % kLine == 0) out_.line("__builtin_prefetch({});", address(prefetch.buffer, at_copy(access.base, copy)));
  }
}

// ---- integers --------------------------------------------------------------------------------------------------------
bool CppKernelWriter::varies(const sym::Expr& expr) const {
  if (!vector_) return false;
  for (const std::string& symbol : sym::symbols_of(expr)) {
    const auto found = integers_.find(symbol);
    FL_CHECK(found != integers_.end(), "{}: {} is not in scope", kernel_.name, symbol);
    if (found->second.varying) return true;
  }
  return false;
}

sym::Expr CppKernelWriter::expand(const sym::Expr& expr) const {
  sym::Substitution by;
  for (const std::string& symbol : sym::symbols_of(expr)) {
    const auto found = integers_.find(symbol);
    if (found != integers_.end() && found->second.value) by[symbol] = *found->second.value;
  }
  return by.empty() ? expr : sym::substitute(expr, by);
}

sym::Expr CppKernelWriter::at_copy(const sym::Expr& expr, int copy) const {
  if (copy == 0) return expr;
  return sym::substitute(expr, {{vector_->axis, sym::Expr::symbol(vector_->axis) + copy * vector_->width}});
}

IntegerText CppKernelWriter::integer_text() {
  return {.name =
              [this](const std::string& symbol) {
                const auto found = integers_.find(symbol);
                FL_CHECK(found != integers_.end(), "{}: {} is not in scope", kernel_.name, symbol);
                FL_CHECK(!found->second.text.empty(), "{}: {} has no uniform value", kernel_.name, symbol);
                return found->second.text;
              },
          .helper = [this](std::string_view function) { return prelude_.integer(function, 0); },
          .facts = &facts_};
}

std::string CppKernelWriter::integer(const sym::Expr& uniform) { return integer_text().value(uniform); }
std::string CppKernelWriter::integer_term(const sym::Expr& uniform) { return integer_text().term(uniform); }
std::string CppKernelWriter::condition(const sym::Expr& uniform) { return integer_text().condition(uniform); }

std::optional<sym::Expr> CppKernelWriter::step_of(const sym::Expr& expanded) const {
  for (const std::string& symbol : sym::symbols_of(expanded))
    if (symbol != vector_->axis && integers_.at(symbol).varying) return std::nullopt;
  const sym::Expr axis = sym::Expr::symbol(vector_->axis);
  const sym::Expr next = sym::substitute(expanded, {{vector_->axis, axis + 1}});
  const sym::Expr step = sym::simplify(distribute(next) - distribute(expanded), facts_);
  if (mentions_any(step, {vector_->axis})) return std::nullopt;
  return step;
}

std::string CppKernelWriter::lanes(const sym::Expr& expr, int copy) {
  const int width = vector_->width;
  if (!varies(expr)) return splat(DType::I64, integer(expr));
  const sym::Expr expanded = sym::simplify(expand(expr), facts_);
  if (const std::optional<sym::Expr> step = step_of(expanded)) {
    const sym::Expr base = at_copy(expanded, copy);
    if (step->is_const(1)) return fmt::format("{}({})", prelude_.lanes_from(width), integer(base));
    return fmt::format("({}(0)*{} + {})", prelude_.lanes_from(width), splat(DType::I64, integer(*step)),
                       splat(DType::I64, integer(base)));
  }
  const auto call = [&](std::string_view function) {
    std::string text = lanes(expanded.args()[0], copy);
    for (size_t i = 1; i < expanded.args().size(); ++i)
      text = fmt::format("{}({}, {})", prelude_.integer(function, width), text, lanes(expanded.args()[i], copy));
    return text;
  };
  const auto power_of_two = [](const sym::Expr& divisor) {
    const std::optional<int64_t> value = divisor.as_const();
    return value && *value > 0 && (*value & (*value - 1)) == 0;
  };
  switch (expanded.kind()) {
    case sym::Kind::Const: break;
    case sym::Kind::Symbol: {
      const Integer& name = integers_.at(expanded.name());
      FL_CHECK(name.scalar.valid(), "{}: {} has no lanes", kernel_.name, expanded.name());
      return vector(name.scalar, copy);
    }
    case sym::Kind::Add: case sym::Kind::Mul: {
      // The uniform part is one splat.
      const bool is_sum = expanded.kind() == sym::Kind::Add;
      sym::Expr uniform = is_sum ? 0 : 1;
      std::string text;
      for (const sym::Expr& arg : expanded.args()) {
        if (!varies(arg)) {
          uniform = is_sum ? uniform + arg : uniform * arg;
          continue;
        }
        text += (text.empty() ? "" : is_sum ? " + " : "*") + lanes(arg, copy);
      }
      if (!uniform.is_const(is_sum ? 0 : 1)) text += (is_sum ? " + " : "*") + splat(DType::I64, integer(uniform));
      return "(" + text + ")";
    }
    case sym::Kind::FloorDiv:
      if (power_of_two(expanded.args()[1]))
        return fmt::format("({} >> {})", lanes(expanded.args()[0], copy), std::countr_zero(static_cast<uint64_t>(*expanded.args()[1].as_const())));
      return call("floor_div");
    case sym::Kind::Mod:
      if (power_of_two(expanded.args()[1]))
        return fmt::format("({} & {})", lanes(expanded.args()[0], copy), splat(DType::I64, int64_literal(*expanded.args()[1].as_const() - 1)));
      return call("mod");
    case sym::Kind::Min: return call("min");
    case sym::Kind::Max: return call("max");
    case sym::Kind::Eq: case sym::Kind::Ne: case sym::Kind::Lt: case sym::Kind::Le:
      return fmt::format("({} & {})", lane_mask(expanded, copy, 64), splat(DType::I64, "1"));
    case sym::Kind::Select:
      return fmt::format("{}({}, {}, {})", prelude_.function("select", DType::I64, width), lane_mask(expanded.args()[0], copy, 64),
                         lanes(expanded.args()[1], copy), lanes(expanded.args()[2], copy));
  }
  throw InternalError("lanes: an expression that varies and has no lanes");
}

std::string CppKernelWriter::lane_mask(const sym::Expr& expr, int copy, int bits) {
  const int width = vector_->width;
  if (!varies(expr)) return splat_mask(condition(expr), bits);
  const sym::Kind kind = expr.kind();
  if (kind == sym::Kind::Lt || kind == sym::Kind::Le) {
    // slack >= 0 where it holds. A slack that moves by one from lane to lane is a run of lanes from either end.
    const sym::Expr slack =
        sym::simplify(expand(expr.args()[1]) - expand(expr.args()[0]) - (kind == sym::Kind::Lt ? 1 : 0), facts_);
    const std::optional<sym::Expr> step = varies(slack) ? step_of(slack) : std::nullopt;
    const sym::Expr base = at_copy(slack, copy);
    if (step && step->is_const(-1)) return fmt::format("{}({})", prelude_.lanes_below(bits, width), integer(base + 1));
    if (step && step->is_const(1)) return fmt::format("~{}({})", prelude_.lanes_below(bits, width), integer(-base));
  }
  std::string_view compare = "ne";
  sym::Expr a = expr, b = 0;
  if (kind == sym::Kind::Eq || kind == sym::Kind::Ne || kind == sym::Kind::Lt || kind == sym::Kind::Le) {
    compare = kind == sym::Kind::Eq ? "eq" : kind == sym::Kind::Ne ? "ne" : kind == sym::Kind::Lt ? "lt" : "le";
    a = expr.args()[0];
    b = expr.args()[1];
  }
  const std::string mask = fmt::format("{}({}, {})", prelude_.function(compare, DType::I64, width), lanes(a, copy), lanes(b, copy));
  return bits == 64 ? mask : fmt::format("{}({})", prelude_.resize_mask(64, bits, width), mask);
}

void CppKernelWriter::hoist(const Body& statements, const std::vector<std::string>& loop_names, bool in_loop) {
  std::set<std::string> inner(loop_names.begin(), loop_names.end());
  std::vector<sym::Expr> indices;
  collect_inner(statements, kernel_, in_loop, inner, indices);
  for (const auto& [name, integer] : integers_)
    if (integer.varying) inner.insert(name);
  for (const sym::Expr& index : indices) {
    sym::Expr outside = 0;
    for (const sym::Expr& term : terms_of(distribute(index)))
      if (!mentions_any(term, inner)) outside = outside + term;
    const sym::Expr left = replace_hoisted(outside);
    // A constant, a name, or a name and a constant is as short as another name.
    size_t parts = 0;
    for (const sym::Expr& term : terms_of(left)) parts += term.is_const() ? 0 : term.is_symbol() ? 1 : 2;
    if (parts < 2) continue;
    const std::string symbol = fmt::format("hoisted.{}", ++hoist_count_);
    const std::string text = integer(left), name = names_.declare("base");
    out_.line("const i64 {} = {};", name, text);
    integers_[symbol] = {.text = name};
    scopes_.back().integers.push_back(symbol);
    facts_.symbols[symbol] = sym::bounds(left, facts_);
    hoisted_.emplace_back(outside, symbol);
  }
}

sym::Expr CppKernelWriter::replace_hoisted(const sym::Expr& expr) const {
  sym::Expr left = distribute(expr);
  for (auto entry = hoisted_.rbegin(); entry != hoisted_.rend(); ++entry) {
    const std::vector<sym::Expr> whole = terms_of(left), part = terms_of(entry->first);
    const bool all = std::all_of(part.begin(), part.end(), [&](const sym::Expr& term) {
      return std::find(whole.begin(), whole.end(), term) != whole.end();
    });
    if (all) left = left - entry->first + sym::Expr::symbol(entry->second);
  }
  return left;
}

// ---- scalars ---------------------------------------------------------------------------------------------------------
std::string CppKernelWriter::scalar(ScalarId id) const {
  FL_CHECK(!value(id).varying, "{}: %{} varies over the lanes", kernel_.name, kernel_.scalar(id).name);
  return value(id).text[0];
}

std::string CppKernelWriter::splat(DType dtype, const std::string& text) {
  return fmt::format("{}({})", prelude_.function("splat", dtype, vector_->width), text);
}
std::string CppKernelWriter::splat_mask(const std::string& text, int bits) {
  const DType integer = bits == 8 ? DType::I8 : bits == 16 ? DType::I16 : bits == 32 ? DType::I32 : DType::I64;
  return splat(integer, text == "true" ? "-1" : text == "false" ? "0" : fmt::format("{} ? -1 : 0", text));
}

std::string CppKernelWriter::vector(ScalarId id, int copy) {
  const Value& v = value(id);
  FL_CHECK(dtype_of(id) != DType::Bool, "a bool has a mask");
  return v.varying ? v.text[static_cast<size_t>(copy)] : splat(dtype_of(id), v.text[0]);
}

std::string CppKernelWriter::mask(ScalarId id, int copy, int bits) {
  const Value& v = value(id);
  if (!v.varying) return splat_mask(v.text[0], bits);
  const std::string& text = v.text[static_cast<size_t>(copy)];
  return v.mask_bits == bits ? text : fmt::format("{}({})", prelude_.resize_mask(v.mask_bits, bits, vector_->width), text);
}

void CppKernelWriter::publish(ScalarId id, Value value) {
  if (dtype_of(id) == DType::I64) {
    const std::string& name = kernel_.scalar(id).name;
    integers_[name] = {.text = value.varying ? "" : value.text[0], .varying = value.varying, .value = std::nullopt, .scalar = id};
    scopes_.back().integers.push_back(name);
  }
  values_[id.index] = std::move(value);
}

std::string CppKernelWriter::c_value_type(ScalarId id, int mask_bits) {
  const DType dtype = dtype_of(id);
  if (dtype == DType::Bool) return prelude_.mask_type(mask_bits, vector_->width);
  return prelude_.type(dtype, vector_->width);
}

void CppKernelWriter::define_uniform(ScalarId id, const std::string& text) {
  const std::string name = names_.declare(kernel_.scalar(id).name);
  out_.line("const {} {} = {};", prelude_.type(dtype_of(id), 0), name, text);
  publish(id, {.varying = false, .text = {name}});
}

void CppKernelWriter::define_varying(ScalarId id, const std::vector<std::string>& text, int mask_bits) {
  const std::string type = c_value_type(id, mask_bits);
  Value value{.varying = true, .text = {}, .mask_bits = mask_bits};
  for (size_t copy = 0; copy < text.size(); ++copy) {
    const std::string& wanted = kernel_.scalar(id).name;
    value.text.push_back(names_.declare(text.size() == 1 ? wanted : fmt::format("{}_{}", wanted, copy)));
    out_.line("const {} {} = {};", type, value.text.back(), text[copy]);
  }
  publish(id, std::move(value));
}

std::string CppKernelWriter::constant_text(DType dtype, double real, double imag, int64_t integer) const {
  switch (dtype) {
    case DType::F32: case DType::F64: return float_literal(dtype, real);
    case DType::F16: return integer_literal(DType::U16, f64_to_f16(real));
    case DType::BF16: return integer_literal(DType::U16, f64_to_bf16(real));
    case DType::C64: case DType::C128:
      return fmt::format("{}{{{}, {}}}", c_type(dtype), float_literal(dtype, real), float_literal(dtype, imag));
    case DType::Bool: case DType::I8: case DType::I16: case DType::I32: case DType::I64:
    case DType::U8: case DType::U16: case DType::U32: case DType::U64: return integer_literal(dtype, integer);
  }
  throw InternalError("constant of an unknown dtype");
}

void CppKernelWriter::statement(const Let& let) {
  std::visit([&](const auto& source) { this->let(let.result, source); }, let.source);
}

void CppKernelWriter::let(ScalarId id, const Constant& constant) {
  prelude_.type(dtype_of(id), 0);
  // A number needs no variable.
  publish(id, {.varying = false, .text = {constant_text(dtype_of(id), constant.real, constant.imag, constant.integer)}});
}

void CppKernelWriter::let(ScalarId id, const IndexValue& index) {
  const DType dtype = dtype_of(id);
  if (!varies(index.value)) {
    const std::string text = integer(index.value);
    define_uniform(id, dtype == DType::I64 ? text : fmt::format("{}({})", prelude_.cast(DType::I64, dtype, 0), text));
    return;
  }
  std::vector<std::string> texts;
  for (int copy = 0; copy < vector_->copies; ++copy) {
    const std::string value = lanes(index.value, copy);
    if (dtype == DType::I64) {
      texts.push_back(value);
    } else {
      const std::string convert = dtype == DType::Bool ? prelude_.to_mask(DType::I64, vector_->width)
                                                       : prelude_.cast(DType::I64, dtype, vector_->width);
      texts.push_back(fmt::format("{}({})", convert, value));
    }
  }
  define_varying(id, texts, 64);
}

void CppKernelWriter::let(ScalarId id, const Philox& philox) {
  if (!varies(philox.seed) && !varies(philox.counter)) {
    define_uniform(id, fmt::format("{}((u64)({}), (u64)({}))", prelude_.function("philox", DType::U64, 0), integer(philox.seed),
                                   integer(philox.counter)));
    return;
  }
  const std::string function = prelude_.function("philox", DType::U64, vector_->width);
  const std::string u64 = prelude_.type(DType::U64, vector_->width);
  std::vector<std::string> texts;
  for (int copy = 0; copy < vector_->copies; ++copy)
    texts.push_back(fmt::format("{}(({}){}, ({}){})", function, u64, lanes(philox.seed, copy), u64, lanes(philox.counter, copy)));
  define_varying(id, texts);
}

void CppKernelWriter::let(ScalarId id, const Current& current) {
  const OpenAccumulator& open = open_.at(current.accumulator.index);
  if (!vector_) {
    FL_CHECK(open.uniform.has_value(), "{}: no running value of %{}", kernel_.name, kernel_.scalar(current.accumulator).name);
    const Running& running = *open.uniform;
    define_uniform(id, is_arg(open.accumulator->combine) ? running.index : running.value);
    return;
  }
  std::vector<std::string> texts;
  for (const Running& running : open.lanes.at(vector_->width))
    texts.push_back(is_arg(open.accumulator->combine) ? running.index : running.value);
  define_varying(id, texts, kBoolAccumulatorBits);
}

std::optional<ScalarId> CppKernelWriter::narrowed_from(const Apply& widening, DType result) const {
  if (widening.op->name != "cast" || result != DType::F32) return std::nullopt;
  const auto found = narrowed_from_.find(widening.args[0].index);
  return found == narrowed_from_.end() ? std::nullopt : std::optional<ScalarId>(found->second);
}

void CppKernelWriter::let(ScalarId id, const Apply& apply) {
  if (apply.op->name == "cast" && dtype_of(id) == DType::BF16 && dtype_of(apply.args[0]) == DType::F32) narrowed_from_[id.index] = apply.args[0];
  const bool varying = vector_ && std::any_of(apply.args.begin(), apply.args.end(), [&](ScalarId arg) { return varies(arg); });
  if (!varying) {
    define_uniform(id, apply_uniform(id, apply));
    return;
  }
  std::vector<std::string> texts;
  int mask_bits = 0;
  for (int copy = 0; copy < vector_->copies; ++copy) texts.push_back(apply_lanes(id, apply, copy, mask_bits));
  define_varying(id, texts, mask_bits);
}

namespace {

// The operator that is the op on floats.
std::string_view float_operator(std::string_view op) {
  return op == "add" ? "+" : op == "sub" ? "-" : op == "mul" ? "*" : op == "div" ? "/" : "";
}

// is_inf by its attributes; empty: never.
std::string_view infinity_test(const op::Attrs& attrs) {
  const bool positive = attrs.integer("positive", 1) != 0, negative = attrs.integer("negative", 1) != 0;
  return positive && negative ? "is_inf" : positive ? "is_positive_inf" : negative ? "is_negative_inf" : "";
}

// Bool ops as an operator on masks: "&", "|", "^"; "=" is the negation of "^".
char mask_operator(std::string_view op) {
  if (op == "and" || op == "mul" || op == "min" || op == "bit_and") return '&';
  if (op == "or" || op == "add" || op == "max" || op == "bit_or") return '|';
  if (op == "xor" || op == "ne" || op == "bit_xor") return '^';
  if (op == "eq") return '=';
  return 0;
}

}  // namespace

std::string CppKernelWriter::apply_uniform(ScalarId id, const Apply& apply) {
  const std::string& op = apply.op->name;
  const DType result = dtype_of(id), first = dtype_of(apply.args[0]);
  std::string args;
  for (size_t i = 0; i < apply.args.size(); ++i) args += (i == 0 ? "" : ", ") + scalar(apply.args[i]);
  if (op == "cast") return first == result ? args : fmt::format("{}({})", prelude_.cast(first, result, 0), args);
  if (op == "bitcast") {
    if (first == result || first == DType::Bool) return first == result ? args : fmt::format("{}({})", prelude_.cast(first, result, 0), args);
    return fmt::format("{}({})", prelude_.bitcast(first, result, 0), args);
  }
  if (op == "pow") return fmt::format("{}({})", prelude_.pow(first, dtype_of(apply.args[1]), 0), args);
  if (op == "select") return fmt::format("{} ? {} : {}", scalar(apply.args[0]), scalar(apply.args[1]), scalar(apply.args[2]));
  if (op == "is_inf") {
    const std::string_view test = infinity_test(apply.attrs);
    return test.empty() ? "false" : fmt::format("{}({})", prelude_.function(test, first, 0), args);
  }
  if (first == DType::Bool) {
    if (op == "not" || op == "bit_not") return "!" + args;
    const char symbol = mask_operator(op);
    FL_SUPPORTED(symbol != 0 && apply.args.size() == 2, "generated C++ has no {} of bool", op);
    return fmt::format("{} {} {}", scalar(apply.args[0]), symbol == '&' ? "&&" : symbol == '|' ? "||" : symbol == '^' ? "!=" : "==",
                       scalar(apply.args[1]));
  }
  const std::string_view symbol = float_operator(op);
  if (!symbol.empty() && is_float(first)) return fmt::format("{} {} {}", scalar(apply.args[0]), symbol, scalar(apply.args[1]));
  return fmt::format("{}({})", prelude_.function(op, first, 0), args);
}

std::string CppKernelWriter::apply_lanes(ScalarId id, const Apply& apply, int copy, int& mask_bits) {
  const std::string& op = apply.op->name;
  const int width = vector_->width;
  const DType result = dtype_of(id), first = dtype_of(apply.args[0]);
  const auto lane = [&](size_t i) { return vector(apply.args[i], copy); };
  if (const std::optional<ScalarId> wide = narrowed_from(apply, result)) {
    return fmt::format("{}({})", prelude_.function("round_bf16", DType::F32, width), vector(*wide, copy));
  }
  if (op == "cast" || op == "bitcast") {
    if (first == DType::Bool) {
      if (result == DType::Bool) {
        mask_bits = value(apply.args[0]).mask_bits;
        return mask(apply.args[0], copy, mask_bits);
      }
      const int bits = value(apply.args[0]).mask_bits;
      return fmt::format("{}({})", prelude_.from_mask(bits, result, width), mask(apply.args[0], copy, bits));
    }
    if (result == DType::Bool) {
      mask_bits = mask_bits_of(first);
      return fmt::format("{}({})", prelude_.to_mask(first, width), lane(0));
    }
    if (first == result) return lane(0);
    return fmt::format("{}({})", op == "cast" ? prelude_.cast(first, result, width) : prelude_.bitcast(first, result, width), lane(0));
  }
  if (op == "select") {
    const DType data = result;
    if (data == DType::Bool) {
      // In the width of whichever of the three varies.
      for (const ScalarId arg : apply.args)
        if (value(arg).varying) mask_bits = value(arg).mask_bits;
      const std::string c = mask(apply.args[0], copy, mask_bits);
      return fmt::format("({} & {}) | (~{} & {})", c, mask(apply.args[1], copy, mask_bits), c, mask(apply.args[2], copy, mask_bits));
    }
    if (!varies(apply.args[0])) return fmt::format("{} ? {} : {}", scalar(apply.args[0]), lane(1), lane(2));
    return fmt::format("{}({}, {}, {})", prelude_.function("select", data, width), mask(apply.args[0], copy, mask_bits_of(data)), lane(1), lane(2));
  }
  if (first == DType::Bool) {
    for (const ScalarId arg : apply.args)
      if (value(arg).varying && mask_bits == 0) mask_bits = value(arg).mask_bits;
    if (op == "not" || op == "bit_not") return "~" + mask(apply.args[0], copy, mask_bits);
    const char symbol = mask_operator(op);
    FL_SUPPORTED(symbol != 0 && apply.args.size() == 2, "generated C++ has no {} of bool", op);
    const std::string a = mask(apply.args[0], copy, mask_bits), b = mask(apply.args[1], copy, mask_bits);
    return symbol == '=' ? fmt::format("~({} ^ {})", a, b) : fmt::format("{} {} {}", a, symbol, b);
  }
  if (result == DType::Bool) mask_bits = mask_bits_of(first);
  if (op == "is_inf") {
    const std::string_view test = infinity_test(apply.attrs);
    return test.empty() ? splat_mask("false", mask_bits) : fmt::format("{}({})", prelude_.function(test, first, width), lane(0));
  }
  if (op == "pow") return fmt::format("{}({}, {})", prelude_.pow(first, dtype_of(apply.args[1]), width), lane(0), lane(1));
  const std::string_view symbol = float_operator(op);
  if (!symbol.empty() && is_float(first)) return fmt::format("{} {} {}", lane(0), symbol, lane(1));
  std::string args;
  for (size_t i = 0; i < apply.args.size(); ++i) args += (i == 0 ? "" : ", ") + lane(i);
  return fmt::format("{}({})", prelude_.function(op, first, width), args);
}

// ---- memory ----------------------------------------------------------------------------------------------------------
std::string CppKernelWriter::address(BufferId buffer, const sym::Expr& index) {
  const std::string& name = buffer_names_[static_cast<size_t>(buffer.index)];
  const sym::Expr offset = replace_hoisted(index);
  return offset.is_const(0) ? name : fmt::format("{} + {}", name, integer_term(offset));
}

std::string CppKernelWriter::element(BufferId buffer, const sym::Expr& index) {
  return fmt::format("{}[{}]", buffer_names_[static_cast<size_t>(buffer.index)], integer(replace_hoisted(index)));
}

int CppKernelWriter::storage_mask_bits(DType dtype) const { return dtype == DType::Bool ? 8 : mask_bits_of(dtype); }

std::string CppKernelWriter::fill_text(DType dtype, double fill) const {
  if (dtype == DType::Bool) return fill != 0 ? "1" : "0";
  int64_t integer = 0;
  if (is_int(dtype) && std::isfinite(fill)) integer = static_cast<int64_t>(fill);
  return constant_text(dtype, fill, 0, integer);
}

CppKernelWriter::Access CppKernelWriter::access_of(const sym::Expr& index) const {
  const sym::Expr expanded = sym::simplify(expand(index), facts_);
  const std::optional<sym::Expr> step = step_of(expanded);
  if (!step) return {.kind = Access::Kind::Indexed, .base = expanded, .step = 0};
  if (step->is_const(1)) return {.kind = Access::Kind::Unit, .base = expanded, .step = *step};
  if (step->is_const(-1)) return {.kind = Access::Kind::Reverse, .base = expanded, .step = *step};
  return {.kind = Access::Kind::Step, .base = expanded, .step = *step};
}

std::string CppKernelWriter::split_guards(const std::vector<sym::Expr>& guards, std::vector<sym::Expr>& varying) {
  std::string uniform;
  for (const sym::Expr& guard : guards) {
    const sym::Expr simple = sym::simplify(guard, facts_);
    if (simple.is_const() && !simple.is_const(0)) continue;
    if (varies(guard)) {
      varying.push_back(guard);
    } else {
      uniform += (uniform.empty() ? "" : " && ") + condition(guard);
    }
  }
  if (vector_) varying.insert(varying.end(), varying_conditions_.begin(), varying_conditions_.end());
  return uniform;
}

std::string CppKernelWriter::access_mask(const std::vector<sym::Expr>& guards, int copy, int bits) {
  std::string text;
  for (const sym::Expr& guard : guards) text += (text.empty() ? "" : " & ") + lane_mask(guard, copy, bits);
  if (!vector_->count.empty())
    text += fmt::format("{}{}({})", text.empty() ? "" : " & ", prelude_.lanes_below(bits, vector_->width), vector_->count);
  return text;
}

std::string CppKernelWriter::load_lanes(const Load& load, const Access& access, const std::vector<sym::Expr>& guards, int copy) {
  const DType dtype = kernel_.buffer(load.buffer).dtype;
  const int width = vector_->width;
  const auto memory = [&](std::string_view function) { return prelude_.memory(function, dtype, width); };
  const auto place = [&] { return address(load.buffer, at_copy(access.base, copy)); };
  const std::string& count = vector_->count;
  const bool indexed = access.kind == Access::Kind::Indexed;
  if (!guards.empty() || (indexed && !count.empty())) {
    const std::string on = access_mask(guards, copy, storage_mask_bits(dtype)), fill = fill_text(dtype, load.fill);
    if (access.kind == Access::Kind::Unit) return fmt::format("{}({}, {}, {})", memory("load_masked"), place(), on, fill);
    return fmt::format("{}({}, {}, {}, {})", memory("gather_masked"), buffer_names_[static_cast<size_t>(load.buffer.index)],
                       lanes(access.base, copy), on, fill);
  }
  switch (access.kind) {
    case Access::Kind::Unit:
      return count.empty() ? fmt::format("{}({})", memory("load"), place()) : fmt::format("{}({}, {})", memory("load_part"), place(), count);
    case Access::Kind::Reverse:
      if (count.empty()) return fmt::format("{}({})", memory("load_reverse"), place());
      break;
    case Access::Kind::Step:
      if (count.empty() && (access.step.is_const(2) || access.step.is_const(3) || access.step.is_const(4)))
        return fmt::format("{}({})", memory(fmt::format("load_stride{}", *access.step.as_const())), place());
      break;
    case Access::Kind::Indexed:
      return fmt::format("{}({}, {})", memory("gather"), buffer_names_[static_cast<size_t>(load.buffer.index)], lanes(access.base, copy));
  }
  if (count.empty()) return fmt::format("{}({}, {})", memory("gather_step"), place(), integer(access.step));
  return fmt::format("{}({}, {}, {})", memory("gather_step_part"), place(), integer(access.step), count);
}

void CppKernelWriter::let(ScalarId id, const Load& load) {
  const DType dtype = dtype_of(id);
  std::vector<sym::Expr> varying;
  const std::string guard = split_guards(load.guards, varying);
  if (!varies(load.index) && varying.empty()) {
    std::string text = element(load.buffer, load.index);
    if (dtype == DType::Bool) text += " != 0";
    if (!guard.empty()) {
      std::string fill = fill_text(dtype, load.fill);
      if (dtype == DType::Bool) fill = load.fill != 0 ? "true" : "false";
      text = fmt::format("{} ? {} : {}", guard, text, fill);
    }
    define_uniform(id, text);
    return;
  }
  const Access access = access_of(load.index);
  std::vector<std::string> texts;
  for (int copy = 0; copy < vector_->copies; ++copy) {
    std::string text = load_lanes(load, access, varying, copy);
    if (dtype == DType::Bool) text = fmt::format("{}({})", prelude_.to_mask(DType::U8, vector_->width), text);
    texts.push_back(std::move(text));
  }
  if (guard.empty()) {
    define_varying(id, texts, 8);
    return;
  }
  const std::string fill = dtype == DType::Bool ? splat_mask(load.fill != 0 ? "true" : "false", 8) : splat(dtype, fill_text(dtype, load.fill));
  Value value{.varying = true, .text = {}, .mask_bits = 8};
  for (size_t copy = 0; copy < texts.size(); ++copy) {
    const std::string& wanted = kernel_.scalar(id).name;
    value.text.push_back(names_.declare(texts.size() == 1 ? wanted : fmt::format("{}_{}", wanted, copy)));
    out_.line("{} {} = {};", c_value_type(id, 8), value.text.back(), fill);
  }
  out_.open("if ({})", guard);
  for (size_t copy = 0; copy < texts.size(); ++copy) out_.line("{} = {};", value.text[copy], texts[copy]);
  out_.close();
  publish(id, std::move(value));
}

std::string CppKernelWriter::stream_flag(BufferId id) {
  const Buffer& buffer = kernel_.buffer(id);
  const int64_t bytes = dtype_bytes(buffer.dtype);
  if (buffer.space != Space::Global || buffer.access != kernel::Access::Write || is_complex(buffer.dtype) || bytes * vector_->width < 16) return "";
  const sym::Range size = sym::bounds(buffer.size, kernel_.facts);
  if (size.high < target_.streamed_bytes / bytes) return "";
  streamed_.insert(id.index);
  return stream_names_[static_cast<size_t>(id.index)];
}

void CppKernelWriter::store_lanes(const Store& store, const Access& access, const std::vector<sym::Expr>& guards, int copy) {
  const DType dtype = kernel_.buffer(store.buffer).dtype;
  const int width = vector_->width;
  const auto memory = [&](std::string_view function) { return prelude_.memory(function, dtype, width); };
  const auto place = [&] { return address(store.buffer, at_copy(access.base, copy)); };
  const std::string& count = vector_->count;
  std::string stored;
  if (dtype == DType::Bool) {
    const int bits = varies(store.value) ? value(store.value).mask_bits : 8;
    stored = fmt::format("{}({})", prelude_.from_mask(bits, DType::U8, width), mask(store.value, copy, bits));
  } else {
    stored = vector(store.value, copy);
  }
  const bool indexed = access.kind == Access::Kind::Indexed;
  if (!guards.empty() || (indexed && !count.empty())) {
    const std::string on = access_mask(guards, copy, storage_mask_bits(dtype));
    if (access.kind == Access::Kind::Unit) {
      out_.line("{}({}, {}, {});", memory("store_masked"), place(), stored, on);
    } else {
      out_.line("{}({}, {}, {}, {});", memory("scatter_masked"), buffer_names_[static_cast<size_t>(store.buffer.index)],
                lanes(access.base, copy), stored, on);
    }
    return;
  }
  switch (access.kind) {
    case Access::Kind::Unit:
      if (!count.empty()) {
        out_.line("{}({}, {}, {});", memory("store_part"), place(), stored, count);
      } else if (const std::string flag = stream_flag(store.buffer); !flag.empty()) {
        out_.line("{}({}, {}, {});", memory("stream"), place(), stored, flag);
      } else {
        out_.line("{}({}, {});", memory("store"), place(), stored);
      }
      return;
    case Access::Kind::Reverse:
      if (count.empty()) {
        out_.line("{}({}, {});", memory("store_reverse"), place(), stored);
        return;
      }
      break;
    case Access::Kind::Step: break;
    case Access::Kind::Indexed:
      out_.line("{}({}, {}, {});", memory("scatter"), buffer_names_[static_cast<size_t>(store.buffer.index)], lanes(access.base, copy), stored);
      return;
  }
  if (count.empty()) out_.line("{}({}, {}, {});", memory("scatter_step"), place(), integer(access.step), stored);
  else out_.line("{}({}, {}, {}, {});", memory("scatter_step_part"), place(), integer(access.step), stored, count);
}

void CppKernelWriter::statement(const Store& store) {
  const DType dtype = kernel_.buffer(store.buffer).dtype;
  std::vector<sym::Expr> varying;
  const std::string guard = split_guards(store.guards, varying);
  if (!guard.empty()) out_.open("if ({})", guard);
  if (!vector_) {
    const std::string place = element(store.buffer, store.index);
    std::string stored = scalar(store.value);
    if (store.combine != op::Combine::None) {
      const DType compute = compute_dtype(dtype);
      const auto widen = [&](const std::string& text) {
        return compute == dtype ? text : fmt::format("{}({})", prelude_.cast(dtype, compute, 0), text);
      };
      stored = combine(store.combine, compute, 0, widen(dtype == DType::Bool ? place + " != 0" : place), widen(stored));
      if (compute != dtype) stored = fmt::format("{}({})", prelude_.cast(compute, dtype, 0), stored);
    }
    out_.line("{} = {};", place, stored);
  } else {
    const Access access = access_of(store.index);
    for (int copy = 0; copy < vector_->copies; ++copy) store_lanes(store, access, varying, copy);
  }
  if (!guard.empty()) out_.close();
}

// ---- reductions ------------------------------------------------------------------------------------------------------
namespace {
// On bools every combine is "or" or "and".
bool is_or(op::Combine combine) {
  return combine == op::Combine::Or || combine == op::Combine::Add || combine == op::Combine::Max;
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

std::string CppKernelWriter::combine(op::Combine how, DType dtype, int lanes, const std::string& a, const std::string& b) {
  if (dtype == DType::Bool) return fmt::format("({} {} {})", a, is_or(how) ? (lanes == 0 ? "||" : "|") : (lanes == 0 ? "&&" : "&"), b);
  if (is_float(dtype) && (how == op::Combine::Add || how == op::Combine::Mul))
    return fmt::format("({} {} {})", a, how == op::Combine::Add ? "+" : "*", b);
  return fmt::format("{}({}, {})", prelude_.function(combine_op(how), dtype, lanes), a, b);
}

std::string CppKernelWriter::identity(const Accumulator& accumulator, DType dtype) const {
  const op::Combine how = accumulator.combine;
  if (dtype == DType::Bool) return is_or(how) ? "false" : "true";
  const auto lowest = [&](bool low) -> std::string {
    if (is_float(dtype)) return float_literal(dtype, low ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity());
    const int bits = bits_of(dtype);
    if (is_unsigned_int(dtype)) return integer_literal(dtype, low ? 0 : -1);
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

void CppKernelWriter::find_parts(const Body& statements, ScalarId accumulator, int width, int copies, std::map<int, int>& parts,
                                 bool& uniform) const {
  for (const Statement& statement : statements) {
    if (const auto* loop = std::get_if<Loop>(&statement.what)) {
      const bool by_lanes = loop->binding == Binding::Vector && is_vectorizable(*loop);
      find_parts(loop->body, accumulator, by_lanes ? loop->width : width, by_lanes ? loop->unroll : copies, parts, uniform);
    } else if (const auto* reduce = std::get_if<Reduce>(&statement.what)) {
      find_parts(reduce->body, accumulator, width, copies, parts, uniform);
    } else if (const auto* branch = std::get_if<If>(&statement.what)) {
      find_parts(branch->then, accumulator, width, copies, parts, uniform);
    } else if (const auto* accumulate = std::get_if<Accumulate>(&statement.what)) {
      if (accumulate->accumulator != accumulator) continue;
      if (width == 0) uniform = true;
      else parts[width] = std::max(parts[width], copies);
    } else if (const auto* let = std::get_if<Let>(&statement.what)) {
      const auto* current = std::get_if<Current>(&let->source);
      if (current != nullptr && current->accumulator == accumulator && width == 0) uniform = true;
    }
  }
}

CppKernelWriter::Running CppKernelWriter::declare_running(const OpenAccumulator& open, const std::string& suffix, int lanes) {
  const Accumulator& accumulator = *open.accumulator;
  const auto splat_text = [&](DType dtype, const std::string& text) {
    return lanes == 0 ? text : fmt::format("{}({})", prelude_.function("splat", dtype, lanes), text);
  };
  Running running;
  const ScalarId value = is_arg(accumulator.combine) ? accumulator.value : accumulator.result;
  running.value = names_.declare(kernel_.scalar(value).name + suffix);
  const std::string start = identity(accumulator, open.dtype);
  if (open.dtype == DType::Bool) {
    const std::string mask_start = lanes == 0 ? start : splat_text(DType::I32, start == "true" ? "-1" : "0");
    out_.line("{} {} = {};", prelude_.mask_type(kBoolAccumulatorBits, lanes), running.value, mask_start);
  } else {
    out_.line("{} {} = {};", prelude_.type(open.dtype, lanes), running.value, splat_text(open.dtype, start));
  }
  if (is_arg(accumulator.combine)) {
    // No index yet: worse than every index.
    running.index = names_.declare(kernel_.scalar(accumulator.result).name + suffix);
    const std::string none = accumulator.last_of_equals ? "-1" : "0x7fffffffffffffff";
    out_.line("{} {} = {};", prelude_.type(DType::I64, lanes), running.index, splat_text(DType::I64, none));
  }
  return running;
}

void CppKernelWriter::accumulate(const OpenAccumulator& open, const Running& running, int lanes, const Running& with,
                                 const std::string& on) {
  const Accumulator& accumulator = *open.accumulator;
  if (!is_arg(accumulator.combine)) {
    const std::string next = combine(accumulator.combine, open.dtype, lanes, running.value, with.value);
    if (on.empty()) {
      out_.line("{} = {};", running.value, next);
    } else if (open.dtype == DType::Bool) {
      out_.line("{} = ({} & {}) | (~{} & {});", running.value, on, next, on, running.value);
    } else {
      out_.line("{} = {}({}, {}, {});", running.value, prelude_.function("select", open.dtype, lanes), on, next, running.value);
    }
    return;
  }
  const std::string_view how = accumulator.combine == op::Combine::ArgMax ? (accumulator.last_of_equals ? "argmax_last" : "argmax_first")
                                                                          : (accumulator.last_of_equals ? "argmin_last" : "argmin_first");
  const std::string better = fmt::format("{}({}, {}, {}, {})", prelude_.function(how, open.dtype, lanes), with.value, with.index,
                                         running.value, running.index);
  if (lanes == 0) {
    out_.open("if ({})", better);
    out_.line("{} = {};", running.value, with.value);
    out_.line("{} = {};", running.index, with.index);
    out_.close();
    return;
  }
  const int bits = bits_of(open.dtype);
  out_.open("");
  const std::string take = "take_lanes";
  out_.line("const {} {} = {}{};", prelude_.mask_type(bits, lanes), take, better, on.empty() ? "" : " & " + on);
  out_.line("{} = {}({}, {}, {});", running.value, prelude_.function("select", open.dtype, lanes), take, with.value, running.value);
  const std::string wide = bits == 64 ? take : fmt::format("{}({})", prelude_.resize_mask(bits, 64, lanes), take);
  out_.line("{} = {}({}, {}, {});", running.index, prelude_.function("select", DType::I64, lanes), wide, with.index, running.index);
  out_.close();
}

void CppKernelWriter::statement(const Accumulate& accumulate) {
  const OpenAccumulator& open = open_.at(accumulate.accumulator.index);
  const bool arg = is_arg(open.accumulator->combine);
  if (!vector_) {
    FL_CHECK(open.uniform.has_value(), "{}: %{} has no uniform part", kernel_.name, kernel_.scalar(accumulate.accumulator).name);
    Running with{.value = scalar(accumulate.value), .index = arg ? integer(accumulate.index) : ""};
    this->accumulate(open, *open.uniform, 0, with, "");
    return;
  }
  const int width = vector_->width;
  const std::vector<Running>& running = open.lanes.at(width);
  const int bits = open.dtype == DType::Bool ? kBoolAccumulatorBits : mask_bits_of(open.dtype);
  for (int copy = 0; copy < vector_->copies; ++copy) {
    Running with;
    with.value = open.dtype == DType::Bool ? mask(accumulate.value, copy, bits) : vector(accumulate.value, copy);
    if (arg) with.index = lanes(accumulate.index, copy);
    // A vector that stays one needs no masking of the missing lanes: nothing of them is ever used.
    std::string on;
    if (!open.inside_vector || !varying_conditions_.empty()) on = access_mask(varying_conditions_, copy, bits);
    this->accumulate(open, running[static_cast<size_t>(copy)], width, with, on);
  }
}

CppKernelWriter::Running CppKernelWriter::finish(const OpenAccumulator& open) {
  const Accumulator& accumulator = *open.accumulator;
  if (is_arg(accumulator.combine)) {
    // The order of combination does not matter: better values win, then better indices.
    Running total;
    if (open.uniform) total = *open.uniform;
    else total = declare_running(open, "_best", 0);
    for (const auto& [width, copies] : open.lanes) {
      for (size_t copy = 1; copy < copies.size(); ++copy) accumulate(open, copies[0], width, copies[copy], "");
      out_.open("for (int l = 0; l < {}; ++l)", width);
      accumulate(open, total, 0, {.value = copies[0].value + "[l]", .index = copies[0].index + "[l]"}, "");
      out_.close();
    }
    // Over nothing: 0.
    total.index = accumulator.last_of_equals ? fmt::format("{} < 0 ? 0 : {}", total.index, total.index)
                                             : fmt::format("{} == 0x7fffffffffffffff ? 0 : {}", total.index, total.index);
    return total;
  }
  std::string total;
  for (const auto& [width, copies] : open.lanes) {
    std::vector<std::string> level;
    for (const Running& copy : copies) level.push_back(copy.value);
    while (level.size() > 1) {
      std::vector<std::string> next;
      for (size_t i = 0; i + 1 < level.size(); i += 2) next.push_back(combine(accumulator.combine, open.dtype, width, level[i], level[i + 1]));
      if (level.size() % 2 != 0) next.push_back(level.back());
      level = std::move(next);
    }
    std::string sum;
    if (open.dtype == DType::Bool) {
      const std::string any = prelude_.any(kBoolAccumulatorBits, width);
      sum = is_or(accumulator.combine) ? fmt::format("{}({})", any, level[0]) : fmt::format("!{}(~{})", any, level[0]);
    } else {
      sum = fmt::format("{}({})", prelude_.horizontal(accumulator.combine, open.dtype, width), level[0]);
    }
    total = total.empty() ? sum : combine(accumulator.combine, open.dtype, 0, total, sum);
  }
  if (open.uniform) total = total.empty() ? open.uniform->value : combine(accumulator.combine, open.dtype, 0, total, open.uniform->value);
  return {.value = total.empty() ? identity(accumulator, open.dtype) : total, .index = ""};
}

void CppKernelWriter::statement(const Reduce& reduce) {
  for (const Accumulator& accumulator : reduce.accumulators) {
    const bool arg = is_arg(accumulator.combine);
    OpenAccumulator open{.accumulator = &accumulator, .dtype = dtype_of(arg ? accumulator.value : accumulator.result),
                         .uniform = std::nullopt, .lanes = {}};
    if (vector_) {
      open.inside_vector = true;
      std::vector<Running>& copies = open.lanes[vector_->width];
      for (int copy = 0; copy < vector_->copies; ++copy)
        copies.push_back(declare_running(open, vector_->copies == 1 ? "_sum" : fmt::format("_sum{}", copy), vector_->width));
    } else {
      std::map<int, int> parts;
      bool uniform = false;
      find_parts(reduce.body, accumulator.result, 0, 0, parts, uniform);
      for (const auto& [width, most] : parts) {
        for (int copy = 0; copy < most; ++copy) {
          const std::string suffix = parts.size() == 1 ? fmt::format("_sum{}", copy) : fmt::format("_sum{}w{}", copy, width);
          open.lanes[width].push_back(declare_running(open, suffix, width));
        }
      }
      if (uniform) open.uniform = declare_running(open, "_sum", 0);
    }
    open_[accumulator.result.index] = std::move(open);
  }
  open_scope();
  out_.open("");
  body(reduce.body);
  out_.close();
  close_scope();
  for (const Accumulator& accumulator : reduce.accumulators) {
    const bool arg = is_arg(accumulator.combine);
    const OpenAccumulator open = open_.at(accumulator.result.index);
    open_.erase(accumulator.result.index);
    if (vector_) {
      std::vector<std::string> values, indices;
      for (const Running& running : open.lanes.at(vector_->width)) {
        values.push_back(running.value);
        indices.push_back(running.index);
      }
      if (arg) {
        for (std::string& index : indices) {
          const std::string select = prelude_.function("select", DType::I64, vector_->width);
          const std::string none = splat(DType::I64, accumulator.last_of_equals ? "-1" : "0x7fffffffffffffff");
          index = fmt::format("{}({}({}, {}), {}, {})", select, prelude_.function("eq", DType::I64, vector_->width), index, none,
                              splat(DType::I64, "0"), index);
        }
        define_varying(accumulator.result, indices);
        publish(accumulator.value, {.varying = true, .text = values});
      } else {
        // Behind its scope the running variable is the value.
        publish(accumulator.result, {.varying = true, .text = values, .mask_bits = kBoolAccumulatorBits});
      }
      continue;
    }
    const Running total = finish(open);
    if (arg) {
      define_uniform(accumulator.result, total.index);
      publish(accumulator.value, {.varying = false, .text = {total.value}});
    } else if (open.uniform && total.value == open.uniform->value) {
      publish(accumulator.result, {.varying = false, .text = {total.value}});
    } else {
      define_uniform(accumulator.result, total.value);
    }
  }
}

}  // namespace fuseloom::emit
