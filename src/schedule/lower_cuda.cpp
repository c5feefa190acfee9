#include "schedule/lower_cuda.h"

#include <algorithm>

#include "base/check.h"
#include "schedule/cuda_variant.h"

namespace fuseloom::schedule {

using sym::Expr;

namespace {

// How much of what a group moves lies next to each other along a loop axis.
double contiguous(const CudaGroup& of, const AxisPlan& plan, const LoopAxis& axis) {
  double moved = 0;
  for (const MemoryAccess& access : of.accesses) {
    const std::optional<Expr> stride = plan.stride(access.address, axis);
    if (!stride || !stride->is_const(1)) continue;
    const op::TensorType& type = of.graph.type(access.value);
    moved += static_cast<double>(std::max<int64_t>(1, hinted(op::count_of(type.shape), of.hint))) * static_cast<double>(std::max<int64_t>(1, dtype_bytes(type.dtype)));
  }
  return moved;
}

// Another axis along which a large operand is contiguous while it strides along the last one.
std::optional<std::string> transposed_axis(const CudaGroup& of, const AxisPlan& plan) {
  if (plan.axes().size() < 2) return std::nullopt;
  const LoopAxis& last = plan.axes().back();
  for (const MemoryAccess& access : of.accesses) {
    if (access.store || !access.guards.empty() || of.group.uses.at(access.value).size() != 1) continue;
    const std::optional<Expr> along = plan.stride(access.address, last);
    if (!along || along->is_const(0) || along->is_const(1)) continue;
    for (const LoopAxis& axis : plan.axes()) {
      if (&axis == &last) continue;
      const std::optional<Expr> stride = plan.stride(access.address, axis);
      if (stride && stride->is_const(1) && of.typical(axis.extent, 64) >= 8 && of.typical(last.extent, 64) >= 8) return axis.name;
    }
  }
  return std::nullopt;
}

// The first kernel moves the group's bytes; those after it read and write little.
LoweredGroup with_bytes(LoweredGroup lowered, const Expr& bytes) {
  for (size_t i = 0; i < lowered.kernels.size(); ++i) {
    lowered.kernels[i].bytes = i == 0 ? bytes : Expr(0);
    lowered.kernels[i].work = sym::floor_div(bytes, 10);
  }
  return lowered;
}

}  // namespace

LoweredGroup lower_cuda(const graph::Graph& graph, const Group& group, const CudaTarget& target, const SizeHint& hint) {
  const CudaGroup of(graph, group, target, hint);
  const auto lower = [&]() -> LoweredGroup {
    if (group.kind == GroupKind::Contraction) return lower_cuda_contraction(of);
    if (group.kind == GroupKind::Scan) return lower_cuda_scan(of);
    const AxisPlan plan(graph, group, of.accesses);
    const LoopAxis *kept = nullptr, *folded = nullptr;
    for (const LoopAxis& axis : plan.axes()) {
      const LoopAxis*& best = axis.reduced ? folded : kept;
      if (best == nullptr || contiguous(of, plan, axis) >= contiguous(of, plan, *best)) best = &axis;
    }
    if (folded == nullptr && std::none_of(group.axes.begin(), group.axes.end(), [](const Axis& axis) { return axis.reduced; }) && PhasePlan(graph, group).phases() == 0) {
      if (const std::optional<std::string> across = transposed_axis(of, plan)) return lower_cuda_transpose(of, *across);
      return lower_cuda_pointwise(of);
    }
    if (folded != nullptr && kept != nullptr && contiguous(of, plan, *kept) > contiguous(of, plan, *folded)) return lower_cuda_columns(of);
    return lower_cuda_rows(of);
  };
  return with_bytes(lower(), moved_bytes(graph, group));
}

LoweredGroup lower_pair(const graph::Graph& graph, const RowColumnPair& pair, const CudaTarget& target, const SizeHint& hint) {
  Group stored = pair.merged;
  stored.outputs.insert(stored.outputs.end(), pair.columns.outputs.begin(), pair.columns.outputs.end());
  return with_bytes(lower_cuda_pair(CudaGroup(graph, pair.rows, target, hint), pair), moved_bytes(graph, stored));
}

}  // namespace fuseloom::schedule
