// Control flow. Nodes of these ops carry subgraphs, which this floor does not know: the graph gives their output types
// and its evaluator runs them. The records hold the schema.
#include "op/op.h"
#include "op/schema.h"

namespace fuseloom::op {

using Kind = AttrSpec::Kind;

void add_control_ops(OpTable& table) {
  table.add({.name = "if",
             .family = Family::Control,
             .summary = "runs the first subgraph when the condition holds, else the second; both take the captures",
             .min_inputs = 1,
             .max_inputs = -1,
             .min_outputs = 0,
             .max_outputs = -1,
             .attrs = {optional_attr("defines", Kind::Sizes)},
             .has_side_results = true});
  table.add({.name = "while",
             .family = Family::Control,
             .summary = "runs the subgraph while the condition holds and the trip count is not reached",
             .min_inputs = 0,
             .max_inputs = -1,
             .min_outputs = 0,
             .max_outputs = -1,
             .attrs = {required_attr("carried", Kind::Integer), required_attr("scans", Kind::Integer),
                       optional_attr("defines", Kind::Sizes)},
             .has_side_results = true});
}

}  // namespace fuseloom::op
