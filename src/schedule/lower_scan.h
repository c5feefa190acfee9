// Prefix scans on the CPU: a Core iteration per line, serial along it, with the input fused.
#pragma once
#include "schedule/lower.h"

namespace fuseloom::schedule {
LoweredGroup lower_scan(const graph::Graph& graph, const Group& group, const CpuTarget& target, const SizeHint& hint);
}
