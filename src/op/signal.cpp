// dft, stft. Complex signals are pairs in the last dimension, as ONNX has them: [..., 1] is real, [..., 2] complex.
#include <algorithm>

#include "base/check.h"
#include "op/fourier.h"
#include "op/op.h"
#include "op/schema.h"
#include "op/staging.h"

namespace fuseloom::op {
namespace {

using Kind = AttrSpec::Kind;

void expect_signal(const InferContext& context, const TensorType& x, int64_t min_rank) {
  expect_float(context, "x", x);
  if (x.rank() < min_rank) context.fail(fmt::format("x is {}, expected rank {} or more", to_string(x), min_rank));
  if (const auto parts = x.shape.back().as_const(); !parts || (*parts != 1 && *parts != 2)) {
    context.fail(
        fmt::format("the last dimension of x is {}, expected 1 (real) or 2 (complex)", sym::to_string(x.shape.back())));
  }
}

sym::Expr single_size(const InferContext& context, const char* name) {
  expect_entries(context, name, context.attrs.shape(name).size(), 1);
  return context.attrs.shape(name)[0];
}

// Element i of a line of pairs or singles with this stride between elements.
Complex load_complex(const double* line, int64_t i, int64_t stride, int64_t parts) {
  const double* element = line + i * stride * parts;
  return {element[0], parts == 2 ? element[1] : 0.0};
}

// ---- dft
// -------------------------------------------------------------------------------------------------------------

std::vector<TensorType> infer_dft(const InferContext& context) {
  const TensorType& x = context.in(0);
  expect_signal(context, x, 2);
  const int64_t axis = axis_in_rank(context, context.attrs.integer("axis"), x.rank());
  if (axis == x.rank() - 1) context.fail("the axis is the last dimension, which holds the complex parts");
  const bool inverse = context.attrs.integer("inverse") != 0, onesided = context.attrs.integer("onesided") != 0;
  const sym::Expr length = single_size(context, "length");
  TensorType y = x;
  y.shape[static_cast<size_t>(axis)] = onesided && !inverse ? sym::floor_div(length, 2) + 1 : length;
  y.shape.back() = onesided && inverse ? 1 : 2;
  return {y};
}

void reference_dft(const ReferenceContext& context) {
  const Tensor& x_tensor = context.inputs[0];
  Tensor& y_tensor = context.outputs[0];
  const int64_t rank = x_tensor.rank(), axis = wrap_axis(context.attrs.integer("axis"), rank);
  const bool inverse = context.attrs.integer("inverse") != 0, onesided = context.attrs.integer("onesided") != 0;
  const int64_t n = concrete_size(context.attrs.shape("length")[0]), in = x_tensor.dim(axis), out = y_tensor.dim(axis);
  const int64_t outer = count_between(x_tensor.dims(), 0, axis),
                inner = count_between(x_tensor.dims(), axis + 1, rank - 1);
  const int64_t x_parts = x_tensor.dim(rank - 1), y_parts = y_tensor.dim(rank - 1);
  const std::vector<double> x = stage<double>(x_tensor);
  std::vector<double> y(static_cast<size_t>(y_tensor.count()));
  std::vector<Complex> from(static_cast<size_t>(n)), to(from.size());
  FourierTransform transform(n);
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t i = 0; i < inner; ++i) {
      const double* line = x.data() + (o * in * inner + i) * x_parts;
      std::fill(from.begin(), from.end(), Complex());
      if (inverse && onesided) {  // the other half of the spectrum of a real signal; its ends have no imaginary part
        for (int64_t k = 0; k <= n / 2 && k < in && n > 0; ++k) {
          const Complex value = load_complex(line, k, inner, x_parts);
          const bool end = k == 0 || 2 * k == n;
          from[static_cast<size_t>(k)] = end ? Complex(value.real(), 0) : value;
          if (!end) from[static_cast<size_t>(n - k)] = std::conj(value);
        }
      } else {
        for (int64_t k = 0; k < std::min(n, in); ++k)
          from[static_cast<size_t>(k)] = load_complex(line, k, inner, x_parts);
      }
      if (inverse) {
        transform.inverse(from.data(), to.data());
      } else {
        transform.forward(from.data(), to.data());
      }
      for (int64_t k = 0; k < std::min(out, n); ++k) {
        double* element = y.data() + ((o * out + k) * inner + i) * y_parts;
        element[0] = to[static_cast<size_t>(k)].real();
        if (y_parts == 2) element[1] = to[static_cast<size_t>(k)].imag();
      }
    }
  }
  unstage(y, y_tensor);
}

