#include "front/onnx/node_import.h"

#include <algorithm>

#include "base/check.h"
#include "front/onnx/model_importer.h"

namespace fuseloom::front::onnx {

std::string NodeImport::describe() const {
  if (!proto_.name.empty()) return fmt::format("{} \"{}\"", proto_.op_type, proto_.name);
  const std::string_view output = proto_.outputs.empty() ? std::string_view("nothing") : proto_.outputs[0];
  return fmt::format("{} giving \"{}\"", proto_.op_type, output);
}

void NodeImport::fail(std::string_view words) const {
  throw UserError(fmt::format("{}: {}: {}", model_.name(), describe(), words));
}

void NodeImport::unsupported(std::string_view words) const {
  throw Unsupported(fmt::format("{}: {}: {}", model_.name(), describe(), words));
}

// ---- inputs
// ----------------------------------------------------------------------------------------------------------

bool NodeImport::has(size_t i) const {
  return i < proto_.inputs.size() && !proto_.inputs[i].empty() && item(i).kind != Item::Kind::Absent;
}

const Item& NodeImport::item(size_t i) const {
  if (i >= proto_.inputs.size()) fail(fmt::format("input {} is missing", i));
  const Item* const item = ModelImporter::find(scope_, proto_.inputs[i]);
  if (item == nullptr) fail(fmt::format("nothing computes its input '{}'", proto_.inputs[i]));
  return *item;
}

ValueId NodeImport::in(size_t i) const {
  if (i >= proto_.inputs.size() || proto_.inputs[i].empty()) fail(fmt::format("input {} is missing", i));
  const Item& found = item(i);
  if (found.kind == Item::Kind::Sequence)
    unsupported(fmt::format("input {} is a sequence, and this operator takes tensors", i));
  if (found.kind == Item::Kind::Absent)
    fail(fmt::format("input {} ('{}') is an optional without a value", i, proto_.inputs[i]));
  return found.value;
}

std::vector<ValueId> NodeImport::all_inputs() const {
  std::vector<ValueId> values;
  for (size_t i = 0; i < proto_.inputs.size(); ++i) values.push_back(in(i));
  return values;
}

// ---- attributes
// ------------------------------------------------------------------------------------------------------

const AttributeProto* NodeImport::find(std::string_view name) const {
  for (const AttributeProto& attribute : proto_.attributes) {
    if (attribute.name != name) continue;
    if (attribute.reference.empty()) return &attribute;
    if (scope_.frame == nullptr)
      fail(fmt::format("attribute '{}' refers to a function's attribute, outside of a function", name));
    const auto it = scope_.frame->find(attribute.reference);
    return it == scope_.frame->end() ? nullptr : it->second;
  }
  return nullptr;
}

namespace {

void check_attribute(const NodeImport& n, const AttributeProto& attribute, AttributeProto::Type type,
                     std::string_view what) {
  if (attribute.type != type) n.fail(fmt::format("attribute '{}' is not {}", attribute.name, what));
}

}  // namespace

int64_t NodeImport::integer(std::string_view name) const {
  const AttributeProto* const attribute = find(name);
  if (attribute == nullptr) fail(fmt::format("attribute '{}' is missing", name));
  check_attribute(*this, *attribute, AttributeProto::Type::Int, "an integer");
  return attribute->i;
}

int64_t NodeImport::integer(std::string_view name, int64_t fallback) const {
  return has_attr(name) ? integer(name) : fallback;
}

double NodeImport::real(std::string_view name, double fallback) const {
  const AttributeProto* const attribute = find(name);
  if (attribute == nullptr) return fallback;
  check_attribute(*this, *attribute, AttributeProto::Type::Float, "a float");
  return attribute->f;
}

std::string NodeImport::text(std::string_view name, std::string_view fallback) const {
  const AttributeProto* const attribute = find(name);
  if (attribute == nullptr) return std::string(fallback);
  check_attribute(*this, *attribute, AttributeProto::Type::String, "text");
  return std::string(attribute->s);
}

std::vector<int64_t> NodeImport::integers(std::string_view name, std::vector<int64_t> fallback) const {
  const AttributeProto* const attribute = find(name);
  if (attribute == nullptr) return fallback;
  check_attribute(*this, *attribute, AttributeProto::Type::Ints, "a list of integers");
  return attribute->ints;
}

std::vector<double> NodeImport::reals(std::string_view name, std::vector<double> fallback) const {
  const AttributeProto* const attribute = find(name);
  if (attribute == nullptr) return fallback;
  check_attribute(*this, *attribute, AttributeProto::Type::Floats, "a list of floats");
  return std::vector<double>(attribute->floats.begin(), attribute->floats.end());
}

std::vector<std::string> NodeImport::texts(std::string_view name) const {
  const AttributeProto* const attribute = find(name);
  if (attribute == nullptr) return {};
  check_attribute(*this, *attribute, AttributeProto::Type::Strings, "a list of texts");
  return std::vector<std::string>(attribute->strings.begin(), attribute->strings.end());
}

Tensor NodeImport::tensor(std::string_view name) const {
  const AttributeProto* const attribute = find(name);
  if (attribute == nullptr || attribute->tensor == nullptr) fail(fmt::format("the tensor '{}' is missing", name));
  return model_.tensors().load(*attribute->tensor);
}

const GraphProto& NodeImport::subgraph(std::string_view name) const {
  const AttributeProto* const attribute = find(name);
  if (attribute == nullptr || attribute->graph == nullptr) fail(fmt::format("the graph '{}' is missing", name));
  return *attribute->graph;
}

// ---- types
// -----------------------------------------------------------------------------------------------------------

int64_t NodeImport::axis(int64_t axis, int64_t rank) const {
  if (axis < -rank || axis >= rank) fail(fmt::format("axis {} is out of range for rank {}", axis, rank));
  return axis < 0 ? axis + rank : axis;
}

std::vector<int64_t> NodeImport::axes(std::vector<int64_t> axes, int64_t rank) const {
  std::vector<char> seen(static_cast<size_t>(rank), 0);
  for (int64_t& a : axes) {
    a = axis(a, rank);
    if (seen[static_cast<size_t>(a)]++ != 0) fail(fmt::format("axis {} is given twice", a));
  }
  return axes;
}

// ---- building
// --------------------------------------------------------------------------------------------------------

std::string NodeImport::origin() const {
  return std::string(proto_.name.empty() && !proto_.outputs.empty() ? proto_.outputs[0] : proto_.name);
}

ValueId NodeImport::add(std::string_view op, std::vector<ValueId> inputs, Attrs attrs) {
  return graph_.add(op, std::move(inputs), std::move(attrs), origin());
}

std::vector<ValueId> NodeImport::add_many(std::string_view op, std::vector<ValueId> inputs, Attrs attrs,
                                          int64_t outputs) {
  return graph_.node(graph_.add_node(op, std::move(inputs), std::move(attrs), outputs, origin())).outputs;
}

ValueId NodeImport::constant(Tensor t) { return add("constant", {}, {{"value", std::move(t)}}); }

ValueId NodeImport::scalar(DType dtype, double value) { return constant(Tensor::scalar(dtype, value)); }

ValueId NodeImport::ints(const std::vector<int64_t>& values) {
  return constant(Tensor::of_ints(DType::I64, {static_cast<int64_t>(values.size())}, values));
}

ValueId NodeImport::cast(ValueId v, DType to) { return dtype(v) == to ? v : add("cast", {v}, {{"to", to}}); }

ValueId NodeImport::reshape(ValueId v, Shape shape) {
  return this->shape(v) == shape ? v : add("reshape", {v}, {{"shape", std::move(shape)}});
}

ValueId NodeImport::transpose(ValueId v, std::vector<int64_t> perm) {
  bool identity = true;
  for (size_t i = 0; i < perm.size(); ++i) identity = identity && perm[i] == static_cast<int64_t>(i);
  return identity ? v : add("transpose", {v}, {{"perm", std::move(perm)}});
}

ValueId NodeImport::unsqueeze(ValueId v, std::vector<int64_t> axes) {
  std::sort(axes.begin(), axes.end());
  Shape result = shape(v);
  for (const int64_t a : axes) result.insert(result.begin() + a, Expr(1));
  return reshape(v, std::move(result));
}

ValueId NodeImport::squeeze(ValueId v, const std::vector<int64_t>& axes) {
  Shape result;
  for (int64_t i = 0; i < rank(v); ++i)
    if (std::find(axes.begin(), axes.end(), i) == axes.end()) result.push_back(size(v, i));
  return reshape(v, std::move(result));
}

ValueId NodeImport::expand(ValueId v, Shape shape) {
  return this->shape(v) == shape ? v : add("expand", {v}, {{"shape", std::move(shape)}});
}

ValueId NodeImport::full(DType dtype, double value, Shape shape) {
  return expand(scalar(dtype, value), std::move(shape));
}

ValueId NodeImport::slice(ValueId v, int64_t axis, Expr start, Expr size, int64_t step) {
  if (start.is_const(0) && step == 1 && size == this->size(v, axis)) return v;
  Shape starts(static_cast<size_t>(rank(v)), Expr(0)), sizes = shape(v);
  std::vector<int64_t> steps(static_cast<size_t>(rank(v)), 1);
  starts[static_cast<size_t>(axis)] = std::move(start);
  sizes[static_cast<size_t>(axis)] = std::move(size);
  steps[static_cast<size_t>(axis)] = step;
  return add("slice", {v}, {{"starts", std::move(starts)}, {"sizes", std::move(sizes)}, {"steps", std::move(steps)}});
}

ValueId NodeImport::concat(std::vector<ValueId> parts, int64_t axis) {
  if (parts.size() == 1) return parts[0];
  return add("concat", std::move(parts), {{"axis", axis}});
}

ValueId NodeImport::reduce(std::string_view op, ValueId v, std::vector<int64_t> axes, bool keepdims) {
  return add(op, {v}, {{"axes", std::move(axes)}, {"keepdims", int64_t{keepdims}}});
}

ValueId NodeImport::sym_values(const std::vector<Expr>& values, DType dtype) {
  return add("sym_value", {}, {{"values", Shape(values)}, {"dtype", dtype}});
}

ValueId NodeImport::sym_scalar(const Expr& value, DType dtype) {
  return add("sym_value", {}, {{"values", Shape{value}}, {"dtype", dtype}, {"scalar", int64_t{1}}});
}

ValueId NodeImport::pad(ValueId v, Shape low, Shape high, std::string mode, ValueId fill) {
  const auto is_zero = [](const Expr& e) { return e.is_const(0); };
  if (std::all_of(low.begin(), low.end(), is_zero) && std::all_of(high.begin(), high.end(), is_zero)) return v;
  std::vector<ValueId> inputs = {v};
  if (fill.valid()) inputs.push_back(fill);
  return add("pad", std::move(inputs), {{"low", std::move(low)}, {"high", std::move(high)}, {"mode", std::move(mode)}});
}

ValueId NodeImport::flatten(ValueId v, int64_t axis) {
  const Shape shape = this->shape(v);
  const std::span<const Expr> sizes = shape;
  return reshape(v, {simplify(sym::product(sizes.first(static_cast<size_t>(axis)))),
                     simplify(sym::product(sizes.subspan(static_cast<size_t>(axis))))});
}

// ---- contents
// --------------------------------------------------------------------------------------------------------

std::optional<std::vector<Expr>> NodeImport::contents(ValueId v) const {
  if (std::optional<std::vector<Expr>> known = scope_.contents->of(v); known.has_value()) return known;
  if (is_float(dtype(v)) || is_complex(dtype(v))) return std::nullopt;
  // Integers that come from constants of other types.
  const std::optional<Tensor> value = constant_value(v);
  if (!value.has_value()) return std::nullopt;
  std::vector<Expr> values;
  for (int64_t i = 0; i < value->count(); ++i) values.emplace_back(value->int_at(i));
  return values;
}

std::optional<std::vector<int64_t>> NodeImport::constant_integers(ValueId v) const {
  if (const Tensor* const constant = graph_.constant(v);
      constant != nullptr && !is_float(constant->dtype()) && !is_complex(constant->dtype())) {
    std::vector<int64_t> values;
    for (int64_t i = 0; i < constant->count(); ++i) values.push_back(constant->int_at(i));
    return values;
  }
  const std::optional<std::vector<Expr>> known = contents(v);
  if (!known.has_value()) return std::nullopt;
  std::vector<int64_t> values;
  for (const Expr& e : *known) {
    const std::optional<int64_t> value = simplify(e).as_const();
    if (!value.has_value()) return std::nullopt;
    values.push_back(*value);
  }
  return values;
}

std::vector<Expr> NodeImport::read_sizes(ValueId v) {
  if (is_float(dtype(v))) {  // OneHot's depth may be
    if (const std::optional<Tensor> value = constant_value(v); value.has_value()) v = constant(*value);
    v = cast(v, DType::I64);
  }
  if (std::optional<std::vector<Expr>> known = contents(v); known.has_value()) {
    for (Expr& e : *known) e = simplify(e);
    return std::move(*known);
  }
  const std::optional<int64_t> count = simplify(op::count_of(shape(v))).as_const();
  if (!count.has_value())
    unsupported(
        fmt::format("reads sizes from a tensor of shape {}; how many they are must be known when the model is imported",
                    op::to_string(shape(v))));
  std::vector<Expr> symbols;
  for (int64_t i = 0; i < *count; ++i) symbols.push_back(Expr::symbol(graph_.fresh_symbol("u")));
  add("bind_symbols", {v}, {{"defines", Shape(symbols)}});
  return symbols;
}

std::vector<int64_t> NodeImport::require_integers(ValueId v, std::string_view what) const {
  std::optional<std::vector<int64_t>> values = constant_integers(v);
  if (!values.has_value()) unsupported(fmt::format("{} must be known when the model is imported", what));
  return std::move(*values);
}

Tensor NodeImport::require_constant(ValueId v, std::string_view what) const {
  std::optional<Tensor> value = constant_value(v);
  if (!value.has_value()) unsupported(fmt::format("{} must be known when the model is imported", what));
  return std::move(*value);
}

namespace {

// Small, because this is for parameters of operators (scales, bounds); whole constant tensors are folded by a pass.
constexpr int64_t kMaxFoldedElements = 4096;
constexpr int kMaxFoldedDepth = 32;

std::optional<Tensor> fold(const Graph& graph, ValueId v, int depth) {
  if (const Tensor* const constant = graph.constant(v); constant != nullptr) return *constant;
  const graph::Node* const node = graph.producer(v);
  if (node == nullptr || depth > kMaxFoldedDepth || node->op->family == op::Family::Control ||
      node->attrs.has("defines"))
    return std::nullopt;
  for (const ValueId output : node->outputs) {
    const std::optional<int64_t> count = op::count_of(graph.type(output).shape).as_const();
    if (!count.has_value() || *count > kMaxFoldedElements) return std::nullopt;
  }
  for (const auto& [name, attr] : node->attrs.all())
    if (const auto* shape = std::get_if<Shape>(&attr))
      for (const Expr& e : *shape)
        if (!e.is_const()) return std::nullopt;
  std::vector<Tensor> inputs;
  for (const ValueId input : node->inputs) {
    std::optional<Tensor> value = input.valid() ? fold(graph, input, depth + 1) : Tensor();
    if (!value.has_value()) return std::nullopt;
    inputs.push_back(std::move(*value));
  }
  const std::vector<Tensor> results =
      op::run_reference(*node->op, inputs, op::concrete(node->attrs, {}), static_cast<int64_t>(node->outputs.size()));
  return results[static_cast<size_t>(graph.value(v).output_index)];
}

}  // namespace

std::optional<Tensor> NodeImport::constant_value(ValueId v) const { return fold(graph_, v, 0); }

std::optional<std::vector<Expr>> NodeImport::axes_from(size_t i, int64_t input_since) {
  if (version_ >= input_since) {
    if (!has(i)) return std::nullopt;
    return read_sizes(in(i));
  }
  if (!has_attr("axes")) return std::nullopt;
  return op::shape_of(integers("axes"));
}

// ---- outputs
// ---------------------------------------------------------------------------------------------------------

void NodeImport::out(size_t i, Item item) {
  if (!wants(i)) return;
  const std::string name(proto_.outputs[i]);
  if (item.kind == Item::Kind::Tensor && graph_.value(item.value).name.empty()) graph_.set_value_name(item.value, name);
  scope_.items.insert_or_assign(name, std::move(item));
}

std::vector<Item> NodeImport::inline_subgraph(const GraphProto& proto, NameScope& scope) {
  scope.parent = &scope_;
  scope.opsets = scope_.opsets;
  scope.frame = scope_.frame;
  scope.contents = scope_.contents;
  return model_.import_body(proto, graph_, scope);
}

}  // namespace fuseloom::front::onnx
