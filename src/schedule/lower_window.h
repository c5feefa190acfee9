// Windows that are folded position by position: convolutions whose output channels share nothing (depthwise, and a few
// channels of one input each) and pools. A vector of columns at a time, from a padded copy of the input (window_copy.h).
#pragma once
#include <optional>

#include "schedule/lower.h"

namespace fuseloom::schedule {

// The window that the group is about, if it is one of these.
std::optional<NodeId> direct_window(const graph::Graph& graph, const Group& group);
LoweredGroup lower_window(const graph::Graph& graph, const Group& group, NodeId window, const CpuTarget& target);

}  // namespace fuseloom::schedule
