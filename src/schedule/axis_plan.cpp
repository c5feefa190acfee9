#include "schedule/axis_plan.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "schedule/read.h"

namespace fuseloom::schedule {

using graph::Graph;
using sym::Expr;

std::vector<MemoryAccess> accesses_of(const Graph& graph, const Group& group) {
  std::set<ValueId> computed;
  for (const NodeId id : group.nodes) computed.insert(graph.node(id).outputs.begin(), graph.node(id).outputs.end());
  std::vector<MemoryAccess> accesses;
  for (const auto& [value, uses] : group.uses) {
    const bool stored = std::find(group.outputs.begin(), group.outputs.end(), value) != group.outputs.end();
    if (computed.count(value) != 0 && !stored) continue;
    for (const Use& use : uses) {
      if (use.index.size() != graph.type(value).shape.size()) continue;   // whole-value reads have no position
      accesses.push_back({value, linear_index(graph.type(value).shape, use.index), use.guards, stored});
    }
  }
  return accesses;
}

namespace {

// The change of `expr` when `axis` grows by one.
Expr difference(const Expr& expr, const std::string& axis) {
  return sym::substitute(expr, {{axis, Expr::symbol(axis) + 1}}) - expr;
}

bool mentions_any(const Expr& expr, const std::set<std::string>& names) {
  for (const std::string& symbol : sym::symbols_of(expr)) {
    if (names.count(symbol) != 0) return true;
  }
  return false;
}

}  // namespace

AxisPlan::AxisPlan(const Graph& graph, const Group& group, const std::vector<MemoryAccess>& accesses, Merge merging)
    : AxisPlan(graph, group, accesses, merging, graph.facts()) {}

AxisPlan::AxisPlan(const Graph& graph, const Group& group, const std::vector<MemoryAccess>& accesses, Merge merging, sym::Facts sizes)
    : sizes_(std::move(sizes)) {
  facts_ = sizes_;
  std::set<std::string> names;
  for (const Axis& axis : group.axes) {
    names.insert(axis.name);
    extents_[axis.name] = axis.extent;
    facts_.upper_exclusive[axis.name] = axis.extent;
    facts_.symbols[axis.name] = sym::Facts::size();
  }
  for (const auto& [node, axes] : group.local_axes) {
    for (const Axis& axis : axes) {
      facts_.upper_exclusive[axis.name] = axis.extent;
      facts_.symbols[axis.name] = sym::Facts::size();
    }
  }
  // Axes that an expression uses in a way a merged axis could not express stay alone.
  std::set<std::string> alone;
  std::vector<std::map<std::string, Expr>> strides;
  for (const MemoryAccess& access : accesses) {
    std::map<std::string, Expr> stride;
    for (const Axis& axis : group.axes) {
      const Expr step = difference(access.address, axis.name);
      if (mentions_any(step, names)) {
        alone.insert(axis.name);
      } else {
        stride[axis.name] = step;
      }
    }
    strides.push_back(std::move(stride));
    for (const Expr& guard : access.guards) {
      for (const std::string& symbol : sym::symbols_of(guard)) {
        if (names.count(symbol) != 0) alone.insert(symbol);
      }
    }
  }
  for (const auto& [value, uses] : group.uses) {
    const graph::Node* producer = graph.producer(value);
    const bool index_matters = producer != nullptr && producer->op->name == "iota";
    for (const Use& use : uses) {
      for (const Expr& guard : use.guards) {
        for (const std::string& symbol : sym::symbols_of(guard)) {
          if (names.count(symbol) != 0) alone.insert(symbol);
        }
      }
      if (!index_matters) continue;
      for (const Expr& index : use.index) {
        for (const std::string& symbol : sym::symbols_of(index)) {
          if (names.count(symbol) != 0) alone.insert(symbol);
        }
      }
    }
  }
  for (const Axis& axis : group.axes) {
    bool merge = merging == Merge::On && !axes_.empty() && alone.count(axis.name) == 0 && axes_.back().reduced == axis.reduced &&
                 alone.count(axes_.back().members.back()) == 0;
    for (size_t i = 0; merge && i < accesses.size(); ++i) {
      const Expr& outer = strides[i].at(axes_.back().members.back());
      const Expr& inner = strides[i].at(axis.name);
      merge = sym::prove_equal(outer, inner * axis.extent, sizes_) == sym::Proof::Yes;
    }
    if (merge) {
      axes_.back().members.push_back(axis.name);
      axes_.back().extent = axes_.back().extent * axis.extent;
    } else {
      axes_.push_back(LoopAxis{.name = "", .extent = axis.extent, .reduced = axis.reduced, .members = {axis.name}});
    }
  }
  for (LoopAxis& axis : axes_) {
    axis.name = axis.members.size() == 1 ? axis.members[0] : "m" + axis.members[0].substr(1);
    facts_.upper_exclusive[axis.name] = axis.extent;
    facts_.symbols[axis.name] = sym::Facts::size();
  }
}

Expr AxisPlan::rewrite(const Expr& expr) const {
  const auto known = rewritten_.find(expr);
  if (known != rewritten_.end()) return known->second;
  Expr out = expr;
  for (const LoopAxis& axis : axes_) {
    if (axis.members.size() == 1) continue;
    const Expr merged = Expr::symbol(axis.name);
    // Affine over the members in the merged proportion: the innermost stride times the merged axis.
    const Expr step = difference(out, axis.members.back());
    sym::Substitution zero;
    for (const std::string& member : axis.members) zero[member] = 0;
    const std::set<std::string> members(axis.members.begin(), axis.members.end());
    Expr linear = 0;
    for (const std::string& member : axis.members) linear = linear * extents_.at(member) + Expr::symbol(member);
    const Expr rest = sym::substitute(out, zero);
    if (!mentions_any(step, members) && sym::prove_equal(rest + step * linear, out, facts_) == sym::Proof::Yes) {
      out = rest + step * merged;
      continue;
    }
    // Otherwise take the merged axis apart.
    sym::Substitution apart;
    Expr remaining = merged;
    for (size_t i = axis.members.size(); i-- > 0;) {
      const Expr& extent = extents_.at(axis.members[i]);
      apart[axis.members[i]] = i == 0 ? remaining : sym::mod(remaining, extent);
      remaining = sym::floor_div(remaining, extent);
    }
    out = sym::substitute(out, apart);
  }
  out = sym::simplify(out, facts_);
  rewritten_.emplace(expr, out);
  return out;
}

std::optional<Expr> AxisPlan::stride(const Expr& address, const LoopAxis& axis) const {
  const Expr step = sym::simplify(difference(rewrite(address), axis.name), facts_);
  std::set<std::string> names;
  for (const LoopAxis& any : axes_) names.insert(any.name);
  if (mentions_any(step, names)) return std::nullopt;
  return step;
}

}  // namespace fuseloom::schedule
