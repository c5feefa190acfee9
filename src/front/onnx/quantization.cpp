#include "front/onnx/quantization.h"

#include "base/check.h"
#include "front/onnx/narrow.h"

namespace fuseloom::front::onnx {

ElementType element_of_input(const NodeImport& n, size_t i) {
  const ElementType narrow = n.item(i).narrow;
  return narrow != ElementType::Undefined ? narrow : element_type_of(n.dtype(n.in(i)));
}

ValueId quantization_parameter(NodeImport& n, ValueId parameter, ValueId x, int64_t axis, int64_t block_size) {
  const int64_t rank = n.rank(parameter);
  if (!parameter.valid() || rank == 0) return parameter;
  if (block_size > 0) {
    if (rank != n.rank(x)) n.fail(fmt::format("blocked parameters have rank {}, and x has {}", rank, n.rank(x)));
    // [.., blocks, ..] → [.., blocks, block_size, ..] → [.., blocks * block_size, ..], cut to x's size.
    Shape split = n.shape(parameter), spread = split, joined = split;
    const auto at = static_cast<size_t>(axis);
    split.insert(split.begin() + axis + 1, Expr(1));
    spread.insert(spread.begin() + axis + 1, Expr(block_size));
    joined[at] = n.simplify(joined[at] * block_size);
    const ValueId all = n.reshape(n.expand(n.reshape(parameter, split), spread), joined);
    return n.slice(all, axis, 0, n.size(x, axis));
  }
  if (rank != 1) return parameter;
  if (n.size(parameter, 0).is_const(1)) return n.reshape(parameter, {});
  if (axis >= n.rank(x)) n.fail(fmt::format("axis {} is out of range for rank {}", axis, n.rank(x)));
  Shape shape(static_cast<size_t>(n.rank(x)), Expr(1));
  shape[static_cast<size_t>(axis)] = n.size(parameter, 0);
  return n.reshape(parameter, std::move(shape));
}

ValueId quantize(NodeImport& n, ValueId x, ValueId scale, ValueId zero, ElementType to, bool saturate) {
  const ValueId scaled = n.add("div", {n.cast(x, n.dtype(scale)), scale});
  const bool is_float_type = is_narrow(to) && carrier_dtype(to, n.describe()) == DType::F32;
  if (is_float_type) {
    ValueId y = n.cast(scaled, DType::F32);
    if (zero.valid()) y = n.add("add", {y, n.cast(zero, DType::F32)});
    if (to == ElementType::Float8E8M0) return round_to_power_of_two(n, y, saturate, "up");
    return round_to_narrow_float(n, y, to, saturate);
  }
  const auto [low, high] = integer_range(to, n.describe());
  ValueId y = n.cast(n.add("round", {scaled}), DType::F32);
  if (zero.valid()) y = n.add("add", {y, n.cast(zero, DType::F32)});
  y = n.add("min", {n.add("max", {y, n.scalar(DType::F32, low)}), n.scalar(DType::F32, high)});
  return n.cast(y, carrier_dtype(to, n.describe()));
}

ValueId dequantize(NodeImport& n, ValueId x, ValueId scale, ValueId zero) {
  const bool whole = is_int(n.dtype(x));
  ValueId y = whole ? n.cast(x, DType::I32) : n.cast(x, DType::F32);
  if (zero.valid()) y = n.add("sub", {y, n.cast(zero, whole ? DType::I32 : DType::F32)});
  return n.add("mul", {n.cast(y, DType::F32), n.cast(scale, DType::F32)});
}

}  // namespace fuseloom::front::onnx
