// Fourier transforms, window functions, mel weights.
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "front/onnx/axis_set.h"
#include "front/onnx/node_import.h"

namespace fuseloom::front::onnx {
namespace {

struct Complex {
  ValueId re, im;  // im is invalid for real values
};

// cos and sin of 2 pi n k / N, [rows, columns], for n < rows and k < columns. The angle is reduced in integers and
// taken in f64, so that long transforms lose nothing.
Complex twiddles(NodeImport& n, const Expr& rows, const Expr& columns, const Expr& length, DType dtype) {
  const ValueId row = n.add("iota", {}, {{"shape", Shape{rows, 1}}, {"axis", int64_t{0}}, {"dtype", DType::I64}});
  const ValueId column = n.add("iota", {}, {{"shape", Shape{1, columns}}, {"axis", int64_t{1}}, {"dtype", DType::I64}});
  const ValueId period = n.sym_scalar(length);
  const ValueId step = n.add("floor_mod", {n.add("mul", {row, column}), period});
  const ValueId turn = n.add("div", {n.scalar(DType::F64, 2 * std::numbers::pi), n.cast(period, DType::F64)});
  const ValueId angle = n.add("mul", {n.cast(step, DType::F64), turn});
  return {n.cast(n.add("cos", {angle}), dtype), n.cast(n.add("sin", {angle}), dtype)};
}

// Along the last axis, from `length` values (x is cut or filled with zeros to that) to `bins` frequencies, or back:
// short transforms are products with a small matrix, which is the fastest they can be.
Complex transform(NodeImport& n, const Complex& x, const Expr& length, const Expr& bins, bool inverse) {
  const DType dtype = n.dtype(x.re);
  const Expr have = n.simplify(sym::min(n.size(x.re, n.rank(x.re) - 1), length));
  const auto cut = [&](ValueId v) { return v.valid() ? n.slice(v, n.rank(v) - 1, 0, have) : v; };
  const Complex in{cut(x.re), cut(x.im)};
  const Complex w = twiddles(n, have, bins, length, dtype);
  const auto times = [&](ValueId v, ValueId m) { return n.add("matmul", {v, m}); };
  // (re + i im)(cos -+ i sin)
  Complex y{times(in.re, w.re), times(in.re, w.im)};
  if (!inverse) y.im = n.add("neg", {y.im});
  if (in.im.valid()) {
    const ValueId cross = times(in.im, w.im), straight = times(in.im, w.re);
    y.re = n.add(inverse ? "sub" : "add", {y.re, cross});
    y.im = n.add("add", {y.im, straight});
  }
  if (inverse) {
    const ValueId count = n.sym_scalar(length, DType::I64);
    const ValueId scale = n.cast(n.add("reciprocal", {n.cast(count, DType::F64)}), dtype);
    y = {n.add("mul", {y.re, scale}), n.add("mul", {y.im, scale})};
  }
  return y;
}

// From length / 2 + 1 frequencies to `length` real values: those in the middle stand for two.
ValueId transform_to_real(NodeImport& n, const Complex& x, const Expr& length) {
  const DType dtype = n.dtype(x.re);
  const int64_t last = n.rank(x.re) - 1;
  const Expr half = n.simplify(sym::floor_div(length, 2) + 1);
  const Expr have = n.simplify(sym::min(n.size(x.re, last), half));
  const ValueId k = n.add("iota", {}, {{"shape", Shape{have}}, {"axis", int64_t{0}}, {"dtype", DType::I64}});
  const ValueId period = n.sym_scalar(length);
  const ValueId twice = n.add("mul", {k, n.like(k, 2)});
  const ValueId alone = n.add("or", {n.add("eq", {k, n.like(k, 0)}), n.add("eq", {twice, period})});
  const ValueId inverse = n.cast(n.add("reciprocal", {n.cast(period, DType::F64)}), dtype);
  const ValueId weight = n.add("mul", {n.add("select", {alone, n.scalar(dtype, 1), n.scalar(dtype, 2)}), inverse});
  const Complex w = twiddles(n, have, length, length, dtype);
  const auto weighted = [&](ValueId v) { return n.add("mul", {n.slice(v, last, 0, have), weight}); };
  ValueId y = n.add("matmul", {weighted(x.re), w.re});
  if (x.im.valid()) y = n.add("sub", {y, n.add("matmul", {weighted(x.im), w.im})});
  return y;
}

// [.., 1] or [.., 2] to real and imaginary parts.
Complex split_complex(NodeImport& n, ValueId x) {
  const int64_t last = n.rank(x) - 1;
  const auto parts = n.size(x, last).as_const();
  if (parts != 1 && parts != 2)
    n.fail(fmt::format("the last dimension of x must be 1 or 2, found {}", op::to_string(n.type(x))));
  const auto part = [&](int64_t i) { return n.squeeze(n.slice(x, last, i, 1), {last}); };
  return {part(0), *parts == 2 ? part(1) : ValueId{}};
}

ValueId join_complex(NodeImport& n, const Complex& x) {
  const int64_t last = n.rank(x.re);
  return n.concat({n.unsqueeze(x.re, {last}), n.unsqueeze(x.im, {last})}, last);
}

void import_dft(NodeImport& n) {
  const ValueId x = n.in(0);
  const bool inverse = n.integer("inverse", 0) != 0, onesided = n.integer("onesided", 0) != 0;
  std::vector<Expr> entry = {n.version() >= 20 ? Expr(-2) : Expr(n.integer("axis", 1))};
  if (n.version() >= 20 && n.has(2)) entry = {n.read_size(n.in(2))};
  const AxisSet axis(n, entry, n.rank(x));
  const Shape in = n.shape(x);
  Expr before = 1, size = 1, after = 1, passed = 0;
  for (int64_t d = 0; d + 1 < n.rank(x); ++d) {
    const Expr& s = in[static_cast<size_t>(d)];
    const Expr here = axis.contains(d);
    size = sym::select(here, s, size);
    before = before * sym::select(sym::max(passed, here), 1, s);
    after = after * sym::select(passed, s, 1);
    passed = sym::max(passed, here);
  }
  size = n.simplify(size);
  Expr length = inverse && onesided ? n.simplify(2 * (size - 1)) : size;
  if (n.has(1)) length = n.read_size(n.in(1));
  const Expr bins = onesided && !inverse ? n.simplify(sym::floor_div(length, 2) + 1) : length;
  // [before, size, after, parts], with the transformed dimension last.
  const ValueId flat = n.reshape(x, {n.simplify(before), size, n.simplify(after), in.back()});
  Complex parts = split_complex(n, flat);
  const auto last = [&](ValueId v) { return v.valid() ? n.transpose(v, {0, 2, 1}) : v; };
  parts = {last(parts.re), last(parts.im)};
  Shape out = in;
  for (int64_t d = 0; d + 1 < n.rank(x); ++d)
    out[static_cast<size_t>(d)] = n.simplify(sym::select(axis.contains(d), bins, in[static_cast<size_t>(d)]));
  if (inverse && onesided) {
    out.back() = 1;
    n.out(n.reshape(last(transform_to_real(n, parts, length)), out));
    return;
  }
  const Complex y = transform(n, parts, length, bins, inverse);
  out.back() = 2;
  n.out(n.reshape(join_complex(n, {last(y.re), last(y.im)}), out));
}

void import_stft(NodeImport& n) {
  const ValueId signal = n.in(0);
  const Expr step = n.read_size(n.in(1));
  Expr length;
  if (n.has(3)) {
    length = n.read_size(n.in(3));
  } else if (n.has(2)) {
    length = n.size(n.in(2), 0);
  } else {
    n.fail("has neither a window nor a frame_length");
  }
  const ValueId whole = n.rank(signal) == 2 ? n.unsqueeze(signal, {2}) : signal;
  const Expr frames = n.simplify(sym::floor_div(n.size(whole, 1) - length, step) + 1);
  const bool onesided = n.integer("onesided", 1) != 0;
  const ValueId frame = n.add("iota", {}, {{"shape", Shape{frames, 1}}, {"axis", int64_t{0}}, {"dtype", DType::I64}});
  const ValueId place = n.add("iota", {}, {{"shape", Shape{1, length}}, {"axis", int64_t{1}}, {"dtype", DType::I64}});
  const ValueId index = n.add("add", {n.add("mul", {frame, n.sym_scalar(step)}), place});
  const Complex parts = split_complex(n, whole);
  const auto framed = [&](ValueId v) {  // [batch, frames, length]
    if (!v.valid()) return v;
    const ValueId cut = n.add("gather", {v, index}, {{"axis", int64_t{1}}});
    return n.has(2) ? n.add("mul", {cut, n.in(2)}) : cut;
  };
  const Expr bins = onesided ? n.simplify(sym::floor_div(length, 2) + 1) : length;
  n.out(join_complex(n, transform(n, {framed(parts.re), framed(parts.im)}, length, bins, false)));
}

// a0 - a1 cos(2 pi i / N) + a2 cos(4 pi i / N)
ImportFn window(double a0, double a1, double a2) {
  return [=](NodeImport& n) {
    const Expr size = n.read_size(n.in(0));
    const bool periodic = n.integer("periodic", 1) != 0;
    const auto type = static_cast<ElementType>(n.integer("output_datatype", 1));
    const ValueId i = n.add("iota", {}, {{"shape", Shape{size}}, {"axis", int64_t{0}}, {"dtype", DType::F64}});
    const ValueId count = n.cast(n.sym_scalar(periodic ? size : size - 1), DType::F64);
    const ValueId angle = n.add("div", {n.add("mul", {i, n.like(i, 2 * std::numbers::pi)}), count});
    ValueId y = n.add("sub", {n.like(i, a0), n.add("mul", {n.add("cos", {angle}), n.like(i, a1)})});
    if (a2 != 0)
      y = n.add("add", {y, n.add("mul", {n.add("cos", {n.add("mul", {angle, n.like(i, 2)})}), n.like(i, a2)})});
    n.out(n.cast(y, carrier_dtype(type, n.describe())));
  };
}

// Triangles between the spectrogram bins that are evenly spaced on the mel scale, [bins of the spectrogram, mel bins].
void import_mel_weight_matrix(NodeImport& n) {
  const Expr mels = n.read_size(n.in(0)), length = n.read_size(n.in(1));
  const auto scalar = [&](size_t i) { return n.cast(n.reshape(n.in(i), {}), DType::F64); };
  const auto number = [&](double v) { return n.scalar(DType::F64, v); };
  const auto apply = [&](std::string_view op, ValueId a, ValueId b) { return n.add(op, {a, b}); };
  const auto to_mel = [&](ValueId hertz) {  // 2595 log10(1 + f / 700)
    return apply("mul", n.add("log", {apply("add", number(1), apply("div", hertz, number(700)))}),
                 number(2595 / std::numbers::ln10));
  };
  const ValueId low = to_mel(scalar(3)), high = to_mel(scalar(4));
  const ValueId step = apply("div", apply("sub", high, low), n.cast(n.sym_scalar(mels + 2), DType::F64));
  const ValueId edge =
      n.add("iota", {}, {{"shape", Shape{n.simplify(mels + 2)}}, {"axis", int64_t{0}}, {"dtype", DType::F64}});
  const ValueId mel = apply("add", apply("mul", edge, step), low);
  const ValueId hertz =
      apply("mul", number(700),
            apply("sub", n.add("exp", {apply("mul", mel, number(std::numbers::ln10 / 2595))}), number(1)));
  const ValueId bin = n.cast(
      apply("floor_div", apply("mul", n.cast(n.sym_scalar(length + 1), DType::F64), hertz), scalar(2)), DType::I64);
  const auto edges = [&](int64_t from) { return n.slice(bin, 0, from, mels); };
  const ValueId left = edges(0), center = edges(1), right = edges(2);
  const Expr bins = n.simplify(sym::floor_div(length, 2) + 1);
  const ValueId j = n.add("iota", {}, {{"shape", Shape{bins, 1}}, {"axis", int64_t{0}}, {"dtype", DType::I64}});
  const auto ratio = [&](ValueId a, ValueId b) { return apply("div", n.cast(a, DType::F64), n.cast(b, DType::F64)); };
  const ValueId rise = apply("sub", center, left), fall = apply("sub", right, center);
  const ValueId flat = apply("eq", rise, n.like(rise, 0));
  const ValueId rising = apply("and", apply("ge", j, left), apply("le", j, center));
  ValueId up = n.add("select", {rising, ratio(apply("sub", j, left), rise), number(0)});
  up = n.add("select", {flat, n.cast(apply("eq", j, center), DType::F64), up});
  const ValueId falling = apply("and", apply("ge", j, center), apply("lt", j, right));
  const ValueId y = n.add("select", {falling, ratio(apply("sub", right, j), fall), up});
  n.out(n.cast(y, carrier_dtype(static_cast<ElementType>(n.integer("output_datatype", 1)), n.describe())));
}

}  // namespace

void add_signal_imports(ImportTable& t) {
  t.add("DFT", import_dft);
  t.add("STFT", import_stft);
  t.add("HannWindow", window(0.5, 0.5, 0));
  t.add("HammingWindow", window(25.0 / 46, 21.0 / 46, 0));
  t.add("BlackmanWindow", window(0.42, 0.5, 0.08));
  t.add("MelWeightMatrix", import_mel_weight_matrix);
}

}  // namespace fuseloom::front::onnx
