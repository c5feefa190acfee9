// Names for values that have none.
#pragma once
#include "graph/graph.h"

namespace fuseloom::graph {

// Gives every value a name that no other one has, subgraphs included, and keeps names that are taken once. The buffers of a
// program that is lowered from the graph then tell which value they hold.
void name_values(Graph& graph);

}  // namespace fuseloom::graph
