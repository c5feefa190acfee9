// recurrent_steps: a loop over the steps of a recurrent layer, whose body is one product with the state and the cell's
// arithmetic. One kernel: a Core iteration runs all steps of one direction for a few sequences.
#pragma once
#include "schedule/lower.h"

namespace fuseloom::schedule {

bool can_lower_recurrence(const graph::Graph& graph, const Group& group);
LoweredGroup lower_recurrence(const graph::Graph& graph, const Group& group, const CpuTarget& target);

}  // namespace fuseloom::schedule
