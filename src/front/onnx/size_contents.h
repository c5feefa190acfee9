// The contents of small integer tensors as expressions over the sizes: what exporters compute with Shape, Gather, Concat
// and a little arithmetic, read back from the graph.
#pragma once
#include <optional>
#include <vector>

#include "graph/graph.h"

namespace fuseloom::front::onnx {

// The elements of an integer or bool tensor in row-major order, when each is a known expression; bools as 0 and 1.
std::optional<std::vector<sym::Expr>> known_contents(const graph::Graph& graph, graph::ValueId value);

}  // namespace fuseloom::front::onnx
