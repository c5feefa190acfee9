#include "schedule/lower_direct_convolution.h"

#include <algorithm>

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

LoweredGroup lower_direct_convolution(const Graph& graph, const Group& group, const CpuTarget& target) {
  const AxisPlan plan(graph, group, accesses_of(graph, group), AxisPlan::Merge::Off);
  LoopBuilder build(graph, group, plan);
  const Node& node = graph.node(group.contraction);
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
  for (const Axis& axis : group.local_axes.at(group.contraction)) kernel_positions = kernel_positions * axis.extent;
  const bool few = kernel_positions.is_const() && *kernel_positions.as_const() <= kFewPositions;
  build.open("column_", 0, has_rows ? columns : count, Binding::Vector, lanes, few ? 2 : 1);
  if (at[rank - 1].is_symbol()) build.define(at[rank - 1].name(), (has_rows ? Expr(0) : low) + Expr::symbol("column_"));
  ScalarId sum = build.reserve(dtype);
  build.open_reduce({kernel::Accumulator{.result = sum, .combine = op::Combine::Add}});
  const std::vector<Expr> folded = build.open_local_axes(group.contraction);
  const ScalarId x = build.element_of(buffer, window.position(folded) + offset);
  const ScalarId w = build.value_at(node.inputs[1], weight_read(graph, node, at, folded));
  build.accumulate(sum, build.apply("mul", dtype, {x, w}));
  build.close_local_axes(group.contraction);
  build.close();
  if (node.inputs.size() > 2 && node.inputs[2].valid()) sum = build.apply("add", dtype, {sum, build.value_at(node.inputs[2], {at[1]})});
  build.set_result(group.contraction, build.round_to(type.dtype, sum));
  build.store(group.outputs);
  build.close();
  if (has_rows) build.close();
  if (core) build.close();

  LoweredGroup lowered;
  LoweredKernel kernel = build.finish("convolution");
  kernel.bytes = moved_bytes(graph, group);
  Expr count_of_products = kernel_positions;
  for (const Axis& axis : group.axes) count_of_products = count_of_products * axis.extent;
  kernel.work = sym::floor_div(count_of_products, 10) + sym::floor_div(kernel.bytes, 10);
  lowered.choice = Choice{.schedule = "direct convolution", .vector_axis = at[rank - 1].is_symbol() ? at[rank - 1].name() : "", .width = lanes, .unroll = few ? 2 : 1};
  lowered.kernels.push_back(std::move(kernel));
  return lowered;
}

}  // namespace fuseloom::schedule
