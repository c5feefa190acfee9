// Convolutions whose output channels share nothing (depthwise, and a few channels of one input each): a sum over the kernel
// positions for each vector of columns, from a padded copy of the input (window_copy.h).
#pragma once
#include "schedule/lower.h"

namespace fuseloom::schedule {

LoweredGroup lower_direct_convolution(const graph::Graph& graph, const Group& group, const CpuTarget& target);

}  // namespace fuseloom::schedule
