#include <set>

#include "graph/pass/pass.h"
#include "graph/pass/rewrite.h"
#include "graph/size_contents.h"

namespace fuseloom::graph {
namespace {

// How much there is to an expression, to tell whether inference has found a better one.
int64_t weight(const sym::Expr& expr) {
  int64_t total = expr.is_const() ? 0 : 1;
  for (const sym::Expr& arg : expr.args()) total += 1 + weight(arg);
  return total;
}

class SizePropagation {
 public:
  explicit SizePropagation(Graph& graph) : graph_(graph), contents_(graph), inserter_(graph) {}

  // In order, so that every node sees what is known of the nodes before it:
  // 1. Symbols that have become expressions are replaced in its attributes and result types.
  // 2. Its result types are inferred again when an input's type has become better.
  // 3. A bind_symbols of known elements turns its symbols into those expressions.
  // 4. A small integer result of known elements becomes sym_value.
  bool run() {
    const std::vector<NodeId> order = graph_.nodes();
    for (const NodeId id : order) {
      const bool attrs_changed = substitute(id);
      if (attrs_changed || reads_refined(graph_.node(id))) infer_again(id);
      if (graph_.node(id).op->name == "bind_symbols") solve_symbols(id);
      replace_known(id);
    }
    graph_.remove_nodes(gone_);
    graph_.substitute_symbols(by_);
    return changed_;
  }

 private:
  op::Shape simplified(const op::Shape& shape) const {
    op::Shape result;
    for (const sym::Expr& size : shape)
      result.push_back(size.is_const() ? size : sym::simplify(by_.empty() ? size : sym::substitute(size, by_), graph_.facts()));
    return result;
  }

  bool substitute(NodeId id) {
    const Node& node = graph_.node(id);
    op::Attrs attrs = node.attrs;
    bool attrs_changed = false;
    for (const auto& [name, attr] : node.attrs.all()) {
      const op::Shape* shape = std::get_if<op::Shape>(&attr);
      if (shape == nullptr || name == "defines") continue;
      op::Shape better = simplified(*shape);
      if (better == *shape) continue;
      attrs.set(name, std::move(better));
      attrs_changed = true;
    }
    for (const ValueId output : node.outputs) {
      const op::TensorType& type = graph_.type(output);
      refine(output, {.dtype = type.dtype, .shape = simplified(type.shape)});
    }
    if (attrs_changed) {
      graph_.set_attrs(id, std::move(attrs));
      changed_ = true;
    }
    return attrs_changed;
  }

  void refine(ValueId id, op::TensorType type) {
    if (type == graph_.type(id)) return;
    graph_.refine_type(id, std::move(type));
    refined_.insert(id);
    changed_ = true;
  }

  bool reads_refined(const Node& node) const {
    return std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) { return refined_.contains(input); });
  }

  void infer_again(NodeId id) {
    const Node& node = graph_.node(id);
    if (!node.op->infer) return;
    std::vector<op::TensorType> inputs;
    std::vector<char> present;
    for (const ValueId input : node.inputs) {
      inputs.push_back(input.valid() ? graph_.type(input) : op::TensorType{});
      present.push_back(input.valid() ? 1 : 0);
    }
    const std::vector<op::TensorType> inferred =
        op::infer_types(*node.op, inputs, present, node.attrs, static_cast<int64_t>(node.outputs.size()));
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      op::TensorType best = graph_.type(node.outputs[i]);
      for (size_t d = 0; d < best.shape.size(); ++d) {
        const sym::Expr size = sym::simplify(inferred[i].shape[d], graph_.facts());
        if (weight(size) < weight(best.shape[d])) best.shape[d] = size;
      }
      refine(node.outputs[i], std::move(best));
    }
  }

  void solve_symbols(NodeId id) {
    const Node& node = graph_.node(id);
    const std::optional<std::vector<sym::Expr>> known = contents_.of(node.inputs[0]);
    if (!known.has_value()) return;
    const op::Shape defines = node.attrs.shape("defines");
    for (size_t i = 0; i < defines.size(); ++i) by_.emplace(defines[i].name(), (*known)[i]);
    replace(id, *known);
  }

  void replace_known(NodeId id) {
    const Node& node = graph_.node(id);
    // Sources are as simple as it gets; what still defines symbols must stay.
    if (node.op->family == op::Family::Source || node.outputs.size() != 1 || graph_.use_count(node.outputs[0]) == 0) return;
    const DType dtype = graph_.type(node.outputs[0]).dtype;
    if (dtype != DType::Bool && dtype != DType::I32 && dtype != DType::I64) return;
    if (const std::optional<std::vector<sym::Expr>> known = contents_.of(node.outputs[0])) replace(id, *known);
  }

  void replace(NodeId id, const std::vector<sym::Expr>& values) {
    const Node& node = graph_.node(id);
    const ValueId old_value = node.outputs[0];
    const op::TensorType type = graph_.type(old_value);
    const std::string origin = node.origin;
    inserter_.before(id);
    ValueId value;
    if (std::all_of(values.begin(), values.end(), [](const sym::Expr& e) { return e.is_const(); })) {
      std::vector<int64_t> integers;
      Dims dims;
      for (const sym::Expr& v : values) integers.push_back(*v.as_const());
      for (const sym::Expr& size : type.shape) dims.push_back(*size.as_const());
      value = graph_.add("constant", {}, {{"value", Tensor::of_ints(type.dtype, dims, integers)}}, origin);
    } else {
      op::Attrs attrs{{"values", op::Shape(values.begin(), values.end())}, {"dtype", type.dtype}};
      if (type.rank() == 0) attrs.set("scalar", int64_t{1});
      value = graph_.add("sym_value", {}, std::move(attrs), origin);
      if (type.rank() > 1) value = graph_.add("reshape", {value}, {{"shape", type.shape}}, origin);
    }
    graph_.replace_uses(old_value, value);
    gone_.push_back(id);
    changed_ = true;
  }

  Graph& graph_;
  SizeContents contents_;
  sym::Substitution by_;
  std::set<ValueId> refined_;
  std::vector<NodeId> gone_;
  Inserter inserter_;
  bool changed_ = false;
};

}  // namespace

bool propagate_sizes(Graph& graph) {
  const bool changed = SizePropagation(graph).run();
  return in_subgraphs(graph, propagate_sizes) || changed;
}

}  // namespace fuseloom::graph
