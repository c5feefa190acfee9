// Loop nests on the CPU: pointwise, transposes, reductions, normalizations, windows.
#pragma once
#include "schedule/lower.h"

namespace fuseloom::schedule {

// pointwise         chunks of the merged axes on the cores, lanes along the axis where most accesses are contiguous
// transpose         64 x 64 tiles, so that the strided side uses every cache line it touches
// inner reduction   a row per Core iteration, lanes along the row; a normalization runs over the row once per phase and
//                   keeps dear values of the row in scratch
// outer reduction   lanes along the kept axis: in registers when the reduction is short, in L1 when it is long
LoweredGroup lower_loops(const graph::Graph& graph, const Group& group, const CpuTarget& target, const SizeHint& hint);

}  // namespace fuseloom::schedule
