// matmul, conv, conv_transpose, their integer relatives, and det.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "op/decompose.h"
#include "op/multiply.h"
#include "op/op.h"
#include "op/schema.h"
#include "op/sliding_window.h"
#include "op/staging.h"

namespace fuseloom::op {
namespace {

using Kind = AttrSpec::Kind;

// ---- matmul
// ----------------------------------------------------------------------------------------------------------

// The shapes of a product after NumPy's promotion of vectors: a [batch…, m, k], b [batch…, k, n].
struct MatmulShapes {
  Shape a_batch, b_batch;
  sym::Expr m, n, a_k, b_k;
  bool a_vector = false, b_vector = false;  // the promoted dimension is dropped from the result
  bool trans_a = false, trans_b = false;
};

MatmulShapes matmul_shapes(const Shape& a, const Shape& b, bool trans_a, bool trans_b) {
  MatmulShapes s;
  s.a_vector = a.size() == 1;
  s.b_vector = b.size() == 1;
  s.trans_a = trans_a && !s.a_vector;  // a vector has no two dimensions to swap
  s.trans_b = trans_b && !s.b_vector;
  if (s.a_vector) {
    s.m = 1;
    s.a_k = a[0];
  } else {
    s.a_batch.assign(a.begin(), a.end() - 2);
    s.m = a[a.size() - (s.trans_a ? 1 : 2)];
    s.a_k = a[a.size() - (s.trans_a ? 2 : 1)];
  }
  if (s.b_vector) {
    s.n = 1;
    s.b_k = b[0];
  } else {
    s.b_batch.assign(b.begin(), b.end() - 2);
    s.b_k = b[b.size() - (s.trans_b ? 1 : 2)];
    s.n = b[b.size() - (s.trans_b ? 2 : 1)];
  }
  return s;
}

MatmulShapes checked_matmul_shapes(const InferContext& context) {
  const TensorType &a = context.in(0), &b = context.in(1);
  if (a.rank() == 0 || b.rank() == 0) {
    context.fail(fmt::format("operands are {} and {}, expected rank 1 or more", to_string(a), to_string(b)));
  }
  const MatmulShapes s = matmul_shapes(a.shape, b.shape, context.attrs.integer("trans_a", 0) != 0,
                                       context.attrs.integer("trans_b", 0) != 0);
  if (s.a_k.is_const() && s.b_k.is_const() && !(s.a_k == s.b_k)) {
    context.fail(fmt::format("contracted sizes differ: {} in {} and {} in {}", sym::to_string(s.a_k), to_string(a),
                             sym::to_string(s.b_k), to_string(b)));
  }
  return s;
}

Shape matmul_result_shape(const MatmulShapes& s) {
  Shape shape = broadcast_shapes(s.a_batch, s.b_batch);
  if (!s.a_vector) shape.push_back(s.m);
  if (!s.b_vector) shape.push_back(s.n);
  return shape;
}

std::vector<TensorType> infer_matmul(const InferContext& context) {
  if (context.in(0).dtype != context.in(1).dtype) {
    context.fail(
        fmt::format("operands are {} and {}, expected one dtype", to_string(context.in(0)), to_string(context.in(1))));
  }
  if (context.in(0).dtype == DType::Bool) context.fail("operands are bool, expected numbers");
  return {TensorType{context.in(0).dtype, matmul_result_shape(checked_matmul_shapes(context))}};
}

template <class T>
void matmul(const MatmulShapes& s, const Tensor& a_tensor, const Tensor& b_tensor, Tensor& result) {
  const int64_t m = concrete_size(s.m), n = concrete_size(s.n), k = concrete_size(s.a_k);
  const std::vector<T> a = stage<T>(a_tensor), b = stage<T>(b_tensor);
  const Dims batch = concrete_dims(broadcast_shapes(s.a_batch, s.b_batch));
  const std::vector<int64_t> a_map = broadcast_map(concrete_dims(s.a_batch), batch);
  const std::vector<int64_t> b_map = broadcast_map(concrete_dims(s.b_batch), batch);
  std::vector<T> c(static_cast<size_t>(result.count())), a_rows;
  for (size_t i = 0; i < a_map.size(); ++i) {
    const T* a_plane = a.data() + a_map[i] * m * k;
    const T* b_plane = b.data() + b_map[i] * k * n;
    if (s.trans_a) {
      a_rows.resize(static_cast<size_t>(m * k));
      for (int64_t p = 0; p < k; ++p) {
        for (int64_t r = 0; r < m; ++r) a_rows[static_cast<size_t>(r * k + p)] = a_plane[p * m + r];
      }
      a_plane = a_rows.data();
    }
    const auto fill = [&](int64_t column, int64_t width, T* panel) {
      if (s.trans_b) {
        for (int64_t j = 0; j < width; ++j) {
          const T* row = b_plane + (column + j) * k;
          for (int64_t p = 0; p < k; ++p) panel[p * kPanelWidth + j] = row[p];
        }
      } else {
        for (int64_t p = 0; p < k; ++p) std::copy_n(b_plane + p * n + column, width, panel + p * kPanelWidth);
      }
    };
    multiply<T>(m, n, k, a_plane, fill, nullptr, c.data() + static_cast<int64_t>(i) * m * n);
  }
  unstage(c, result);
}

void reference_matmul(const ReferenceContext& context) {
  const MatmulShapes s =
      matmul_shapes(shape_of(context.inputs[0].dims()), shape_of(context.inputs[1].dims()),
                    context.attrs.integer("trans_a", 0) != 0, context.attrs.integer("trans_b", 0) != 0);
  with_staging_type(context.outputs[0].dtype(), [&](auto element) {
    matmul<decltype(element)>(s, context.inputs[0], context.inputs[1], context.outputs[0]);
  });
}

// ---- convolutions
// ----------------------------------------------------------------------------------------------------

struct ConvAttrs {
  std::vector<int64_t> strides, dilations;
  Shape pads_low, pads_high;
  int64_t groups = 1;
};

ConvAttrs conv_attrs(const Attrs& attrs) {
  return {.strides = attrs.integers("strides"),
          .dilations = attrs.integers("dilations"),
          .pads_low = attrs.shape("pads_low"),
          .pads_high = attrs.shape("pads_high"),
          .groups = attrs.integer("groups")};
}

ConvAttrs checked_conv_attrs(const InferContext& context) {
  const TensorType &x = context.in(0), &w = context.in(1);
  if (x.rank() < 2) context.fail(fmt::format("x is {}, expected [n, channels, spatial...]", to_string(x)));
  expect_rank(context, "w", w, x.rank());
  const ConvAttrs c = conv_attrs(context.attrs);
  const int64_t spatial = x.rank() - 2;
  expect_entries(context, "strides", c.strides.size(), spatial);
  expect_entries(context, "dilations", c.dilations.size(), spatial);
  expect_entries(context, "pads_low", c.pads_low.size(), spatial);
  expect_entries(context, "pads_high", c.pads_high.size(), spatial);
  for (const int64_t stride : c.strides) {
    if (stride < 1) context.fail(fmt::format("stride {} is not positive", stride));
  }
  for (const int64_t dilation : c.dilations) {
    if (dilation < 1) context.fail(fmt::format("dilation {} is not positive", dilation));
  }
  if (c.groups < 1) context.fail(fmt::format("groups is {}, expected 1 or more", c.groups));
  if (const auto channels = w.shape[0].as_const(); channels && *channels % c.groups != 0) {
    context.fail(fmt::format("{} channels of w do not divide into {} groups", *channels, c.groups));
  }
  return c;
}

void expect_not_negative(const InferContext& context, const sym::Expr& size, size_t dimension) {
  if (const auto value = size.as_const(); value && *value < 0) {
    context.fail(fmt::format("the window is larger than the padded input in spatial dimension {}", dimension));
  }
}

std::vector<TensorType> infer_conv_as(const InferContext& context, DType dtype) {
  const TensorType &x = context.in(0), &w = context.in(1);
  const ConvAttrs c = checked_conv_attrs(context);
  expect_size(context, "the number of channels of x", x.shape[1], w.shape[1] * c.groups);
  TensorType y{dtype, {x.shape[0], w.shape[0]}};
  for (size_t d = 0; d < c.strides.size(); ++d) {
    y.shape.push_back(window_output_size(x.shape[d + 2], c.pads_low[d], c.pads_high[d], w.shape[d + 2], c.strides[d],
                                         c.dilations[d]));
    expect_not_negative(context, y.shape.back(), d);
  }
  return {y};
}

void expect_conv_operands(const InferContext& context, const sym::Expr& out_channels) {
  const TensorType& x = context.in(0);
  if (x.dtype == DType::Bool) context.fail("x is bool, expected numbers");
  expect_dtype(context, "w", context.in(1), x.dtype);
  if (context.has(2)) {
    expect_dtype(context, "bias", context.in(2), x.dtype);
    expect_rank(context, "bias", context.in(2), 1);
    expect_size(context, "the size of bias", context.in(2).shape[0], out_channels);
  }
}

std::vector<TensorType> infer_conv(const InferContext& context) {
  std::vector<TensorType> types = infer_conv_as(context, context.in(0).dtype);
  expect_conv_operands(context, types[0].shape[1]);
  return types;
}

std::vector<TensorType> infer_conv_transpose(const InferContext& context) {
  const TensorType &x = context.in(0), &w = context.in(1);
  const ConvAttrs c = checked_conv_attrs(context);
  const std::vector<int64_t> output_padding = context.attrs.integers("output_padding");
  expect_entries(context, "output_padding", output_padding.size(), x.rank() - 2);
  expect_size(context, "the number of channels of x", x.shape[1], w.shape[0]);
  TensorType y{x.dtype, {x.shape[0], w.shape[1] * c.groups}};
  for (size_t d = 0; d < c.strides.size(); ++d) {
    y.shape.push_back((x.shape[d + 2] - 1) * c.strides[d] + (w.shape[d + 2] - 1) * c.dilations[d] + 1 +
                      output_padding[d] - c.pads_low[d] - c.pads_high[d]);
    expect_not_negative(context, y.shape.back(), d);
  }
  expect_conv_operands(context, y.shape[1]);
  return {y};
}

// Both directions are one product per batch and group: weights [out channels, in channels × kernel] times the gathered
// input [in channels × kernel, output positions]. For conv_transpose the gather goes through the inverse window.
template <class T>
void convolve(const ReferenceContext& context, bool transposed) {
  const Tensor &x_tensor = context.inputs[0], &w_tensor = context.inputs[1];
  Tensor& y_tensor = context.outputs[0];
  const ConvAttrs attrs = conv_attrs(context.attrs);
  const int64_t groups = attrs.groups, batch = x_tensor.dim(0);
  const int64_t in_channels = x_tensor.dim(1) / groups, out_channels = y_tensor.dim(1) / groups;
  std::vector<WindowAxis> axes;
  for (size_t d = 0; d < attrs.strides.size(); ++d) {
    const int64_t axis = static_cast<int64_t>(d) + 2, low = concrete_size(attrs.pads_low[d]);
    axes.push_back((transposed ? WindowAxis::transposed : WindowAxis::forward)(
        x_tensor.dim(axis), y_tensor.dim(axis), w_tensor.dim(axis), attrs.strides[d], attrs.dilations[d], low));
  }
  const Window window(std::move(axes));
  const int64_t kernel = window.kernel_count(), in_plane = window.in_count(), out_plane = window.out_count();
  const int64_t depth = in_channels * kernel;
  const std::vector<T> x = stage<T>(x_tensor);
  std::vector<T> w = stage<T>(w_tensor);
  if (transposed) {  // [groups, in, out, kernel] → [groups, out, in, kernel]
    std::vector<T> swapped(w.size());
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t i = 0; i < in_channels; ++i) {
        for (int64_t o = 0; o < out_channels; ++o) {
          std::copy_n(w.data() + ((g * in_channels + i) * out_channels + o) * kernel, kernel,
                      swapped.data() + ((g * out_channels + o) * in_channels + i) * kernel);
        }
      }
    }
    w = std::move(swapped);
  }
  const std::vector<T> bias = context.has(2) ? stage<T>(context.inputs[2]) : std::vector<T>();
  std::vector<T> y(static_cast<size_t>(y_tensor.count()));
  std::vector<int64_t> offsets(static_cast<size_t>(kernel));
  for (int64_t n = 0; n < batch; ++n) {
    for (int64_t g = 0; g < groups; ++g) {
      const T* planes = x.data() + (n * groups + g) * in_channels * in_plane;
      const auto fill = [&](int64_t position, int64_t width, T* panel) {
        for (int64_t j = 0; j < width; ++j) {
          window.offsets(position + j, offsets);
          T* entry = panel + j;
          for (int64_t i = 0; i < in_channels; ++i) {
            const T* plane = planes + i * in_plane;
            for (const int64_t offset : offsets) {
              *entry = offset < 0 ? T() : plane[offset];
              entry += kPanelWidth;
            }
          }
        }
      };
      multiply<T>(out_channels, out_plane, depth, w.data() + g * out_channels * depth, fill,
                  bias.empty() ? nullptr : bias.data() + g * out_channels,
                  y.data() + (n * groups + g) * out_channels * out_plane);
    }
  }
  unstage(y, y_tensor);
}

