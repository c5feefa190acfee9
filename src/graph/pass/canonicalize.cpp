#include <numeric>
#include <set>

#include "base/check.h"
#include "graph/pass/pass.h"
#include "graph/pass/rewrite.h"

namespace fuseloom::graph {
namespace {

using sym::Expr;
using MaybeValue = std::optional<ValueId>;

// Whether every value of `from` is exactly a value of `to`.
bool is_exact_cast(DType from, DType to) {
  if (from == to || from == DType::Bool) return true;
  const auto integer_bits = [](DType t) { return dtype_bits(t) - (is_signed_int(t) ? 1 : 0); };
  // Bits of the significand, the leading one included; complex types by their parts.
  const auto significand = [](DType t) -> int64_t {
    switch (t) {
      case DType::F16: return 11;
      case DType::BF16: return 8;
      case DType::F32: case DType::C64: return 24;
      case DType::F64: case DType::C128: return 53;
      case DType::Bool: case DType::I8: case DType::I16: case DType::I32: case DType::I64:
      case DType::U8: case DType::U16: case DType::U32: case DType::U64: return 0;
    }
    FL_CHECK(false, "an element type of no kind");
  };
  if (is_int(from) && is_int(to)) {
    if (is_signed_int(from) && is_unsigned_int(to)) return false;
    return integer_bits(from) <= integer_bits(to);
  }
  // f16 has too few exponents for any integer type above 15 bits, all others have enough.
  if (is_int(from)) return significand(to) > 0 && integer_bits(from) <= significand(to) && (to != DType::F16 || integer_bits(from) <= 15);
  if (is_float(from) && !is_int(to) && to != DType::Bool) return significand(from) <= significand(to) && to != DType::F16 && (to != DType::BF16);
  return is_complex(from) && is_complex(to) && significand(from) <= significand(to);
}

// Tries the rules on one node. A rule looks at the node and at what produces its inputs, and gives the value that the
// node's only output can be replaced by, bit for bit; it inserts what it needs before the node.
class Rules {
 public:
  Rules(Graph& graph, NodeId id) : graph_(graph), node_(graph.node(id)) {}

  MaybeValue apply() {
    switch (node_.op->family) {
      case op::Family::Elementwise:
        return first_of({&Rules::constant_right, &Rules::neutral, &Rules::unary, &Rules::choice, &Rules::cast, &Rules::power});
      case op::Family::View:
        return first_of({&Rules::identity_view, &Rules::reshape, &Rules::transpose, &Rules::expand, &Rules::slice, &Rules::concat, &Rules::tile});
      case op::Family::Reduction:
        return first_of({&Rules::reduction});
      case op::Family::Gather:
        return first_of({&Rules::gather});
      case op::Family::Contraction:
        return first_of({&Rules::matmul});
      case op::Family::Source:
      case op::Family::Scan:
      case op::Family::Scatter:
      case op::Family::Window:
      case op::Family::Composite:
      case op::Family::Extern:
      case op::Family::Control:
      case op::Family::Recurrence:
        return std::nullopt;
    }
    FL_CHECK(false, "an op of no family");
  }

 private:
  using Rule = MaybeValue (Rules::*)();
  MaybeValue first_of(std::initializer_list<Rule> rules) {
    for (const Rule rule : rules)
      if (const MaybeValue value = (this->*rule)()) return value;
    return std::nullopt;
  }

  bool is(std::string_view name) const { return node_.op->name == name; }
  ValueId in(size_t i) const { return node_.inputs[i]; }
  const op::TensorType& in_type(size_t i) const { return graph_.type(in(i)); }
  const op::TensorType& out_type() const { return graph_.type(node_.outputs[0]); }
  const op::Shape& in_shape(size_t i) const { return in_type(i).shape; }
  const op::Shape& out_shape() const { return out_type().shape; }
  // The producer of an input when it is this op, and the op takes one data input.
  const Node* from(size_t i, std::string_view op) const { return graph_.is_op(in(i), op) ? graph_.producer(in(i)) : nullptr; }
  MaybeValue itself(ValueId value) const {
    return same_type(graph_, graph_.type(value), out_type()) ? MaybeValue(value) : std::nullopt;
  }
  ValueId add(std::string_view op, std::vector<ValueId> inputs, op::Attrs attrs = {}) const {
    const std::string origin = node_.origin;
    return graph_.add(op, std::move(inputs), std::move(attrs), origin);
  }

  // ---- elementwise

  // c + x → x + c, so that the rules below and pattern matching look in one place.
  MaybeValue constant_right() {
    if (!node_.op->commutative || node_.inputs.size() != 2) return std::nullopt;
    if (!splat(graph_, in(0)).has_value() || splat(graph_, in(1)).has_value()) return std::nullopt;
    return add(node_.op->name, {in(1), in(0)}, node_.attrs);
  }

