// Clang takes a function of the name of a namespace that is there already, not the other way round.
#include "compile/archive.h"
#include "compile/pipeline.h"
#include "fuseloom/fuseloom.h"

#include <algorithm>

#include "base/check.h"
#include "front/onnx/importer.h"
#include "graph/graph.h"
#include "graph/text.h"
#include "op/op.h"
#include "run/public_program.h"
#include "sym/expr.h"

namespace fuseloom {
inline namespace v0 {

struct ValueAccess {
  static graph::Graph* graph(const Value& value) { return value.graph_; }
  static graph::ValueId id(const Value& value) { return {value.id_}; }
  static Value make(graph::Graph& graph, graph::ValueId id) { return {&graph, id.index}; }
};

struct GraphAccess {
  static const graph::Graph& graph(const Graph& graph) { return *graph.graph_; }
  static const std::shared_ptr<const op::OpTable>& ops(const Graph& graph) { return graph.ops_; }
  static Graph wrap(graph::Graph graph, std::shared_ptr<const op::OpTable> ops = nullptr) {
    return {std::make_unique<graph::Graph>(std::move(graph)), std::move(ops)};
  }
};

namespace {

op::Shape to_shape(const Sizes& sizes) {
  op::Shape shape;
  for (const Size& size : sizes) shape.push_back(sym::parse_expr(size.text()));
  return shape;
}

Sizes to_sizes(const op::Shape& shape) {
  Sizes sizes;
  for (const sym::Expr& size : shape) sizes.emplace_back(sym::to_string(size));
  return sizes;
}

op::Attrs to_attrs(const Attributes& attributes) {
  op::Attrs attrs;
  for (const auto& [name, attribute] : attributes) {
    attrs.set(name, std::visit(
                        [](const auto& value) -> op::AttrValue {
                          if constexpr (std::is_same_v<std::decay_t<decltype(value)>, Sizes>) {
                            return to_shape(value);
                          } else {
                            return value;
                          }
                        },
                        attribute));
  }
  return attrs;
}

graph::Graph& graph_of(const Value& value) {
  FL_REQUIRE(value.valid(), "an absent value (Value()) is used where an op needs one");
  return *ValueAccess::graph(value);
}

const op::TensorType& type_of(const Value& value) { return graph_of(value).type(ValueAccess::id(value)); }

int64_t from_front(int64_t axis, int64_t rank) { return axis < 0 ? axis + rank : axis; }

std::vector<int64_t> from_front(std::vector<int64_t> axes, int64_t rank) {
  for (int64_t& axis : axes) axis = from_front(axis, rank);
  return axes;
}

}  // namespace

DType Value::dtype() const { return type_of(*this).dtype; }
Sizes Value::sizes() const { return to_sizes(type_of(*this).shape); }
int64_t Value::rank() const { return type_of(*this).rank(); }
std::string Value::type_string() const { return op::to_string(type_of(*this)); }

// ---- Graph -----------------------------------------------------------------------------------------------------------

Graph::Graph(std::string name) : graph_(std::make_unique<graph::Graph>(op::standard_ops(), std::move(name))) {}
Graph::Graph(std::string name, const Ops& ops)
    : ops_(OpsAccess::table(ops)), graph_(std::make_unique<graph::Graph>(*ops_, std::move(name))) {}
Graph::Graph(std::unique_ptr<graph::Graph> graph, std::shared_ptr<const op::OpTable> ops) : ops_(std::move(ops)), graph_(std::move(graph)) {}
Graph::~Graph() = default;
Graph::Graph(Graph&&) noexcept = default;
Graph& Graph::operator=(Graph&&) noexcept = default;

Graph Graph::parse(std::string_view text, std::string where) {
  return GraphAccess::wrap(graph::parse_graph(text, op::standard_ops(), std::move(where)));
}

Graph Graph::parse(std::string_view text, const Ops& ops, std::string where) {
  std::shared_ptr<const op::OpTable> table = OpsAccess::table(ops);
  graph::Graph parsed = graph::parse_graph(text, *table, std::move(where));
  return GraphAccess::wrap(std::move(parsed), std::move(table));
}

std::string Graph::text() const { return graph::to_string(*graph_); }

Value Graph::input(std::string name, DType dtype, Sizes sizes) {
  const graph::ValueId id = graph_->add_input(std::move(name), {dtype, to_shape(sizes)});
  return {graph_.get(), id.index};
}

Value Graph::constant(Tensor value, std::string name) {
  const graph::ValueId id = graph_->add_constant(std::move(value), std::move(name));
  return {graph_.get(), id.index};
}

Value Graph::apply(std::string_view op, std::vector<Value> inputs, Attributes attributes) {
  return apply_many(op, std::move(inputs), std::move(attributes), 1)[0];
}

std::vector<Value> Graph::apply_many(std::string_view op, std::vector<Value> inputs, Attributes attributes, int64_t output_count) {
  std::vector<graph::ValueId> ids;
  for (const Value& input : inputs) {
    FL_REQUIRE(!input.valid() || input.graph_ == graph_.get(), "{}: input {} belongs to another graph", op, ids.size());
    ids.push_back({input.id_});
  }
  const graph::NodeId node = graph_->add_node(op, std::move(ids), to_attrs(attributes), output_count);
  std::vector<Value> results;
  for (const graph::ValueId id : graph_->node(node).outputs) results.push_back({graph_.get(), id.index});
  return results;
}

void Graph::output(Value value, std::string name) {
  FL_REQUIRE(value.valid() && value.graph_ == graph_.get(), "output '{}' is not a value of this graph", name);
  if (!name.empty()) graph_->set_value_name({value.id_}, std::move(name));
  std::vector<graph::ValueId> outputs = graph_->outputs();
  outputs.push_back({value.id_});
  graph_->set_outputs(std::move(outputs));
}

size_t Graph::input_count() const { return graph_->inputs().size(); }
size_t Graph::output_count() const { return graph_->outputs().size(); }

// ---- ops on values ---------------------------------------------------------------------------------------------------

namespace {

// A node in the graph of the first present input.
Value add_node(std::string_view op, const std::vector<Value>& inputs, op::Attrs attrs = {}) {
  const auto first = std::find_if(inputs.begin(), inputs.end(), [](const Value& value) { return value.valid(); });
  FL_REQUIRE(first != inputs.end(), "{}: every input is absent", op);
  graph::Graph& graph = graph_of(*first);
  std::vector<graph::ValueId> ids;
  for (const Value& input : inputs) {
    FL_REQUIRE(!input.valid() || &graph_of(input) == &graph, "{}: its inputs belong to different graphs", op);
    ids.push_back(ValueAccess::id(input));
  }
  return ValueAccess::make(graph, graph.add(op, std::move(ids), std::move(attrs)));
}

Value number(const Value& like, double value) {
  graph::Graph& graph = graph_of(like);
  return ValueAccess::make(graph, graph.add_constant(Tensor::scalar(like.dtype(), value)));
}

Value reduce(std::string_view op, const Value& x, std::vector<int64_t> axes, bool keep_dims) {
  return add_node(op, {x}, {{"axes", from_front(std::move(axes), x.rank())}, {"keepdims", int64_t{keep_dims}}});
}

}  // namespace

Value operator+(const Value& a, const Value& b) { return add_node("add", {a, b}); }
Value operator-(const Value& a, const Value& b) { return add_node("sub", {a, b}); }
Value operator*(const Value& a, const Value& b) { return add_node("mul", {a, b}); }
Value operator/(const Value& a, const Value& b) { return add_node("div", {a, b}); }
Value operator+(const Value& a, double b) { return a + number(a, b); }
Value operator-(const Value& a, double b) { return a - number(a, b); }
Value operator*(const Value& a, double b) { return a * number(a, b); }
Value operator/(const Value& a, double b) { return a / number(a, b); }
Value operator+(double a, const Value& b) { return number(b, a) + b; }
Value operator-(double a, const Value& b) { return number(b, a) - b; }
Value operator*(double a, const Value& b) { return number(b, a) * b; }
Value operator/(double a, const Value& b) { return number(b, a) / b; }
Value operator-(const Value& x) { return add_node("neg", {x}); }
Value exp(const Value& x) { return add_node("exp", {x}); }
Value log(const Value& x) { return add_node("log", {x}); }
Value sqrt(const Value& x) { return add_node("sqrt", {x}); }
Value tanh(const Value& x) { return add_node("tanh", {x}); }
Value relu(const Value& x) { return add_node("relu", {x}); }
Value sigmoid(const Value& x) { return add_node("sigmoid", {x}); }
Value silu(const Value& x) { return add_node("silu", {x}); }
Value gelu(const Value& x) { return add_node("gelu", {x}); }
Value max(const Value& a, const Value& b) { return add_node("max", {a, b}); }
Value min(const Value& a, const Value& b) { return add_node("min", {a, b}); }
Value select(const Value& condition, const Value& a, const Value& b) { return add_node("select", {condition, a, b}); }
Value cast(const Value& x, DType to) { return add_node("cast", {x}, {{"to", to}}); }
Value reshape(const Value& x, Sizes sizes) { return add_node("reshape", {x}, {{"shape", to_shape(sizes)}}); }
Value transpose(const Value& x, std::vector<int64_t> permutation) {
  return add_node("transpose", {x}, {{"perm", from_front(std::move(permutation), x.rank())}});
}
Value concat(std::vector<Value> parts, int64_t axis) {
  FL_REQUIRE(!parts.empty(), "concat: there is nothing to concatenate");
  const int64_t rank = parts[0].rank();
  return add_node("concat", parts, {{"axis", from_front(axis, rank)}});
}
Value reduce_sum(const Value& x, std::vector<int64_t> axes, bool keep_dims) { return reduce("reduce_sum", x, std::move(axes), keep_dims); }
Value reduce_mean(const Value& x, std::vector<int64_t> axes, bool keep_dims) { return reduce("reduce_mean", x, std::move(axes), keep_dims); }
Value reduce_max(const Value& x, std::vector<int64_t> axes, bool keep_dims) { return reduce("reduce_max", x, std::move(axes), keep_dims); }
Value softmax(const Value& x, int64_t axis) { return add_node("softmax", {x}, {{"axis", from_front(axis, x.rank())}}); }
Value layer_norm(const Value& x, const Value& scale, const Value& bias, int64_t axis, double epsilon) {
  return add_node("layer_norm", {x, scale, bias}, {{"axis", from_front(axis, x.rank())}, {"epsilon", epsilon}});
}
Value rms_norm(const Value& x, const Value& scale, int64_t axis, double epsilon) {
  return add_node("rms_norm", {x, scale}, {{"axis", from_front(axis, x.rank())}, {"epsilon", epsilon}});
}
Value matmul(const Value& a, const Value& b) { return add_node("matmul", {a, b}); }

// ---- loading ---------------------------------------------------------------------------------------------------------

Graph load_onnx(const std::string& path, const LoadOptions& options) {
  return GraphAccess::wrap(front::onnx::import_onnx(path, {.dims = options.dims}).graph);
}

// ---- Program ---------------------------------------------------------------------------------------------------------

namespace {

compile::Options internal_options(const Graph& graph, const CompileOptions& options) {
  FL_REQUIRE(graph.output_count() > 0, "the graph has no outputs; call Graph::output() for each result");
  compile::Options internal{.fuse = options.fuse, .hint = options.typical, .threads = options.threads};
  internal.run.poison = options.poison;
  internal.run.check_finite = options.check_finite;
  internal.cache_dir = options.cache_dir;
  internal.trace_dir = options.trace_dir;
  return internal;
}

}  // namespace

Program compile(const Graph& graph, const CompileOptions& options) {
  compile::Options internal = internal_options(graph, options);
  const std::optional<build::Isa> isa = build::parse_isa(options.isa);
  FL_REQUIRE(isa.has_value(), "isa '{}' is not known; expected baseline, avx2, avx512 or native", options.isa);
  internal.isa = *isa;

  auto impl = std::make_shared<Program::Impl>();
  impl->ops = GraphAccess::ops(graph);
  const graph::Graph& source = GraphAccess::graph(graph);
  for (const graph::ValueId id : source.inputs()) impl->inputs.push_back(value_info(source.value(id).name, source.type(id)));
  for (const graph::ValueId id : source.outputs()) impl->outputs.push_back(value_info(source.value(id).name, source.type(id)));
  compile::Compiled compiled = compile::compile(source.clone(), internal);
  impl->executable = std::move(compiled.executable);
  impl->explanation = std::move(compiled.report.explanation);
  impl->source = std::move(compiled.report.source);
  const compile::Report& report = compiled.report;
  impl->info = {.nodes = report.nodes,
                .kernels = report.kernels,
                .distinct_kernels = report.distinct_kernels,
                .seconds = report.total_seconds,
                .from_cache = report.from_cache};
  return ProgramAccess::wrap(std::move(impl));
}

void save(const Graph& graph, const std::string& path, const CompileOptions& options) {
  const compile::Options internal = internal_options(graph, options);
  const std::vector<build::Isa> isas = compile::parse_isas(options.isa);
  FL_REQUIRE(!isas.empty(), "isa '{}' is not known; expected portable, baseline, avx2, avx512 or native", options.isa);
  compile::write_archive(GraphAccess::graph(graph).clone(), path, internal, {.isas = isas, .documents = options.documents});
}

}  // namespace v0
}  // namespace fuseloom
