#include "schedule/lower.h"

#include <set>

#include "base/check.h"
#include "schedule/lower_contraction.h"
#include "schedule/lower_cuda.h"
#include "schedule/lower_loops.h"
#include "schedule/lower_scan.h"
#include "schedule/lower_window.h"
#include "sym/evaluator.h"

namespace fuseloom::schedule {

using sym::Expr;

int64_t hinted(const Expr& expr, const SizeHint& hint) {
  std::map<std::string, int64_t> values;
  for (const std::string& symbol : sym::symbols_of(expr)) {
    const auto found = hint.find(symbol);
    values[symbol] = found == hint.end() ? 64 : found->second;
  }
  return sym::evaluate(expr, values);
}

std::string Choice::text() const {
  std::string out = schedule;
  if (!vector_axis.empty()) out += fmt::format(", {} lanes of {}", width, vector_axis);
  if (unroll > 1) out += fmt::format(" x {}", unroll);
  return out;
}

Expr moved_bytes(const graph::Graph& graph, const Group& group) {
  std::set<ValueId> moved(group.inputs.begin(), group.inputs.end());
  moved.insert(group.outputs.begin(), group.outputs.end());
  Expr bytes = 0;
  for (const ValueId value : moved) bytes = bytes + op::count_of(graph.type(value).shape) * dtype_bytes(graph.type(value).dtype);
  return bytes;
}

LoweredGroup lower_group(const graph::Graph& graph, const Group& group, const CpuTarget& target, const SizeHint& hint) {
  if (const std::optional<NodeId> window = direct_window(graph, group)) return lower_window(graph, group, *window, target);
  switch (group.kind) {
    case GroupKind::Loops: return lower_loops(graph, group, target, hint);
    case GroupKind::Contraction: return lower_contraction(graph, group, target, hint);
    case GroupKind::Scan: return lower_scan(graph, group, target, hint);
    case GroupKind::Call:
    case GroupKind::Alias:
    case GroupKind::Control: break;
  }
  throw InternalError("a group without kernels was asked for its kernels");
}

LoweredGroup lower_group(const graph::Graph& graph, const Group& group, const CudaTarget& target, const SizeHint& hint) {
  return lower_cuda(graph, group, target, hint);
}

}  // namespace fuseloom::schedule
