#include <optional>

#include "base/check.h"
#include "graph/pass/pass.h"
#include "graph/pass/rewrite.h"

namespace fuseloom::graph {
namespace {

// Replaces one node; returns the ids of the nodes that took its place, or nothing when it stays whole.
std::optional<std::vector<NodeId>> replace_by_decomposition(Graph& graph, NodeId id) {
  // The builder grows the graph: everything of the node is copied out first.
  const Node& node = graph.node(id);
  const op::OpRecord& record = *node.op;
  const op::Attrs attrs = node.attrs;
  const std::vector<ValueId> outputs = node.outputs;
  std::vector<op::Val> inputs;
  for (const ValueId input : node.inputs) inputs.push_back(op::Val{input.index});
  std::vector<op::TensorType> types;
  for (const ValueId output : outputs) types.push_back(graph.type(output));
  const int32_t first = graph.node_capacity();
  GraphOpBuilder builder(graph, node.origin);
  graph.set_insertion_point(id);
  const std::vector<op::Val> results = record.decompose(
      builder, {.inputs = inputs, .attrs = attrs, .output_count = static_cast<int64_t>(outputs.size()), .outputs = types});
  if (results.empty() && !outputs.empty()) return std::nullopt;
  FL_CHECK(results.size() >= outputs.size(), "{}: its decomposition gives {} results for {} outputs", record.name, results.size(),
           outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (graph.use_count(outputs[i]) == 0) continue;
    const ValueId result{results[i].id};
    const op::TensorType& type = graph.type(result);
    FL_CHECK(type.dtype == types[i].dtype && type.rank() == types[i].rank(), "{}: output {} is {}, its decomposition gives {}", record.name,
             i, op::to_string(types[i]), op::to_string(type));
    // An input may be the result: its type is not this pass's to change.
    if (!(type == types[i]) && result.index >= 0 && graph.value(result).producer.index >= first) graph.refine_type(result, types[i]);
    graph.replace_uses(outputs[i], result);
  }
  std::vector<NodeId> added;
  for (int32_t i = first; i < graph.node_capacity(); ++i) added.push_back(NodeId{i});
  return added;
}

}  // namespace

bool decompose(Graph& graph, std::span<const std::string> keep) {
  bool changed = in_subgraphs(graph, [&](Graph& subgraph) { return decompose(subgraph, keep); });
  const auto replaced = [&](const Node& node) {
    return node.op->decompose != nullptr && std::find(keep.begin(), keep.end(), node.op->name) == keep.end();
  };
  std::vector<NodeId> work, gone;
  for (const NodeId id : graph.nodes())
    if (replaced(graph.node(id))) work.push_back(id);
  Inserter inserter(graph);
  // A decomposition may use ops that have one themselves.
  while (!work.empty()) {
    const NodeId id = work.back();
    work.pop_back();
    const std::optional<std::vector<NodeId>> parts = replace_by_decomposition(graph, id);
    if (!parts) continue;
    for (const NodeId added : *parts)
      if (replaced(graph.node(added))) work.push_back(added);
    gone.push_back(id);
  }
  // A node can be the insertion point of its own parts until here.
  graph.remove_nodes(gone);
  return changed || !gone.empty();
}

}  // namespace fuseloom::graph
