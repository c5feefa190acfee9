#include "schedule/random_number.h"

#include "base/check.h"

namespace fuseloom::schedule {

using sym::Expr;

namespace {

class RandomNumber {
 public:
  RandomNumber(LoopBuilder& build, const graph::Node& node, const Expr& element)
      : build_(build), attrs_(node.attrs), element_(element) {}

  ScalarId uniform(DType type) {
    const double low = attrs_.real("low"), high = attrs_.real("high");
    const ScalarId bits = word(element_);
    if (type == DType::F64) {
      const ScalarId unit = apply("mul", type, {cast(type, bits), build_.constant(type, 0x1p-32)});
      return apply("add", type, {build_.constant(type, low), apply("mul", type, {build_.constant(type, high - low), unit})});
    }
    const float base = static_cast<float>(low), range = static_cast<float>(high) - base;
    const ScalarId unit = mul(cast(DType::F32, apply("shift_right", DType::U32, {bits, word_constant(8)})), real(0x1p-24F));
    return add(real(base), mul(real(range), unit));
  }

  // Box and Muller: an even element is the cosine and the next odd one the sine of one pair of words.
  ScalarId normal(DType type) {
    const Expr odd = sym::mod(element_, 2), pair = element_ - odd;
    const ScalarId radius = apply("sqrt", DType::F32, {mul(real(2), negative_log(word(pair)))});
    const ScalarId number = mul(radius, cos_turn(word(pair + 1), build_.index_value(DType::U32, odd * 3)));
    const double mean = attrs_.real("mean"), scale = attrs_.real("scale");
    if (type == DType::F64)
      return apply("add", type, {build_.constant(type, mean), apply("mul", type, {build_.constant(type, scale), cast(type, number)})});
    return add(real(static_cast<float>(mean)), mul(real(static_cast<float>(scale)), number));
  }

 private:
  ScalarId apply(std::string_view op, DType type, std::vector<ScalarId> args) { return build_.apply(op, type, std::move(args)); }
  ScalarId cast(DType to, ScalarId x) { return apply("cast", to, {x}); }
  ScalarId real(float value) { return build_.constant(DType::F32, static_cast<double>(value)); }
  ScalarId word_constant(int64_t value) { return build_.integer(DType::U32, value); }
  ScalarId add(ScalarId a, ScalarId b) { return apply("add", DType::F32, {a, b}); }
  ScalarId sub(ScalarId a, ScalarId b) { return apply("sub", DType::F32, {a, b}); }
  ScalarId mul(ScalarId a, ScalarId b) { return apply("mul", DType::F32, {a, b}); }
  ScalarId select(ScalarId condition, ScalarId a, ScalarId b) { return apply("select", build_.dtype(a), {condition, a, b}); }
  ScalarId compare(std::string_view op, ScalarId a, ScalarId b) { return apply(op, DType::Bool, {a, b}); }

  // Word `index mod 4` of the counter offset + index / 4.
  ScalarId word(const Expr& index) {
    const Expr counter = build_.simplified(index + attrs_.integer("offset") * 4);
    return build_.let(DType::U32, kernel::Philox{.seed = attrs_.integer("seed"), .counter = counter});
  }

  // By Horner's rule; the first coefficient is that of the highest power.
  ScalarId polynomial(ScalarId z, std::initializer_list<float> coefficients) {
    ScalarId sum;
    for (const float coefficient : coefficients) sum = sum.valid() ? add(mul(sum, z), real(coefficient)) : real(coefficient);
    return sum;
  }

  // philox_negative_log: -log(bits / 2^32), of one for no bits.
  ScalarId negative_log(ScalarId bits) {
    bits = select(compare("eq", bits, word_constant(0)), word_constant(1), bits);
    ScalarId exponent = build_.integer(DType::I32, -1);
    for (const int64_t shift : {16, 8, 4, 2, 1}) {
      // Shifted until the leading bit is set: by 16 where the upper 16 are 0, and so on.
      const ScalarId zeros = compare("lt", bits, word_constant(int64_t{1} << (32 - shift)));
      bits = select(zeros, apply("shift_left", DType::U32, {bits, word_constant(shift)}), bits);
      exponent = select(zeros, apply("sub", DType::I32, {exponent, build_.integer(DType::I32, shift)}), exponent);
    }
    ScalarId m = mul(cast(DType::F32, apply("shift_right", DType::U32, {bits, word_constant(8)})), real(1.1920928955078125e-07F));
    const ScalarId above = compare("gt", m, real(1.41421354F));
    m = select(above, mul(m, real(0.5F)), m);
    exponent = select(above, apply("add", DType::I32, {exponent, build_.integer(DType::I32, 1)}), exponent);
    const ScalarId s = apply("div", DType::F32, {sub(m, real(1)), add(m, real(1))});
    const ScalarId z = mul(s, s);
    const ScalarId series = polynomial(z, {0.111111112F, 0.142857149F, 0.2F, 0.333333343F});
    const ScalarId tail = add(mul(mul(series, z), s), s);
    return sub(real(0), add(mul(cast(DType::F32, exponent), real(0.693147182F)), mul(real(2), tail)));
  }

  // philox_cos_turn: the cosine of turn / 2^32 of a circle, `quadrant` quarters further.
  ScalarId cos_turn(ScalarId turn, ScalarId quadrant) {
    const ScalarId shifted = apply("add", DType::U32, {turn, word_constant(0x20000000)});
    quadrant = apply("bit_and", DType::U32, {apply("add", DType::U32, {quadrant, apply("shift_right", DType::U32, {shifted, word_constant(30)})}), word_constant(3)});
    const ScalarId rest = apply("sub", DType::I32, {cast(DType::I32, apply("bit_and", DType::U32, {shifted, word_constant(0x3FFFFFFF)})), build_.integer(DType::I32, 0x20000000)});
    const ScalarId a = mul(cast(DType::F32, rest), real(1.46291808e-09F));
    const ScalarId z = mul(a, a);
    const ScalarId c = polynomial(z, {-2.75573188e-07F, 2.48015876e-05F, -0.00138888892F, 0.0416666679F, -0.5F, 1.0F});
    const ScalarId s = add(mul(mul(polynomial(z, {2.75573188e-06F, -0.000198412701F, 0.00833333377F, -0.166666672F}), z), a), a);
    const ScalarId odd = compare("eq", apply("bit_and", DType::U32, {quadrant, word_constant(1)}), word_constant(1));
    const ScalarId value = select(odd, s, c);
    const ScalarId negative = apply("or", DType::Bool, {compare("eq", quadrant, word_constant(1)), compare("eq", quadrant, word_constant(2))});
    return select(negative, sub(real(0), value), value);
  }

  LoopBuilder& build_;
  const op::Attrs& attrs_;
  const Expr element_;
};

}  // namespace

ScalarId random_number(LoopBuilder& build, const graph::Node& node, DType type, const Expr& element) {
  FL_CHECK(type == DType::F32 || type == DType::F64, "random numbers are computed in f32 or f64, not {}", dtype_name(type));
  RandomNumber number(build, node, element);
  return node.op->name == "random_uniform" ? number.uniform(type) : number.normal(type);
}

}  // namespace fuseloom::schedule
