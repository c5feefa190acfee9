// Words that the passes share.
#pragma once
#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "graph/graph.h"

namespace fuseloom::graph {

// Runs a pass in every subgraph of the graph (not in the graph itself).
template <class Pass>
bool in_subgraphs(Graph& graph, Pass&& pass) {
  bool changed = false;
  for (const NodeId id : graph.nodes())
    for (size_t i = 0; i < graph.node(id).subgraphs.size(); ++i) changed = pass(graph.subgraph(id, i)) || changed;
  return changed;
}

inline bool same_size(const Graph& graph, const sym::Expr& a, const sym::Expr& b) {
  return a == b || sym::prove_equal(a, b, graph.facts()) == sym::Proof::Yes;
}
inline bool same_shape(const Graph& graph, const op::Shape& a, const op::Shape& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (!same_size(graph, a[i], b[i])) return false;
  return true;
}
inline bool same_type(const Graph& graph, const op::TensorType& a, const op::TensorType& b) {
  return a.dtype == b.dtype && same_shape(graph, a.shape, b.shape);
}

// The one value of all elements of a constant, seen through views that only repeat or reorder. Real types.
inline std::optional<double> splat(const Graph& graph, ValueId id) {
  while (graph.is_op(id, "expand") || graph.is_op(id, "reshape") || graph.is_op(id, "transpose")) id = graph.producer(id)->inputs[0];
  const Tensor* tensor = graph.constant(id);
  if (tensor == nullptr || tensor->count() == 0 || is_complex(tensor->dtype())) return std::nullopt;
  // Doubles hold no 64-bit integer above 2^53: those are never the neutral elements that rules ask for.
  const double first = tensor->at(0);
  for (int64_t i = 1; i < tensor->count(); ++i) {
    const double value = tensor->at(i);
    if (!(value == first && std::signbit(value) == std::signbit(first))) return std::nullopt;
  }
  return first;
}
inline bool is_splat(const Graph& graph, ValueId id, double value) {
  const std::optional<double> found = splat(graph, id);
  return found.has_value() && *found == value && std::signbit(*found) == std::signbit(value);
}

inline bool has_defines(const Node& node) { return node.attrs.has("defines") && !node.attrs.shape("defines").empty(); }

}  // namespace fuseloom::graph
