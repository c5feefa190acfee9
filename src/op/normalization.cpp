// Normalizations. All are composites: the record's reference computes the definition in f64, and the decomposition
// writes it in primitives, in f32 for f16 and bf16, so that there is one rounding at the end.
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "op/decompose.h"
#include "op/op.h"
#include "op/schema.h"
#include "op/staging.h"

namespace fuseloom::op {
namespace {

using Kind = AttrSpec::Kind;

// x seen as [outer, n, inner] around one axis.
struct AxisView {
  int64_t outer = 1, n = 1, inner = 1;
};
AxisView view_around(const Tensor& x, int64_t axis) {
  if (x.rank() == 0) return {};
  return {count_between(x.dims(), 0, axis), x.dim(axis), count_between(x.dims(), axis + 1, x.rank())};
}

// Calls row(first element, stride, n) for every line along an axis.
template <class Row>
void for_each_line(const AxisView& view, Row&& row) {
  for (int64_t o = 0; o < view.outer; ++o) {
    for (int64_t i = 0; i < view.inner; ++i) row(o * view.n * view.inner + i, view.inner, view.n);
  }
}

std::vector<int64_t> axes_from(int64_t first, int64_t rank) {
  std::vector<int64_t> axes(static_cast<size_t>(rank - first));
  std::iota(axes.begin(), axes.end(), first);
  return axes;
}

// ---- softmax, log_softmax
// --------------------------------------------------------------------------------------------

std::vector<TensorType> infer_along_axis(const InferContext& context) {
  const TensorType& x = context.in(0);
  expect_float(context, "x", x);
  axis_in_rank(context, context.attrs.integer("axis"), x.rank());
  return {x};
}

// docs/numerics.md: where the exponential is 0 the result is 0, even when an infinity elsewhere in the row makes the
// sum NaN.
void reference_softmax(const ReferenceContext& context, bool logarithm) {
  const Tensor& x = context.inputs[0];
  std::vector<double> values = stage<double>(x);
  const int64_t axis = wrap_axis(context.attrs.integer("axis"), x.rank());
  const AxisView view = view_around(x, axis);
  std::vector<double> e(static_cast<size_t>(view.n));
  for_each_line(view, [&](int64_t first, int64_t stride, int64_t n) {
    double* line = values.data() + first;
    double maximum = -std::numeric_limits<double>::infinity();
    for (int64_t i = 0; i < n; ++i) {
      const double v = line[i * stride];
      if (std::isnan(v) || v > maximum) maximum = v;
      if (std::isnan(maximum)) break;
    }
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += e[static_cast<size_t>(i)] = std::exp(line[i * stride] - maximum);
    for (int64_t i = 0; i < n; ++i) {
      const double exponential = e[static_cast<size_t>(i)];
      double& v = line[i * stride];
      v = logarithm ? v - maximum - std::log(sum) : exponential == 0 ? 0 : exponential / sum;
    }
  });
  unstage(values, context.outputs[0]);
}

std::vector<Val> decompose_softmax(OpBuilder& builder, const DecomposeContext& context) {
  Algebra a(builder);
  const TensorType type = builder.type(context.inputs[0]);
  const int64_t axis = wrap_axis(context.attrs.integer("axis"), type.rank());
  const Val x = a.wide(context.inputs[0]);
  const Val e = a.unary("exp", a.sub(x, a.reduce("reduce_max", x, {axis})));
  // One division a line: the product differs from the quotient by an ulp at most.
  const Val quotient = a.mul(e, a.unary("reciprocal", a.reduce("reduce_sum", e, {axis})));
  const Val zero = a.number(e, 0);
  return {builder.cast(a.where(builder.apply("eq", {e, zero}), zero, quotient), type.dtype)};
}

std::vector<Val> decompose_log_softmax(OpBuilder& builder, const DecomposeContext& context) {
  Algebra a(builder);
  const TensorType type = builder.type(context.inputs[0]);
  const int64_t axis = wrap_axis(context.attrs.integer("axis"), type.rank());
  const Val x = a.wide(context.inputs[0]);
  const Val shifted = a.sub(x, a.reduce("reduce_max", x, {axis}));
  const Val sum = a.reduce("reduce_sum", a.unary("exp", shifted), {axis});
  return {builder.cast(a.sub(shifted, a.unary("log", sum)), type.dtype)};
}

// ---- layer_norm, rms_norm
// --------------------------------------------------------------------------------------------

void expect_broadcasts_to(const InferContext& context, std::string_view what, const TensorType& type, const Shape& to) {
  if (type.rank() > static_cast<int64_t>(to.size())) {
    context.fail(fmt::format("{} is {}, which does not broadcast to {}", what, to_string(type), to_string(to)));
  }
  for (size_t d = 0; d < type.shape.size(); ++d) {
    if (type.shape[d].is_const(1)) continue;
    expect_size(context, fmt::format("dimension {} of {}", d, what), type.shape[d],
                to[to.size() - type.shape.size() + d]);
  }
}

std::vector<TensorType> infer_layer_norm(const InferContext& context) {
  const TensorType& x = context.in(0);
  expect_float(context, "x", x);
  const int64_t axis = axis_in_rank(context, context.attrs.integer("axis"), x.rank());
  const char* names[] = {"x", "scale", "bias"};
  for (size_t i = 1; i < 3; ++i) {
    if (!context.has(i)) continue;
    expect_dtype(context, names[i], context.in(i), x.dtype);
    expect_broadcasts_to(context, names[i], context.in(i), x.shape);
  }
  TensorType statistic{compute_dtype(x.dtype), x.shape};
  for (int64_t d = axis; d < x.rank(); ++d) statistic.shape[static_cast<size_t>(d)] = 1;
  std::vector<TensorType> types = {x};
  while (static_cast<int64_t>(types.size()) < context.output_count) types.push_back(statistic);
  return types;
}

// Multiplies by scale (input 1) and adds bias (input 2), where given.
void apply_affine(const ReferenceContext& context, std::vector<double>& values) {
  const Dims& dims = context.outputs[0].dims();
  for (size_t i = 1; i < 3; ++i) {
    if (!context.has(i)) continue;
    const std::vector<double> operand = stage<double>(context.inputs[i]);
    const std::vector<int64_t> map = broadcast_map(context.inputs[i].dims(), dims);
    for (size_t e = 0; e < values.size(); ++e) {
      const double o = operand[static_cast<size_t>(map[e])];
      values[e] = i == 1 ? values[e] * o : values[e] + o;
    }
  }
}

// Rows of n values become (x - mean) / sqrt(variance + epsilon); without `center` the mean is taken as 0.
struct RowStatistics {
  std::vector<double> mean, inv_std;
};
RowStatistics normalize_rows(std::vector<double>& values, int64_t n, double epsilon, bool center) {
  RowStatistics statistics;
  for (size_t first = 0; first < values.size(); first += static_cast<size_t>(n)) {
    double* row = values.data() + first;
    double mean = 0, variance = 0;
    if (center) mean = std::accumulate(row, row + n, 0.0) / static_cast<double>(n);
    for (int64_t i = 0; i < n; ++i) variance += (row[i] - mean) * (row[i] - mean);
    const double inv_std = 1.0 / std::sqrt(variance / static_cast<double>(n) + epsilon);
    for (int64_t i = 0; i < n; ++i) row[i] = (row[i] - mean) * inv_std;
    statistics.mean.push_back(mean);
    statistics.inv_std.push_back(inv_std);
  }
  return statistics;
}

void reference_layer_norm(const ReferenceContext& context, bool center) {
  const Tensor& x = context.inputs[0];
  const int64_t axis = wrap_axis(context.attrs.integer("axis"), x.rank());
  std::vector<double> values = stage<double>(x);
  const int64_t n = count_between(x.dims(), axis, x.rank());
  RowStatistics statistics = normalize_rows(values, n, context.attrs.real("epsilon"), center);
  apply_affine(context, values);
  unstage(values, context.outputs[0]);
  if (n == 0) {  // rows without elements still have statistics: the mean of nothing
    const size_t rows = static_cast<size_t>(count_between(x.dims(), 0, axis));
    statistics.mean.assign(rows, std::numeric_limits<double>::quiet_NaN());
    statistics.inv_std = statistics.mean;
  }
  if (context.outputs.size() > 1) unstage(statistics.mean, context.outputs[1]);
  if (context.outputs.size() > 2) unstage(statistics.inv_std, context.outputs[2]);
}

// (x - mean) * 1/sqrt(mean((x - mean)²) + epsilon) over `axes`, in x's dtype.
struct Normalized {
  Val y, mean, inv_std;
};
Normalized normalize(Algebra& a, Val x, std::vector<int64_t> axes, double epsilon, bool center) {
  Normalized result;
  Val centered = x;
  if (center) {
    result.mean = a.reduce("reduce_mean", x, axes);
    centered = a.sub(x, result.mean);
  }
  const Val variance = a.reduce("reduce_mean", a.mul(centered, centered), std::move(axes));
  result.inv_std = a.unary("reciprocal", a.unary("sqrt", a.add(variance, a.number(variance, epsilon))));
  result.y = a.mul(centered, result.inv_std);
  return result;
}

std::vector<Val> decompose_layer_norm(OpBuilder& builder, const DecomposeContext& context, bool center) {
  Algebra a(builder);
  const TensorType type = builder.type(context.inputs[0]);
  const int64_t axis = wrap_axis(context.attrs.integer("axis"), type.rank());
  const Normalized normalized =
      normalize(a, a.wide(context.inputs[0]), axes_from(axis, type.rank()), context.attrs.real("epsilon"), center);
  Val y = normalized.y;
  if (context.has(1)) y = a.mul(y, a.wide(context.inputs[1]));
  if (context.has(2)) y = a.add(y, a.wide(context.inputs[2]));
  std::vector<Val> results = {builder.cast(y, type.dtype), normalized.mean, normalized.inv_std};
  results.resize(static_cast<size_t>(context.output_count));
  return results;
}

// ---- batch_norm, instance_norm, group_norm
// ---------------------------------------------------------------------------

// Vectors of one entry per channel (dimension 1; rank 1 counts as one channel).
void expect_channel_vector(const InferContext& context, std::string_view what, const TensorType& type) {
  const TensorType& x = context.in(0);
  expect_float(context, what, type);
  expect_rank(context, what, type, 1);
  expect_size(context, fmt::format("the size of {}", what), type.shape[0], x.rank() > 1 ? x.shape[1] : sym::Expr(1));
}

std::vector<TensorType> infer_batch_norm(const InferContext& context) {
  const TensorType& x = context.in(0);
  expect_float(context, "x", x);
  if (x.rank() < 1) context.fail("x is a scalar, expected [n, channels, ...]");
  const char* names[] = {"x", "scale", "bias", "mean", "var"};
  for (size_t i = 1; i < 5; ++i) expect_channel_vector(context, names[i], context.in(i));
  return {x};
}

void reference_batch_norm(const ReferenceContext& context) {
  const Tensor& x = context.inputs[0];
  const std::vector<double> scale = stage<double>(context.inputs[1]), bias = stage<double>(context.inputs[2]),
                            mean = stage<double>(context.inputs[3]), variance = stage<double>(context.inputs[4]);
  const double epsilon = context.attrs.real("epsilon");
  std::vector<double> values = stage<double>(x);
  const int64_t channels = x.rank() > 1 ? x.dim(1) : 1;
  const int64_t plane = count_between(x.dims(), 2, x.rank());
  size_t e = 0;
  for (int64_t n = 0; n < x.dim(0); ++n) {
    for (size_t c = 0; c < static_cast<size_t>(channels); ++c) {
      const double factor = scale[c] / std::sqrt(variance[c] + epsilon);
      for (int64_t i = 0; i < plane; ++i, ++e) values[e] = (values[e] - mean[c]) * factor + bias[c];
    }
  }
  unstage(values, context.outputs[0]);
}

// Folded to x * a + b: a and b are small, and constant when the parameters are.
std::vector<Val> decompose_batch_norm(OpBuilder& builder, const DecomposeContext& context) {
  Algebra a(builder);
  const TensorType type = builder.type(context.inputs[0]);
  const DType dtype = compute_dtype(type.dtype);
  const Val scale = builder.cast(context.inputs[1], dtype), bias = builder.cast(context.inputs[2], dtype),
            mean = builder.cast(context.inputs[3], dtype), variance = builder.cast(context.inputs[4], dtype);
  const Val deviation = a.unary("sqrt", a.add(variance, a.number(variance, context.attrs.real("epsilon"))));
  const Val factor = a.div(scale, deviation);
  const Val offset = a.sub(bias, a.mul(mean, factor));
  const Val y =
      a.add(a.mul(a.wide(context.inputs[0]), a.per_channel(factor, type.rank())), a.per_channel(offset, type.rank()));
  return {builder.cast(y, type.dtype)};
}

std::vector<TensorType> infer_group_norm(const InferContext& context, bool grouped) {
  const TensorType& x = context.in(0);
  expect_float(context, "x", x);
  if (x.rank() < 2) context.fail(fmt::format("x is {}, expected [n, channels, spatial...]", to_string(x)));
  if (grouped) {
    const int64_t groups = context.attrs.integer("groups");
    if (groups < 1) context.fail(fmt::format("groups is {}, expected 1 or more", groups));
    if (const auto channels = x.shape[1].as_const(); channels && *channels % groups != 0) {
      context.fail(fmt::format("{} channels do not divide into {} groups", *channels, groups));
    }
  }
  if (context.has(1)) expect_channel_vector(context, "scale", context.in(1));
  if (context.has(2)) expect_channel_vector(context, "bias", context.in(2));
  return {x};
}

// instance_norm is group_norm with one channel per group.
void reference_group_norm(const ReferenceContext& context, bool grouped) {
  const Tensor& x = context.inputs[0];
  const int64_t channels = x.dim(1), plane = count_between(x.dims(), 2, x.rank());
  const int64_t groups = grouped ? context.attrs.integer("groups") : channels;
  std::vector<double> values = stage<double>(x);
  if (!values.empty()) normalize_rows(values, channels / groups * plane, context.attrs.real("epsilon"), true);
  const std::vector<double> scale = context.has(1) ? stage<double>(context.inputs[1]) : std::vector<double>();
  const std::vector<double> bias = context.has(2) ? stage<double>(context.inputs[2]) : std::vector<double>();
  size_t e = 0;
  for (int64_t n = 0; n < x.dim(0); ++n) {
    for (size_t c = 0; c < static_cast<size_t>(channels); ++c) {
      for (int64_t i = 0; i < plane; ++i, ++e) {
        if (!scale.empty()) values[e] *= scale[c];
        if (!bias.empty()) values[e] += bias[c];
      }
    }
  }
  unstage(values, context.outputs[0]);
}

std::vector<Val> decompose_group_norm(OpBuilder& builder, const DecomposeContext& context, bool grouped) {
  Algebra a(builder);
  const TensorType type = builder.type(context.inputs[0]);
  const sym::Expr channels = type.shape[1];
  const sym::Expr plane = sym::product(std::span<const sym::Expr>(type.shape).subspan(2));
  const sym::Expr groups = grouped ? sym::Expr(context.attrs.integer("groups")) : channels;
  const sym::Expr members = grouped ? sym::floor_div(channels, groups) : sym::Expr(1);
  // Everything happens over [n, groups, channels of a group, plane], so that the whole is one loop nest.
  const Val rows = builder.reshape(a.wide(context.inputs[0]), {type.shape[0], groups, members, plane});
  Val y = normalize(a, rows, {2, 3}, context.attrs.real("epsilon"), true).y;
  const DType dtype = compute_dtype(type.dtype);
  const auto per_channel = [&](size_t input) { return builder.reshape(builder.cast(context.inputs[input], dtype), {1, groups, members, 1}); };
  if (context.has(1)) y = a.mul(y, per_channel(1));
  if (context.has(2)) y = a.add(y, per_channel(2));
  return {builder.reshape(builder.cast(y, type.dtype), type.shape)};
}

// ---- lrn, lp_norm
// ----------------------------------------------------------------------------------------------------

std::vector<TensorType> infer_lrn(const InferContext& context) {
  const TensorType& x = context.in(0);
  expect_float(context, "x", x);
  if (x.rank() < 2) context.fail(fmt::format("x is {}, expected [n, channels, ...]", to_string(x)));
  if (context.attrs.integer("size") < 1) context.fail("size is not positive");
  return {x};
}

void reference_lrn(const ReferenceContext& context) {
  const Tensor& x = context.inputs[0];
  const int64_t size = context.attrs.integer("size"), before = (size - 1) / 2, after = size - 1 - before;
  const double alpha = context.attrs.real("alpha"), beta = context.attrs.real("beta"),
               bias = context.attrs.real("bias");
  const std::vector<double> values = stage<double>(x);
  std::vector<double> y(values.size());
  for_each_line(view_around(x, 1), [&](int64_t first, int64_t stride, int64_t channels) {
    const double* line = values.data() + first;
    for (int64_t c = 0; c < channels; ++c) {
      double squares = 0;
      for (int64_t k = std::max<int64_t>(c - before, 0); k <= std::min(c + after, channels - 1); ++k) {
        squares += line[k * stride] * line[k * stride];
      }
      y[static_cast<size_t>(first + c * stride)] =
          line[c * stride] / std::pow(bias + alpha / static_cast<double>(size) * squares, beta);
    }
  });
  unstage(y, context.outputs[0]);
}

// The sum of squares over neighbouring channels, divided by the window's size, is an average pool along the channels.
std::vector<Val> decompose_lrn(OpBuilder& builder, const DecomposeContext& context) {
  Algebra a(builder);
  const TensorType type = builder.type(context.inputs[0]);
  const int64_t size = context.attrs.integer("size"), before = (size - 1) / 2, after = size - 1 - before;
  const Val x = a.wide(context.inputs[0]);
  const sym::Expr channels = type.shape[1], rest = sym::product(std::span<const sym::Expr>(type.shape).subspan(2));
  const Val squares = builder.reshape(a.mul(x, x), {type.shape[0], 1, channels, rest});
  const std::vector<int64_t> ones = {1, 1};
  const Val mean = builder.reshape(builder.apply("average_pool", {squares},
                                                 {{"kernel", std::vector<int64_t>{size, 1}},
                                                  {"strides", ones},
                                                  {"dilations", ones},
                                                  {"pads_low", Shape{before, 0}},
                                                  {"pads_high", Shape{after, 0}},
                                                  {"sizes", Shape{channels, rest}},
                                                  {"count_include_pad", int64_t{1}}}),
                                   type.shape);
  const Val base =
      a.add(a.mul(mean, a.number(mean, context.attrs.real("alpha"))), a.number(mean, context.attrs.real("bias")));
  const Val divisor = builder.apply("pow", {base, a.number(base, context.attrs.real("beta"))});
  return {builder.cast(a.div(x, divisor), type.dtype)};
}

std::vector<TensorType> infer_lp_norm(const InferContext& context) {
  const int64_t p = context.attrs.integer("p");
  if (p != 1 && p != 2) context.fail(fmt::format("p is {}, expected 1 or 2", p));
  return infer_along_axis(context);
}

void reference_lp_norm(const ReferenceContext& context) {
  const Tensor& x = context.inputs[0];
  std::vector<double> values = stage<double>(x);
  const bool absolute = context.attrs.integer("p") == 1;
  for_each_line(view_around(x, wrap_axis(context.attrs.integer("axis"), x.rank())),
                [&](int64_t first, int64_t stride, int64_t n) {
                  double* line = values.data() + first;
                  double sum = 0;
                  for (int64_t i = 0; i < n; ++i) {
                    const double v = line[i * stride];
                    sum += absolute ? std::abs(v) : v * v;
                  }
                  const double norm = absolute ? sum : std::sqrt(sum);
                  for (int64_t i = 0; i < n; ++i) line[i * stride] = norm == 0 ? 0 : line[i * stride] / norm;
                });
  unstage(values, context.outputs[0]);
}

std::vector<Val> decompose_lp_norm(OpBuilder& builder, const DecomposeContext& context) {
  Algebra a(builder);
  const TensorType type = builder.type(context.inputs[0]);
  const int64_t axis = wrap_axis(context.attrs.integer("axis"), type.rank());
  const Val x = a.wide(context.inputs[0]);
  const bool absolute = context.attrs.integer("p") == 1;
  const Val sum = a.reduce("reduce_sum", absolute ? a.unary("abs", x) : a.mul(x, x), {axis});
  const Val norm = absolute ? sum : a.unary("sqrt", sum);
  const Val zero = a.number(norm, 0);
  return {builder.cast(a.where(builder.apply("eq", {norm, zero}), zero, a.div(x, norm)), type.dtype)};
}

}  // namespace

void add_normalization_ops(OpTable& table) {
  table.add({.name = "softmax",
             .family = Family::Composite,
             .summary = "exp(x - max) / sum along an axis",
             .attrs = {required_attr("axis", Kind::Integer)},
             .infer = infer_along_axis,
             .reference = [](const ReferenceContext& context) { reference_softmax(context, false); },
             .decompose = decompose_softmax,
             .cost = 12});
  table.add({.name = "log_softmax",
             .family = Family::Composite,
             .summary = "x - max - log(sum(exp(x - max))) along an axis",
             .attrs = {required_attr("axis", Kind::Integer)},
             .infer = infer_along_axis,
             .reference = [](const ReferenceContext& context) { reference_softmax(context, true); },
             .decompose = decompose_log_softmax,
             .cost = 12});
  table.add({.name = "layer_norm",
             .family = Family::Composite,
             .summary = "(x - mean) / sqrt(variance + epsilon) * scale + bias over the dimensions from axis on",
             .max_inputs = 3,
             .max_outputs = 3,
             .attrs = {required_attr("axis", Kind::Integer), required_attr("epsilon", Kind::Real)},
             .infer = infer_layer_norm,
             .reference = [](const ReferenceContext& context) { reference_layer_norm(context, true); },
             .decompose = [](OpBuilder& builder,
                             const DecomposeContext& context) { return decompose_layer_norm(builder, context, true); },
             .cost = 6});
  table.add({.name = "rms_norm",
             .family = Family::Composite,
             .summary = "x / sqrt(mean(x²) + epsilon) * scale over the dimensions from axis on",
             .max_inputs = 2,
             .attrs = {required_attr("axis", Kind::Integer), required_attr("epsilon", Kind::Real)},
             .infer = infer_layer_norm,
             .reference = [](const ReferenceContext& context) { reference_layer_norm(context, false); },
             .decompose = [](OpBuilder& builder,
                             const DecomposeContext& context) { return decompose_layer_norm(builder, context, false); },
             .cost = 4});
  table.add({.name = "batch_norm",
             .family = Family::Composite,
             .summary = "(x - mean) / sqrt(var + epsilon) * scale + bias per channel, with given statistics",
             .min_inputs = 5,
             .max_inputs = 5,
             .attrs = {required_attr("epsilon", Kind::Real)},
             .infer = infer_batch_norm,
             .reference = reference_batch_norm,
             .decompose = decompose_batch_norm,
             .cost = 2});
  table.add({.name = "instance_norm",
             .family = Family::Composite,
             .summary = "each channel of each sample normalized over its spatial dimensions, then scaled and shifted",
             .max_inputs = 3,
             .attrs = {required_attr("epsilon", Kind::Real)},
             .infer = [](const InferContext& context) { return infer_group_norm(context, false); },
             .reference = [](const ReferenceContext& context) { reference_group_norm(context, false); },
             .decompose = [](OpBuilder& builder,
                             const DecomposeContext& context) { return decompose_group_norm(builder, context, false); },
             .cost = 6});
  table.add({.name = "group_norm",
             .family = Family::Composite,
             .summary = "each group of channels of each sample normalized, then scaled and shifted per channel",
             .max_inputs = 3,
             .attrs = {required_attr("groups", Kind::Integer), required_attr("epsilon", Kind::Real)},
             .infer = [](const InferContext& context) { return infer_group_norm(context, true); },
             .reference = [](const ReferenceContext& context) { reference_group_norm(context, true); },
             .decompose = [](OpBuilder& builder,
                             const DecomposeContext& context) { return decompose_group_norm(builder, context, true); },
             .cost = 6});
  table.add({.name = "lrn",
             .family = Family::Composite,
             .summary = "x / (bias + alpha / size * sum of squares over `size` neighbouring channels)^beta",
             .attrs = {required_attr("size", Kind::Integer), required_attr("alpha", Kind::Real),
                       required_attr("beta", Kind::Real), required_attr("bias", Kind::Real)},
             .infer = infer_lrn,
             .reference = reference_lrn,
             .decompose = decompose_lrn,
             .cost = 24});
  table.add({.name = "lp_norm",
             .family = Family::Composite,
             .summary = "x / (sum |x|^p)^(1/p) along an axis, p 1 or 2; 0 where the norm is 0",
             .attrs = {required_attr("axis", Kind::Integer), required_attr("p", Kind::Integer)},
             .infer = infer_lp_norm,
             .reference = reference_lp_norm,
             .decompose = decompose_lp_norm,
             .cost = 4});
}

}  // namespace fuseloom::op