ReferenceFn convolution_reference(bool transposed) {
  return [transposed](const ReferenceContext& context) {
    with_staging_type(context.outputs[0].dtype(),
                      [&](auto element) { convolve<decltype(element)>(context, transposed); });
  };
}

std::vector<AttrSpec> conv_attr_specs() {
  return {required_attr("strides", Kind::Integers), required_attr("dilations", Kind::Integers),
          required_attr("pads_low", Kind::Sizes), required_attr("pads_high", Kind::Sizes),
          required_attr("groups", Kind::Integer)};
}

sym::Expr kernel_count(const TensorType& w) { return sym::product(std::span<const sym::Expr>(w.shape).subspan(2)); }

// ---- integer products with zero points
// --------------------------------------------------------------------------------

void expect_byte(const InferContext& context, std::string_view what, const TensorType& type) {
  if (type.dtype != DType::I8 && type.dtype != DType::U8) {
    context.fail(fmt::format("{} is {}, expected i8 or u8", what, dtype_name(type.dtype)));
  }
}

std::vector<TensorType> infer_matmul_integer(const InferContext& context) {
  expect_byte(context, "a", context.in(0));
  expect_byte(context, "b", context.in(1));
  if (context.has(2)) expect_dtype(context, "a_zero", context.in(2), context.in(0).dtype);
  if (context.has(3)) expect_dtype(context, "b_zero", context.in(3), context.in(1).dtype);
  return {TensorType{DType::I32, matmul_result_shape(checked_matmul_shapes(context))}};
}

