#include <set>

#include "graph/pass/pass.h"
#include "graph/pass/rewrite.h"

namespace fuseloom::graph {
namespace {

void need_symbols(const op::Shape& shape, std::set<std::string>& needed) {
  for (const sym::Expr& size : shape)
    if (!size.is_const()) sym::collect_symbols(size, needed);
}

}  // namespace

// Backwards over the order: definitions precede uses, so one walk settles values and symbols.
bool remove_dead_nodes(Graph& graph) {
  bool changed = in_subgraphs(graph, remove_dead_nodes);
  std::vector<char> live(static_cast<size_t>(graph.value_count()), 0);
  std::set<std::string> needed;
  for (const ValueId output : graph.outputs()) live[static_cast<size_t>(output.index)] = 1;
  std::vector<NodeId> dead;
  const std::vector<NodeId>& order = graph.nodes();
  for (size_t position = order.size(); position-- > 0;) {
    const Node& node = graph.node(order[position]);
    bool is_live = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) { return live[static_cast<size_t>(id.index)] != 0; });
    if (!is_live && has_defines(node))
      for (const sym::Expr& defined : node.attrs.shape("defines")) is_live = is_live || needed.contains(defined.name());
    if (!is_live) {
      dead.push_back(order[position]);
      continue;
    }
    for (const ValueId input : node.inputs)
      if (input.valid()) live[static_cast<size_t>(input.index)] = 1;
    for (const ValueId output : node.outputs) need_symbols(graph.type(output).shape, needed);
    for (const auto& [name, attr] : node.attrs.all())
      if (const op::Shape* shape = std::get_if<op::Shape>(&attr); shape != nullptr && name != "defines") need_symbols(*shape, needed);
    for (const std::unique_ptr<Graph>& subgraph : node.subgraphs)
      needed.insert(subgraph->outer_symbols().begin(), subgraph->outer_symbols().end());
  }
  graph.remove_nodes(dead);
  return changed || !dead.empty();
}

}  // namespace fuseloom::graph
