// The loops a group runs over its folded axes, one after the other, and what each of them needs.
//
// Reductions of one phase share a loop. A value is `ready` in the first loop in which everything it needs is known:
//
//     m = max_j x[i, j]             phase 0
//     e = exp(x - m)                ready in loop 1
//     s = sum_j e                   phase 1
//     y = e / s                     ready in loop 2, the one that stores it
#pragma once
#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "schedule/group.h"

namespace fuseloom::schedule {

class PhasePlan {
 public:
  PhasePlan(const graph::Graph& graph, const Group& group);

  int phases() const { return phases_; }                                   // loops that reduce
  const std::vector<NodeId>& reductions() const { return reductions_; }    // in execution order
  int phase(NodeId reduction) const { return phase_.at(reduction); }
  bool computed(ValueId value) const { return computed_.count(value) != 0; }
  bool wide(ValueId value) const { return wide_.count(value) != 0; }       // differs along the folded axes
  bool has_wide_outputs() const;
  int ready(ValueId value) const { return ready_.at(value); }              // of a value the group computes
  // The loop that stores a wide output.
  int stored_in(ValueId output) const { return std::min(ready_.at(output), phases_); }
  // The wide values that a loop must have: operands of its reductions and the outputs it stores.
  std::vector<ValueId> roots_of(int loop) const;
  // Collects the wide values behind `value`, not beyond those where `stop` holds.
  void visit(ValueId value, std::set<ValueId>& seen, const std::function<bool(ValueId)>& stop) const;
  // Read at one position per iteration of the group's loops, not at one for every step of a small reduction.
  bool at_own_axes(ValueId value) const;
  // Wide values that a later loop needs again and that cost more than storing them; → the loop that has them first.
  const std::map<ValueId, int>& repeated() const { return repeated_; }

  const Index& position(ValueId value) const { return group_.uses.at(value)[0].index; }
  ValueId operand(NodeId reduction) const { return graph_.node(reduction).inputs[0]; }
  // The operand's position as this reduction reads it (the operand may be read elsewhere too).
  Index operand_position(NodeId reduction) const;
  // The index that argmax and argmin give back.
  sym::Expr folded_index(NodeId reduction) const;

 private:
  void choose_repeated();

  const graph::Graph& graph_;
  const Group& group_;
  std::set<ValueId> wide_, computed_;
  std::map<ValueId, int> ready_, cost_, repeated_;
  std::map<NodeId, int> phase_;
  std::vector<NodeId> reductions_;
  int phases_ = 0;
};

}  // namespace fuseloom::schedule