std::vector<TensorType> infer_conv_integer(const InferContext& context) {
  expect_byte(context, "x", context.in(0));
  expect_byte(context, "w", context.in(1));
  if (context.has(2)) expect_dtype(context, "x_zero", context.in(2), context.in(0).dtype);
  if (context.has(3)) expect_dtype(context, "w_zero", context.in(3), context.in(1).dtype);
  return infer_conv_as(context, DType::I32);
}

// x as i32 minus its zero point. `vector_axis` is the dimension of x that a zero point of rank 1 runs along; zero
// points of any other rank broadcast as they are.
Val centered(OpBuilder& builder, Val x, Val zero, int64_t vector_axis) {
  const Val wide = builder.cast(x, DType::I32);
  if (!zero.valid()) return wide;
  const TensorType type = builder.type(zero);
  Val offset = builder.cast(zero, DType::I32);
  if (type.rank() == 1 && !type.shape[0].is_const(1)) {
    Shape shape(static_cast<size_t>(builder.type(x).rank()), sym::Expr(1));
    shape[static_cast<size_t>(vector_axis)] = type.shape[0];
    offset = builder.reshape(offset, shape);
  } else if (type.rank() == 1) {
    offset = builder.reshape(offset, {});
  }
  return builder.apply("sub", {wide, offset});
}

