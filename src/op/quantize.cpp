// Linear quantization. The results jump from one integer to the next, so the reference does not compute in f64: the
// division and the rounding happen in the compute type (f32, or f64 for f64 data) exactly as the decomposition writes
// them, and both give the same bits.
#include <cmath>
#include <type_traits>

#include "base/check.h"
#include "op/decompose.h"
#include "op/element.h"
#include "op/op.h"
#include "op/schema.h"
#include "op/staging.h"

namespace fuseloom::op {
namespace {

using Kind = AttrSpec::Kind;

// ---- parameters: one per tensor, per index of an axis, or per block along an axis
// ---------------------------------------

bool is_single(const Shape& shape) { return shape.empty() || (shape.size() == 1 && shape[0].is_const(1)); }

void expect_parameter(const InferContext& context, std::string_view what, const TensorType& parameter) {
  const TensorType& x = context.in(0);
  const int64_t block = context.attrs.integer("block_size", 0);
  if (block < 0) context.fail(fmt::format("block_size is {}, expected 0 (none) or more", block));
  if (block == 0 && is_single(parameter.shape)) return;
  const size_t axis = static_cast<size_t>(axis_in_rank(context, context.attrs.integer("axis", 1), x.rank()));
  if (block > 0) {
    expect_rank(context, what, parameter, x.rank());
    for (size_t d = 0; d < x.shape.size(); ++d) {
      expect_size(context, fmt::format("dimension {} of {}", d, what), parameter.shape[d],
                  d == axis ? sym::ceil_div(x.shape[d], block) : x.shape[d]);
    }
    return;
  }
  expect_rank(context, what, parameter, 1);
  expect_size(context, fmt::format("the size of {}", what), parameter.shape[0], x.shape[axis]);
}

// A parameter shaped to broadcast against x.
Val spread(OpBuilder& builder, Val parameter, const TensorType& x, const Attrs& attrs) {
  const Shape shape = builder.type(parameter).shape;
  const int64_t block = attrs.integer("block_size", 0);
  if (block == 0 && is_single(shape)) return builder.reshape(parameter, {});
  const size_t axis = static_cast<size_t>(wrap_axis(attrs.integer("axis", 1), x.rank()));
  if (block == 0) {
    Shape along(x.shape.size(), sym::Expr(1));
    along[axis] = shape[0];
    return builder.reshape(parameter, along);
  }
  // [..., blocks, ...] → [..., blocks, 1, ...] → [..., blocks, block, ...] → [..., blocks * block, ...] → cropped.
  Shape split = shape;
  split.insert(split.begin() + static_cast<std::ptrdiff_t>(axis) + 1, sym::Expr(1));
  Shape repeated = split;
  repeated[axis + 1] = block;
  Shape merged = shape;
  merged[axis] = shape[axis] * block;
  Val result =
      builder.reshape(builder.apply("expand", {builder.reshape(parameter, split)}, {{"shape", repeated}}), merged);
  if (merged[axis] == x.shape[axis]) return result;
  return builder.apply("slice", {result},
                       {{"starts", Shape(x.shape.size(), sym::Expr(0))},
                        {"sizes", x.shape},
                        {"steps", std::vector<int64_t>(x.shape.size(), 1)}});
}

// For each element of x, which entry of a parameter applies.
class ParameterIndex {
 public:
  ParameterIndex(const Tensor& x, const Tensor& parameter, const Attrs& attrs) {
    const int64_t block = attrs.integer("block_size", 0);
    if (block == 0 && parameter.count() == 1 && parameter.rank() < 2) return;
    const int64_t axis = wrap_axis(attrs.integer("axis", 1), x.rank());
    inner_ = count_between(x.dims(), axis + 1, x.rank());
    size_ = x.dim(axis);
    block_ = block == 0 ? 1 : block;
    if (block == 0) return;
    entry_inner_ = inner_;
    entry_outer_ = parameter.dim(axis) * inner_;
  }
  size_t operator()(int64_t element) const {
    const int64_t i = element % inner_, d = element / inner_ % size_, outer = element / inner_ / size_;
    return static_cast<size_t>(outer * entry_outer_ + d / block_ * (entry_inner_ == 0 ? 1 : entry_inner_) +
                               (entry_inner_ == 0 ? 0 : i));
  }

