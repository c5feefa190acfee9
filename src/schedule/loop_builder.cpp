#include "schedule/loop_builder.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "schedule/random_number.h"

namespace fuseloom::schedule {

using graph::Graph;
using graph::Node;
using kernel::Access;
using kernel::Binding;
using kernel::BufferId;
using kernel::Space;
using kernel::Statement;
using sym::Expr;

double identity_value(op::Combine combine, DType dtype) {
  const double infinity = std::numeric_limits<double>::infinity();
  switch (combine) {
    case op::Combine::None:
    case op::Combine::Add:
    case op::Combine::Or: return 0;
    case op::Combine::Mul:
    case op::Combine::And: return 1;
    case op::Combine::Max:
    case op::Combine::ArgMax: return is_float(dtype) ? -infinity : 0;
    case op::Combine::Min:
    case op::Combine::ArgMin: return is_float(dtype) ? infinity : 0;
  }
  return 0;
}

namespace {

bool is_thread(Binding binding) { return binding == Binding::ThreadX || binding == Binding::ThreadY || binding == Binding::ThreadZ; }

int64_t lowest_integer(DType dtype) {
  if (!is_signed_int(dtype)) return 0;
  return std::numeric_limits<int64_t>::min() >> (64 - dtype_bits(dtype));
}
int64_t highest_integer(DType dtype) {
  if (dtype == DType::Bool) return 1;
  if (is_signed_int(dtype)) return ~lowest_integer(dtype);
  return dtype_bits(dtype) == 64 ? -1 : (int64_t{1} << dtype_bits(dtype)) - 1;   // u64: all bits
}

std::string identifier(std::string_view name, int32_t index) {
  std::string out;
  for (const char c : name) out += (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ? c : '_';
  return fmt::format("b{}_{}", index, out.substr(0, 24));
}

// Values and stores of a body, and whether it adds to accumulators that live longer than one turn of the loop.
struct BodySize {
  int statements = 0;
  bool accumulates = false;
};
void measure(const kernel::Body& body, BodySize& size) {
  for (const Statement& statement : body) {
    if (const auto* loop = std::get_if<kernel::Loop>(&statement.what)) {
      measure(loop->body, size);
    } else if (const auto* branch = std::get_if<kernel::If>(&statement.what)) {
      measure(branch->then, size);
    } else if (const auto* reduce = std::get_if<kernel::Reduce>(&statement.what)) {
      BodySize inside;
      measure(reduce->body, inside);
      size.statements += inside.statements;
    } else {
      ++size.statements;
      size.accumulates = size.accumulates || std::holds_alternative<kernel::Accumulate>(statement.what);
    }
  }
}

// An addition waits for the one before it in its accumulator: reductions need several to keep the units busy. Elsewhere
// several vectors share the loop's overhead.
int32_t vectors_for(const kernel::Body& body) {
  BodySize size;
  measure(body, size);
  if (size.statements <= 12) return 4;
  if (size.accumulates) return size.statements <= 24 ? 4 : 2;
  return size.statements <= 32 ? 2 : 1;
}

}  // namespace

LoopBuilder::LoopBuilder(const Graph& graph, const Group& group, const AxisPlan& plan) : graph_(graph), group_(group), plan_(plan) {
  for (const NodeId id : group.nodes) computed_.insert(graph.node(id).outputs.begin(), graph.node(id).outputs.end());
  scopes_.emplace_back();
  facts_ = plan.facts();
}

bool LoopBuilder::is_external(ValueId value) const { return computed_.count(value) == 0; }

// ---- loops -----------------------------------------------------------------------------------------------------------

void LoopBuilder::open(const std::string& axis, Expr begin, Expr end, Binding binding, int32_t width, int32_t unroll) {
  Scope scope;
  scope.owner.what = kernel::Loop{.axis = axis, .begin = std::move(begin), .end = std::move(end), .binding = binding, .width = width, .unroll = unroll};
  scope.names.insert(axis);
  scopes_.push_back(std::move(scope));
  name_level_[axis] = level();
  if (is_thread(binding)) store_level_ = level();
}

bool LoopBuilder::open_core(const std::vector<Digit>& digits, std::vector<Expr>* positions) {
  Expr total = 1;
  for (const Digit& digit : digits) total = total * digit.extent;
  const bool loop = !total.is_const(1);
  if (loop) open("c_", 0, total, Binding::Core);
  std::vector<Expr> values(digits.size(), 0);
  Expr rest = Expr::symbol("c_");
  size_t outermost = 0;
  while (outermost < digits.size() && digits[outermost].extent.is_const(1)) ++outermost;
  for (size_t i = digits.size(); i-- > outermost;) {
    if (digits[i].extent.is_const(1)) continue;
    values[i] = i == outermost ? rest : sym::mod(rest, digits[i].extent);
    rest = sym::floor_div(rest, digits[i].extent);
  }
  for (size_t i = 0; i < digits.size(); ++i) {
    const Expr position = define(digits[i].name, values[i]);
    if (!values[i].is_const()) values[i] = position;
  }
  if (positions != nullptr) *positions = std::move(values);
  return loop;
}

void LoopBuilder::open_reduce(std::vector<kernel::Accumulator> accumulators) {
  Scope scope;
  scope.owner.what = kernel::Reduce{.accumulators = std::move(accumulators)};
  scopes_.push_back(std::move(scope));
}

void LoopBuilder::open_if(const Expr& condition) {
  Scope scope;
  scope.owner.what = kernel::If{.condition = simplified(condition), .then = {}};
  scopes_.push_back(std::move(scope));
}

void LoopBuilder::open_block(const std::vector<std::string>& names) {
  Scope scope;
  scope.names.insert(names.begin(), names.end());
  scopes_.push_back(std::move(scope));
  for (const std::string& name : names) name_level_[name] = level();
}

LoopBuilder::Scope LoopBuilder::pop() {
  Scope scope = std::move(scopes_.back());
  scopes_.pop_back();
  for (const std::string& name : scope.names) name_level_.erase(name);
  return scope;
}

kernel::Body LoopBuilder::close_block() { return pop().body; }

void LoopBuilder::close() {
  Scope scope = pop();
  if (auto* loop = std::get_if<kernel::Loop>(&scope.owner.what)) {
    loop->body = std::move(scope.body);
    if (loop->binding == Binding::Vector && loop->unroll == kByBody) loop->unroll = vectors_for(loop->body);
    if (is_thread(loop->binding)) store_level_ = 1;
  } else if (auto* branch = std::get_if<kernel::If>(&scope.owner.what)) {
    branch->then = std::move(scope.body);
  } else {
    auto& reduce = std::get<kernel::Reduce>(scope.owner.what);
    reduce.body = std::move(scope.body);
    // From here on the accumulators are values of the body around the scope.
    for (const kernel::Accumulator& accumulator : reduce.accumulators) {
      scalar_level_[static_cast<size_t>(accumulator.result.index)] = level();
      if (accumulator.value.valid()) scalar_level_[static_cast<size_t>(accumulator.value.index)] = level();
    }
  }
  append(std::move(scope.owner));
}

void LoopBuilder::append(Statement statement) { place(level(), std::move(statement)); }

Expr LoopBuilder::define(const std::string& name, const Expr& value) {
  append(Statement{kernel::Define{name, value}});
  scopes_.back().names.insert(name);
  name_level_[name] = level();
  return Expr::symbol(name);
}

void LoopBuilder::set_axis(const std::string& axis, Expr value) {
  axes_[axis] = std::move(value);
  simplified_.clear();
}

void LoopBuilder::assume(const std::string& name, sym::Range range) {
  facts_.symbols[name] = range;
  simplified_.clear();
}

void LoopBuilder::assume_below(const std::string& name, Expr end) {
  facts_.symbols[name] = sym::Facts::size();
  facts_.upper_exclusive[name] = std::move(end);
  simplified_.clear();
}

void LoopBuilder::assume_lanes(const std::string& name, int64_t lanes) {
  assume(name, {.low = 0, .high = lanes - 1});
  lanes_[name] = lanes;
}

Expr LoopBuilder::size(const std::string& name, Expr value, sym::Range range) {
  sizes_[name] = std::move(value);
  assume(name, range);
  return Expr::symbol(name);
}

Expr LoopBuilder::simplified(const Expr& expr) const {
  Expr rewritten = plan_.rewrite(expr);
  if (axes_.empty() && lanes_.empty()) return rewritten;
  const auto known = simplified_.find(rewritten);
  if (known != simplified_.end()) return known->second;
  Expr out = without_lanes(sym::simplify(sym::substitute(rewritten, axes_), facts_));
  simplified_.emplace(std::move(rewritten), out);
  return out;
}

// A comparison of a multiple of the lanes' count with another is the same for all lanes:
//     a + lane < b  is  a < b,      a <= b + lane  is  a <= b       a, b multiples
Expr LoopBuilder::without_lanes(const Expr& condition) const {
  if (condition.kind() != sym::Kind::Lt && condition.kind() != sym::Kind::Le) return condition;
  for (const auto& [name, lanes] : lanes_) {
    if (sym::symbols_of(condition).count(name) == 0) continue;
    const sym::Substitution first{{name, 0}};
    const bool less = condition.kind() == sym::Kind::Lt;
    for (const bool left : {true, false}) {
      const Expr &x = condition.args()[0], &y = condition.args()[1];
      const Expr &with = left ? x : y, &without = left ? y : x;
      const Expr base = sym::substitute(with, first);
      if (sym::symbols_of(without).count(name) != 0 || !(with == base + Expr::symbol(name))) continue;
      // x + lane <= y is x + lane < y + 1;  x < y + lane is x + 1 <= y + lane.
      const Expr other = left == less ? without : without + 1;
      if (sym::prove_divisible(base, lanes, facts_) != sym::Proof::Yes || sym::prove_divisible(other, lanes, facts_) != sym::Proof::Yes) continue;
      return sym::simplify(left ? sym::lt(base, other) : sym::le(other, base), facts_);
    }
  }
  return condition;
}

int LoopBuilder::level_of(const Expr& expr) const {
  int level = floor_;
  for (const std::string& symbol : sym::symbols_of(expr)) {
    const auto found = name_level_.find(symbol);
    if (found != name_level_.end()) level = std::max(level, found->second);
  }
  return level;
}

// ---- scalars ---------------------------------------------------------------------------------------------------------

ScalarId LoopBuilder::let(DType dtype, kernel::Source source) {
  int at = floor_;
  if (const auto* index = std::get_if<kernel::IndexValue>(&source)) {
    at = level_of(index->value);
  } else if (const auto* load = std::get_if<kernel::Load>(&source)) {
    at = level_of(load->index);
    for (const Expr& guard : load->guards) at = std::max(at, level_of(guard));
    // What the kernel itself writes is read where it is asked for.
    if (kernel_.buffer(load->buffer).access != Access::Read) at = level();
  } else if (const auto* apply = std::get_if<kernel::Apply>(&source)) {
    for (const ScalarId arg : apply->args) at = std::max(at, level_of(arg));
  } else if (const auto* philox = std::get_if<kernel::Philox>(&source)) {
    at = std::max(level_of(philox->seed), level_of(philox->counter));
  } else if (std::holds_alternative<kernel::Current>(source)) {
    at = level();
  }
  const ScalarId id = reserve(dtype);
  scalar_level_[static_cast<size_t>(id.index)] = at;
  place(at, Statement{kernel::Let{id, std::move(source)}});
  return id;
}

ScalarId LoopBuilder::reserve(DType dtype) {
  const ScalarId id = kernel_.add_scalar(dtype);
  scalar_level_.resize(kernel_.scalars.size(), 0);
  return id;
}

kernel::Accumulator LoopBuilder::accumulator_of(NodeId id) {
  const Node& node = graph_.node(id);
  kernel::Accumulator accumulator{.combine = node.op->combine};
  accumulator.result = reserve(compute_dtype(graph_.type(node.outputs[0]).dtype));
  if (node.op->combine == op::Combine::ArgMax || node.op->combine == op::Combine::ArgMin) {
    // Kernels order numbers, so truth values become 0 and 1.
    const DType compared = compute_dtype(graph_.type(node.inputs[0]).dtype);
    accumulator.value = reserve(compared == DType::Bool ? DType::U8 : compared);
    accumulator.last_of_equals = node.attrs.integer("select_last", 0) != 0;
  }
  return accumulator;
}

ScalarId LoopBuilder::apply(std::string_view op, DType result, std::vector<ScalarId> args, op::Attrs attrs) {
  if (op == "cast") {
    // Back to the type it was widened from: nothing was rounded.
    const auto narrow = narrow_.find(args[0]);
    if (narrow != narrow_.end() && dtype(narrow->second) == result) return narrow->second;
  }
  const ScalarId source = args.empty() ? ScalarId{} : args[0];
  const ScalarId made = let(result, kernel::Apply{&graph_.table().at(op), std::move(args), std::move(attrs)});
  if (op == "cast" && result == DType::F32 && (dtype(source) == DType::F16 || dtype(source) == DType::BF16)) narrow_[made] = source;
  return made;
}

ScalarId LoopBuilder::constant(DType dtype, double value) {
  kernel::Constant constant{.real = value};
  if (!is_float(dtype)) constant.integer = Tensor::scalar(dtype, value).int_at(0);   // as a cast has it
  return let(dtype, constant);
}

ScalarId LoopBuilder::integer(DType dtype, int64_t value) {
  return let(dtype, kernel::Constant{.real = static_cast<double>(value), .integer = value});
}

ScalarId LoopBuilder::index_value(DType dtype, const Expr& value) { return let(dtype, kernel::IndexValue{simplified(value)}); }

ScalarId LoopBuilder::condition(const std::vector<Expr>& guards) {
  Expr all = 1;
  for (const Expr& guard : guards) all = all * simplified(guard);
  return let(DType::Bool, kernel::IndexValue{all});
}

ScalarId LoopBuilder::round_to(DType declared, ScalarId value) {
  if (declared != DType::F16 && declared != DType::BF16) return value;
  return apply("cast", DType::F32, {apply("cast", declared, {value})});
}

ScalarId LoopBuilder::identity_of(op::Combine combine, DType dtype) {
  if (!is_float(dtype)) {
    if (combine == op::Combine::Max) return integer(dtype, lowest_integer(dtype));
    if (combine == op::Combine::Min) return integer(dtype, highest_integer(dtype));
  }
  return constant(dtype, identity_value(combine, dtype));
}

ScalarId LoopBuilder::combine(op::Combine combine, DType dtype, ScalarId a, ScalarId b) {
  switch (combine) {
    case op::Combine::Add: return apply("add", dtype, {a, b});
    case op::Combine::Mul: return apply("mul", dtype, {a, b});
    case op::Combine::Max: return apply("max", dtype, {a, b});
    case op::Combine::Min: return apply("min", dtype, {a, b});
    case op::Combine::Or: return apply("or", dtype, {a, b});
    case op::Combine::And: return apply("and", dtype, {a, b});
    case op::Combine::None:
    case op::Combine::ArgMax:
    case op::Combine::ArgMin: break;
  }
  throw InternalError("this combine needs a Reduce scope");
}

void LoopBuilder::accumulate(const kernel::Accumulator& accumulator, ScalarId value, const Expr& index) {
  const bool truth = accumulator.value.valid() && dtype(value) == DType::Bool;
  accumulate(accumulator.result, truth ? apply("cast", DType::U8, {value}) : value, index);
}

void LoopBuilder::accumulate(ScalarId accumulator, ScalarId value, const Expr& index) {
  append(Statement{kernel::Accumulate{accumulator, value, simplified(index)}});
}

// ---- buffers ---------------------------------------------------------------------------------------------------------

BufferId LoopBuilder::argument(ValueId value, Access access) {
  const auto known = value_buffers_.find(value);
  if (known != value_buffers_.end()) {
    Access& held = kernel_.buffers[static_cast<size_t>(known->second.index)].access;
    if (held != access) held = Access::ReadWrite;
    return known->second;
  }
  const op::TensorType& type = graph_.type(value);
  const BufferId id = argument(Argument{.kind = Argument::Kind::Value, .value = value}, identifier(graph_.value(value).name, static_cast<int32_t>(arguments_.size())),
                               type.dtype, op::count_of(type.shape), access);
  value_buffers_[value] = id;
  return id;
}

BufferId LoopBuilder::argument(Argument argument, std::string name, DType dtype, Expr size, Access access) {
  arguments_.push_back(argument);
  return kernel_.add_buffer({.name = std::move(name), .dtype = dtype, .space = Space::Global, .access = access, .size = std::move(size)});
}

BufferId LoopBuilder::local(std::string name, DType dtype, Expr size) {
  return kernel_.add_buffer({.name = std::move(name), .dtype = dtype, .space = Space::Local, .access = Access::ReadWrite, .size = std::move(size)});
}

BufferId LoopBuilder::shared(std::string name, DType dtype, Expr size) {
  return kernel_.add_buffer({.name = std::move(name), .dtype = dtype, .space = Space::Shared, .access = Access::ReadWrite, .size = std::move(size)});
}

// ---- values ----------------------------------------------------------------------------------------------------------

void LoopBuilder::set_resident(ValueId value, BufferId buffer, Expr position) {
  Access& access = kernel_.buffers[static_cast<size_t>(buffer.index)].access;
  if (access == Access::Write) access = Access::ReadWrite;
  resident_[value] = {Resident{std::nullopt, buffer, std::move(position)}};
}

void LoopBuilder::set_resident(ValueId value, const Index& index, BufferId buffer, Expr position) {
  std::vector<Resident>& places = resident_[value];
  std::erase_if(places, [&](const Resident& place) { return !place.index || *place.index == index; });
  places.push_back({index, buffer, std::move(position)});
}

const LoopBuilder::Resident* LoopBuilder::resident(ValueId value, const Index& index) const {
  const auto places = resident_.find(value);
  if (places == resident_.end()) return nullptr;
  for (const Resident& place : places->second) {
    if (!place.index || *place.index == index) return &place;
  }
  return nullptr;
}

void LoopBuilder::stage(ValueId value, const Index& index, const std::vector<Expr>& guards, BufferId buffer, const Expr& position) {
  if (op::count_of(graph_.type(value).shape).is_const(0)) return;
  const ScalarId raw = load_stored(argument(value, Access::Read), linear_index(graph_.type(value).shape, index), guards, 0);
  append(Statement{kernel::Store{.buffer = buffer, .index = simplified(position), .value = raw}});
}

ScalarId LoopBuilder::load_stored(BufferId buffer, const Expr& position, const std::vector<Expr>& guards, double fill) {
  kernel::Load source{.buffer = buffer, .index = simplified(position), .fill = fill};
  const int at = level_of(source.index);
  for (const Expr& guard : guards_) {
    // A guard on names that the position does not depend on says nothing about it.
    if (level_of(guard) > at || kernel_.buffer(buffer).space != Space::Global) continue;
    const Expr simple = simplified(guard);
    if (!simple.is_const() || simple.is_const(0)) source.guards.push_back(simple);
  }
  for (const Expr& guard : guards) {
    const Expr simple = simplified(guard);
    if (!simple.is_const() || simple.is_const(0)) source.guards.push_back(simple);
  }
  return let(kernel_.buffer(buffer).dtype, std::move(source));
}

void LoopBuilder::set_store_tile(ValueId value, BufferId buffer, Expr position) {
  store_tiles_[value] = Resident{std::nullopt, buffer, std::move(position)};
}

ScalarId LoopBuilder::load(BufferId buffer, DType declared, const Expr& position, const std::vector<Expr>& guards, double fill) {
  // Nothing to read: the loops around never run, but what does not depend on them is placed outside.
  if (kernel_.buffer(buffer).size.is_const(0)) return constant(compute_dtype(declared), fill);
  const ScalarId raw = load_stored(buffer, position, guards, fill);
  return compute_dtype(declared) == declared ? raw : apply("cast", compute_dtype(declared), {raw});
}

ScalarId LoopBuilder::element_of(BufferId buffer, const Expr& position) {
  return let(kernel_.buffer(buffer).dtype, kernel::Load{.buffer = buffer, .index = simplified(position)});
}

ScalarId LoopBuilder::value_at(ValueId value, const Index& index, const std::vector<Expr>& guards) {
  const Key key{value.index, index, guards};
  for (const Scope& scope : scopes_) {
    const auto known = scope.known.find(key);
    if (known != scope.known.end()) return known->second;
  }
  const ScalarId result = compute(value, index, guards);
  scopes_[static_cast<size_t>(level_of(result))].known.emplace(key, result);
  return result;
}

ScalarId LoopBuilder::guarded_value_at(ValueId value, const Index& index, const std::vector<Expr>& guards) {
  const ScalarId result = value_at(value, index, guards);
  // A plain load fills with zero by itself; a constant or a computed value does not.
  const bool loads = is_external(value) && resident(value, index) == nullptr &&
                     (graph_.constant(value) == nullptr || graph_.constant(value)->count() != 1);
  if (guards.empty() || loads) return result;
  return apply("select", dtype(result), {condition(guards), result, constant(dtype(result), 0)});
}

ScalarId LoopBuilder::compute(ValueId value, const Index& index, const std::vector<Expr>& guards) {
  const op::TensorType& type = graph_.type(value);
  if (const Resident* place = resident(value, index)) {
    const DType held = kernel_.buffer(place->buffer).dtype;
    const ScalarId loaded = load(place->buffer, held, place->position, {}, 0);
    return held == type.dtype ? loaded : round_to(type.dtype, loaded);
  }
  if (const Tensor* constant_value = graph_.constant(value); constant_value != nullptr && constant_value->count() == 1) {
    const DType compute_type = compute_dtype(type.dtype);
    return is_float(type.dtype) ? constant(compute_type, constant_value->at(0)) : integer(compute_type, constant_value->int_at(0));
  }
  const Node* producer = graph_.producer(value);
  if (is_external(value)) {
    return load(argument(value, Access::Read), type.dtype, linear_index(type.shape, index), guards, 0);
  }
  const NodeId id = graph_.value(value).producer;
  const auto result = results_.find(id);
  if (result != results_.end()) return result->second;
  switch (loop_role(graph_, id)) {
    case LoopRole::None:
      FL_CHECK(producer->op->name == "sym_value", "{} inside a loop nest", producer->op->name);
      return index_value(compute_dtype(type.dtype), producer->attrs.shape("values")[0]);
    case LoopRole::Pointwise: return pointwise(*producer, type, index, guards);
    case LoopRole::View: return view(*producer, type, index, guards);
    case LoopRole::Generated: {
      if (producer->op->name != "iota") return round_to(type.dtype, random_number(*this, *producer, compute_dtype(type.dtype), linear_index(type.shape, index)));
      int64_t axis = producer->attrs.integer("axis", 0);
      if (axis < 0) axis += type.rank();
      return round_to(type.dtype, index_value(compute_dtype(type.dtype), index[static_cast<size_t>(axis)]));
    }
    case LoopRole::Gather: return gather(id, index, guards);
    case LoopRole::SmallReduction: return small_reduction(id, index, guards);
    case LoopRole::Window: return window(id, index, guards);
    case LoopRole::Reduction:
    case LoopRole::Contraction:
    case LoopRole::Scan: break;
  }
  throw InternalError(fmt::format("the result of {} is asked for before it is known", producer->op->name));
}

ScalarId LoopBuilder::pointwise(const Node& node, const op::TensorType& type, const Index& index, const std::vector<Expr>& guards) {
  std::vector<ScalarId> args;
  for (const ValueId input : node.inputs) {
    args.push_back(value_at(input, broadcast_index(graph_.type(input).shape, type.shape, index), guards));
  }
  const DType result = compute_dtype(type.dtype);
  if (node.op->scalar) {
    return round_to(type.dtype, rule(*node.op->scalar, node.attrs, result, args));
  }
  if (node.op->name == "cast") {
    const ScalarId converted = dtype(args[0]) == type.dtype ? args[0] : apply("cast", type.dtype, {args[0]});
    return result == type.dtype ? converted : apply("cast", result, {converted});
  }
  if (node.op->name == "bitcast") {
    const DType from = graph_.type(node.inputs[0]).dtype;
    const ScalarId bits = dtype(args[0]) == from ? args[0] : apply("cast", from, {args[0]});
    const ScalarId converted = apply("bitcast", type.dtype, {bits});
    return result == type.dtype ? converted : apply("cast", result, {converted});
  }
  if (node.op->name == "pow" && dtype(args[0]) != dtype(args[1])) {
    const DType base = dtype(args[0]), exponent = dtype(args[1]);
    // An integer base with a float exponent is raised in f64 and truncated back.
    if (is_float(base)) {
      args[1] = apply("cast", base, {args[1]});
    } else if (is_float(exponent)) {
      const ScalarId power = apply("pow", DType::F64, {apply("cast", DType::F64, {args[0]}), exponent == DType::F64 ? args[1] : apply("cast", DType::F64, {args[1]})});
      return apply("cast", base, {power});
    } else {
      // Both integers: the exponent's sign must survive, so the power is taken in i64 and wraps back to the base's type.
      const ScalarId power = apply("pow", DType::I64, {base == DType::I64 ? args[0] : apply("cast", DType::I64, {args[0]}),
                                                        exponent == DType::I64 ? args[1] : apply("cast", DType::I64, {args[1]})});
      return base == DType::I64 ? power : apply("cast", base, {power});
    }
  }
  return round_to(type.dtype, apply(node.op->name, result, args, node.attrs));
}

ScalarId LoopBuilder::rule(const op::ScalarNode& rule_node, const op::Attrs& attrs, DType dtype_of_op, std::span<const ScalarId> inputs) {
  switch (rule_node.kind) {
    case op::ScalarNode::Kind::Input: return inputs[static_cast<size_t>(rule_node.input)];
    case op::ScalarNode::Kind::Constant: return constant(dtype_of_op, rule_node.constant);
    case op::ScalarNode::Kind::Attribute: return constant(dtype_of_op, attrs.real(rule_node.name));
    case op::ScalarNode::Kind::Call: {
      std::vector<ScalarId> args;
      for (const op::ScalarNode& arg : rule_node.args) args.push_back(rule(arg, attrs, dtype_of_op, inputs));
      const op::OpRecord& record = graph_.table().at(rule_node.name);
      if (record.scalar) return rule(*record.scalar, {}, dtype_of_op, args);
      const bool logical = record.name == "eq" || record.name == "ne" || record.name == "lt" || record.name == "le" || record.name == "gt" ||
                           record.name == "ge" || record.name == "and" || record.name == "or" || record.name == "xor" || record.name == "not" ||
                           record.name == "is_nan" || record.name == "is_inf";
      return apply(record.name, logical ? DType::Bool : dtype(args.back()), args);
    }
  }
  throw InternalError("a scalar rule node of no kind");
}

ScalarId LoopBuilder::view(const Node& node, const op::TensorType& type, const Index& index, const std::vector<Expr>& guards) {
  std::vector<op::TensorType> inputs;
  for (const ValueId input : node.inputs) inputs.push_back(graph_.type(input));
  const op::IndexContext context{.inputs = inputs, .output = type, .attrs = node.attrs};
  std::vector<op::IndexPiece> pieces = node.op->index_map(context, index);
  // A piece whose guards are known to fail goes; one whose guards are known to hold ends the list.
  std::vector<op::IndexPiece> possible;
  bool total = false;
  for (op::IndexPiece& piece : pieces) {
    std::vector<Expr> open_guards;
    bool never = false;
    for (const Expr& guard : piece.guards) {
      const Expr simple = simplified(guard);
      if (simple.is_const(0)) never = true;
      if (!simple.is_const()) open_guards.push_back(guard);
    }
    if (never) continue;
    piece.guards = std::move(open_guards);
    possible.push_back(piece);
    if (possible.back().guards.empty()) {
      total = true;
      break;
    }
  }
  const DType result_type = compute_dtype(type.dtype);
  if (!total && possible.size() == 1) {
    // One guarded piece over zeros: the load itself fills.
    const op::IndexPiece& piece = possible[0];
    const ValueId input = node.inputs[piece.input];
    if (is_external(input) && resident(input, piece.indices) == nullptr && (graph_.constant(input) == nullptr || graph_.constant(input)->count() != 1)) {
      std::vector<Expr> all = guards;
      all.insert(all.end(), piece.guards.begin(), piece.guards.end());
      return value_at(input, piece.indices, all);
    }
  }
  ScalarId result = total ? ScalarId{} : constant(result_type, 0);
  for (size_t i = possible.size(); i-- > 0;) {
    const op::IndexPiece& piece = possible[i];
    std::vector<Expr> all = guards;
    // Pieces are tried in order: this one is read only where the ones before it do not hold. A single element (a fill value)
    // lies inside everywhere.
    if (!piece.indices.empty()) {
      for (size_t before = 0; before < i; ++before) all.push_back(sym::eq(sym::product(possible[before].guards), 0));
      all.insert(all.end(), piece.guards.begin(), piece.guards.end());
    }
    const ScalarId value = value_at(node.inputs[piece.input], piece.indices, all);
    result = result.valid() ? apply("select", result_type, {condition(piece.guards), value, result}) : value;
  }
  FL_CHECK(result.valid(), "view {} reads nothing", node.op->name);
  return result;
}

BufferId LoopBuilder::check_argument(const std::string& node) {
  if (check_.valid()) return check_;
  check_message_ = node;
  return check_ = argument(Argument{.kind = Argument::Kind::Check}, "check", DType::I64, 2, Access::Write);
}

void LoopBuilder::check_index(const std::string& node, ScalarId index, const Expr& size, const std::vector<Expr>& guards) {
  const Expr at = Expr::symbol(kernel_.scalar(index).name);
  const BufferId check = check_argument(node);
  std::vector<Expr> outside;
  for (const Expr& guard : guards_) {
    const Expr simple = simplified(guard);
    if (!simple.is_const(1) && level_of(guard) <= level_of(index)) outside.push_back(simple);
  }
  for (const Expr& guard : guards) outside.push_back(simplified(guard));
  outside.push_back(sym::ne(sym::le(0, at) * sym::lt(at, size), 1));
  // Never beside the Core loop, where every worker would store, nor beside a Thread loop.
  const int where = std::max(std::max(level_of(index), std::min(level(), store_level_)), [&] {
    int deepest = 0;
    for (const Expr& guard : outside) deepest = std::max(deepest, level_of(guard));
    return deepest;
  }());
  const ScalarId one = integer(DType::I64, 1);
  place(where, Statement{kernel::Store{.buffer = check, .index = 1, .value = index, .guards = outside}});
  place(where, Statement{kernel::Store{.buffer = check, .index = 0, .value = one, .guards = outside}});
}

ScalarId LoopBuilder::gather(NodeId id, const Index& index, const std::vector<Expr>& guards) {
  const Node& node = graph_.node(id);
  const op::Shape& data_shape = graph_.type(node.inputs[0]).shape;
  const int64_t rank = static_cast<int64_t>(data_shape.size());
  int64_t axis = node.attrs.integer("axis", 0);
  if (axis < 0) axis += rank;
  const size_t at = static_cast<size_t>(axis);
  Index data, indices;
  if (node.op->name == "gather") {
    const size_t index_rank = graph_.type(node.inputs[1]).shape.size();
    data.assign(index.begin(), index.begin() + axis);
    data.emplace_back(0);
    data.insert(data.end(), index.begin() + axis + static_cast<int64_t>(index_rank), index.end());
    indices.assign(index.begin() + axis, index.begin() + axis + static_cast<int64_t>(index_rank));
  } else {
    data = index;
    indices = index;
  }
  const Expr& size = data_shape[at];
  ScalarId raw = value_at(node.inputs[1], indices, guards);
  if (dtype(raw) != DType::I64) raw = apply("cast", DType::I64, {raw});
  // Negative indices count from the end.
  const ScalarId zero = integer(DType::I64, 0);
  const ScalarId wrapped = apply("select", DType::I64, {apply("lt", DType::Bool, {raw, zero}), apply("add", DType::I64, {raw, index_value(DType::I64, size)}), raw});
  const std::string name = kernel_.scalar(wrapped).name;
  name_level_[name] = level_of(wrapped);
  scopes_[static_cast<size_t>(level_of(wrapped))].names.insert(name);
  check_index(node.origin.empty() ? std::string(node.op->name) : node.origin, wrapped, size, guards);
  const Expr position = Expr::symbol(name);
  data[at] = position;
  std::vector<Expr> inside = guards;
  inside.push_back(sym::le(0, position));
  inside.push_back(sym::lt(position, size));
  return value_at(node.inputs[0], data, inside);
}

std::vector<Expr> LoopBuilder::open_local_axes(NodeId id) {
  std::vector<Expr> position;
  for (const Axis& axis : group_.local_axes.at(id)) {
    if (axis.extent.is_const(1)) {
      position.emplace_back(0);
      continue;
    }
    const bool short_axis = axis.extent.is_const() && *axis.extent.as_const() <= 9;
    open(axis.name, 0, axis.extent, short_axis ? Binding::Unroll : Binding::Serial);
    position.push_back(Expr::symbol(axis.name));
  }
  return position;
}

void LoopBuilder::close_local_axes(NodeId id) {
  for (const Axis& axis : group_.local_axes.at(id)) {
    if (!axis.extent.is_const(1)) close();
  }
}

ScalarId LoopBuilder::small_reduction(NodeId id, const Index& index, const std::vector<Expr>& guards) {
  const Node& node = graph_.node(id);
  const DType declared = graph_.type(node.outputs[0]).dtype;
  const ScalarId result = reserve(compute_dtype(declared));
  open_reduce({kernel::Accumulator{.result = result, .combine = node.op->combine}});
  const std::vector<Expr> folded = open_local_axes(id);
  accumulate(result, value_at(node.inputs[0], unfold_index(graph_, node, index, folded), guards));
  close_local_axes(id);
  close();
  return round_to(declared, result);
}

ScalarId LoopBuilder::window(NodeId id, const Index& index, const std::vector<Expr>& guards) {
  const Node& node = graph_.node(id);
  const op::TensorType& x = graph_.type(node.inputs[0]);
  const DType declared = graph_.type(node.outputs[0]).dtype;
  const DType type = compute_dtype(declared);
  const bool maximum = node.op->name == "max_pool";
  const op::Combine combine_with = maximum ? op::Combine::Max : op::Combine::Add;
  const ScalarId result = reserve(type);
  open_reduce({kernel::Accumulator{.result = result, .combine = combine_with}});
  const std::vector<Expr> folded = open_local_axes(id);
  const GuardedIndex at = window_read(graph_, node, index, folded);
  std::vector<Expr> inside = guards;
  inside.insert(inside.end(), at.guards.begin(), at.guards.end());
  ScalarId value;
  if (maximum && !at.guards.empty()) {
    // Positions outside are not there: they must not win.
    if (is_external(node.inputs[0]) && is_float(x.dtype)) {
      value = load(argument(node.inputs[0], Access::Read), x.dtype, linear_index(x.shape, at.index), inside, identity_value(combine_with, x.dtype));
    } else {
      value = apply("select", type, {condition(at.guards), value_at(node.inputs[0], at.index, inside), identity_of(combine_with, type)});
    }
  } else {
    value = guarded_value_at(node.inputs[0], at.index, inside);
  }
  accumulate(result, value);
  close_local_axes(id);
  close();
  return pooled(node, index, result);
}

ScalarId LoopBuilder::pooled(const Node& node, const Index& index, ScalarId result) {
  if (node.op->name == "max_pool") return result;
  const DType declared = graph_.type(node.outputs[0]).dtype;
  return round_to(declared, apply("div", dtype(result), {result, index_value(dtype(result), window_count(graph_, node, index))}));
}

void LoopBuilder::store(std::span<const ValueId> values) {
  const auto position = [&](ValueId value) -> const Index& { return group_.uses.at(value)[0].index; };
  std::vector<ScalarId> scalars;
  for (const ValueId value : values) {
    const DType declared = graph_.type(value).dtype;
    const ScalarId scalar = value_at(value, position(value));
    scalars.push_back(dtype(scalar) == declared ? scalar : apply("cast", declared, {scalar}));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const auto tile = store_tiles_.find(values[i]);
    if (tile != store_tiles_.end()) {
      append(Statement{kernel::Store{.buffer = tile->second.buffer, .index = simplified(tile->second.position), .value = scalars[i]}});
      continue;
    }
    const BufferId buffer = argument(values[i], Access::Write);
    kernel::Store store{.buffer = buffer, .index = simplified(linear_index(graph_.type(values[i]).shape, position(values[i]))), .value = scalars[i]};
    for (const Expr& guard : guards_) {
      const Expr simple = simplified(guard);
      if (!simple.is_const() || simple.is_const(0)) store.guards.push_back(simple);
    }
    append(Statement{std::move(store)});
  }
}

// ---- the end ---------------------------------------------------------------------------------------------------------

namespace {

// The free symbols of a body: what the kernel takes as sizes.
void collect(const kernel::Body& body, std::set<std::string>& free, std::set<std::string>& bound) {
  const auto add = [&](const Expr& expr) { sym::collect_symbols(expr, free); };
  for (const Statement& statement : body) {
    if (const auto* loop = std::get_if<kernel::Loop>(&statement.what)) {
      add(loop->begin);
      add(loop->end);
      bound.insert(loop->axis);
      collect(loop->body, free, bound);
    } else if (const auto* define = std::get_if<kernel::Define>(&statement.what)) {
      add(define->value);
      bound.insert(define->name);
    } else if (const auto* let = std::get_if<kernel::Let>(&statement.what)) {
      if (const auto* index = std::get_if<kernel::IndexValue>(&let->source)) add(index->value);
      if (const auto* load = std::get_if<kernel::Load>(&let->source)) {
        add(load->index);
        for (const Expr& guard : load->guards) add(guard);
      }
      if (const auto* philox = std::get_if<kernel::Philox>(&let->source)) {
        add(philox->seed);
        add(philox->counter);
      }
    } else if (const auto* store = std::get_if<kernel::Store>(&statement.what)) {
      add(store->index);
      for (const Expr& guard : store->guards) add(guard);
    } else if (const auto* reduce = std::get_if<kernel::Reduce>(&statement.what)) {
      collect(reduce->body, free, bound);
    } else if (const auto* accumulate = std::get_if<kernel::Accumulate>(&statement.what)) {
      add(accumulate->index);
    } else if (const auto* branch = std::get_if<kernel::If>(&statement.what)) {
      add(branch->condition);
      collect(branch->then, free, bound);
    } else if (const auto* transpose = std::get_if<kernel::Transpose>(&statement.what)) {
      for (const Expr& expr : {transpose->target_index, transpose->target_pitch, transpose->source_index, transpose->source_pitch, transpose->rows,
                               transpose->columns}) {
        add(expr);
      }
    } else if (const auto* prefetch = std::get_if<kernel::Prefetch>(&statement.what)) {
      add(prefetch->index);
    } else if (const auto* contract = std::get_if<kernel::Contract>(&statement.what)) {
      for (const Expr& size : {contract->m_size, contract->n_size, contract->k_size, contract->lhs_offset, contract->rhs_offset,
                               contract->row_pitch, contract->row_size}) {
        add(size);
      }
      bound.insert({contract->m_axis, contract->n_axis, contract->k_axis, contract->row_axis});
      collect(contract->lhs, free, bound);
      collect(contract->rhs, free, bound);
      collect(contract->epilogue, free, bound);
    }
  }
}

// How many iterations of the Core loop, or blocks, a kernel is started with.
void find_launch(const kernel::Body& body, LoweredVariant& variant) {
  for (const Statement& statement : body) {
    const auto* loop = std::get_if<kernel::Loop>(&statement.what);
    if (loop == nullptr) continue;
    switch (loop->binding) {
      case Binding::Core: variant.extent = loop->end; return;
      case Binding::GridX: variant.grid[0] = loop->end; break;
      case Binding::GridY: variant.grid[1] = loop->end; break;
      case Binding::GridZ: variant.grid[2] = loop->end; break;
      case Binding::Serial: case Binding::Unroll: case Binding::Vector: case Binding::ClusterX:
      case Binding::ThreadX: case Binding::ThreadY: case Binding::ThreadZ: continue;
    }
    find_launch(loop->body, variant);
  }
}

// The threads of a block: as many as the widest Thread loop of each dimension has.
void find_threads(const kernel::Body& body, std::array<int32_t, 3>& block) {
  for (const Statement& statement : body) {
    if (const auto* loop = std::get_if<kernel::Loop>(&statement.what)) {
      const int dimension = loop->binding == Binding::ThreadX ? 0 : loop->binding == Binding::ThreadY ? 1 : loop->binding == Binding::ThreadZ ? 2 : -1;
      if (dimension >= 0) block[static_cast<size_t>(dimension)] = std::max(block[static_cast<size_t>(dimension)], static_cast<int32_t>(*loop->end.as_const()));
      find_threads(loop->body, block);
    } else if (const auto* reduce = std::get_if<kernel::Reduce>(&statement.what)) {
      find_threads(reduce->body, block);
    } else if (const auto* branch = std::get_if<kernel::If>(&statement.what)) {
      find_threads(branch->then, block);
    }
  }
}

}  // namespace

LoweredKernel LoopBuilder::finish(std::string_view kind) {
  FL_CHECK(scopes_.size() == 1, "{} loops are still open", scopes_.size() - 1);
  kernel_.body = std::move(scopes_[0].body);
  std::set<std::string> free, bound;
  collect(kernel_.body, free, bound);
  for (const kernel::Buffer& buffer : kernel_.buffers) sym::collect_symbols(buffer.size, free);
  for (const kernel::Scalar& scalar : kernel_.scalars) bound.insert(scalar.name);
  for (const std::string& name : free) {
    if (bound.count(name) == 0) kernel_.symbols.push_back(name);
  }
  for (const std::string& name : kernel_.symbols) {
    const bool own = sizes_.count(name) != 0;
    const sym::Facts& known = own ? facts_ : plan_.size_facts();
    const auto fact = known.symbols.find(name);
    if (fact != known.symbols.end()) kernel_.facts.symbols[name] = fact->second;
  }
  kernel::name_kernel(kernel_, kind);
  LoweredKernel lowered{.arguments = std::move(arguments_), .sizes = sizes_, .check_message = check_message_};
  LoweredVariant variant;
  find_launch(kernel_.body, variant);
  find_threads(kernel_.body, variant.block);
  variant.kernel = std::move(kernel_);
  lowered.variants.push_back(std::move(variant));
  return lowered;
}

}  // namespace fuseloom::schedule