std::vector<Val> decompose_matmul_integer(OpBuilder& builder, const DecomposeContext& context) {
  const int64_t a_rank = builder.type(context.inputs[0]).rank(), b_rank = builder.type(context.inputs[1]).rank();
  // Per row of a (its second to last dimension), per column of b (its last).
  const Val a = centered(builder, context.inputs[0], context.has(2) ? context.inputs[2] : Val(),
                         std::max<int64_t>(a_rank - 2, 0));
  const Val b = centered(builder, context.inputs[1], context.has(3) ? context.inputs[3] : Val(), b_rank - 1);
  return {builder.apply("matmul", {a, b})};
}

std::vector<Val> decompose_conv_integer(OpBuilder& builder, const DecomposeContext& context) {
  const Val x = centered(builder, context.inputs[0], context.has(2) ? context.inputs[2] : Val(), 1);
  const Val w = centered(builder, context.inputs[1], context.has(3) ? context.inputs[3] : Val(), 0);
  return {builder.apply("conv", {x, w}, context.attrs)};
}

// The same in a reference: i32 tensors with the zero point taken off.
Tensor centered(const Tensor& x, const Tensor& zero, int64_t vector_axis) {
  std::vector<int64_t> values = stage<int64_t>(x);
  if (zero.valid()) {
    const std::vector<int64_t> zeros = stage<int64_t>(zero);
    Dims dims = zero.dims();
    if (dims.size() == 1 && dims[0] != 1) {
      dims.assign(static_cast<size_t>(x.rank()), 1);
      dims[static_cast<size_t>(vector_axis)] = zero.dim(0);
    } else if (dims.size() == 1) {
      dims.clear();
    }
    const std::vector<int64_t> map = broadcast_map(dims, x.dims());
    for (size_t i = 0; i < values.size(); ++i) values[i] -= zeros[static_cast<size_t>(map[i])];
  }
  Tensor result(DType::I32, x.dims());
  unstage(values, result);
  return result;
}

