// The reference executor (A1): runs a graph node by node on the references of the op table. The oracle of every test.
#pragma once
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace fuseloom::graph {

using SymbolValues = std::map<std::string, int64_t>;

// Binds the symbols of the input shapes to concrete dims; checks rank, dtype and repeated symbols.
// UserError names the input, the dimension with its symbol, expected and got.
// Bare symbols first, then compound sizes are solved for the one symbol that is missing (sym::solve_for), then everything is
// checked, declared ranges included.
SymbolValues bind_symbols(const Graph& graph, std::span<const Tensor> inputs, const SymbolValues& outer = {});

struct EvaluateOptions {
  // Called after each node with its outputs (B20), those of subgraphs included, each time they run; for bisection.
  std::function<void(const Graph&, NodeId, std::span<const Tensor>)> after_node;
  SymbolValues outer;        // values of outer_symbols
};
// Inputs in the order of graph.inputs(). Intermediate tensors are freed after their last use. The results own their
// memory: none shares it with an input, a constant or another result.
std::vector<Tensor> evaluate(const Graph& graph, std::span<const Tensor> inputs, const EvaluateOptions& options = {});

}  // namespace fuseloom::graph
