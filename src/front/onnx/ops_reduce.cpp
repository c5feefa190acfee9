// Reductions, scans, softmax and the normalizations that are reductions over given axes.
#include <numeric>

#include "base/check.h"
#include "front/onnx/axis_set.h"
#include "front/onnx/node_import.h"

namespace fuseloom::front::onnx {
namespace {

std::vector<int64_t> every_axis(int64_t rank) {
  std::vector<int64_t> axes(static_cast<size_t>(rank));
  std::iota(axes.begin(), axes.end(), 0);
  return axes;
}

// Axes that only the run knows: each dimension is split in two, (1, size) when it is reduced and (size, 1) when it is
// not, and the second halves are reduced.
ValueId reduce_run_time_axes(NodeImport& n, const std::string& op, ValueId x, const AxisSet& axes, bool keepdims) {
  const Shape in = n.shape(x);
  Shape halves, kept;
  std::vector<int64_t> second;
  for (int64_t d = 0; d < n.rank(x); ++d) {
    const Expr size = in[static_cast<size_t>(d)], reduced = axes.contains(d);
    kept.push_back(n.simplify(sym::select(reduced, 1, size)));
    halves.push_back(kept.back());
    halves.push_back(n.simplify(sym::select(reduced, size, 1)));
    second.push_back(2 * d + 1);
  }
  const ValueId y = n.reduce(op, n.reshape(x, std::move(halves)), std::move(second), false);
  return keepdims ? y : n.reshape(y, axes.without(n, in));
}

// `input_since`: the opset that made axes an input.
ImportFn reduction(std::string op_name, int64_t input_since) {
  return [=](NodeImport& n) {
    const ValueId x = n.in(0);
    const bool keepdims = n.integer("keepdims", 1) != 0;
    std::string op = op_name;
    if (n.dtype(x) == DType::Bool && op == "reduce_max") op = "reduce_any";
    if (n.dtype(x) == DType::Bool && op == "reduce_min") op = "reduce_all";
    const auto given = n.axes_from(1, input_since);
    std::vector<int64_t> axes;  // none: each element by itself, so that ReduceL2 still gives |x|
    if (given.has_value() && !given->empty()) {
      const AxisSet set(n, *given, n.rank(x));
      if (!set.is_static()) {
        n.out(reduce_run_time_axes(n, op, x, set, keepdims));
        return;
      }
      axes = set.values();
    } else if (n.integer("noop_with_empty_axes", 0) == 0) {
      axes = every_axis(n.rank(x));
    }
    n.out(n.reduce(op, x, std::move(axes), keepdims));
  };
}

ImportFn arg_reduction(std::string op) {
  return [op = std::move(op)](NodeImport& n) {
    const ValueId x = n.in(0);
    n.out(n.add(op, {x},
                {{"axis", n.axis(n.integer("axis", 0), n.rank(x))},
                 {"keepdims", n.integer("keepdims", 1)},
                 {"select_last", n.integer("select_last_index", 0)}}));
  };
}

ImportFn scan(std::string op) {
  return [op = std::move(op)](NodeImport& n) {
    const ValueId x = n.in(0);
    const AxisSet axis(n, {n.read_size(n.in(1))}, n.rank(x));
    Attrs attrs{{"exclusive", n.integer("exclusive", 0)}, {"reverse", n.integer("reverse", 0)}};
    if (axis.is_static()) {
      attrs.set("axis", axis.values()[0]);
      n.out(n.add(op, {x}, std::move(attrs)));
      return;
    }
    // An axis that only the run knows, as the middle one of [before, axis, after].
    const Shape in = n.shape(x);
    Expr before = 1, middle = 1, after = 1, passed = 0;
    for (int64_t d = 0; d < n.rank(x); ++d) {
      const Expr size = in[static_cast<size_t>(d)], here = axis.contains(d);
      middle = sym::select(here, size, middle);
      before = before * sym::select(sym::max(passed, here), 1, size);
      after = after * sym::select(passed, size, 1);
      passed = sym::max(passed, here);
    }
    attrs.set("axis", int64_t{1});
    n.out(n.reshape(
        n.add(op, {n.reshape(x, {n.simplify(before), n.simplify(middle), n.simplify(after)})}, std::move(attrs)), in));
  };
}

ValueId hardmax(NodeImport& n, ValueId x, int64_t axis) {
  const ValueId first = n.add("argmax", {x}, {{"axis", axis}, {"keepdims", int64_t{1}}, {"select_last", int64_t{0}}});
  Shape along(static_cast<size_t>(n.rank(x)), Expr(1));
  along[static_cast<size_t>(axis)] = n.size(x, axis);
  const ValueId place = n.add("iota", {}, {{"shape", along}, {"axis", axis}, {"dtype", DType::I64}});
  return n.cast(n.add("eq", {first, place}), n.dtype(x));
}

// Before opset 13 these see a matrix: the dimensions before `axis` times those from it on.
ImportFn along_axis(std::function<ValueId(NodeImport&, ValueId, int64_t)> apply) {
  return [apply = std::move(apply)](NodeImport& n) {
    const ValueId x = n.in(0);
    if (n.version() >= 13) {
      n.out(apply(n, x, n.axis(n.integer("axis", -1), n.rank(x))));
      return;
    }
    const int64_t axis = n.integer("axis", 1);
    if (axis < -n.rank(x) || axis > n.rank(x))
      n.fail(fmt::format("axis {} is out of range for rank {}", axis, n.rank(x)));
    const Shape shape = n.shape(x);
    const int64_t at = axis < 0 ? axis + n.rank(x) : axis;
    if (at == n.rank(x) - 1) {  // the same without a reshape
      n.out(apply(n, x, at));
    } else {
      n.out(n.reshape(apply(n, n.flatten(x, at), 1), shape));
    }
  };
}

ValueId softmax(NodeImport& n, ValueId x, int64_t axis) { return n.add("softmax", {x}, {{"axis", axis}}); }
ValueId log_softmax(NodeImport& n, ValueId x, int64_t axis) { return n.add("log_softmax", {x}, {{"axis", axis}}); }

void import_lp_normalization(NodeImport& n) {
  const ValueId x = n.in(0);
  n.out(n.add("lp_norm", {x}, {{"axis", n.axis(n.integer("axis", -1), n.rank(x))}, {"p", n.integer("p", 2)}}));
}

void import_mean_variance_normalization(NodeImport& n) {
  const ValueId x = n.in(0);
  const std::vector<int64_t> axes = n.axes(n.integers("axes", {0, 2, 3}), n.rank(x));
  const ValueId centered = n.add("sub", {x, n.reduce("reduce_mean", x, axes, true)});
  const ValueId variance = n.reduce("reduce_mean", n.add("mul", {centered, centered}), axes, true);
  n.out(n.add("div", {centered, n.add("add", {n.add("sqrt", {variance}), n.like(x, 1e-9)})}));
}

}  // namespace

void add_reduce_imports(ImportTable& t) {
  t.add("ReduceSum", reduction("reduce_sum", 13));
  for (const auto& [onnx, op] :
       std::initializer_list<std::pair<const char*, const char*>>{{"ReduceMean", "reduce_mean"},
                                                                  {"ReduceProd", "reduce_prod"},
                                                                  {"ReduceMax", "reduce_max"},
                                                                  {"ReduceMin", "reduce_min"},
                                                                  {"ReduceL1", "reduce_l1"},
                                                                  {"ReduceL2", "reduce_l2"},
                                                                  {"ReduceSumSquare", "reduce_sum_square"},
                                                                  {"ReduceLogSum", "reduce_log_sum"},
                                                                  {"ReduceLogSumExp", "reduce_log_sum_exp"}})
    t.add(onnx, reduction(op, 18));
  t.add("ArgMax", arg_reduction("argmax"));
  t.add("ArgMin", arg_reduction("argmin"));
  t.add("CumSum", scan("cumsum"));
  t.add("CumProd", scan("cumprod"));
  t.add("Softmax", along_axis(softmax));
  t.add("LogSoftmax", along_axis(log_softmax));
  t.add("Hardmax", along_axis(hardmax));
  t.add("LpNormalization", import_lp_normalization);
  t.add("MeanVarianceNormalization", import_mean_variance_normalization);
}

}  // namespace fuseloom::front::onnx