// ---- stft
// ------------------------------------------------------------------------------------------------------------

std::vector<TensorType> infer_stft(const InferContext& context) {
  const TensorType& x = context.in(0);
  expect_signal(context, x, 3);
  expect_rank(context, "x", x, 3);
  const sym::Expr length = single_size(context, "frame_length"), step = single_size(context, "frame_step");
  if (const auto value = step.as_const(); value && *value < 1)
    context.fail(fmt::format("frame_step is {}, expected 1 or more", *value));
  if (context.has(1)) {
    expect_dtype(context, "window", context.in(1), x.dtype);
    expect_rank(context, "window", context.in(1), 1);
    const auto window = context.in(1).shape[0].as_const(), frame = length.as_const();
    if (window && frame && *window > *frame)
      context.fail(fmt::format("the window has {} elements, a frame {}", *window, *frame));
  }
  const sym::Expr frames = sym::floor_div(x.shape[1] - length, step) + 1;
  const sym::Expr bins = context.attrs.integer("onesided", 1) != 0 ? sym::floor_div(length, 2) + 1 : length;
  return {{x.dtype, {x.shape[0], frames, bins, 2}}};
}

// A window shorter than the frame leaves zeros at its end.
void reference_stft(const ReferenceContext& context) {
  const Tensor& x_tensor = context.inputs[0];
  Tensor& y_tensor = context.outputs[0];
  const int64_t n = concrete_size(context.attrs.shape("frame_length")[0]),
                step = concrete_size(context.attrs.shape("frame_step")[0]);
  const int64_t batch = x_tensor.dim(0), samples = x_tensor.dim(1), parts = x_tensor.dim(2);
  const int64_t frames = y_tensor.dim(1), bins = y_tensor.dim(2);
  const std::vector<double> x = stage<double>(x_tensor);
  const std::vector<double> window =
      context.has(1) ? stage<double>(context.inputs[1]) : std::vector<double>(static_cast<size_t>(n), 1.0);
  std::vector<double> y(static_cast<size_t>(y_tensor.count()));
  std::vector<Complex> from(static_cast<size_t>(n)), to(from.size());
  FourierTransform transform(n);
  double* element = y.data();
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t f = 0; f < frames; ++f) {
      const double* frame = x.data() + (b * samples + f * step) * parts;
      for (size_t i = 0; i < window.size(); ++i)
        from[i] = load_complex(frame, static_cast<int64_t>(i), 1, parts) * window[i];
      transform.forward(from.data(), to.data());
      for (int64_t k = 0; k < bins; ++k) {
        const Complex value = n == 0 ? Complex() : to[static_cast<size_t>(k)];
        *element++ = value.real();
        *element++ = value.imag();
      }
    }
  }
  unstage(y, y_tensor);
}

}  // namespace

void add_signal_ops(OpTable& table) {
  table.add(
      {.name = "dft",
       .family = Family::Extern,
       .summary =
           "the discrete Fourier transform along an axis, zero-padded or cut to `length`; the inverse divides by it",
       .attrs = {required_attr("axis", Kind::Integer), required_attr("length", Kind::Sizes),
                 required_attr("inverse", Kind::Integer), required_attr("onesided", Kind::Integer)},
       .infer = infer_dft,
       .reference = reference_dft});
  table.add({.name = "stft",
             .family = Family::Extern,
             .summary = "the Fourier transforms of overlapping, windowed frames of a signal",
             .max_inputs = 2,
             .attrs = {required_attr("frame_length", Kind::Sizes), required_attr("frame_step", Kind::Sizes),
                       optional_attr("onesided", Kind::Integer)},
             .infer = infer_stft,
             .reference = reference_stft});
}

}  // namespace fuseloom::op
