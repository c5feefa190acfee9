#include <map>

#include "base/check.h"
#include "graph/pass/pass.h"
#include "graph/pass/rewrite.h"

namespace fuseloom::graph {
namespace {

// What the symbols that the branch binds itself are outside: a size of a capture, or a fresh symbol for a defined one.
// Nothing when a size cannot be solved for its symbol.
std::optional<sym::Substitution> outside_symbols(Graph& graph, const Graph& branch, std::span<const ValueId> captures) {
  sym::Substitution by;
  for (const std::string& symbol : branch.outer_symbols()) by.emplace(symbol, sym::Expr::symbol(symbol));
  const auto each_size = [&](auto&& visit) {
    for (size_t i = 0; i < captures.size(); ++i) {
      const op::Shape &inner = branch.type(branch.inputs()[i]).shape, &outer = graph.type(captures[i]).shape;
      for (size_t d = 0; d < inner.size(); ++d) visit(inner[d], outer[d]);
    }
  };
  each_size([&](const sym::Expr& inner, const sym::Expr& outer) {
    if (inner.is_symbol()) by.emplace(inner.name(), outer);
  });
  bool solved = true;
  each_size([&](const sym::Expr& inner, const sym::Expr&) {
    for (const std::string& symbol : sym::symbols_of(inner)) solved = solved && by.contains(symbol);
  });
  if (!solved) return std::nullopt;
  for (const NodeId id : branch.nodes())
    if (has_defines(branch.node(id)))
      for (const sym::Expr& defined : branch.node(id).attrs.shape("defines"))
        by.emplace(defined.name(), sym::Expr::symbol(graph.fresh_symbol(defined.name() + "_")));
  return by;
}

op::Attrs substituted(const op::Attrs& attrs, const sym::Substitution& by, const sym::Facts& facts) {
  op::Attrs result = attrs;
  for (const auto& [name, attr] : attrs.all()) {
    const op::Shape* shape = std::get_if<op::Shape>(&attr);
    if (shape == nullptr) continue;
    op::Shape replaced;
    for (const sym::Expr& size : *shape) replaced.push_back(sym::simplify(sym::substitute(size, by), facts));
    result.set(name, std::move(replaced));
  }
  return result;
}

bool inline_branch(Graph& graph, NodeId id) {
  const bool condition = graph.constant(graph.node(id).inputs[0])->int_at(0) != 0;
  const Graph branch = graph.node(id).subgraphs[condition ? 0 : 1]->clone();
  const std::vector<ValueId> captures(graph.node(id).inputs.begin() + 1, graph.node(id).inputs.end());
  const std::optional<sym::Substitution> by = outside_symbols(graph, branch, captures);
  if (!by.has_value()) return false;
  std::map<ValueId, ValueId> moved;
  for (size_t i = 0; i < captures.size(); ++i) moved.emplace(branch.inputs()[i], captures[i]);
  {
    Inserter inserter(graph);
    inserter.before(id);
    for (const NodeId inner : branch.nodes()) {
      const Node& node = branch.node(inner);
      std::vector<ValueId> inputs;
      for (const ValueId input : node.inputs) inputs.push_back(input.valid() ? moved.at(input) : ValueId{});
      op::Attrs attrs = substituted(node.attrs, *by, graph.facts());
      NodeId copy;
      if (node.subgraphs.empty()) {
        copy = graph.add_node(node.op->name, std::move(inputs), std::move(attrs), static_cast<int64_t>(node.outputs.size()), node.origin);
      } else {
        std::vector<std::unique_ptr<Graph>> subgraphs;
        std::vector<op::TensorType> types;
        for (const std::unique_ptr<Graph>& subgraph : node.subgraphs) {
          subgraphs.push_back(std::make_unique<Graph>(subgraph->clone()));
          sym::Substitution inner_by;
          for (const std::string& symbol : subgraph->outer_symbols()) inner_by.emplace(symbol, by->at(symbol));
          subgraphs.back()->replace_outer_symbols(inner_by, graph.facts());
        }
        for (const ValueId output : node.outputs) {
          op::TensorType type = branch.type(output);
          for (sym::Expr& size : type.shape) size = sym::simplify(sym::substitute(size, *by), graph.facts());
          types.push_back(std::move(type));
        }
        copy = graph.add_control_node(node.op->name, std::move(inputs), std::move(attrs), std::move(subgraphs), std::move(types), node.origin);
      }
      for (size_t i = 0; i < node.outputs.size(); ++i) moved.emplace(node.outputs[i], graph.node(copy).outputs[i]);
    }
  }
  // The symbols that the node defined are the sizes that the branch gives.
  sym::Substitution defined;
  const std::vector<ValueId> outputs = graph.node(id).outputs;
  const op::Shape defines = graph.node(id).attrs.has("defines") ? graph.node(id).attrs.shape("defines") : op::Shape{};
  for (size_t i = 0; i < outputs.size(); ++i) {
    const ValueId result = moved.at(branch.outputs()[i]);
    const op::Shape &from = graph.type(outputs[i]).shape, &to = graph.type(result).shape;
    for (size_t d = 0; d < from.size(); ++d)
      if (std::find(defines.begin(), defines.end(), from[d]) != defines.end()) defined.emplace(from[d].name(), to[d]);
    graph.replace_uses(outputs[i], result);
  }
  graph.remove_node(id);
  graph.substitute_symbols(defined);
  return true;
}

}  // namespace

bool inline_branches(Graph& graph) {
  bool changed = false;
  // An inlined branch may hold another `if` on a constant.
  for (bool again = true; again;) {
    again = false;
    const std::vector<NodeId> order = graph.nodes();
    for (const NodeId id : order) {
      const Node& node = graph.node(id);
      if (node.op->name == "if" && graph.constant(node.inputs[0]) != nullptr && inline_branch(graph, id)) again = true;
    }
    changed = changed || again;
  }
  return in_subgraphs(graph, inline_branches) || changed;
}

}  // namespace fuseloom::graph
