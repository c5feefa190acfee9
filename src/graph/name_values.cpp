#include "graph/name_values.h"

#include <set>
#include <string>

#include <fmt/format.h>

namespace fuseloom::graph {

namespace {

void name_values(Graph& graph, std::set<std::string>& taken) {
  for (int32_t i = 0; i < graph.value_count(); ++i) {
    const Value& value = graph.value({i});
    if (value.producer.valid() && !graph.has_node(value.producer)) continue;
    std::string name = value.name;
    for (size_t n = taken.size(); name.empty() || !taken.insert(name).second; ++n) {
      name = value.name.empty() ? fmt::format("value_{}", n) : fmt::format("{}_{}", value.name, n);
    }
    graph.set_value_name({i}, name);
  }
  for (const NodeId id : graph.nodes()) {
    for (size_t s = 0; s < graph.node(id).subgraphs.size(); ++s) name_values(graph.subgraph(id, s), taken);
  }
}

}  // namespace

void name_values(Graph& graph) {
  std::set<std::string> taken;
  name_values(graph, taken);
}

}  // namespace fuseloom::graph
