// Matrix products on CUDA where no library runs them: a block computes a tile of 64 x 64 results, a thread 4 x 4 of them in
// registers. Slices of both operands, 16 deep, pass through shared memory, computed from what the group reads; the epilogue
// follows on the results. Other contractions are summed by a thread per result (lower_cuda_pointwise.cpp).
#include <algorithm>
#include <functional>

#include "base/check.h"
#include "schedule/cuda_variant.h"
#include "schedule/read.h"

namespace fuseloom::schedule {

using graph::Node;
using kernel::Binding;
using kernel::BufferId;
using sym::Expr;

namespace {

constexpr int64_t kTile = 64, kDepth = 16;        // of the result, and of a slice of the operands
constexpr int64_t kThreads = 16, kOwn = kTile / kThreads;   // threads and results of a thread, in each direction
constexpr int64_t kPitch = kTile + 4;             // rows of a slice in shared memory start at other banks

class MatrixProductKernel {
 public:
  MatrixProductKernel(const CudaGroup& of, const sym::Facts& facts)
      : of_(of), plan_(of.graph, of.group, of.accesses, AxisPlan::Merge::Off, facts), build_(of.graph, of.group, plan_), node_(of.graph.node(of.group.contraction)),
        value_(node_.outputs[0]), position_(of.group.uses.at(value_)[0].index), type_(compute_dtype(of.graph.type(value_).dtype)) {}

  LoweredKernel make() {
    declare_arguments(of_, build_);
    const std::string m = position_[position_.size() - 2].name(), n = position_.back().name(), k = of_.group.local_axes.at(of_.group.contraction)[0].name;
    std::vector<const LoopAxis*> batch;
    const LoopAxis *rows = nullptr, *columns = nullptr;
    for (const LoopAxis& axis : plan_.axes()) {
      if (axis.name == m) rows = &axis;
      if (axis.name == n) columns = &axis;
      if (axis.name != m && axis.name != n) batch.push_back(&axis);
    }
    const Expr depth = of_.group.local_axes.at(of_.group.contraction)[0].extent;
    const Expr row_tiles = sym::ceil_div(rows->extent, kTile), column_tiles = sym::ceil_div(columns->extent, kTile);
    build_.open("b_", 0, column_tiles * row_tiles * extent_of(batch), Binding::GridX);
    build_.set_floor();
    const Expr block = Expr::symbol("b_");
    const Expr column_low = build_.define("column_low_", sym::mod(block, column_tiles) * kTile);
    const Expr rest = build_.define("rest_", sym::floor_div(block, column_tiles));
    const Expr row_low = build_.define("row_low_", batch.empty() ? rest * kTile : sym::mod(rest, row_tiles) * kTile);
    if (!batch.empty()) define_digits(build_, batch, sym::floor_div(rest, row_tiles));
    const BufferId left = build_.shared("left", type_, kDepth * kPitch), right = build_.shared("right", type_, kDepth * kPitch);
    const BufferId sums = build_.local("sums", type_, kOwn * kOwn);
    // 1. Nothing summed yet.
    open_threads();
    each_own([&](const Expr&, const Expr&, const Expr& place) {
      build_.append({kernel::Store{.buffer = sums, .index = place, .value = build_.constant(type_, 0)}});
    });
    close_threads();
    // 2. A slice of each operand, then its products.
    build_.open("s_", 0, sym::ceil_div(depth, kDepth), Binding::Serial);
    const Expr low = Expr::symbol("s_") * kDepth;
    load_slice(left, m, row_low, rows->extent, k, low, depth, [&] { return build_.value_at(node_.inputs[0], matmul_lhs_read(of_.graph, node_, position_, Expr::symbol(k))); });
    load_slice(right, n, column_low, columns->extent, k, low, depth, [&] { return build_.value_at(node_.inputs[1], matmul_rhs_read(of_.graph, node_, position_, Expr::symbol(k))); });
    build_.append({kernel::Barrier{}});
    open_threads();
    build_.open("d_", 0, kDepth, Binding::Unroll);
    each_own([&](const Expr& i, const Expr& j, const Expr& place) {
      const Expr row = Expr::symbol("d_") * kPitch;
      const ScalarId a = build_.let(type_, kernel::Load{.buffer = left, .index = row + Expr::symbol("ty_") * kOwn + i});
      const ScalarId b = build_.let(type_, kernel::Load{.buffer = right, .index = row + Expr::symbol("t_") * kOwn + j});
      const ScalarId sum = build_.let(type_, kernel::Load{.buffer = sums, .index = place});
      build_.append({kernel::Store{.buffer = sums, .index = place, .value = build_.apply("add", type_, {sum, build_.apply("mul", type_, {a, b})})}});
    });
    build_.close();
    close_threads();
    build_.append({kernel::Barrier{}});
    build_.close();
    // 3. The results and what follows from them.
    open_threads();
    each_own([&](const Expr& i, const Expr& j, const Expr& place) {
      const Expr row = row_low + Expr::symbol("ty_") * kOwn + i, column = column_low + Expr::symbol("t_") * kOwn + j;
      build_.set_axis(m, row);
      build_.set_axis(n, column);
      build_.set_guards({sym::lt(row, rows->extent), sym::lt(column, columns->extent)});
      const ScalarId sum = build_.let(type_, kernel::Load{.buffer = sums, .index = place});
      build_.set_result(of_.group.contraction, build_.round_to(of_.graph.type(value_).dtype, sum));
      build_.store(of_.group.outputs);
      build_.set_guards({});
    });
    close_threads();
    build_.close();
    return build_.finish("contraction");
  }

