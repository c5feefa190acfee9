// Contractions on the CPU: matrix products and convolutions through packed micro-kernels.
#pragma once
#include "schedule/lower.h"

namespace fuseloom::schedule {

// The result's axes become  batch x m x n:
//   matmul        n: the last axis; m: the one before, with the batch merged into it where the right operand has none
//   convolution   m: output channels (of one group); n: positions in rows of a padded copy of the input (window_copy.h), or
//                 without windows the spatial axes themselves, merged where the addresses allow it
// Constant operands are packed once, when the program is loaded. The epilogue runs on each finished tile.
LoweredGroup lower_contraction(const graph::Graph& graph, const Group& group, const CpuTarget& target, const SizeHint& hint);

}  // namespace fuseloom::schedule
