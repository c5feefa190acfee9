#include <unordered_map>

#include "base/hash.h"
#include "graph/pass/pass.h"
#include "graph/pass/rewrite.h"
#include "graph/text.h"

namespace fuseloom::graph {
namespace {

// What makes two nodes equal.
struct Key {
  const op::OpRecord* op;
  std::vector<ValueId> inputs;
  op::Attrs attrs;                      // without `defines`
  std::vector<std::string> subgraphs;   // as text: control nodes are few
  size_t output_count;

  bool operator==(const Key& other) const {
    return op == other.op && inputs == other.inputs && output_count == other.output_count && subgraphs == other.subgraphs &&
           op::equal(attrs, other.attrs);
  }
};

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t hash = base::hash_combine(base::hash_text(key.op->name).low, op::hash(key.attrs));
    for (const ValueId input : key.inputs) hash = base::hash_combine(hash, static_cast<uint64_t>(input.index));
    return hash;
  }
};

}  // namespace

// 1. Walk in order; the first of equal nodes stays, the uses of the others move to it.
// 2. Where the equal nodes define symbols, those of the later one become those of the first, everywhere at the end.
bool merge_common_subexpressions(Graph& graph) {
  bool changed = in_subgraphs(graph, merge_common_subexpressions);
  std::unordered_map<Key, NodeId, KeyHash> first;
  sym::Substitution by;
  std::vector<NodeId> merged;
  for (const NodeId id : graph.nodes()) {
    const Node& node = graph.node(id);
    // Branches may give other sizes each time they are asked to define some: never assumed equal.
    if (!node.subgraphs.empty() && has_defines(node)) continue;
    Key key{.op = node.op, .inputs = node.inputs, .attrs = node.attrs, .subgraphs = {}, .output_count = node.outputs.size()};
    key.attrs.erase("defines");
    if (!by.empty()) key.attrs = op::substitute(key.attrs, by);
    if (node.op->commutative && key.inputs.size() == 2 && key.inputs[1] < key.inputs[0]) std::swap(key.inputs[0], key.inputs[1]);
    for (const std::unique_ptr<Graph>& subgraph : node.subgraphs) key.subgraphs.push_back(to_string(*subgraph));
    const auto [found, inserted] = first.try_emplace(std::move(key), id);
    if (inserted) continue;
    const Node& kept = graph.node(found->second);
    if (has_defines(node)) {
      const op::Shape from = node.attrs.shape("defines"), to = kept.attrs.shape("defines");
      for (size_t i = 0; i < from.size(); ++i) by.emplace(from[i].name(), to[i]);
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) graph.replace_uses(node.outputs[i], kept.outputs[i]);
    merged.push_back(id);
  }
  graph.remove_nodes(merged);
  graph.substitute_symbols(by);
  return changed || !merged.empty();
}

}  // namespace fuseloom::graph
