#include "schedule/phase_plan.h"

#include <algorithm>

#include "schedule/read.h"

namespace fuseloom::schedule {

using graph::Graph;
using graph::Node;
using sym::Expr;

namespace {

constexpr int kStoreCost = 8;   // a value at least this dear is kept for later loops instead of recomputed

}  // namespace

PhasePlan::PhasePlan(const Graph& graph, const Group& group) : graph_(graph), group_(group) {
  std::set<std::string> folded;
  for (const Axis& axis : group.axes) {
    if (axis.reduced) folded.insert(axis.name);
  }
  for (const auto& [value, uses] : group.uses) {
    for (const Use& use : uses) {
      for (const Expr& at : use.index) {
        for (const std::string& symbol : sym::symbols_of(at)) {
          if (folded.count(symbol) != 0) wide_.insert(value);
        }
      }
    }
  }
  for (const NodeId id : group.nodes) {
    const Node& node = graph.node(id);
    const ValueId value = node.outputs[0];
    int ready = 0, cost = node.op->cost;
    for (const ValueId input : node.inputs) {
      if (!input.valid()) continue;
      const auto known = ready_.find(input);
      if (known != ready_.end()) ready = std::max(ready, known->second);
      if (wide(input) && cost_.count(input) != 0) cost += cost_[input];
    }
    if (loop_role(graph, id) == LoopRole::Reduction) {
      phase_[id] = ready;
      reductions_.push_back(id);
      ready_[value] = ready + 1;
      phases_ = std::max(phases_, ready + 1);
      cost_[value] = 0;
    } else {
      ready_[value] = ready;
      cost_[value] = std::min(cost, 1 << 20);
    }
    computed_.insert(value);
  }
  choose_repeated();
}

bool PhasePlan::has_wide_outputs() const {
  return std::any_of(group_.outputs.begin(), group_.outputs.end(), [&](ValueId value) { return wide(value); });
}

std::vector<ValueId> PhasePlan::roots_of(int loop) const {
  std::vector<ValueId> roots;
  for (const NodeId id : reductions_) {
    if (phase_.at(id) == loop) roots.push_back(operand(id));
  }
  for (const ValueId value : group_.outputs) {
    if (wide(value) && stored_in(value) == loop) roots.push_back(value);
  }
  return roots;
}

bool PhasePlan::at_own_axes(ValueId value) const {
  std::set<std::string> symbols;
  for (const Expr& at : position(value)) sym::collect_symbols(at, symbols);
  for (const auto& [node, axes] : group_.local_axes) {
    if (std::any_of(axes.begin(), axes.end(), [&](const Axis& axis) { return symbols.count(axis.name) != 0; })) return false;
  }
  return true;
}

void PhasePlan::visit(ValueId value, std::set<ValueId>& seen, const std::function<bool(ValueId)>& stop) const {
  if (!computed(value) || !wide(value) || !seen.insert(value).second || stop(value)) return;
  for (const ValueId input : graph_.producer(value)->inputs) {
    if (input.valid()) visit(input, seen, stop);
  }
}

void PhasePlan::choose_repeated() {
  std::map<ValueId, int> first;
  for (int loop = 0; loop <= phases_; ++loop) {
    std::set<ValueId> seen;
    for (const ValueId root : roots_of(loop)) {
      visit(root, seen, [&](ValueId value) {
        const auto earlier = first.find(value);
        if (earlier == first.end()) return false;
        const bool stored = std::find(group_.outputs.begin(), group_.outputs.end(), value) != group_.outputs.end();
        const bool dear = cost_.at(value) >= kStoreCost && group_.uses.at(value).size() == 1 && at_own_axes(value);
        if (!stored && dear) repeated_[value] = earlier->second;
        return stored || dear;
      });
    }
    for (const ValueId value : seen) first.emplace(value, loop);
  }
}

Index PhasePlan::operand_position(NodeId reduction) const {
  const Node& node = graph_.node(reduction);
  std::vector<Expr> folded;
  std::vector<std::string> names;
  for (const Axis& axis : group_.axes) {
    if (axis.reduced) names.push_back(axis.name);
  }
  size_t next = 0;
  for (const int64_t axis : folded_axes(graph_, node)) {
    const bool one = graph_.type(node.inputs[0]).shape[static_cast<size_t>(axis)].is_const(1);
    folded.push_back(one ? Expr(0) : Expr::symbol(names[next++]));
  }
  return unfold_index(graph_, node, position(node.outputs[0]), folded);
}

Expr PhasePlan::folded_index(NodeId reduction) const {
  const std::vector<int64_t> axes = folded_axes(graph_, graph_.node(reduction));
  return axes.empty() ? Expr(0) : operand_position(reduction)[static_cast<size_t>(axes[0])];
}

}  // namespace fuseloom::schedule
