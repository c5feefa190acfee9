// Quantized operators.
#include "base/check.h"
#include "front/onnx/narrow.h"
#include "front/onnx/node_import.h"
#include "front/onnx/quantization.h"
#include "front/onnx/windows.h"

namespace fuseloom::front::onnx {
namespace {

// The axis of per-axis parameters; a scalar x has none, and then none is needed.
int64_t parameter_axis(const NodeImport& n, ValueId x) {
  const int64_t axis = n.integer("axis", 1), rank = n.rank(x);
  if (axis < -rank || axis >= rank) return 0;
  return axis < 0 ? axis + rank : axis;
}

void import_quantize_linear(NodeImport& n) {
  ValueId x = n.in(0);
  const int64_t axis = parameter_axis(n, x), block = n.integer("block_size", 0);
  ValueId scale = quantization_parameter(n, n.in(1), x, axis, block);
  const ValueId zero = n.has(2) ? quantization_parameter(n, n.in(2), x, axis, block) : ValueId{};
  const auto declared = static_cast<ElementType>(n.integer("output_dtype", 0));
  const ElementType to = n.has(2)                             ? element_of_input(n, 2)
                         : declared != ElementType::Undefined ? declared
                                                              : ElementType::UInt8;
  if (const int64_t precision = n.integer("precision", 0); precision != 0)
    scale = n.cast(scale, carrier_dtype(static_cast<ElementType>(precision), n.describe()));
  n.out(0, quantize(n, x, scale, zero, to, n.integer("saturate", 1) != 0), is_narrow(to) ? to : ElementType::Undefined);
}

void import_dequantize_linear(NodeImport& n) {
  const ValueId x = n.in(0);
  const int64_t axis = parameter_axis(n, x), block = n.integer("block_size", 0);
  const ValueId scale = quantization_parameter(n, n.in(1), x, axis, block);
  const ValueId zero = n.has(2) ? quantization_parameter(n, n.in(2), x, axis, block) : ValueId{};
  const int64_t declared = n.integer("output_dtype", 0);
  const DType to = declared != 0 ? carrier_dtype(static_cast<ElementType>(declared), n.describe()) : n.dtype(scale);
  n.out(n.cast(dequantize(n, x, scale, zero), to));
}

// To u8 with a scale and zero point that cover the data and 0.
void import_dynamic_quantize_linear(NodeImport& n) {
  const ValueId x = n.in(0);
  std::vector<int64_t> every;
  for (int64_t a = 0; a < n.rank(x); ++a) every.push_back(a);
  const ValueId zero = n.like(x, 0), top = n.like(x, 255);
  const ValueId high = n.add("max", {n.reduce("reduce_max", x, every, false), zero});
  const ValueId low = n.add("min", {n.reduce("reduce_min", x, every, false), zero});
  const ValueId scale = n.add("div", {n.add("sub", {high, low}), top});
  const ValueId place = n.add("round", {n.add("neg", {n.add("div", {low, scale})})});
  const ValueId point = n.cast(n.add("min", {n.add("max", {place, zero}), top}), DType::U8);
  n.out(0, quantize(n, x, scale, point, ElementType::UInt8));
  n.out(1, scale);
  n.out(2, point);
}

void import_matmul_integer(NodeImport& n) {
  n.out(n.add("matmul_integer", {n.in(0), n.in(1), n.in_or_none(2), n.in_or_none(3)}));
}

Attrs conv_attrs(NodeImport& n, ValueId x, ValueId w) {
  const Windows windows = read_windows(n, x, kernel_of_weights(n, w));
  return {{"strides", windows.strides},
          {"dilations", windows.dilations},
          {"pads_low", windows.low},
          {"pads_high", windows.high},
          {"groups", n.integer("group", 1)}};
}

void import_conv_integer(NodeImport& n) {
  const ValueId x = n.in(0), w = n.in(1);
  n.out(n.add("conv_integer", {x, w, n.in_or_none(2), n.in_or_none(3)}, conv_attrs(n, x, w)));
}

// One value per row of a matrix operand, next to the product.
ValueId per_row(NodeImport& n, ValueId v) {
  return n.rank(v) == 1 && !n.size(v, 0).is_const(1) ? n.reshape(v, {n.size(v, 0), 1})
         : n.rank(v) == 1                            ? n.reshape(v, {})
                                                     : v;
}
ValueId single(NodeImport& n, ValueId v) { return n.rank(v) == 1 && n.size(v, 0).is_const(1) ? n.reshape(v, {}) : v; }

// acc * (a_scale * b_scale / y_scale), rounded to y.
void requantize(NodeImport& n, ValueId accumulated, ValueId a_scale, ValueId b_scale, ValueId y_scale, ValueId y_zero,
                ElementType to) {
  const ValueId product = n.add("mul", {n.cast(a_scale, DType::F32), n.cast(b_scale, DType::F32)});
  const ValueId real = n.add("mul", {n.cast(accumulated, DType::F32), product});
  n.out(0, quantize(n, real, n.cast(y_scale, DType::F32), y_zero, to), is_narrow(to) ? to : ElementType::Undefined);
}

// a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero
void import_qlinear_matmul(NodeImport& n) {
  const ValueId accumulated = n.add("matmul_integer", {n.in(0), n.in(3), n.in(2), n.in(5)});
  requantize(n, accumulated, per_row(n, n.in(1)), single(n, n.in(4)), per_row(n, n.in(6)), per_row(n, n.in(7)),
             element_of_input(n, 7));
}

// x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias (i32, at scale x * w)
void import_qlinear_conv(NodeImport& n) {
  const ValueId x = n.in(0), w = n.in(3);
  ValueId accumulated = n.add("conv_integer", {x, w, n.in(2), n.in(5)}, conv_attrs(n, x, w));
  const auto per_channel = [&](ValueId v) {
    v = single(n, v);
    if (n.rank(v) == 0) return v;
    Shape shape(static_cast<size_t>(n.rank(x)) - 1, Expr(1));
    shape[0] = n.size(v, 0);
    return n.reshape(v, std::move(shape));
  };
  if (n.has(8)) accumulated = n.add("add", {accumulated, per_channel(n.in(8))});
  requantize(n, accumulated, single(n, n.in(1)), per_channel(n.in(4)), single(n, n.in(6)), single(n, n.in(7)),
             element_of_input(n, 7));
}

}  // namespace

void add_quant_imports(ImportTable& t) {
  for (const char* domain : {"", "com.microsoft"}) {
    t.add(domain, "QuantizeLinear", import_quantize_linear);
    t.add(domain, "DequantizeLinear", import_dequantize_linear);
  }
  t.add("DynamicQuantizeLinear", import_dynamic_quantize_linear);
  t.add("MatMulInteger", import_matmul_integer);
  t.add("ConvInteger", import_conv_integer);
  t.add("QLinearMatMul", import_qlinear_matmul);
  t.add("QLinearConv", import_qlinear_conv);
}

}  // namespace fuseloom::front::onnx
