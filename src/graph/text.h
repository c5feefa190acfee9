// Graph text. print → parse → print is the identity. docs/ir-graph.md has the grammar.
//
//   graph main(%x: f32[n, 3], %w: f32[3, 4]) symbols {n in 0 .. 1024 multiple 8} nonzero {n - 1} {
//     %y: f32[n, 4] = matmul(%x, %w)
//     %v: f32[n, 1], %i: i64[n, 1] = top_k(%y) {axis = 1, k = <1>, largest = 1} from "TopK_7"
//     %c: f32[2] = constant() {value = f32[2] {1.0, 2.0}}
//     %z: f32[n, 4] = if(%b, %y) then(%x: f32[n, 4]) outer {n} {
//       %t: f32[n, 4] = neg(%x)
//       return %t
//     } else(%x: f32[n, 4]) outer {n} {
//       return %x
//     }
//     return %v, %i
//   }
//
// `_` is an absent optional input. Values without a name print as %0, %1, ... in the order of the text. Result types may
// be left out when written by hand; a type that contradicts inference is an error, one that says more is taken over.
// `symbols` lists what is known beyond the usual: a symbol of an input's shape or of `defines` is a size, one of
// bind_symbols is any integer, an outer symbol is what the enclosing graph knows.
#pragma once
#include <string>
#include <string_view>

#include "graph/graph.h"

namespace fuseloom::graph {

std::string to_string(const Graph& graph);
// Throws UserError "<where>:<line>:<column>: ...". Large constants are looked up in `pool`.
Graph parse_graph(std::string_view text, const op::OpTable& table, std::string where = "<text>", const op::ConstantPool& pool = {});
// Every tensor that to_string prints by hash only.
op::ConstantPool constant_pool(const Graph& graph);

}  // namespace fuseloom::graph
