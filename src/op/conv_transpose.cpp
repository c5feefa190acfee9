// A transposed convolution as an ordinary one.
//
// y[o] = sum over i of x[i] * w[k] where o + low = i * s + k. With o + low = s * q + r (0 <= r < s) and k = s * j + r this is
//     y[q, r] = sum over j of x[q - j] * w[s * j + r],
// an ordinary convolution, without strides, whose output channels are (o, r) and whose kernel is the s * j + r part of w,
// turned round; then r goes back between the elements. Nothing is multiplied by the zeros between strides.
#include "op/decompose.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace fuseloom::op {

using sym::Expr;

namespace {

// Zeros behind each of the last dimensions, or elements taken away there.
Val resize_tail(OpBuilder& builder, Val x, size_t first, const std::vector<Expr>& sizes) {
  const Shape shape = builder.type(x).shape;
  Shape high(shape.size(), 0);
  for (size_t d = 0; d < sizes.size(); ++d) high[first + d] = sizes[d] - shape[first + d];
  if (std::all_of(high.begin(), high.end(), [](const Expr& size) { return size.is_const(0); })) return x;
  return builder.apply("pad", {x}, {{"low", Shape(shape.size(), 0)}, {"high", high}, {"mode", std::string("constant")}});
}

Val transpose(OpBuilder& builder, Val x, std::vector<int64_t> permutation) {
  return builder.apply("transpose", {x}, {{"perm", std::move(permutation)}});
}

}  // namespace

std::vector<Val> decompose_conv_transpose(OpBuilder& builder, const DecomposeContext& context) {
  const Val x = context.inputs[0];
  const Shape x_shape = builder.type(x).shape, w_shape = builder.type(context.inputs[1]).shape, y_shape = context.outputs[0].shape;
  const size_t spatial = x_shape.size() - 2;
  const int64_t groups = context.attrs.integer("groups", 1);
  const std::vector<int64_t>& strides = context.attrs.integers("strides");
  const std::vector<int64_t>& dilations = context.attrs.integers("dilations");
  const Shape low = context.attrs.shape("pads_low");

  // w [c, o, k...] with zeros between the elements of a dilated kernel, filled up to s * j elements.
  Val w = context.inputs[1];
  if (std::any_of(dilations.begin(), dilations.end(), [](int64_t dilation) { return dilation != 1; })) {
    Shape apart{w_shape[0], w_shape[1]}, together = apart, high{0, 0};
    for (size_t d = 0; d < spatial; ++d) {
      apart.insert(apart.end(), {w_shape[2 + d], 1});
      together.push_back(w_shape[2 + d] * dilations[d]);
      high.insert(high.end(), {0, dilations[d] - 1});
    }
    w = builder.reshape(w, apart);
    w = builder.apply("pad", {w}, {{"low", Shape(apart.size(), 0)}, {"high", high}, {"mode", std::string("constant")}});
    w = builder.reshape(w, together);
  }
  std::vector<Expr> taps, filled;
  for (size_t d = 0; d < spatial; ++d) {
    taps.push_back(sym::ceil_div((w_shape[2 + d] - 1) * dilations[d] + 1, strides[d]));
    filled.push_back(taps[d] * strides[d]);
  }
  w = resize_tail(builder, w, 2, filled);

  // [g, c, o, (j, s)...] → [g, o, s..., c, j...], j turned round → [g * o * s, c, j...].
  Shape split{Expr(groups), sym::floor_div(w_shape[0], groups), w_shape[1]};
  std::vector<int64_t> permutation{0, 2}, taps_axes, tap_order;
  int64_t phases = 1;
  for (size_t d = 0; d < spatial; ++d) {
    const auto axis = static_cast<int64_t>(split.size());
    split.insert(split.end(), {taps[d], strides[d]});
    tap_order.push_back(axis);
    permutation.push_back(axis + 1);
    phases *= strides[d];
  }
  permutation.push_back(1);
  for (const int64_t axis : tap_order) {
    taps_axes.push_back(static_cast<int64_t>(permutation.size()));
    permutation.push_back(axis);
  }
  w = transpose(builder, builder.reshape(w, split), permutation);
  const Shape arranged = builder.type(w).shape;
  Shape starts(arranged.size(), 0);
  std::vector<int64_t> steps(arranged.size(), 1);
  for (size_t d = 0; d < spatial; ++d) {
    starts[static_cast<size_t>(taps_axes[d])] = taps[d] - 1;
    steps[static_cast<size_t>(taps_axes[d])] = -1;
  }
  w = builder.apply("slice", {w}, {{"starts", starts}, {"sizes", arranged}, {"steps", steps}});
  Shape weights{w_shape[1] * (groups * phases), split[1]};
  weights.insert(weights.end(), taps.begin(), taps.end());
  w = builder.reshape(w, weights);

  Shape pads;
  for (const Expr& size : taps) pads.push_back(size - 1);
  const std::vector<int64_t> ones(spatial, 1);
  Val y = builder.apply("conv", {x, w},
                        {{"strides", ones}, {"dilations", ones}, {"pads_low", pads}, {"pads_high", pads}, {"groups", groups}});

  // [n, (o, s...), q...] → [n, o, (q, s)...].
  if (phases > 1) {
    Shape apart{x_shape[0], w_shape[1] * groups}, together = apart;
    std::vector<int64_t> order{0, 1};
    for (const int64_t stride : strides) apart.emplace_back(stride);
    for (size_t d = 0; d < spatial; ++d) {
      const Expr positions = x_shape[2 + d] + taps[d] - 1;
      apart.push_back(positions);
      order.insert(order.end(), {static_cast<int64_t>(2 + spatial + d), static_cast<int64_t>(2 + d)});
      together.push_back(positions * strides[d]);
    }
    y = builder.reshape(transpose(builder, builder.reshape(y, apart), order), together);
  }
  // The result begins `low` elements further on; what output_padding adds beyond the last product is zero.
  Shape before(2, 0), after(2, 0);
  bool whole = true, inside = true;
  for (size_t d = 0; d < spatial; ++d) {
    const Expr positions = (x_shape[2 + d] + taps[d] - 1) * strides[d];
    before.push_back(Expr(0) - low[d]);
    after.push_back(y_shape[2 + d] + low[d] - positions);
    for (const Expr& side : {before.back(), after.back()}) {
      whole = whole && side.is_const(0);
      inside = inside && side.is_const() && *side.as_const() <= 0;
    }
  }
  if (inside && !whole) {
    Shape begin;
    for (const Expr& side : before) begin.push_back(Expr(0) - side);
    y = builder.apply("slice", {y}, {{"starts", begin}, {"sizes", y_shape}, {"steps", std::vector<int64_t>(y_shape.size(), 1)}});
  } else if (!whole) {
    y = builder.apply("pad", {y}, {{"low", before}, {"high", after}, {"mode", std::string("constant")}});
  }
  if (!context.has(2)) return {y};
  Algebra algebra(builder);
  return {algebra.add(y, algebra.per_channel(context.inputs[2], static_cast<int64_t>(x_shape.size())))};
}

}  // namespace fuseloom::op
