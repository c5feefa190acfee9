// Prefix scans on CUDA: a thread per line.
#include <algorithm>

#include "base/check.h"
#include "schedule/cuda_variant.h"
#include "schedule/read.h"

namespace fuseloom::schedule {

using graph::Node;
using kernel::Binding;
using sym::Expr;

namespace {

constexpr int64_t kThreads = 128;

LoweredKernel make_scan(const CudaGroup& of, const sym::Facts& facts) {
  const AxisPlan plan(of.graph, of.group, of.accesses, AxisPlan::Merge::Off, facts);   // the scanned axis must stay alone
  LoopBuilder build(of.graph, of.group, plan);
  declare_arguments(of, build);
  const auto found = std::find_if(of.group.nodes.begin(), of.group.nodes.end(), [&](NodeId id) { return loop_role(of.graph, id) == LoopRole::Scan; });
  FL_CHECK(found != of.group.nodes.end(), "a scan group without a scan");
  const Node& scan = of.graph.node(*found);
  const ValueId value = scan.outputs[0];
  const Index position = of.group.uses.at(value)[0].index;
  const op::TensorType& type = of.graph.type(value);
  const std::vector<int64_t> folded = folded_axes(of.graph, scan);
  const size_t axis = folded.empty() ? 0 : static_cast<size_t>(folded[0]);
  const bool scanned = !folded.empty() && position[axis].is_symbol();
  const bool exclusive = scan.attrs.integer("exclusive", 0) != 0, reverse = scan.attrs.integer("reverse", 0) != 0;
  const std::string along = scanned ? position[axis].name() : "";
  std::vector<const LoopAxis*> outer;
  for (const LoopAxis& each : plan.axes()) {
    if (each.name != along) outer.push_back(&each);
  }
  const Expr extent = extent_of(outer);
  const Expr lines = extent.is_const() || extent.is_symbol() ? extent : build.size("lines_", extent, {.low = 0, .high = kSmallSize});
  build.open("b_", 0, sym::ceil_div(lines, kThreads), Binding::GridX);
  build.set_floor();
  build.open("t_", 0, kThreads, Binding::ThreadX);
  build.assume("line_", sym::Facts::size());
  const Expr line = build.define("line_", Expr::symbol("b_") * kThreads + Expr::symbol("t_"));
  define_digits(build, outer, line);
  build.set_guards({sym::lt(line, lines)});
  const DType compute = compute_dtype(type.dtype);
  if (scanned) {
    const ScalarId running = build.reserve(compute);
    build.open_reduce({kernel::Accumulator{.result = running, .combine = scan.op->combine}});
    build.open("step_", 0, type.shape[axis], Binding::Serial);
    build.define(along, reverse ? type.shape[axis] - 1 - Expr::symbol("step_") : Expr::symbol("step_"));
    const ScalarId element = build.value_at(scan.inputs[0], position);
    if (!exclusive) build.accumulate(running, element);
    build.set_result(*found, build.round_to(type.dtype, build.let(compute, kernel::Current{running})));
    build.store(of.group.outputs);
    if (exclusive) build.accumulate(running, element);
    build.close();
    build.close();
  } else {
    // A line of one element (or no line at all): it is its own prefix.
    build.set_result(*found, exclusive ? build.identity_of(scan.op->combine, compute) : build.value_at(scan.inputs[0], position));
    build.store(of.group.outputs);
  }
  build.set_guards({});
  build.close();
  build.close();
  return build.finish("scan");
}

}  // namespace

LoweredGroup lower_cuda_scan(const CudaGroup& of) {
  LoweredGroup lowered;
  VariantList variants;
  variants.add(1, make_scan(of, of.graph.facts()), fmt::format("a line per thread, {} threads", kThreads));
  lowered.choice = Choice{.schedule = "scan", .vector_axis = "", .width = 1, .unroll = 1};
  lowered.kernels.push_back(variants.take("scan"));
  return lowered;
}

}  // namespace fuseloom::schedule