void reference_matmul_integer(const ReferenceContext& context) {
  const Tensor none;
  const std::vector<Tensor> operands = {
      centered(context.inputs[0], context.has(2) ? context.inputs[2] : none,
               std::max<int64_t>(context.inputs[0].rank() - 2, 0)),
      centered(context.inputs[1], context.has(3) ? context.inputs[3] : none, context.inputs[1].rank() - 1)};
  reference_matmul({.record = context.record, .inputs = operands, .attrs = context.attrs, .outputs = context.outputs});
}

void reference_conv_integer(const ReferenceContext& context) {
  const Tensor none;
  const std::vector<Tensor> operands = {centered(context.inputs[0], context.has(2) ? context.inputs[2] : none, 1),
                                        centered(context.inputs[1], context.has(3) ? context.inputs[3] : none, 0)};
  convolve<uint64_t>({.record = context.record, .inputs = operands, .attrs = context.attrs, .outputs = context.outputs},
                     false);
}

// ---- det
// -------------------------------------------------------------------------------------------------------------

std::vector<TensorType> infer_det(const InferContext& context) {
  const TensorType& x = context.in(0);
  expect_float(context, "x", x);
  if (x.rank() < 2) context.fail(fmt::format("x is {}, expected [..., n, n]", to_string(x)));
  expect_size(context, "the last dimension of x", x.shape.back(), x.shape[x.shape.size() - 2]);
  return {{x.dtype, Shape(x.shape.begin(), x.shape.end() - 2)}};
}

// Gaussian elimination with partial pivoting.
double determinant(double* a, int64_t n) {
  double result = 1;
  for (int64_t k = 0; k < n; ++k) {
    int64_t pivot = k;
    for (int64_t r = k + 1; r < n; ++r) {
      if (std::abs(a[r * n + k]) > std::abs(a[pivot * n + k])) pivot = r;
    }
    if (a[pivot * n + k] == 0) return 0;
    if (pivot != k) {
      std::swap_ranges(a + pivot * n, a + (pivot + 1) * n, a + k * n);
      result = -result;
    }
    result *= a[k * n + k];
    for (int64_t r = k + 1; r < n; ++r) {
      const double factor = a[r * n + k] / a[k * n + k];
      for (int64_t c = k + 1; c < n; ++c) a[r * n + c] -= factor * a[k * n + c];
    }
  }
  return result;
}

