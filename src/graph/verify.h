// Checks every invariant of graph.h; throws InternalError naming the first node that breaks one, and how.
#pragma once
#include "graph/graph.h"

namespace fuseloom::graph {
void verify(const Graph& graph);
}
