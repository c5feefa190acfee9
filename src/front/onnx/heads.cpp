#include "front/onnx/heads.h"

#include <limits>

#include "base/check.h"

namespace fuseloom::front::onnx {

ValueId split_heads(NodeImport& n, ValueId x, int64_t heads) {
  if (n.rank(x) == 4) return x;
  if (n.rank(x) != 3 || heads < 1)
    n.fail(fmt::format("takes [batch, length, heads * size] and a number of heads; found rank {} and {}", n.rank(x),
                       heads));
  const Shape s = n.shape(x);
  return n.transpose(n.reshape(x, {s[0], s[1], heads, n.simplify(sym::floor_div(s[2], heads))}), {0, 2, 1, 3});
}

ValueId join_heads(NodeImport& n, ValueId x) {
  const Shape s = n.shape(x);
  return n.reshape(n.transpose(x, {0, 2, 1, 3}), {s[0], s[2], n.simplify(s[1] * s[3])});
}

ValueId fill_mask(NodeImport& n, ValueId mask, const Expr& total) {
  const int64_t last = n.rank(mask) - 1;
  const Expr missing = n.simplify(total - n.size(mask, last));
  if (missing.is_const(0) || n.size(mask, last).is_const(1)) return mask;
  Shape low(static_cast<size_t>(n.rank(mask)), Expr(0)), high = low;
  high.back() = missing;
  const double fill = n.dtype(mask) == DType::Bool ? 0 : -std::numeric_limits<double>::infinity();
  return n.pad(mask, std::move(low), std::move(high), "constant", n.like(mask, fill));
}

ValueId length_mask(NodeImport& n, ValueId lengths, const Expr& total) {
  const ValueId position =
      n.add("iota", {}, {{"shape", Shape{1, 1, 1, total}}, {"axis", int64_t{3}}, {"dtype", DType::I64}});
  return n.add("lt", {position, n.reshape(n.cast(lengths, DType::I64), {n.size(lengths, 0), 1, 1, 1})});
}

ValueId join_masks(NodeImport& n, ValueId a, ValueId b) {
  if (!a.valid()) return b;
  if (!b.valid()) return a;
  if (n.dtype(a) == DType::Bool) return n.add("and", {a, b});
  return n.add("select", {b, a, n.like(a, -std::numeric_limits<double>::infinity())});
}

AttentionResult attention(NodeImport& n, const AttentionSpec& spec) {
  std::vector<ValueId> inputs = {spec.q, spec.k, spec.v};
  if (spec.mask.valid()) inputs.push_back(spec.mask);
  Attrs attrs{{"causal", int64_t{spec.causal}}};
  if (spec.scale != 0) {
    attrs.set("scale", spec.scale);
  } else if (const Expr size = n.size(spec.q, 3); !size.is_const()) {  // a scale that only the run knows goes into q
    const ValueId root = n.add("rsqrt", {n.cast(n.sym_scalar(size), DType::F32)});
    inputs[0] = n.add("mul", {spec.q, n.cast(root, n.dtype(spec.q))});
    attrs.set("scale", 1.0);
  }
  if (spec.softcap != 0) attrs.set("softcap", spec.softcap);
  if (spec.causal) attrs.set("past", Shape{spec.past});
  if (spec.scores >= 0) attrs.set("scores", spec.scores);
  const std::vector<ValueId> results =
      n.add_many("attention", std::move(inputs), std::move(attrs), spec.scores >= 0 ? 2 : 1);
  return {.y = results[0], .scores = spec.scores >= 0 ? results[1] : ValueId{}};
}

}  // namespace fuseloom::front::onnx
