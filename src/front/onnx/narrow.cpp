#include "front/onnx/narrow.h"

#include <cmath>
#include <limits>

#include "base/check.h"

namespace fuseloom::front::onnx {

namespace {

bool is_narrow_float(ElementType t) {
  return t == ElementType::Float8E4M3FN || t == ElementType::Float8E4M3FNUZ || t == ElementType::Float8E5M2 ||
         t == ElementType::Float8E5M2FNUZ || t == ElementType::Float4E2M1;
}

bool is_signed_narrow_integer(ElementType t) { return t == ElementType::Int4 || t == ElementType::Int2; }

ValueId integer_constant(NodeImport& n, int64_t value) {
  return n.constant(Tensor::of_ints(DType::I32, {}, std::vector<int64_t>{value}));
}

}  // namespace

// On the bits of the magnitude as f32:
// 1. At and above the smallest normal of the format, round the 23-bit mantissa to m bits, half to even, by an integer
//    add; a carry runs into the exponent, as it should.
// 2. Below, the grid is uniform with the step 2^(1 - bias - m): adding and taking off 2^(23 + 1 - bias - m) rounds to
// it.
// 3. What exceeds the largest finite value (after rounding) overflows.
ValueId round_to_narrow_float(NodeImport& n, ValueId x, ElementType to, bool saturate) {
  const NarrowFloat format = narrow_float(to);
  x = n.cast(x, DType::F32);
  const ValueId magnitude = n.add("abs", {x});
  const ValueId bits = n.add("bitcast", {magnitude}, {{"to", DType::I32}});
  const int64_t dropped = 23 - format.mantissa_bits;
  const ValueId odd =
      n.add("bit_and", {n.add("shift_right", {bits, integer_constant(n, dropped)}), integer_constant(n, 1)});
  const ValueId bump = n.add("add", {odd, integer_constant(n, (int64_t{1} << (dropped - 1)) - 1)});
  const ValueId kept = n.add("bit_and", {n.add("add", {bits, bump}), integer_constant(n, -(int64_t{1} << dropped))});
  const ValueId normal = n.add("bitcast", {kept}, {{"to", DType::F32}});
  const ValueId magic = n.scalar(DType::F32, std::ldexp(1.0, 24 - format.bias - format.mantissa_bits));
  const ValueId subnormal = n.add("sub", {n.add("add", {magnitude, magic}), magic});
  const ValueId is_normal = n.add("ge", {magnitude, n.scalar(DType::F32, std::ldexp(1.0, 1 - format.bias))});
  const ValueId rounded = n.add("select", {is_normal, normal, subnormal});

  const ValueId largest = n.scalar(DType::F32, format.max);
  const ValueId too_large = n.add("gt", {rounded, largest});
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double overflow = saturate || !format.has_nan ? format.max : format.has_infinity ? kInfinity : std::nan("");
  ValueId result = n.add("select", {too_large, n.scalar(DType::F32, overflow), rounded});
  // The sign, also of zero where the format has a negative zero.
  const ValueId negative = n.add("lt", {n.add("bitcast", {x}, {{"to", DType::I32}}), integer_constant(n, 0)});
  ValueId negated = n.add("neg", {result});
  if (format.negative_zero_is_nan)
    negated = n.add("select", {n.add("eq", {result, n.scalar(DType::F32, 0)}), n.scalar(DType::F32, 0), negated});
  result = n.add("select", {negative, negated, result});
  // A format without NaN leaves it open; the reference implementation gives -0.
  const ValueId not_a_number = n.scalar(DType::F32, format.has_nan ? std::nan("") : -0.0);
  return n.add("select", {n.add("is_nan", {x}), not_a_number, result});
}

ValueId round_to_power_of_two(NodeImport& n, ValueId x, bool saturate, const std::string& mode) {
  x = n.cast(x, DType::F32);
  const ValueId bits = n.add("bitcast", {n.add("abs", {x})}, {{"to", DType::I32}});
  // The exponent field is the result; the mantissa decides whether it goes up. `nearest` goes up from one half.
  int64_t bump = 0;
  if (mode == "up") {
    bump = (int64_t{1} << 23) - 1;
  } else if (mode == "nearest") {
    bump = int64_t{1} << 22;
  } else if (mode != "down") {
    n.fail(fmt::format("round_mode '{}' is not one of up, down, nearest", mode));
  }
  const ValueId exponent =
      n.add("bit_and", {n.add("add", {bits, integer_constant(n, bump)}), integer_constant(n, 0x7f800000)});
  ValueId result = n.add("bitcast", {exponent}, {{"to", DType::F32}});
  // 2^-127 is the smallest value (a subnormal of f32, exponent field 0), 2^127 the largest.
  const ValueId smallest = n.scalar(DType::F32, std::ldexp(1.0, -127));
  result = n.add("max", {result, smallest});
  const double overflow = saturate ? std::ldexp(1.0, 127) : std::nan("");
  const ValueId infinite = n.add("is_inf", {result});
  result = n.add("select", {infinite, n.scalar(DType::F32, overflow), result});
  return n.add("select", {n.add("is_nan", {x}), n.scalar(DType::F32, std::nan("")), result});
}

ValueId wrap_to_narrow_integer(NodeImport& n, ValueId x, ElementType to) {
  const int64_t bits = element_bits(to);
  const DType carrier = is_signed_narrow_integer(to) ? DType::I8 : DType::U8;
  if (is_float(n.dtype(x)) || n.dtype(x) == DType::Bool) x = n.cast(x, DType::I32);
  const ValueId byte = n.cast(x, carrier);
  // Shifted to the top of the byte and back: the right shift brings the sign or zeros.
  const ValueId by = n.constant(Tensor::of_ints(carrier, {}, std::vector<int64_t>{8 - bits}));
  return n.add("shift_right", {n.add("shift_left", {byte, by}), by});
}

std::pair<double, double> integer_range(ElementType type, const std::string& where) {
  if (type == ElementType::Int4) return {-8, 7};
  if (type == ElementType::UInt4) return {0, 15};
  if (type == ElementType::Int2) return {-2, 1};
  if (type == ElementType::UInt2) return {0, 3};
  const DType dtype = carrier_dtype(type, where);
  FL_REQUIRE(is_int(dtype), "{}: {} is not an integer type", where, element_type_name(type));
  const auto bits = static_cast<int>(dtype_bits(dtype));
  if (is_signed_int(dtype)) return {-std::ldexp(1.0, bits - 1), std::ldexp(1.0, bits - 1) - 1};
  return {0, std::ldexp(1.0, bits) - 1};
}

void cast_output(NodeImport& n, ElementType to) {
  const ValueId x = n.in(0);
  if (!is_narrow(to)) {
    n.out(n.cast(x, carrier_dtype(to, n.describe())));
  } else if (is_narrow_float(to)) {
    n.out(0, round_to_narrow_float(n, x, to, n.integer("saturate", 1) != 0), to);
  } else if (to == ElementType::Float8E8M0) {
    n.out(0, round_to_power_of_two(n, x, n.integer("saturate", 1) != 0, n.text("round_mode", "up")), to);
  } else {
    n.out(0, wrap_to_narrow_integer(n, x, to), to);
  }
}

}  // namespace fuseloom::front::onnx