  MaybeValue neutral() {
    if (node_.inputs.size() != 2) return std::nullopt;
    const DType dtype = in_type(0).dtype;
    const bool is_real_float = is_float(dtype), is_integer = is_int(dtype), truth = dtype == DType::Bool;
    const auto right = [&](double value) { return is_splat(graph_, in(1), value); };
    // -0 + 0 is +0, so that only -0 is neutral for floats; and x - (+0) is x.
    if (is("add") && ((is_real_float && right(-0.0)) || ((is_integer || truth) && right(0)))) return itself(in(0));
    if (is("sub") && (is_real_float || is_integer) && right(0)) return itself(in(0));
    if ((is("mul") || is("div")) && (is_real_float || is_integer || (truth && is("mul"))) && right(1)) return itself(in(0));
    if (is("floor_div") && is_integer && right(1)) return itself(in(0));
    if ((is("and") && right(1)) || (is("or") && right(0)) || (is("xor") && right(0))) return itself(in(0));
    if ((is("and") && right(0)) || (is("or") && right(1))) return itself(in(1));
    if ((is("bit_or") || is("bit_xor") || is("shift_left") || is("shift_right")) && is_integer && right(0)) return itself(in(0));
    if ((is("max") || is("min") || is("and") || is("or") || is("bit_and") || is("bit_or")) && in(0) == in(1)) return itself(in(0));
    return std::nullopt;
  }

  MaybeValue unary() {
    if (node_.inputs.size() != 1) return std::nullopt;
    const Node* inner = graph_.producer(in(0));
    if ((is("floor") || is("ceil") || is("trunc") || is("round")) && is_int(in_type(0).dtype)) return itself(in(0));
    if (inner == nullptr) return std::nullopt;
    const std::string& name = inner->op->name;
    if ((is("neg") || is("not") || is("bit_not") || is("conj")) && name == node_.op->name) return itself(inner->inputs[0]);
    if ((is("abs") || is("relu") || is("floor") || is("ceil") || is("trunc") || is("round")) && name == node_.op->name &&
        !is_complex(in_type(0).dtype))
      return itself(in(0));
    if (is("abs") && name == "neg" && !is_complex(in_type(0).dtype)) return add("abs", {inner->inputs[0]});
    return std::nullopt;
  }

  MaybeValue choice() {
    if (!is("select")) return std::nullopt;
    if (const std::optional<double> condition = splat(graph_, in(0))) return itself(in(*condition != 0 ? 1 : 2));
    if (in(1) == in(2)) return itself(in(1));
    if (const Node* inverse = from(0, "not")) return add("select", {inverse->inputs[0], in(2), in(1)});
    return std::nullopt;
  }

  MaybeValue cast() {
    if (!is("cast")) return std::nullopt;
    const DType to = out_type().dtype;
    if (in_type(0).dtype == to) return itself(in(0));
    const Node* inner = from(0, "cast");
    if (inner == nullptr) return std::nullopt;
    const ValueId source = inner->inputs[0];
    const DType start = graph_.type(source).dtype;
    // The first cast loses nothing: what follows can start from the source. Real to complex drops no sign of a zero either.
    if (!is_exact_cast(start, in_type(0).dtype)) return std::nullopt;
    return start == to ? itself(source) : MaybeValue(add("cast", {source}, {{"to", to}}));
  }

  // x^2 rounds once either way. In f64 pow is no exact operation, so it stays.
  MaybeValue power() {
    if (!is("pow")) return std::nullopt;
    const DType dtype = in_type(0).dtype;
    if (is_complex(dtype)) return std::nullopt;
    if (is_splat(graph_, in(1), 1)) return itself(in(0));
    if (is_splat(graph_, in(1), 2) && dtype != DType::F64 && same_shape(graph_, in_shape(0), out_shape())) return add("mul", {in(0), in(0)});
    return std::nullopt;
  }

  // ---- views

  // A view that moves nothing.
  MaybeValue identity_view() {
    if (node_.inputs.empty() || !in(0).valid()) return std::nullopt;
    bool identity = is("reshape") || is("expand");
    const auto all = [](const op::Shape& values, int64_t value) {
      return std::all_of(values.begin(), values.end(), [&](const Expr& e) { return e.is_const(value); });
    };
    if (is("transpose")) identity = is_sorted(node_.attrs.integers("perm"));
    if (is("slice")) {
      const std::vector<int64_t>& steps = node_.attrs.integers("steps");
      identity = all(node_.attrs.shape("starts"), 0) && std::all_of(steps.begin(), steps.end(), [](int64_t s) { return s == 1; });
    }
    if (is("concat")) identity = node_.inputs.size() == 1;
    if (is("pad")) identity = all(node_.attrs.shape("low"), 0) && all(node_.attrs.shape("high"), 0);
    if (is("tile")) identity = all(node_.attrs.shape("repeats"), 1);
    return identity ? itself(in(0)) : std::nullopt;
  }

