// Resampling with views, gathers and algebra, where the filter is short.
//
//   nearest by a whole factor   each element repeats: reshape, expand, reshape
//   nearest, linear, cubic      per dimension: the source coordinate of every output in f64, its neighbours, a weighted sum
//
// Filters that depend on data (tf_crop_and_resize, scales known at run time) or that are long (antialias) and those that are
// renormalized at the border stay whole.
#include <cmath>

#include "op/decompose.h"

namespace fuseloom::op {

using sym::Expr;

namespace {

struct Resize {
  std::string mode, coordinate, nearest;
  double cubic_a = -0.75;
};

// floor(o / factor) is the nearest pixel of output o.
bool repeats(const Resize& resize) {
  if (resize.mode != "nearest") return false;
  if (resize.coordinate == "asymmetric") return resize.nearest == "floor";
  const bool half = resize.coordinate == "half_pixel" || resize.coordinate == "pytorch_half_pixel";
  return half && (resize.nearest == "round_prefer_floor" || resize.nearest == "round_prefer_ceil");
}

class Resampler {
 public:
  Resampler(OpBuilder& builder, const Resize& resize) : builder_(builder), algebra_(builder), resize_(resize) {}

  Val repeat(Val x, size_t axis, int64_t factor) {
    Shape apart = builder_.type(x).shape, wide, together = apart;
    apart.insert(apart.begin() + static_cast<ptrdiff_t>(axis) + 1, Expr(1));
    wide = apart;
    wide[axis + 1] = factor;
    together[axis] = together[axis] * factor;
    return builder_.reshape(builder_.apply("expand", {builder_.reshape(x, apart)}, {{"shape", wide}}), together);
  }

  // `scale` 0: the quotient of the sizes.
  Val resample(Val x, size_t axis, const Expr& out, double scale) {
    const Expr in = builder_.type(x).shape[axis];
    const Val at = source(in, out, scale);
    if (resize_.mode == "nearest") return pick(x, axis, rounded(at), in);
    const Val below = algebra_.unary("floor", at), t = algebra_.sub(at, below);
    const int64_t before = resize_.mode == "linear" ? 0 : 1, taps = resize_.mode == "linear" ? 2 : 4;
    const std::vector<Val> weights = resize_.mode == "linear" ? linear(t) : cubic(t);
    const DType declared = builder_.type(x).dtype, wide = compute_dtype(declared);
    Shape along(builder_.type(x).shape.size(), 1);
    along[axis] = out;
    Val sum;
    for (int64_t j = 0; j < taps; ++j) {
      const Val place = algebra_.add(below, algebra_.number(below, static_cast<double>(j - before)));
      const Val element = builder_.cast(pick(x, axis, place, in), wide);
      const Val weight = builder_.reshape(builder_.cast(weights[static_cast<size_t>(j)], wide), along);
      const Val term = algebra_.mul(element, weight);
      sum = sum.valid() ? algebra_.add(sum, term) : term;
    }
    return sum;
  }

 private:
  Val size(const Expr& value) {
    const Val size = builder_.apply("sym_value", {}, {{"values", Shape{value}}, {"dtype", DType::I64}, {"scalar", int64_t{1}}});
    return builder_.cast(size, DType::F64);
  }
  Val real(double value) { return builder_.scalar(DType::F64, value); }

  // Where each output lies in the input, in pixels.
  Val source(const Expr& in, const Expr& out, double given) {
    const Val o = builder_.cast(builder_.apply("iota", {}, {{"shape", Shape{out}}, {"axis", int64_t{0}}, {"dtype", DType::I64}}), DType::F64);
    const Val width = size(in);
    const Val scale = given == 0 ? algebra_.div(size(out), width) : real(given);
    const Val length = algebra_.mul(scale, width);
    const Val single = builder_.apply("eq", {length, real(1)});
    if (resize_.coordinate == "asymmetric") return algebra_.div(o, scale);
    if (resize_.coordinate == "align_corners") {
      const Val steps = algebra_.sub(length, real(1));
      return algebra_.where(single, algebra_.mul(o, real(0)), algebra_.div(algebra_.mul(o, algebra_.sub(width, real(1))), steps));
    }
    const Val half = algebra_.sub(algebra_.div(algebra_.add(o, real(0.5)), scale), real(0.5));
    if (resize_.coordinate == "pytorch_half_pixel") return algebra_.where(single, real(-0.5), half);
    if (resize_.coordinate == "half_pixel") return half;
    // half_pixel_symmetric: the output's centre stays on the input's centre.
    const Val shift = algebra_.mul(algebra_.div(width, real(2)), algebra_.sub(real(1), algebra_.div(size(out), length)));
    return algebra_.add(shift, half);
  }