 private:
  int64_t inner_ = 1, size_ = 1, block_ = 1;
  int64_t entry_inner_ = 0, entry_outer_ = 0;  // strides of a blocked parameter; 0: it runs along the axis only
};

std::vector<AttrSpec> parameter_attrs(std::vector<AttrSpec> more) {
  more.push_back(optional_attr("axis", Kind::Integer));
  more.push_back(optional_attr("block_size", Kind::Integer));
  return more;
}

// ---- quantize_linear
// -------------------------------------------------------------------------------------------------

bool is_quantized(DType dtype) { return is_int(dtype) && dtype_bits(dtype) <= 16; }

DType quantizing_dtype(DType x) { return x == DType::F64 ? DType::F64 : DType::F32; }

std::vector<TensorType> infer_quantize(const InferContext& context) {
  const TensorType& x = context.in(0);
  const DType to = context.attrs.dtype("to");
  if (!is_float(x.dtype) && x.dtype != DType::I32) {
    context.fail(fmt::format("x is {}, expected a float type or i32", dtype_name(x.dtype)));
  }
  if (!is_quantized(to))
    context.fail(fmt::format("to is {}, expected an integer type of 8 or 16 bits", dtype_name(to)));
  expect_float(context, "scale", context.in(1));
  expect_parameter(context, "scale", context.in(1));
  if (context.has(2)) {
    expect_dtype(context, "zero", context.in(2), to);
    expect_parameter(context, "zero", context.in(2));
  }
  return {TensorType{to, x.shape}};
}

template <class T>
void quantize(const ReferenceContext& context) {
  const Tensor& x = context.inputs[0];
  const std::vector<double> values = stage<double>(x), scale = stage<double>(context.inputs[1]);
  const std::vector<double> zero = context.has(2) ? stage<double>(context.inputs[2]) : std::vector<double>();
  const ParameterIndex scale_index(x, context.inputs[1], context.attrs);
  const ParameterIndex zero_index(x, context.has(2) ? context.inputs[2] : context.inputs[1], context.attrs);
  std::vector<double> y(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t e = static_cast<int64_t>(i);
    T q = std::nearbyint(static_cast<T>(values[i]) / static_cast<T>(scale[scale_index(e)]));
    if (!zero.empty()) q += static_cast<T>(zero[zero_index(e)]);
    if (context.attrs.has("low") && q < static_cast<T>(context.attrs.integer("low")))
      q = static_cast<T>(context.attrs.integer("low"));
    if (context.attrs.has("high") && q > static_cast<T>(context.attrs.integer("high")))
      q = static_cast<T>(context.attrs.integer("high"));
    y[i] = q;
  }
  unstage(y, context.outputs[0]);  // the cast saturates; NaN gives 0
}

void reference_quantize(const ReferenceContext& context) {
  if (quantizing_dtype(context.inputs[0].dtype()) == DType::F64) {
    quantize<double>(context);
  } else {
    quantize<float>(context);
  }
}

std::vector<Val> decompose_quantize(OpBuilder& builder, const DecomposeContext& context) {
  Algebra a(builder);
  const TensorType x = builder.type(context.inputs[0]);
  const DType dtype = quantizing_dtype(x.dtype);
  const Val scale = spread(builder, builder.cast(context.inputs[1], dtype), x, context.attrs);
  Val q = a.unary("round", a.div(builder.cast(context.inputs[0], dtype), scale));
  if (context.has(2)) q = a.add(q, spread(builder, builder.cast(context.inputs[2], dtype), x, context.attrs));
  if (context.attrs.has("low"))
    q = builder.apply("max", {q, a.number(q, static_cast<double>(context.attrs.integer("low")))});
  if (context.attrs.has("high"))
    q = builder.apply("min", {q, a.number(q, static_cast<double>(context.attrs.integer("high")))});
  return {builder.cast(q, context.attrs.dtype("to"))};
}

// ---- dequantize_linear
// -----------------------------------------------------------------------------------------------

DType dequantized_dtype(const Attrs& attrs, DType scale) { return attrs.has("to") ? attrs.dtype("to") : scale; }

std::vector<TensorType> infer_dequantize(const InferContext& context) {
  const TensorType& x = context.in(0);
  if (!is_int(x.dtype) || dtype_bits(x.dtype) > 32) {
    context.fail(fmt::format("x is {}, expected an integer type of at most 32 bits", dtype_name(x.dtype)));
  }
  expect_float(context, "scale", context.in(1));
  expect_parameter(context, "scale", context.in(1));
  if (context.has(2)) {
    expect_dtype(context, "zero", context.in(2), x.dtype);
    expect_parameter(context, "zero", context.in(2));
  }
  const DType dtype = dequantized_dtype(context.attrs, context.in(1).dtype);
  if (!is_float(dtype)) context.fail(fmt::format("to is {}, expected a float type", dtype_name(dtype)));
  return {TensorType{dtype, x.shape}};
}

void reference_dequantize(const ReferenceContext& context) {
  const Tensor& x = context.inputs[0];
  const std::vector<int64_t> values = stage<int64_t>(x);
  const std::vector<double> scale = stage<double>(context.inputs[1]);
  const std::vector<int64_t> zero = context.has(2) ? stage<int64_t>(context.inputs[2]) : std::vector<int64_t>();
  const ParameterIndex scale_index(x, context.inputs[1], context.attrs);
  const ParameterIndex zero_index(x, context.has(2) ? context.inputs[2] : context.inputs[1], context.attrs);
  std::vector<double> y(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t e = static_cast<int64_t>(i);
    const int64_t offset = zero.empty() ? 0 : zero[zero_index(e)];
    y[i] = static_cast<double>(static_cast<int32_t>(values[i] - offset)) * scale[scale_index(e)];
  }
  unstage(y, context.outputs[0]);
}

std::vector<Val> decompose_dequantize(OpBuilder& builder, const DecomposeContext& context) {
  Algebra a(builder);
  const TensorType x = builder.type(context.inputs[0]);
  const DType scale_dtype = builder.type(context.inputs[1]).dtype;
  Val centered = builder.cast(context.inputs[0], DType::I32);
  if (context.has(2)) {
    centered = a.sub(centered, spread(builder, builder.cast(context.inputs[2], DType::I32), x, context.attrs));
  }
  const Val scale = spread(builder, a.wide(context.inputs[1]), x, context.attrs);
  const Val y = a.mul(builder.cast(centered, compute_dtype(scale_dtype)), scale);
  return {builder.cast(y, dequantized_dtype(context.attrs, scale_dtype))};
}

// ---- dynamic_quantize_linear
// -----------------------------------------------------------------------------------------

std::vector<TensorType> infer_dynamic_quantize(const InferContext& context) {
  expect_dtype(context, "x", context.in(0), DType::F32);
  return {{DType::U8, context.in(0).shape}, {DType::F32, {}}, {DType::U8, {}}};
}

// scale = (max(x, 0) - min(x, 0)) / 255, zero = round(-min / scale). A tensor of zeros has scale 0; 0 / 0 is NaN, which
// casts to 0, so that it quantizes to zeros around zero.
void reference_dynamic_quantize(const ReferenceContext& context) {
  const std::vector<double> x = stage<double>(context.inputs[0]);
  float low = 0, high = 0;
  for (const double value : x) {
    const float v = static_cast<float>(value);
    if (std::isnan(v)) low = high = v;
    if (std::isnan(low)) break;
    low = std::min(low, v);
    high = std::max(high, v);
  }
  const float scale = (high - low) / 255.0f;
  const uint8_t zero = saturate<uint8_t>(std::nearbyint((0.0f - low) / scale));
  std::vector<double> y;
  for (const double value : x)
    y.push_back(std::nearbyint(static_cast<float>(value) / scale) + static_cast<float>(zero));
  unstage(y, context.outputs[0]);
  context.outputs[1].set(0, scale);
  context.outputs[2].set_int(0, zero);
}

std::vector<Val> decompose_dynamic_quantize(OpBuilder& builder, const DecomposeContext& context) {
  Algebra a(builder);
  const Val x = context.inputs[0];
  std::vector<int64_t> axes;
  for (int64_t d = 0; d < builder.type(x).rank(); ++d) axes.push_back(d);
  const auto extreme = [&](const char* reduce, const char* combine) {
    const Val value = builder.apply(reduce, {x}, {{"axes", axes}, {"keepdims", int64_t{0}}});
    return builder.apply(combine, {value, a.number(value, 0)});
  };
  const Val low = extreme("reduce_min", "min"), high = extreme("reduce_max", "max");
  const Val scale = a.div(a.sub(high, low), a.number(low, 255));
  const Val zero = builder.cast(a.unary("round", a.div(a.sub(a.number(low, 0), low), scale)), DType::U8);
  const Val q = a.add(a.unary("round", a.div(x, scale)), builder.cast(zero, DType::F32));
  return {builder.cast(q, DType::U8), scale, zero};
}

}  // namespace

void add_quantize_ops(OpTable& table) {
  table.add({.name = "quantize_linear",
             .family = Family::Composite,
             .summary = "saturate(round(x / scale) + zero), half to even; per tensor, per axis or per block",
             .min_inputs = 2,
             .max_inputs = 3,
             .attrs = parameter_attrs({required_attr("to", Kind::Type), optional_attr("low", Kind::Integer),
                                       optional_attr("high", Kind::Integer)}),
             .infer = infer_quantize,
             .reference = reference_quantize,
             .decompose = decompose_quantize,
             .cost = 6});
  table.add({.name = "dequantize_linear",
             .family = Family::Composite,
             .summary = "(x - zero) * scale; per tensor, per axis or per block",
             .min_inputs = 2,
             .max_inputs = 3,
             .attrs = parameter_attrs({optional_attr("to", Kind::Type)}),
             .infer = infer_dequantize,
             .reference = reference_dequantize,
             .decompose = decompose_dequantize,
             .cost = 2});
  table.add({.name = "dynamic_quantize_linear",
             .family = Family::Composite,
             .summary = "x quantized to u8 with the scale and the zero point that its range asks for",
             .min_outputs = 3,
             .max_outputs = 3,
             .infer = infer_dynamic_quantize,
             .reference = reference_dynamic_quantize,
             .decompose = decompose_dynamic_quantize,
             .cost = 6});
}

}  // namespace fuseloom::op