  static bool is_sorted(const std::vector<int64_t>& perm) { return std::is_sorted(perm.begin(), perm.end()); }

  MaybeValue reshape() {
    if (!is("reshape")) return std::nullopt;
    if (const Node* inner = from(0, "reshape")) return add("reshape", {inner->inputs[0]}, node_.attrs);
    return std::nullopt;
  }

  MaybeValue transpose() {
    if (!is("transpose")) return std::nullopt;
    const std::vector<int64_t>& perm = node_.attrs.integers("perm");
    if (const Node* inner = from(0, "transpose")) {
      std::vector<int64_t> both;
      for (const int64_t axis : perm) both.push_back(inner->attrs.integers("perm")[static_cast<size_t>(axis)]);
      return add("transpose", {inner->inputs[0]}, {{"perm", both}});
    }
    // Only dimensions of size 1 change places among the others: the order of the elements stays.
    std::vector<int64_t> moved;
    for (const int64_t axis : perm)
      if (!in_shape(0)[static_cast<size_t>(axis)].is_const(1)) moved.push_back(axis);
    if (!is_sorted(perm) && is_sorted(moved)) return add("reshape", {in(0)}, {{"shape", out_shape()}});
    return std::nullopt;
  }

  MaybeValue expand() {
    if (!is("expand")) return std::nullopt;
    if (const Node* inner = from(0, "expand")) return add("expand", {inner->inputs[0]}, node_.attrs);
    // Sizes of 1 in front only: a reshape.
    const size_t lead = out_shape().size() - in_shape(0).size();
    bool only_leading = lead > 0;
    for (size_t i = 0; i < out_shape().size(); ++i)
      only_leading = only_leading && (i < lead ? out_shape()[i].is_const(1) : same_size(graph_, out_shape()[i], in_shape(0)[i - lead]));
    return only_leading ? MaybeValue(add("reshape", {in(0)}, {{"shape", out_shape()}})) : std::nullopt;
  }

  MaybeValue slice() {
    if (!is("slice")) return std::nullopt;
    const Node* inner = from(0, "slice");
    if (inner == nullptr) return std::nullopt;
    const op::Shape outer_starts = node_.attrs.shape("starts"), inner_starts = inner->attrs.shape("starts");
    const std::vector<int64_t>&outer_steps = node_.attrs.integers("steps"), &inner_steps = inner->attrs.integers("steps");
    op::Shape starts;
    std::vector<int64_t> steps;
    for (size_t d = 0; d < outer_starts.size(); ++d) {
      starts.push_back(inner_starts[d] + outer_starts[d] * Expr(inner_steps[d]));
      int64_t step = 0;
      if (__builtin_mul_overflow(outer_steps[d], inner_steps[d], &step)) return std::nullopt;
      steps.push_back(step);
    }
    return add("slice", {inner->inputs[0]}, {{"starts", starts}, {"sizes", node_.attrs.shape("sizes")}, {"steps", steps}});
  }

  // Drops empty pieces and takes in the pieces of a concat that only this one reads.
  MaybeValue concat() {
    if (!is("concat")) return std::nullopt;
    const auto axis_of = [&](const Node& node, int64_t rank) {
      const int64_t axis = node.attrs.integer("axis");
      return axis < 0 ? axis + rank : axis;
    };
    const int64_t rank = out_type().rank(), axis = axis_of(node_, rank);
    std::vector<ValueId> pieces;
    bool better = false;
    for (const ValueId input : node_.inputs) {
      const Node* inner = graph_.is_op(input, "concat") ? graph_.producer(input) : nullptr;
      if (graph_.type(input).shape[static_cast<size_t>(axis)].is_const(0)) {
        better = true;
      } else if (inner != nullptr && axis_of(*inner, rank) == axis && graph_.use_count(input) == 1) {
        pieces.insert(pieces.end(), inner->inputs.begin(), inner->inputs.end());
        better = true;
      } else {
        pieces.push_back(input);
      }
    }
    if (!better) return std::nullopt;
    if (pieces.empty()) return itself(in(0));
    if (pieces.size() == 1) return itself(pieces[0]);
    return add("concat", pieces, {{"axis", axis}});
  }

  // Repeating dimensions of size 1 is a broadcast.
  MaybeValue tile() {
    if (!is("tile")) return std::nullopt;
    const op::Shape repeats = node_.attrs.shape("repeats");
    for (size_t d = 0; d < repeats.size(); ++d)
      if (!repeats[d].is_const(1) && !in_shape(0)[d].is_const(1)) return std::nullopt;
    return add("expand", {in(0)}, {{"shape", out_shape()}});
  }

