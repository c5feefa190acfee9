#include "schedule/row_column_pair.h"

#include <algorithm>

namespace fuseloom::schedule {

using graph::Graph;
using sym::Expr;

namespace {

std::vector<const Axis*> axes_of(const Group& group, bool reduced) {
  std::vector<const Axis*> axes;
  for (const Axis& axis : group.axes) {
    if (axis.reduced == reduced) axes.push_back(&axis);
  }
  return axes;
}

// Names of `from` → those of `to`, where the extents are the same.
bool match(const std::vector<const Axis*>& from, const std::vector<const Axis*>& to, const sym::Facts& facts, sym::Substitution& names) {
  if (from.size() != to.size() || from.empty()) return false;
  for (size_t i = 0; i < from.size(); ++i) {
    if (sym::prove_equal(from[i]->extent, to[i]->extent, facts) != sym::Proof::Yes) return false;
    names[from[i]->name] = Expr::symbol(to[i]->name);
  }
  return true;
}

}  // namespace

std::optional<RowColumnPair> pair_rows_with_columns(const Graph& graph, const Group& rows, const Group& columns) {
  if (rows.kind != GroupKind::Loops || columns.kind != GroupKind::Loops || !rows.local_axes.empty() || !columns.local_axes.empty()) return std::nullopt;
  sym::Substitution names;
  if (!match(axes_of(columns, false), axes_of(rows, true), graph.facts(), names) || !match(axes_of(columns, true), axes_of(rows, false), graph.facts(), names)) {
    return std::nullopt;
  }
  const PhasePlan phase(graph, columns);
  if (phase.phases() != 1 || phase.has_wide_outputs()) return std::nullopt;
  if (!std::all_of(columns.inputs.begin(), columns.inputs.end(), [&](ValueId value) { return std::find(rows.inputs.begin(), rows.inputs.end(), value) != rows.inputs.end(); })) {
    return std::nullopt;
  }
  const auto renamed = [&](const std::vector<Expr>& exprs) {
    std::vector<Expr> out;
    for (const Expr& expr : exprs) out.push_back(sym::substitute(expr, names));
    return out;
  };
  RowColumnPair pair{.rows = rows, .columns = columns, .merged = rows, .reductions = {}};
  for (const NodeId id : phase.reductions()) {
    const op::Combine combine = graph.node(id).op->combine;
    if (combine == op::Combine::ArgMax || combine == op::Combine::ArgMin) return std::nullopt;
    pair.reductions.push_back({id, phase.operand(id), renamed(phase.operand_position(id))});
  }
  for (const NodeId id : columns.nodes) {
    if (std::find(rows.nodes.begin(), rows.nodes.end(), id) == rows.nodes.end()) pair.merged.nodes.push_back(id);
  }
  std::sort(pair.merged.nodes.begin(), pair.merged.nodes.end(), [&](NodeId a, NodeId b) {
    const std::vector<NodeId>& order = graph.nodes();
    return std::find(order.begin(), order.end(), a) < std::find(order.begin(), order.end(), b);
  });
  for (const auto& [value, uses] : columns.uses) {
    std::vector<Use>& known = pair.merged.uses[value];
    for (const Use& use : uses) {
      const Use moved{.index = renamed(use.index), .guards = renamed(use.guards), .budget = use.budget};
      if (std::none_of(known.begin(), known.end(), [&](const Use& other) { return other.index == moved.index && other.guards == moved.guards; })) known.push_back(moved);
    }
  }
  return pair;
}

}  // namespace fuseloom::schedule
