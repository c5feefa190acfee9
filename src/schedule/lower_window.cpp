#include "schedule/lower_window.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "schedule/loop_builder.h"
#include "schedule/window_copy.h"

namespace fuseloom::schedule {

using graph::Graph;
using graph::Node;
using kernel::Binding;
using sym::Expr;

namespace {

constexpr int64_t kBlock = 8192;                  // elements of the result in a Core iteration: its input lies in L1 and L2
constexpr int64_t kFewPositions = 12;             // kernel positions whose sums of two vectors fit the registers

}  // namespace

std::optional<NodeId> direct_window(const Graph& graph, const Group& group) {
  if (group.kind == GroupKind::Contraction) {
    if (is_direct_convolution(graph, graph.node(group.contraction))) return group.contraction;
    return std::nullopt;
  }
  // A pool in loops of its own: its result's positions are the axes.
  if (group.kind != GroupKind::Loops || group.local_axes.size() != 1) return std::nullopt;
  const NodeId window = group.local_axes.begin()->first;
  if (loop_role(graph, window) != LoopRole::Window) return std::nullopt;
  const std::vector<Use>& uses = group.uses.at(graph.node(window).outputs[0]);
  if (uses.size() != 1 || !uses[0].guards.empty()) return std::nullopt;
  std::set<std::string> seen;
  for (const Expr& at : uses[0].index) {
    if (!at.is_const(0) && !(at.is_symbol() && seen.insert(at.name()).second)) return std::nullopt;
  }
  for (const Axis& axis : group.axes) {
    if (axis.reduced || seen.count(axis.name) == 0) return std::nullopt;
  }
  return window;
}

LoweredGroup lower_window(const Graph& graph, const Group& group, NodeId window_id, const CpuTarget& target) {
  const AxisPlan plan(graph, group, accesses_of(graph, group), AxisPlan::Merge::Off);
  LoopBuilder build(graph, group, plan);
  const Node& node = graph.node(window_id);
  const bool pool = node.op->name != "conv", maximum = node.op->name == "max_pool";
  const ValueId value = node.outputs[0];
  const op::TensorType& type = graph.type(value);
  const DType dtype = compute_dtype(type.dtype);
  const Index& at = group.uses.at(value)[0].index;
  const size_t rank = at.size(), spatial = rank - 2;
  const bool has_rows = spatial >= 2;
  const Expr columns = type.shape[rank - 1], rows = has_rows ? type.shape[rank - 2] : Expr(1);

  // Blocks: whole rows of a plane, or a part of the only row.
  const Expr pitch = columns + WindowCopy::reach(graph, node, spatial - 1);
  const Expr step = has_rows ? sym::min(rows, sym::max(1, sym::floor_div(kBlock, pitch))) : Expr(kBlock);
  const WindowCopy window(graph, node, has_rows ? step : Expr(1), has_rows ? columns : sym::min(columns, kBlock));
  std::vector<LoopBuilder::Digit> digits;
  for (const LoopAxis& axis : plan.axes()) {
    const bool column = at[rank - 1].is_symbol() && axis.name == at[rank - 1].name();
    const bool row = has_rows && at[rank - 2].is_symbol() && axis.name == at[rank - 2].name();
    if (!column && !row) digits.push_back({axis.name, axis.extent});
  }
  digits.push_back({"block_", sym::simplify(sym::ceil_div(has_rows ? rows : columns, step), plan.facts())});
  std::vector<Expr> positions;
  const bool core = build.open_core(digits, &positions);
  const Expr low = build.name("low_", positions.back() * step);
  const Expr count = build.name("count_", sym::min(step, (has_rows ? rows : columns) - low));

  const int32_t lanes = std::max<int32_t>(2, target.vector_bytes / static_cast<int32_t>(dtype_bytes(dtype)));
  const kernel::BufferId buffer = build.local("window", dtype, window.elements());
  Index first = at;
  first[rank - 1] = has_rows ? Expr(0) : low;
  if (has_rows) first[rank - 2] = low;
  window.fill(build, buffer, first, has_rows ? count : Expr(1), has_rows ? columns : count, lanes);

  Expr offset = Expr::symbol("column_");
  if (has_rows) {
    build.open("row_", 0, count, Binding::Serial);
    if (at[rank - 2].is_symbol()) build.define(at[rank - 2].name(), low + Expr::symbol("row_"));
    offset = offset + Expr::symbol("row_") * window.pitch();
  }
  Expr kernel_positions = 1;
  for (const Axis& axis : group.local_axes.at(window_id)) kernel_positions = kernel_positions * axis.extent;
  const bool few = kernel_positions.is_const() && *kernel_positions.as_const() <= kFewPositions;
  build.open("column_", 0, has_rows ? columns : count, Binding::Vector, lanes, few ? 2 : 1);
  if (at[rank - 1].is_symbol()) build.define(at[rank - 1].name(), (has_rows ? Expr(0) : low) + Expr::symbol("column_"));
  ScalarId sum = build.reserve(dtype);
  build.open_reduce({kernel::Accumulator{.result = sum, .combine = maximum ? op::Combine::Max : op::Combine::Add}});
  const std::vector<Expr> folded = build.open_local_axes(window_id);
  const ScalarId x = build.element_of(buffer, window.position(folded) + offset);
  build.accumulate(sum, pool ? x : build.apply("mul", dtype, {x, build.value_at(node.inputs[1], weight_read(graph, node, at, folded))}));
  build.close_local_axes(window_id);
  build.close();
  if (pool) {
    sum = build.pooled(node, at, sum);
  } else {
    if (node.inputs.size() > 2 && node.inputs[2].valid()) sum = build.apply("add", dtype, {sum, build.value_at(node.inputs[2], {at[1]})});
    sum = build.round_to(type.dtype, sum);
  }
  build.set_result(window_id, sum);
  build.store(group.outputs);
  build.close();
  if (has_rows) build.close();
  if (core) build.close();

  LoweredGroup lowered;
  LoweredKernel kernel = build.finish(pool ? "pool" : "convolution");
  kernel.bytes = moved_bytes(graph, group);
  Expr count_of_products = kernel_positions;
  for (const Axis& axis : group.axes) count_of_products = count_of_products * axis.extent;
  kernel.work = sym::floor_div(count_of_products, 10) + sym::floor_div(kernel.bytes, 10);
  lowered.choice = Choice{.schedule = pool ? "pool" : "direct convolution", .vector_axis = at[rank - 1].is_symbol() ? at[rank - 1].name() : "", .width = lanes, .unroll = few ? 2 : 1};
  lowered.kernels.push_back(std::move(kernel));
  return lowered;
}

}  // namespace fuseloom::schedule