  // ---- the rest

  // A reduction over single elements. A sum is not among them: it starts from +0, and -0 + 0 is +0.
  MaybeValue reduction() {
    if (!node_.attrs.has("axes")) return std::nullopt;
    const op::Combine combine = node_.op->combine;
    const bool exact_sum = combine == op::Combine::Add && !is_float(in_type(0).dtype) && !is_complex(in_type(0).dtype);
    if (combine != op::Combine::Max && combine != op::Combine::Min && combine != op::Combine::Or && combine != op::Combine::And && !exact_sum)
      return std::nullopt;
    for (int64_t axis : node_.attrs.integers("axes")) {
      if (axis < 0) axis += in_type(0).rank();
      if (in_type(0).rank() > 0 && !in_shape(0)[static_cast<size_t>(axis)].is_const(1)) return std::nullopt;
    }
    if (same_type(graph_, in_type(0), out_type())) return in(0);
    return add("reshape", {in(0)}, {{"shape", out_shape()}});
  }

  // gather at one index that is known and in range: a slice.
  MaybeValue gather() {
    if (!is("gather")) return std::nullopt;
    const Tensor* index = graph_.constant(in(1));
    if (index == nullptr || index->count() != 1 || in_type(0).rank() == 0) return std::nullopt;
    int64_t axis = node_.attrs.integer("axis");
    if (axis < 0) axis += in_type(0).rank();
    const Expr size = in_shape(0)[static_cast<size_t>(axis)];
    const int64_t at = index->int_at(0);
    // Both must hold for every size: at least one element before the end, or as many as are counted back.
    if (sym::bounds(size, graph_.facts()).low < (at < 0 ? -at : at + 1)) return std::nullopt;
    op::Shape starts(in_shape(0).size(), Expr(0)), sizes = in_shape(0);
    starts[static_cast<size_t>(axis)] = at < 0 ? size + Expr(at) : Expr(at);
    sizes[static_cast<size_t>(axis)] = 1;
    const std::vector<int64_t> steps(sizes.size(), 1);
    const op::Shape shape = out_shape();
    return add("reshape", {add("slice", {in(0)}, {{"starts", starts}, {"sizes", sizes}, {"steps", steps}})}, {{"shape", shape}});
  }

  // A transpose of the last two dimensions goes into the matmul.
  MaybeValue matmul() {
    if (!is("matmul")) return std::nullopt;
    std::vector<ValueId> inputs = node_.inputs;
    op::Attrs attrs = node_.attrs;
    bool better = false;
    for (size_t i = 0; i < 2; ++i) {
      const Node* inner = from(i, "transpose");
      if (inner == nullptr || in_type(i).rank() < 2) continue;
      std::vector<int64_t> swapped(static_cast<size_t>(in_type(i).rank()));
      std::iota(swapped.begin(), swapped.end(), 0);
      std::swap(swapped[swapped.size() - 1], swapped[swapped.size() - 2]);
      if (inner->attrs.integers("perm") != swapped) continue;
      const char* name = i == 0 ? "trans_a" : "trans_b";
      const int64_t transposed = 1 - attrs.integer(name, 0);
      if (transposed == 0) {
        attrs.erase(name);
      } else {
        attrs.set(name, transposed);
      }
      inputs[i] = inner->inputs[0];
      better = true;
    }
    return better ? MaybeValue(add("matmul", inputs, attrs)) : std::nullopt;
  }

  Graph& graph_;
  const Node& node_;
};

}  // namespace

// One walk in order: rules look backwards only, so a node sees its inputs in their final form. What a rule adds is tried
// again itself before the walk goes on.
bool canonicalize(Graph& graph) {
  bool changed = in_subgraphs(graph, canonicalize);
  Inserter inserter(graph);
  const std::vector<NodeId> order = graph.nodes();
  for (const NodeId start : order) {
    std::vector<NodeId> work{start};
    while (!work.empty()) {
      const NodeId id = work.back();
      work.pop_back();
      const Node& node = graph.node(id);
      if (node.outputs.size() != 1 || graph.use_count(node.outputs[0]) == 0) continue;
      inserter.before(id);
      const int32_t first_new = graph.node_capacity();
      const MaybeValue value = Rules(graph, id).apply();
      if (!value.has_value()) continue;
      changed = true;
      const ValueId old_value = node.outputs[0];
      const bool is_new = graph.value(*value).producer.valid() && graph.value(*value).producer.index >= first_new;
      if (is_new && !(graph.type(*value) == graph.type(old_value))) graph.refine_type(*value, graph.type(old_value));
      graph.replace_uses(old_value, *value);
      for (int32_t added = graph.node_capacity(); added-- > first_new;) work.push_back(NodeId{added});
    }
  }
  return changed;
}

}  // namespace fuseloom::graph
