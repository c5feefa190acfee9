// Pairs of reductions of which the second needs the first, and that one pass over the data computes all the same.
//
//   exponentials   m = max x,  s = sum exp(x - m)              running maximum; the sum is rescaled when it grows
//   deviations     a = sum x,  s = sum (x - a/n)^2             count, mean and squares about it, merged as Chan et al. do
//
// Each part of the data (a thread's, a block's) has a state of its own, and states combine to the state of the whole.
#pragma once
#include <vector>

#include "schedule/phase_plan.h"

namespace fuseloom::schedule {

struct OnlinePair {
  enum class Kind : uint8_t { Exponentials, Deviations };
  Kind kind = Kind::Exponentials;
  NodeId first, second;
  ValueId value;                       // x
  ValueId mean;                        // Deviations: a/n
};

// When each reduction of the group is ready in one pass over the folded axes: the pairs among them. Empty otherwise, and
// when there is but one phase.
std::vector<OnlinePair> online_pairs(const graph::Graph& graph, const Group& group, const PhasePlan& phase);

}  // namespace fuseloom::schedule