 private:
  void open_threads() {
    build_.open("ty_", 0, kThreads, Binding::ThreadY);
    build_.open("t_", 0, kThreads, Binding::ThreadX);
  }
  void close_threads() {
    build_.close();
    build_.close();
  }
  void each_own(const std::function<void(const Expr& i, const Expr& j, const Expr& place)>& body) {
    build_.open("i_", 0, kOwn, Binding::Unroll);
    build_.open("j_", 0, kOwn, Binding::Unroll);
    body(Expr::symbol("i_"), Expr::symbol("j_"), Expr::symbol("i_") * kOwn + Expr::symbol("j_"));
    build_.close();
    build_.close();
  }
  // shared[d][x] = value at (x_low + x, k_low + d), 0 beyond the ends. Neighbouring threads read along k; the caches serve
  // operands that lie the other way.
  void load_slice(BufferId shared, const std::string& axis, const Expr& x_low, const Expr& x_end, const std::string& k, const Expr& k_low, const Expr& k_end,
                  const std::function<ScalarId()>& value) {
    open_threads();
    build_.open("i_", 0, kTile / kThreads, Binding::Unroll);
    const Expr x = Expr::symbol("i_") * kThreads + Expr::symbol("ty_"), d = Expr::symbol("t_");
    build_.set_axis(axis, x_low + x);
    build_.set_axis(k, k_low + d);
    const std::vector<Expr> inside{sym::lt(x_low + x, x_end), sym::lt(k_low + d, k_end)};
    build_.set_guards(inside);
    const ScalarId element = value();
    const ScalarId kept = build_.apply("select", type_, {build_.condition(inside), element, build_.constant(type_, 0)});
    build_.append({kernel::Store{.buffer = shared, .index = d * kPitch + x, .value = kept}});
    build_.set_guards({});
    build_.close();
    close_threads();
  }

  const CudaGroup& of_;
  const AxisPlan plan_;
  LoopBuilder build_;
  const Node& node_;
  const ValueId value_;
  const Index position_;
  const DType type_;
};

}  // namespace

LoweredGroup lower_cuda_contraction(const CudaGroup& of) {
  const Node& node = of.graph.node(of.group.contraction);
  const Index& position = of.group.uses.at(node.outputs[0])[0].index;
  const bool matrices = node.op->name == "matmul" && of.graph.type(node.inputs[0]).shape.size() > 1 && of.graph.type(node.inputs[1]).shape.size() > 1;
  if (!matrices || !position.back().is_symbol() || !position[position.size() - 2].is_symbol() || of.group.local_axes.at(of.group.contraction)[0].extent.is_const(1)) {
    return lower_cuda_pointwise(of);
  }
  LoweredGroup lowered;
  VariantList variants;
  VariantFacts small(of.graph.facts());
  const std::string choice = fmt::format("{} x {} tiles, {} x {} threads", kTile, kTile, kThreads, kThreads);
  if (small.small_symbols(of)) variants.add(small.condition(), MatrixProductKernel(of, small.facts()).make(), choice);
  if (!variants.complete()) variants.add(1, MatrixProductKernel(of, of.graph.facts()).make(), choice);
  lowered.choice = Choice{.schedule = "contraction", .vector_axis = "", .width = 1, .unroll = 1};
  lowered.kernels.push_back(variants.take("contraction"));
  return lowered;
}

}  // namespace fuseloom::schedule