void reference_det(const ReferenceContext& context) {
  const Tensor& x = context.inputs[0];
  const int64_t n = x.dim(x.rank() - 1);
  std::vector<double> matrices = stage<double>(x), results(static_cast<size_t>(context.outputs[0].count()));
  for (size_t i = 0; i < results.size(); ++i)
    results[i] = determinant(matrices.data() + static_cast<int64_t>(i) * n * n, n);
  unstage(results, context.outputs[0]);
}

}  // namespace

void add_contraction_ops(OpTable& table) {
  const auto matmul_flops = [](const InferContext& context, std::span<const TensorType> outputs) {
    return count_of(outputs[0].shape) * checked_matmul_shapes(context).a_k * 2;
  };
  const auto conv_flops = [](const InferContext& context, std::span<const TensorType> outputs) {
    const TensorType& w = context.in(1);
    return count_of(outputs[0].shape) * w.shape[1] * kernel_count(w) * 2;
  };
  table.add({.name = "matmul",
             .family = Family::Contraction,
             .summary = "NumPy's matmul: the last two dimensions multiply, the others broadcast, vectors are promoted",
             .min_inputs = 2,
             .max_inputs = 2,
             .attrs = {optional_attr("trans_a", Kind::Integer), optional_attr("trans_b", Kind::Integer)},
             .infer = infer_matmul,
             .reference = reference_matmul,
             .flops = matmul_flops});
  table.add({.name = "conv",
             .family = Family::Contraction,
             .summary = "grouped convolution (cross-correlation) of [n, c, d...] with [o, c / groups, k...]",
             .min_inputs = 2,
             .max_inputs = 3,
             .attrs = conv_attr_specs(),
             .infer = infer_conv,
             .reference = convolution_reference(false),
             .flops = conv_flops});
  std::vector<AttrSpec> transpose_attrs = conv_attr_specs();
  transpose_attrs.push_back(required_attr("output_padding", Kind::Integers));
  table.add(
      {.name = "conv_transpose",
       .family = Family::Composite,
       .summary = "transposed convolution of [n, c, d...] with [c, o / groups, k...]; negative pads extend with zeros",
       .min_inputs = 2,
       .max_inputs = 3,
       .attrs = std::move(transpose_attrs),
       .infer = infer_conv_transpose,
       .reference = convolution_reference(true),
       .decompose = decompose_conv_transpose,
       .flops = [](const InferContext& context, std::span<const TensorType>) {
         const TensorType& w = context.in(1);
         return count_of(context.in(0).shape) * w.shape[1] * kernel_count(w) * 2;
       }});
  table.add(
      {.name = "matmul_integer",
       .family = Family::Composite,
       .summary = "(a - a_zero) · (b - b_zero) of bytes in i32; a_zero may be per row of a, b_zero per column of b",
       .min_inputs = 2,
       .max_inputs = 4,
       .infer = infer_matmul_integer,
       .reference = reference_matmul_integer,
       .decompose = decompose_matmul_integer,
       .flops = matmul_flops});
  table.add({.name = "conv_integer",
             .family = Family::Composite,
             .summary = "conv(x - x_zero, w - w_zero) of bytes in i32; w_zero may be per output channel",
             .min_inputs = 2,
             .max_inputs = 4,
             .attrs = conv_attr_specs(),
             .infer = infer_conv_integer,
             .reference = reference_conv_integer,
             .decompose = decompose_conv_integer,
             .flops = conv_flops});
  table.add({.name = "det",
             .family = Family::Extern,
             .summary = "the determinant of the last two dimensions",
             .infer = infer_det,
             .reference = reference_det});
}

}  // namespace fuseloom::op