  Val rounded(Val at) {
    if (resize_.nearest == "floor") return algebra_.unary("floor", at);
    if (resize_.nearest == "ceil") return algebra_.unary("ceil", at);
    if (resize_.nearest == "round_prefer_ceil") return algebra_.unary("floor", algebra_.add(at, real(0.5)));
    return algebra_.unary("ceil", algebra_.sub(at, real(0.5)));
  }

  // x at a place along an axis; the edge pixel repeats.
  Val pick(Val x, size_t axis, Val place, const Expr& in) {
    const Val last = size(in - 1);
    const Val inside = builder_.apply("min", {builder_.apply("max", {place, real(0)}), last});
    return builder_.apply("gather", {x, builder_.cast(inside, DType::I64)}, {{"axis", static_cast<int64_t>(axis)}});
  }

  std::vector<Val> linear(Val t) { return {algebra_.sub(real(1), t), t}; }
  // Keys 1981, for the places -1, 0, 1, 2 around the point.
  std::vector<Val> cubic(Val t) {
    const double a = resize_.cubic_a;
    const auto horner = [&](Val x, std::vector<double> coefficients) {
      Val value = real(coefficients[0]);
      for (size_t i = 1; i < coefficients.size(); ++i) value = algebra_.add(algebra_.mul(value, x), real(coefficients[i]));
      return value;
    };
    const std::vector<double> near{a + 2, -(a + 3), 0, 1}, far{a, -5 * a, 8 * a, -4 * a};
    const Val one = real(1), two = real(2);
    return {horner(algebra_.add(t, one), far), horner(t, near), horner(algebra_.sub(one, t), near), horner(algebra_.sub(two, t), far)};
  }

  OpBuilder& builder_;
  Algebra algebra_;
  const Resize& resize_;
};

}  // namespace

std::vector<Val> decompose_resize(OpBuilder& builder, const DecomposeContext& context) {
  const Attrs& attrs = context.attrs;
  const Resize resize{.mode = attrs.text("mode", "nearest"), .coordinate = attrs.text("coordinate", "half_pixel"),
                      .nearest = attrs.text("nearest", "round_prefer_floor"), .cubic_a = attrs.real("cubic_a", -0.75)};
  if (context.has(1) || context.has(2) || attrs.integer("antialias", 0) != 0 || attrs.integer("exclude_outside", 0) != 0) return {};
  const Shape in = builder.type(context.inputs[0]).shape, out = context.outputs[0].shape;
  const DType declared = context.outputs[0].dtype;
  if (resize.mode != "nearest" && !is_float(declared)) return {};
  // An empty dimension cannot grow (the reference says so); it takes no part in a gather either.
  Resampler resampler(builder, resize);
  Val x = context.inputs[0];
  for (size_t d = 0; d < in.size(); ++d) {
    const double scale = attrs.has("scales") ? attrs.reals("scales")[d] : 0;
    const bool same = in[d] == out[d];
    if (same && (scale == 1 || scale == 0)) continue;
    const auto factor = static_cast<int64_t>(scale);
    if (repeats(resize) && scale == static_cast<double>(factor) && factor >= 1 && in[d] * factor == out[d]) {
      x = resampler.repeat(x, d, factor);
      continue;
    }
    x = resampler.resample(x, d, out[d], scale);
  }
  return {builder.cast(x, declared)};
}

}  // namespace fuseloom::op
