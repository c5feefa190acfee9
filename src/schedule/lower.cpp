#include "schedule/lower.h"

#include "base/check.h"
#include "schedule/lower_contraction.h"
#include "schedule/lower_direct_convolution.h"
#include "schedule/lower_loops.h"
#include "schedule/lower_scan.h"
#include "schedule/read.h"

namespace fuseloom::schedule {

LoweredGroup lower_group(const graph::Graph& graph, const Group& group, const CpuTarget& target, const SizeHint& hint) {
  switch (group.kind) {
    case GroupKind::Loops: return lower_loops(graph, group, target, hint);
    case GroupKind::Contraction:
      if (is_direct_convolution(graph, graph.node(group.contraction))) return lower_direct_convolution(graph, group, target);
      return lower_contraction(graph, group, target, hint);
    case GroupKind::Scan: return lower_scan(graph, group, target, hint);
    case GroupKind::Call:
    case GroupKind::Alias:
    case GroupKind::Control: break;
  }
  throw InternalError("a group without kernels was asked for its kernels");
}

}  // namespace fuseloom::schedule
