// Groups on CUDA. The schedules and their choices: docs/schedules-cuda.md.
#pragma once
#include "schedule/lower.h"
#include "schedule/row_column_pair.h"

namespace fuseloom::schedule {

LoweredGroup lower_cuda(const graph::Graph& graph, const Group& group, const CudaTarget& target, const SizeHint& hint);
LoweredGroup lower_pair(const graph::Graph& graph, const RowColumnPair& pair, const CudaTarget& target, const SizeHint& hint);

}  // namespace fuseloom::schedule
