#include "schedule/lower_scan.h"

#include <algorithm>

#include "base/check.h"
#include "schedule/loop_builder.h"

namespace fuseloom::schedule {

using graph::Graph;
using graph::Node;
using kernel::Binding;
using sym::Expr;

LoweredGroup lower_scan(const Graph& graph, const Group& group, const CpuTarget& target, const SizeHint&) {
  const std::vector<MemoryAccess> accesses = accesses_of(graph, group);
  // Axes stay as they are: the scanned one must stay alone.
  const AxisPlan plan(graph, group, accesses, AxisPlan::Merge::Off);
  LoopBuilder build(graph, group, plan);
  const Node* scan = nullptr;
  NodeId scan_id;
  for (const NodeId id : group.nodes) {
    if (loop_role(graph, id) == LoopRole::Scan) {
      scan = &graph.node(id);
      scan_id = id;
    }
  }
  FL_CHECK(scan != nullptr, "a scan group without a scan");
  const ValueId value = scan->outputs[0];
  const Index position = group.uses.at(value)[0].index;
  const op::TensorType& type = graph.type(value);
  const std::vector<int64_t> folded = folded_axes(graph, *scan);
  const size_t axis = folded.empty() ? 0 : static_cast<size_t>(folded[0]);
  const bool scanned = !folded.empty() && position[axis].is_symbol();
  const bool exclusive = scan->attrs.integer("exclusive", 0) != 0, reverse = scan->attrs.integer("reverse", 0) != 0;
  const std::string along = scanned ? position[axis].name() : "";

  std::vector<const LoopAxis*> outer;
  const LoopAxis* lanes = nullptr;
  for (const LoopAxis& candidate : plan.axes()) {
    if (candidate.name != along) outer.push_back(&candidate);
  }
  if (!outer.empty() && &plan.axes().back() == outer.back()) {   // the innermost axis is not scanned: its neighbours are lanes
    lanes = outer.back();
    outer.pop_back();
  }
  const int32_t width = std::max<int32_t>(2, target.vector_bytes / static_cast<int32_t>(std::max<int64_t>(4, dtype_bytes(compute_dtype(type.dtype)))));
  std::vector<LoopBuilder::Digit> digits;
  for (const LoopAxis* each : outer) digits.push_back({each->name, each->extent});
  const bool core = build.open_core(digits);
  if (lanes != nullptr) build.open(lanes->name, 0, lanes->extent, Binding::Vector, width, 1);
  const DType compute = compute_dtype(type.dtype);
  if (scanned) {
    const Expr extent = type.shape[axis];
    const ScalarId running = build.reserve(compute);
    build.open_reduce({kernel::Accumulator{.result = running, .combine = scan->op->combine}});
    build.open("step_", 0, extent, Binding::Serial);
    build.define(along, reverse ? extent - 1 - Expr::symbol("step_") : Expr::symbol("step_"));
    const ScalarId element = build.value_at(scan->inputs[0], position);
    if (!exclusive) build.accumulate(running, element);
    const ScalarId current = build.let(compute, kernel::Current{running});
    build.set_result(scan_id, build.round_to(type.dtype, current));
    build.store(group.outputs);
    if (exclusive) build.accumulate(running, element);
    build.close();
    build.close();
  } else {
    // A line of one element (or no line at all): it is its own prefix.
    build.set_result(scan_id, exclusive ? build.identity_of(scan->op->combine, compute) : build.value_at(scan->inputs[0], position));
    build.store(group.outputs);
  }
  if (lanes != nullptr) build.close();
  if (core) build.close();

  LoweredGroup lowered;
  LoweredKernel kernel = build.finish("scan");
  kernel.bytes = op::count_of(type.shape) * dtype_bytes(type.dtype) * 2;
  kernel.work = op::count_of(type.shape) * 2;
  lowered.choice = Choice{.schedule = "scan", .vector_axis = lanes == nullptr ? "" : lanes->name, .width = width};
  lowered.kernels.push_back(std::move(kernel));
  return lowered;
}

}  // namespace fuseloom::schedule
