#include "schedule/online_reduction.h"

#include <algorithm>

namespace fuseloom::schedule {

using graph::Graph;
using graph::Node;
using sym::Expr;

namespace {

// The node of the group that computes a value, if it is this op.
const Node* made_by(const Graph& graph, const PhasePlan& phase, ValueId value, std::string_view op) {
  if (!value.valid() || !phase.computed(value)) return nullptr;
  const Node* node = graph.producer(value);
  return node != nullptr && node->op->name == op ? node : nullptr;
}

bool is_count(const Graph& graph, ValueId value, const Expr& count) {
  if (const Tensor* constant = graph.constant(value)) return constant->count() == 1 && count.is_const() && constant->at(0) == static_cast<double>(*count.as_const());
  const Node* node = graph.producer(value);
  return node != nullptr && node->op->name == "sym_value" && node->attrs.shape("values").size() == 1 &&
         sym::prove_equal(node->attrs.shape("values")[0], count, graph.facts()) == sym::Proof::Yes;
}

}  // namespace

std::vector<OnlinePair> online_pairs(const Graph& graph, const Group& group, const PhasePlan& phase) {
  if (phase.phases() != 2) return {};
  Expr count = 1;
  for (const Axis& axis : group.axes) {
    if (axis.reduced) count = count * axis.extent;
  }
  std::vector<OnlinePair> pairs;
  for (const NodeId second : phase.reductions()) {
    if (phase.phase(second) == 0) continue;
    if (graph.node(second).op->combine != op::Combine::Add || !is_float(graph.type(graph.node(second).outputs[0]).dtype)) return {};
    std::optional<OnlinePair> found;
    for (const NodeId first : phase.reductions()) {
      if (phase.phase(first) != 0 || found) continue;
      const ValueId result = graph.node(first).outputs[0], value = phase.operand(first), operand = phase.operand(second);
      if (graph.type(value).dtype != graph.type(result).dtype || graph.type(result).dtype != graph.type(graph.node(second).outputs[0]).dtype) continue;
      if (graph.node(first).op->combine == op::Combine::Max) {
        const Node* exponential = made_by(graph, phase, operand, "exp");
        const Node* difference = exponential == nullptr ? nullptr : made_by(graph, phase, exponential->inputs[0], "sub");
        if (difference != nullptr && difference->inputs[0] == value && difference->inputs[1] == result) found = OnlinePair{OnlinePair::Kind::Exponentials, first, second, value, {}};
      }
      if (graph.node(first).op->combine == op::Combine::Add) {
        const Node* square = made_by(graph, phase, operand, "mul");
        if (square == nullptr || square->inputs[0] != square->inputs[1]) continue;
        const Node* difference = made_by(graph, phase, square->inputs[0], "sub");
        const Node* mean = difference == nullptr ? nullptr : made_by(graph, phase, difference->inputs[1], "div");
        if (mean != nullptr && difference->inputs[0] == value && mean->inputs[0] == result && is_count(graph, mean->inputs[1], count)) {
          found = OnlinePair{OnlinePair::Kind::Deviations, first, second, value, difference->inputs[1]};
        }
      }
    }
    if (!found || std::any_of(pairs.begin(), pairs.end(), [&](const OnlinePair& pair) { return pair.first == found->first; })) return {};
    pairs.push_back(*found);
  }
  return pairs;
}

}  // namespace fuseloom::schedule
