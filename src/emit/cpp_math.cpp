// Elementary functions of generated C++.
//
// f32: own algorithms, the same for scalars and vectors. Polynomials are minimax fits of our own (relative error below 2^-24
// unless said otherwise), evaluated by Horner's rule with fused multiply-adds where the target has them. Error bounds:
// docs/numerics.md. Arguments are clamped the way the maximum and minimum instructions do it, the bound first: NaN stays NaN.
// Rounding to an integer n is the addition of 1.5·2^23 (f64: 1.5·2^52): the low mantissa bits are then n.
// exp, log and tanh exist in f64 too. The other functions of f64, and those that are rarely hot, are libm's, lane by lane; f32
// goes through f64 there and is rounded once.
#include "emit/cpp_function.h"

namespace fuseloom::emit {

namespace {
using Kind = CppFunction::Kind;

constexpr CppFunction kMath[] = {
    // 2^n for an integer n kept in the low bits of an integer (its higher bits are shifted out), -126 <= n <= 127.
    {"pow2_bits", "u", "F:T", Kind::Same, 0, "", "  return __builtin_bit_cast($F, ($T)((a << 23) + 0x3f800000u));\n"},

    // e^x = 2^n e^r, r = x - n ln2 in [-ln2/2, ln2/2]. ln2 is split so that n times its high part is exact.
    {"exp", "f", "T:T", Kind::Same, 0, "", R"(
  $T x = $splat(-104.0f) > a ? $splat(-104.0f) : a;
  x = $splat(89.0f) < x ? $splat(89.0f) : x;
  const $T t = $fma(x, $splat(1.44269504f), $splat(12582912.0f));
  const $T n = t - $splat(12582912.0f);
  $T r = $fma(n, $splat(-0.693359375f), x);
  r = $fma(n, $splat(2.12194440e-4f), r);
  $T p = $fma($splat(1.3814191e-3f), r, $splat(8.368914e-3f));
  p = $fma(p, r, $splat(4.1668408e-2f));
  p = $fma(p, r, $splat(1.6666520e-1f));
  p = $fma(p, r, $splat(4.9999994e-1f));
  p = $fma(p, r * r, r) + $splat(1.0f);
  return $times_pow2(p, t);
)"},
    // a 2^n for n kept in the low bits of b. In two factors, so that results below 2^-126 round once.
    {"times_pow2", "f", "T:TT", Kind::Same, 0, "", R"(
  const $U k = __builtin_bit_cast($U, b);
  const $U half = k >> 1;
  return a * $pow2_bits@U(half) * $pow2_bits@U(k - half);
)"},
    // 2^n (e^r - 1) + (2^n - 1), with 2^(n-1) so that n = 128 does not overflow early.
    {"expm1", "f", "T:T", Kind::Same, 0, "", R"(
  $T x = $splat(-20.0f) > a ? $splat(-20.0f) : a;
  x = $splat(89.0f) < x ? $splat(89.0f) : x;
  const $T t = $fma(x, $splat(1.44269504f), $splat(12582912.0f));
  const $T n = t - $splat(12582912.0f);
  $T r = $fma(n, $splat(-0.693359375f), x);
  r = $fma(n, $splat(2.12194440e-4f), r);
  $T p = $fma($splat(1.9845899e-4f), r, $splat(1.3940916e-3f));
  p = $fma(p, r, $splat(8.3333896e-3f));
  p = $fma(p, r, $splat(4.1666359e-2f));
  p = $fma(p, r, $splat(1.6666666e-1f));
  p = $fma(p, r, $splat(0.5f));
  p = $fma(p, r * r, r);
  const $T s = $pow2_bits@U(__builtin_bit_cast($U, t) - $splat@U(1u));
  const $T y = $fma(s, p, s - $splat(0.5f));
  const $M tiny = $abs(a) < $splat(1e-10f);
  return tiny ? a : y + y;
)"},
    // x = m 2^e, m in [sqrt(1/2), sqrt(2)); log(1 + f) = f - f^2/2 + f^3 P(f).
    {"log", "f", "T:T", Kind::Same, 0, "", R"(
  const $M tiny = a < $splat(1.17549435e-38f);
  const $T x = tiny ? a * $splat(8388608.0f) : a;
  const $U i = __builtin_bit_cast($U, x) - $splat@U(0x3f3504f3u);
  const $T e = $cast@IT(__builtin_bit_cast($I, i) >> 23) - (tiny ? $splat(23.0f) : $splat(0.0f));
  const $T f = __builtin_bit_cast($T, ($U)((i & $splat@U(0x7fffffu)) + $splat@U(0x3f3504f3u))) - $splat(1.0f);
  $T y = $log_polynomial(f, e);
  y = a == $splat(__builtin_inff()) ? a : y;
  y = a == $splat(0.0f) ? $splat(-__builtin_inff()) : y;
  return a >= $splat(0.0f) ? y : $splat(__builtin_nanf(""));
)"},
    {"log_polynomial", "f", "T:TT", Kind::Same, 0, "", R"(
  $T p = $fma($splat(-7.6344147e-2f), a, $splat(1.2761545e-1f));
  p = $fma(p, a, $splat(-1.3160199e-1f));
  p = $fma(p, a, $splat(1.4201763e-1f));
  p = $fma(p, a, $splat(-1.6623357e-1f));
  p = $fma(p, a, $splat(2.0001227e-1f));
  p = $fma(p, a, $splat(-2.5000823e-1f));
  p = $fma(p, a, $splat(3.3333331e-1f));
  const $T z = a * a;
  $T y = p * a * z;
  y = $fma(b, $splat(-2.12194440e-4f), y);
  y = $fma(z, $splat(-0.5f), y);
  return $fma(b, $splat(0.693359375f), a + y);
)"},
    // log(u) with u = 1 + x rounded; what the rounding lost, scaled like u, is added to f.
    {"log1p", "f", "T:T", Kind::Same, 0, "", R"(
  const $T u = a + $splat(1.0f);
  const $M below = a < $splat(1.0f);
  const $T lost = below ? a - (u - $splat(1.0f)) : $splat(1.0f) - (u - a);
  const $U i = __builtin_bit_cast($U, u) - $splat@U(0x3f3504f3u);
  const $I e = __builtin_bit_cast($I, i) >> 23;
  const $T scale = $pow2_bits@U(__builtin_bit_cast($U, -e));
  const $M keep = a < $splat(16777216.0f);
  $T f = __builtin_bit_cast($T, ($U)((i & $splat@U(0x7fffffu)) + $splat@U(0x3f3504f3u))) - $splat(1.0f);
  f = f + (keep ? lost * scale : $splat(0.0f));
  $T y = $log_polynomial(f, $cast@IT(e));
  y = $abs(a) < $splat(1e-10f) ? a : y;
  y = a == $splat(__builtin_inff()) ? a : y;
  y = a == $splat(-1.0f) ? $splat(-__builtin_inff()) : y;
  return a >= $splat(-1.0f) ? y : $splat(__builtin_nanf(""));
)"},
    // tanh(x) = y / (y + 2) with y = e^(2|x|) - 1; the sign is put back at the end.
    {"tanh", "f", "T:T", Kind::Same, 0, "", R"(
  $T x = $abs(a);
  x = $splat(9.1f) < x ? $splat(9.1f) : x;
  const $T t = $fma(x, $splat(2.88539008f), $splat(12582912.0f));
  const $T n = t - $splat(12582912.0f);
  $T r = $fma(n, $splat(-0.693359375f), x + x);
  r = $fma(n, $splat(2.12194440e-4f), r);
  $T p = $fma($splat(1.9845899e-4f), r, $splat(1.3940916e-3f));
  p = $fma(p, r, $splat(8.3333896e-3f));
  p = $fma(p, r, $splat(4.1666359e-2f));
  p = $fma(p, r, $splat(1.6666666e-1f));
  p = $fma(p, r, $splat(0.5f));
  p = $fma(p, r * r, r);
  const $T s = $pow2_bits@U(__builtin_bit_cast($U, t));
  const $T y = $fma(s, p, s - $splat(1.0f));
  return $copysign(y / (y + $splat(2.0f)), a);
)"},
    // |x| < 0.92: x + x S(x^2). Above: 1 - e^L(|x|), L the fit of log(erfc(x)) on [0.92, 4]; erf(4) rounds to 1.
    {"erf", "f", "T:T", Kind::Same, 0, "", R"(
  const $T s = a * a;
  $T small = $fma($splat(8.3167717e-5f), s, $splat(-8.130012e-4f));
  small = $fma(small, s, $splat(5.1999064e-3f));
  small = $fma(small, s, $splat(-2.6858941e-2f));
  small = $fma(small, s, $splat(1.1283688e-1f));
  small = $fma(small, s, $splat(-3.7612632e-1f));
  small = $fma(small, s, $splat(1.2837917e-1f));
  small = $fma(small, a, a);
  $T x = $abs(a);
  x = $splat(4.0f) < x ? $splat(4.0f) : x;
  $T l = $fma($splat(-2.1095067e-5f), x, $splat(4.344628e-4f));
  l = $fma(l, x, $splat(-4.171064e-3f));
  l = $fma(l, x, $splat(2.5119429e-2f));
  l = $fma(l, x, $splat(-1.0828009e-1f));
  l = $fma(l, x, $splat(-6.3334692e-1f));
  l = $fma(l, x, $splat(-1.1295149f));
  l = $fma(l, x, $splat(1.7468468e-4f));
  const $T t = $fma(l, $splat(1.44269504f), $splat(12582912.0f));
  const $T n = t - $splat(12582912.0f);
  $T r = $fma(n, $splat(-0.693359375f), l);
  r = $fma(n, $splat(2.12194440e-4f), r);
  $T p = $fma($splat(8.3123874e-3f), r, $splat(4.1891377e-2f));
  p = $fma(p, r, $splat(1.666712e-1f));
  p = $fma(p, r, $splat(4.9999222e-1f));
  p = $fma(p, r * r, r) + $splat(1.0f);
  const $T large = $copysign($splat(1.0f) - p * $pow2_bits@U(__builtin_bit_cast($U, t)), a);
  const $M near = $abs(a) < $splat(0.92f);
  return near ? small : large;
)"},

    // Sine and cosine. r = x - n pi/2 in f64: exact to 2^-64 for |x| <= 10^6, where n times the 33-bit head of pi/2 is
    // exact. Larger arguments take the scalar path, lane by lane: 96 bits of 2/pi at the right place times the mantissa
    // (Payne and Hanek, 1983). On [-pi/4, pi/4] both are polynomials in f32.
    {"sin", "f", "T:T", Kind::Same, 64, "", R"(
  const $T y = $sin_quadrant(a, $splat@H(0));
  return a == $splat(0.0f) ? a : y;
)"},
    {"cos", "f", "T:T", Kind::Same, 64, "", "  return $sin_quadrant(a, $splat@H(1));\n"},
    {"sin_quadrant", "f", "T:TH", Kind::Same, 64, "", R"(
  const $D x = $cast@TD(a);
  const $D t = x * $splat@D(0.63661977236758134308) + $splat@D(6755399441055744.0);
  const $D n = t - $splat@D(6755399441055744.0);
  const $D r = (x - n * $splat@D(1.57079632673412561417e+00)) - n * $splat@D(6.07710050650619224932e-11);
  $T y = $sin_kernel($cast@DT(r), $cast@LH(__builtin_bit_cast($L, t)) + b);
  return $sin_patch(y, a, b);
)"},
    {"sin_kernel", "f", "T:TH", Kind::Same, 0, "", R"(
  const $T s = a * a;
  $T odd = $fma($splat(-1.9515199e-4f), s, $splat(8.3321603e-3f));
  odd = $fma(odd, s, $splat(-1.6666655e-1f));
  odd = $fma(odd * s, a, a);
  $T even = $fma($splat(2.443306e-5f), s, $splat(-1.3887315e-3f));
  even = $fma(even, s, $splat(4.1666646e-2f));
  even = $fma(even, s * s, $fma($splat(-0.5f), s, $splat(1.0f)));
  const $M swap = (b & $splat@H(1)) != $splat@H(0);
  const $T y = swap ? even : odd;
  return __builtin_bit_cast($T, ($U)(__builtin_bit_cast($U, y) ^ (($U)(b & $splat@H(2)) << 30)));
)"},
    {"sin_huge", "f", "T:TH", Kind::Lanes, 0, "", R"(
  static const u32 two_over_pi[8] = {0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u,
                                     0xfe5163abu};
  const u32 bits = __builtin_bit_cast(u32, a) & 0x7fffffffu;
  if (bits >= 0x7f800000u) return __builtin_nanf("");
  // |a| = mantissa * 2^e; the bits of 2/pi above 2^(1-e) only add multiples of 4 quadrants. 32 zero bits lead the table.
  const i32 e = (i32)(bits >> 23) - 150;
  const u32 first = (u32)(32 + e - 2), word = first >> 5, shift = first & 31u;
  const unsigned __int128 table = ((unsigned __int128)two_over_pi[word] << 96) | ((unsigned __int128)two_over_pi[word + 1] << 64) |
                                  ((unsigned __int128)two_over_pi[word + 2] << 32) | two_over_pi[word + 3];
  const unsigned __int128 window = (table << shift) >> 32;
  const unsigned __int128 turns = (window * ((bits & 0x7fffffu) | 0x800000u)) << 32;   // quadrants * 2^126
  i32 quadrant = (i32)(u32)(turns >> 126);
  const i64 fraction = (i64)(u64)((turns << 2) >> 64);                                 // in [-1/2, 1/2) * 2^64
  if (fraction < 0) ++quadrant;
  f32 r = (f32)((f64)fraction * (1.57079632679489661923 / 18446744073709551616.0));
  if (__builtin_bit_cast(u32, a) >> 31) {
    r = -r;
    quadrant = -quadrant;
  }
  return $sin_kernel(r, quadrant + b);
)"},

    // In f64: x^y = e^(y log|x|); 2^-38 relative, rounded once.
    {"pow_kernel", "f", "T:TD", Kind::Same, 64, "", R"(
  const $D x = $cast@TD($abs(a));
  const $Q i = __builtin_bit_cast($Q, x) + $splat@Q(0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
  const $D e = __builtin_bit_cast($D, ($Q)((i >> 52) | $splat@Q(0x4330000000000000u))) - $splat@D(4503599627371519.0);
  const $D m = __builtin_bit_cast($D, ($Q)((i & $splat@Q(0xfffffffffffffu)) + $splat@Q(0x3fe6a09e667f3bcdu)));
  const $D s = (m - $splat@D(1.0)) / (m + $splat@D(1.0));
  const $D z = s * s;
  $D p = $fma@D($splat@D(0.19583472098009494), z, $splat@D(0.2217623618320988));
  p = $fma@D(p, z, $splat@D(0.2857210801637649));
  p = $fma@D(p, z, $splat@D(0.39999995632629326));
  p = $fma@D(p, z, $splat@D(0.6666666667576943));
  $D l = $fma@D(p * z, s, s + s);
  l = $fma@D(e, $splat@D(0.6931471805599453), l) * b;
  l = $splat@D(-120.0) > l ? $splat@D(-120.0) : l;
  l = $splat@D(100.0) < l ? $splat@D(100.0) : l;
  const $D t = $fma@D(l, $splat@D(1.4426950408889634), $splat@D(6755399441055744.0));
  const $D r = $fma@D(t - $splat@D(6755399441055744.0), $splat@D(-0.6931471805599453), l);
  $D q = $fma@D($splat@D(2.4707756039087322e-05), r, $splat@D(0.0001990932943319495));
  q = $fma@D(q, r, $splat@D(0.0013889200688868453));
  q = $fma@D(q, r, $splat@D(0.00833328121226845));
  q = $fma@D(q, r, $splat@D(0.04166666436573894));
  q = $fma@D(q, r, $splat@D(0.16666666786488937));
  q = $fma@D(q, r, $splat@D(0.5000000000436748));
  q = $fma@D(q, r * r, r) + $splat@D(1.0);
  const $D scale = __builtin_bit_cast($D, ($Q)((__builtin_bit_cast($Q, t) << 52) + $splat@Q(0x3ff0000000000000u)));
  return $cast@DT(q * scale);
)"},
    {"pow", "f", "T:TD", Kind::Same, 64, "", R"(
  $T y = $pow_kernel(a, b);
  const $T x = $abs(a);
  const $T sign = $pow_sign(b);   // 1, -1 or NaN: what a negative base makes of it
  const $M down = $pow_down(b);
  const $T zero = down ? $splat(__builtin_inff()) : $splat(0.0f);
  const $T infinite = down ? $splat(0.0f) : $splat(__builtin_inff());
  y = x == $splat(0.0f) ? zero : y;
  y = x == $splat(__builtin_inff()) ? infinite : y;
  y = x == $splat(1.0f) ? $splat(1.0f) : y;
  const $M minus = a < $splat(0.0f);
  const $M unreal = (sign != sign) & (x != $splat(__builtin_inff()));
  const $T flipped = unreal ? sign : (sign < $splat(0.0f) ? -y : y);
  y = minus ? flipped : y;
  const $M negative_zero = (a == $splat(0.0f)) & (sign < $splat(0.0f));
  y = negative_zero ? $copysign(y, a) : y;
  const $T exponent = $cast@DT(b);
  y = ((a != a) | (exponent != exponent)) ? a + exponent : y;
  const $M one = (a == $splat(1.0f)) | $pow_zero(b);
  return one ? $splat(1.0f) : y;
)"},
    // Facts on the exponent, as f32 lanes: its size decides before it could be lost by rounding to f32.
    {"pow_sign", "f", "T:D", Kind::Same, 64, "", R"(
  const $D whole = $trunc@D(a);
  const $D half = a * $splat@D(0.5);
  const $D y = $trunc@D(half) == half ? $splat@D(1.0) : $splat@D(-1.0);
  return $cast@DT(whole == a ? y : $splat@D(__builtin_nan("")));
)"},
    {"pow_down", "f", "M:D", Kind::Same, 64, "", R"(
  return $cast@DT(a < $splat@D(0.0) ? $splat@D(1.0) : $splat@D(0.0)) != $splat(0.0f);
)"},
    {"pow_zero", "f", "M:D", Kind::Same, 64, "", R"(
  return $cast@DT(a == $splat@D(0.0) ? $splat@D(1.0) : $splat@D(0.0)) != $splat(0.0f);
)"},
    {"pow", "d", "T:TD", Kind::Lanes, 0, "pow:2", "  return pow(a, b);\n"},
    // Integers by squaring, wrapping. A negative exponent gives 1/a truncated.
    {"pow", "i", "T:TL", Kind::Lanes, 0, "", R"(
  if (b < 0) return ($T)(a == 1 ? 1 : (a == -1 ? ((b & 1) != 0 ? -1 : 1) : 0));
  return ($T)$power@U(($U)a, (u64)b);
)"},
    {"pow", "u", "T:TQ", Kind::Lanes, 0, "", "  return $power(a, b);\n"},
    {"power", "u", "T:TQ", Kind::Lanes, 0, "", R"(
  $V base = a, result = 1;
  for (; b != 0; b >>= 1) {
    if ((b & 1) != 0) result = result * base;
    base = base * base;
  }
  return ($T)result;
)"},

    // f64: the same plans with Taylor's polynomial to r^13 / 13!, below 2^-57 of the result.
    {"pow2_bits_f64", "u", "D:T", Kind::Same, 0, "", "  return __builtin_bit_cast($D, ($T)((a << 52) + $splat(0x3ff0000000000000u)));\n"},
    {"exp", "d", "T:T", Kind::Same, 0, "", R"(
  $T x = $splat(-746.0) > a ? $splat(-746.0) : a;
  x = $splat(710.0) < x ? $splat(710.0) : x;
  const $T t = $fma(x, $splat(1.4426950408889634), $splat(6755399441055744.0));
  const $T n = t - $splat(6755399441055744.0);
  $T r = $fma(n, $splat(-6.93147180369123816490e-01), x);
  r = $fma(n, $splat(-1.90821492927058770002e-10), r);
  $T p = $fma($splat(1.6059043836821613e-10), r, $splat(2.08767569878681e-09));
  p = $fma(p, r, $splat(2.505210838544172e-08));
  p = $fma(p, r, $splat(2.755731922398589e-07));
  p = $fma(p, r, $splat(2.7557319223985893e-06));
  p = $fma(p, r, $splat(2.48015873015873e-05));
  p = $fma(p, r, $splat(0.0001984126984126984));
  p = $fma(p, r, $splat(0.001388888888888889));
  p = $fma(p, r, $splat(0.008333333333333333));
  p = $fma(p, r, $splat(0.041666666666666664));
  p = $fma(p, r, $splat(0.16666666666666666));
  p = $fma(p, r, $splat(0.5));
  p = $fma(p, r * r, r) + $splat(1.0);
  return $times_pow2(p, t);
)"},
    {"times_pow2", "d", "T:TT", Kind::Same, 0, "", R"(
  const $U k = __builtin_bit_cast($U, b);
  const $U half = k >> 1;
  return a * $pow2_bits_f64@U(half) * $pow2_bits_f64@U(k - half);
)"},
    {"tanh", "d", "T:T", Kind::Same, 0, "", R"(
  $T x = $abs(a);
  x = $splat(20.0) < x ? $splat(20.0) : x;
  const $T t = $fma(x, $splat(2.8853900817779268), $splat(6755399441055744.0));
  const $T n = t - $splat(6755399441055744.0);
  $T r = $fma(n, $splat(-6.93147180369123816490e-01), x + x);
  r = $fma(n, $splat(-1.90821492927058770002e-10), r);
  $T p = $fma($splat(1.6059043836821613e-10), r, $splat(2.08767569878681e-09));
  p = $fma(p, r, $splat(2.505210838544172e-08));
  p = $fma(p, r, $splat(2.755731922398589e-07));
  p = $fma(p, r, $splat(2.7557319223985893e-06));
  p = $fma(p, r, $splat(2.48015873015873e-05));
  p = $fma(p, r, $splat(0.0001984126984126984));
  p = $fma(p, r, $splat(0.001388888888888889));
  p = $fma(p, r, $splat(0.008333333333333333));
  p = $fma(p, r, $splat(0.041666666666666664));
  p = $fma(p, r, $splat(0.16666666666666666));
  p = $fma(p, r, $splat(0.5));
  p = $fma(p, r * r, r);
  const $T s = $pow2_bits_f64@U(__builtin_bit_cast($U, t));
  const $T y = $fma(s, p, s - $splat(1.0));
  return $copysign(y / (y + $splat(2.0)), a);
)"},
    // log(m) = 2s + s^3 R(s^2) with s = f / (2 + f), f = m - 1; arranged so that f itself is not rounded.
    {"log", "d", "T:T", Kind::Same, 0, "", R"(
  const $M tiny = ($M)(a < $splat(2.2250738585072014e-308));
  const $T x = tiny ? a * $splat(18014398509481984.0) : a;
  const $U i = __builtin_bit_cast($U, x) + $splat@U(0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
  $T e = __builtin_bit_cast($T, ($U)((i >> 52) | $splat@U(0x4330000000000000u))) - $splat(4503599627371519.0);
  e = e - (tiny ? $splat(54.0) : $splat(0.0));
  const $T f = __builtin_bit_cast($T, ($U)((i & $splat@U(0xfffffffffffffu)) + $splat@U(0x3fe6a09e667f3bcdu))) - $splat(1.0);
  const $T s = f / (f + $splat(2.0));
  const $T z = s * s;
  $T p = $fma($splat(0.1483567079316843), z, $splat(0.1530990317803826));
  p = $fma(p, z, $splat(0.18183735165077242));
  p = $fma(p, z, $splat(0.2222219507379599));
  p = $fma(p, z, $splat(0.28571428779031527));
  p = $fma(p, z, $splat(0.399999999992371));
  p = $fma(p, z, $splat(0.6666666666666763));
  const $T half = $splat(0.5) * f * f;
  const $T low = $fma(s, half + p * z, e * $splat(1.90821492927058770002e-10));
  $T y = e * $splat(6.93147180369123816490e-01) - ((half - low) - f);
  y = a == $splat(__builtin_inf()) ? a : y;
  y = a == $splat(0.0) ? $splat(-__builtin_inf()) : y;
  return a >= $splat(0.0) ? y : $splat(__builtin_nan(""));
)"},
    {"expm1", "d", "T:T", Kind::Lanes, 0, "expm1:1", "  return expm1(a);\n"},
    {"log1p", "d", "T:T", Kind::Lanes, 0, "log1p:1", "  return log1p(a);\n"},
    {"erf", "d", "T:T", Kind::Lanes, 0, "erf:1", "  return erf(a);\n"},
    {"sin", "d", "T:T", Kind::Lanes, 0, "sin:1", "  return sin(a);\n"},
    {"cos", "d", "T:T", Kind::Lanes, 0, "cos:1", "  return cos(a);\n"},
    {"tan", "fd", "T:T", Kind::Lanes, 0, "tan:1", "  return ($T)tan((f64)a);\n"},
    {"asin", "fd", "T:T", Kind::Lanes, 0, "asin:1", "  return ($T)asin((f64)a);\n"},
    {"acos", "fd", "T:T", Kind::Lanes, 0, "acos:1", "  return ($T)acos((f64)a);\n"},
    {"atan", "fd", "T:T", Kind::Lanes, 0, "atan:1", "  return ($T)atan((f64)a);\n"},
    {"sinh", "fd", "T:T", Kind::Lanes, 0, "sinh:1", "  return ($T)sinh((f64)a);\n"},
    {"cosh", "fd", "T:T", Kind::Lanes, 0, "cosh:1", "  return ($T)cosh((f64)a);\n"},
    {"asinh", "fd", "T:T", Kind::Lanes, 0, "asinh:1", "  return ($T)asinh((f64)a);\n"},
    {"acosh", "fd", "T:T", Kind::Lanes, 0, "acosh:1", "  return ($T)acosh((f64)a);\n"},
    {"atanh", "fd", "T:T", Kind::Lanes, 0, "atanh:1", "  return ($T)atanh((f64)a);\n"},
    {"atan2", "fd", "T:TT", Kind::Lanes, 0, "atan2:2", "  return ($T)atan2((f64)a, (f64)b);\n"},
    // Python's // and %: the remainder is exact, the quotient the integer that belongs to it. f32 goes through f64.
    {"fmod", "fd", "T:TT", Kind::Lanes, 0, "fmod:2", "  return ($T)fmod((f64)a, (f64)b);\n"},
    {"floor_mod", "fd", "T:TT", Kind::Lanes, 0, "fmod:2", R"(
  const f64 x = (f64)a, y = (f64)b, r = fmod(x, y);
  if (r == 0.0) return ($T)__builtin_copysign(0.0, y);
  return ($T)((r < 0.0) != (y < 0.0) ? r + y : r);
)"},
    {"floor_div", "fd", "T:TT", Kind::Lanes, 0, "fmod:2", R"(
  const f64 x = (f64)a, y = (f64)b;
  if (y == 0.0) return ($T)(x / y);
  const f64 r = fmod(x, y);
  f64 q = (x - r) / y;
  if (r != 0.0 && (r < 0.0) != (y < 0.0)) q -= 1.0;
  if (q == 0.0) return ($T)__builtin_copysign(0.0, x / y);
  const f64 whole = __builtin_floor(q);
  return ($T)(q - whole > 0.5 ? whole + 1.0 : whole);
)"},

    // Word i mod 4 of Philox-4x32-10 with key a and counter i / 4 (Salmon, Moraes, Dror, Shaw, SC 2011).
    {"philox", "u", "W:TT", Kind::Lanes, 0, "", R"(
  u32 k0 = (u32)a, k1 = (u32)(a >> 32);
  u32 w0 = (u32)(b >> 2), w1 = (u32)(b >> 34), w2 = 0, w3 = 0;
  for (int round = 0; round < 10; ++round) {
    const u64 p0 = (u64)0xd2511f53u * w0, p1 = (u64)0xcd9e8d57u * w2;
    w0 = (u32)(p1 >> 32) ^ w1 ^ k0;
    w1 = (u32)p1;
    w2 = (u32)(p0 >> 32) ^ w3 ^ k1;
    w3 = (u32)p0;
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  const u32 even = (b & 2) != 0 ? w2 : w0, odd = (b & 2) != 0 ? w3 : w1;
  return (b & 1) != 0 ? odd : even;
)"},

    // Functions for results that are rounded to f16 or bf16 (docs/numerics.md). A CUDA device has instructions for three of
    // them; what stands here for the host errs by as much as those may.
    {"erring", "f", "T:TTT", Kind::Lanes, 0, "", "  return a + a * ((__builtin_bit_cast($U, b) & 1u) != 0 ? c : -c);\n"},
    {"coarse_exp", "f", "T:T", Kind::Lanes, 0, "", R"(
  const $T y = $exp(a);
  return y < 1.17549435e-38f ? 0.0f : (y > 3.4e38f ? y : $erring(y, a, 7.6e-6f));
)"},
    {"coarse_exp_subnormal", "f", "T:T", Kind::Lanes, 0, "", R"(
  const $T y = $exp(a);
  return y > 3.4e38f ? y : $erring(y, a, 7.6e-6f);
)"},
    {"coarse_tanh", "f", "T:T", Kind::Lanes, 0, "", R"(
  const $T y = $erring($tanh(a), a, 4.8828125e-4f);
  return y > 1.0f ? 1.0f : (y < -1.0f ? -1.0f : y);
)"},
    {"coarse_inverse", "f", "T:T", Kind::Lanes, 0, "", R"(
  const $T size = $abs(a);
  if (size < 1.17549435e-38f) return $copysign(__builtin_inff(), a);
  return size > 8.5070592e37f ? $copysign(a != a ? a : 0.0f, a) : $erring(1.0f / a, a, 1.1920929e-7f);
)"},
    // Scaled so that no inverse is below the normal numbers.
    {"coarse_scale", "f", "T:T", Kind::Lanes, 0, "", R"(
  const $T size = $abs(a);
  return size > 8.5070592e37f ? 0.25f : (size < 1.17549435e-38f ? 16777216.0f : 1.0f);
)"},
    {"coarse_div", "f", "T:TT", Kind::Lanes, 0, "", R"(
  const $T scale = $coarse_scale(b);
  return (a * scale) * $coarse_inverse(b * scale);
)"},
    {"coarse_reciprocal", "f", "T:T", Kind::Lanes, 0, "", R"(
  const $T scale = $coarse_scale(a);
  return scale * $coarse_inverse(a * scale);
)"},
    // The divisor is 1 or more.
    {"coarse_div_from_one", "f", "T:TT", Kind::Lanes, 0, "", "  return (a * 0.25f) * $coarse_inverse(b * 0.25f);\n"},
    {"coarse_reciprocal_from_one", "f", "T:T", Kind::Lanes, 0, "", "  return 0.25f * $coarse_inverse(a * 0.25f);\n"},

    // Complex numbers: the definitions, in f64.
    {"abs", "c", "P:T", Kind::Lanes, 0, "hypot:2", "  return ($P)hypot((f64)a.re, (f64)a.im);\n"},
    {"div", "c", "T:TT", Kind::Lanes, 0, "", R"(
  // Smith, 1962: scaled by the larger part of the divisor.
  const f64 x = a.re, y = a.im, u = b.re, v = b.im;
  if (__builtin_fabs(u) >= __builtin_fabs(v)) {
    if (u == 0.0) return {($P)(x / __builtin_fabs(u)), ($P)(y / __builtin_fabs(u))};
    const f64 r = v / u, d = u + v * r;
    return {($P)((x + y * r) / d), ($P)((y - x * r) / d)};
  }
  const f64 r = u / v, d = u * r + v;
  return {($P)((x * r + y) / d), ($P)((y * r - x) / d)};
)"},
    {"exp", "c", "T:T", Kind::Lanes, 0, "exp:1 sin:1 cos:1", R"(
  const f64 r = exp((f64)a.re);
  if (a.im == 0) return {($P)r, a.im};
  return {($P)(r * cos((f64)a.im)), ($P)(r * sin((f64)a.im))};
)"},
    {"log", "c", "T:T", Kind::Lanes, 0, "log:1 hypot:2 atan2:2", R"(
  return {($P)log(hypot((f64)a.re, (f64)a.im)), ($P)atan2((f64)a.im, (f64)a.re)};
)"},
    {"sqrt", "c", "T:T", Kind::Lanes, 0, "hypot:2", R"(
  const f64 x = a.re, y = a.im;
  if (x == 0.0 && y == 0.0) return {0, a.im};
  const f64 t = __builtin_sqrt((__builtin_fabs(x) + hypot(x, y)) * 0.5);
  if (x >= 0.0) return {($P)t, ($P)(y / (2.0 * t))};
  return {($P)(__builtin_fabs(y) / (2.0 * t)), ($P)__builtin_copysign(t, y)};
)"},
    {"sin", "c", "T:T", Kind::Lanes, 0, "sin:1 cos:1 sinh:1 cosh:1", R"(
  return {($P)(sin((f64)a.re) * cosh((f64)a.im)), ($P)(cos((f64)a.re) * sinh((f64)a.im))};
)"},
    {"cos", "c", "T:T", Kind::Lanes, 0, "sin:1 cos:1 sinh:1 cosh:1", R"(
  return {($P)(cos((f64)a.re) * cosh((f64)a.im)), ($P)(-sin((f64)a.re) * sinh((f64)a.im))};
)"},
    {"tanh", "c", "T:T", Kind::Lanes, 0, "sin:1 cos:1 sinh:1 cosh:1", R"(
  const f64 x = 2.0 * (f64)a.re, y = 2.0 * (f64)a.im;
  if (__builtin_fabs(x) > 80.0) return {($P)__builtin_copysign(1.0, x), ($P)__builtin_copysign(0.0, sin(y))};
  const f64 d = cosh(x) + cos(y);
  return {($P)(sinh(x) / d), ($P)(sin(y) / d)};
)"},
};
}  // namespace

std::span<const CppFunction> math_functions() { return kMath; }

}  // namespace fuseloom::emit
