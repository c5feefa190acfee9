// Graph text. print → parse → print is the identity.
//
//   graph main(%x: f32[n, 3], %w: f32[3, 4]) symbols {n in 0..1024 multiple 1, k in -inf..inf} {
//     %y: f32[n, 4] = matmul(%x, %w)
//     %v: f32[n, 1], %i: i64[n, 1] = top_k(%y) {axis = 1, k = <1>, largest = 1} from "TopK_7"
//     %c: f32[2] = constant() {value = f32[2] {1.0, 2.0}}
//     %z: f32[n, 4] = if(%b, %x, _) then(%x: f32[n, 3], ...) {...  return %t } else(...) { ... return %e }
//     return %v, %i
//   }
//
// `_` is an absent optional input. Result types are printed and checked against inference when parsed.
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
