// Philox-4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC 2011) and the
// distributions over it, in a subset of C++ that every target compiles: integer arithmetic, float + - * / and sqrtf, no
// FMA (callers compile with contraction off). All of these are exactly rounded everywhere, so that the bits are the
// same on every device and under every schedule. No libm function but sqrtf is used.
//
// The functions are both compiled here, for the reference, and available as text in kPhiloxSource, which the emitters
// paste in front of kernels that draw numbers. FL_PHILOX_FUNCTION is the qualifier of each function; the text's user
// defines it (`static inline`, `__device__ static inline`) and declares sqrtf.
//
//   philox_word(seed, offset, i)      32 random bits of element i: word i mod 4 of the counter offset + i / 4
//   philox_uniform(...)               a float k / 2^24 in [0, 1)
//   philox_uniform64(...)             a double k / 2^32 in [0, 1)
//   philox_normal(...)                a float, normally distributed (Box-Muller on the pair of words that i belongs to)
#pragma once
#include <cmath>

namespace fuseloom::op::philox {

#define FL_PHILOX_FUNCTION inline
// Compiles its argument and keeps its text.
#define FL_PHILOX_SOURCE(...) \
  __VA_ARGS__                 \
  inline constexpr char kPhiloxSource[] = #__VA_ARGS__;

// The argument is program text.
// clang-format off
FL_PHILOX_SOURCE(
struct PhiloxBlock { unsigned int w0, w1, w2, w3; };

FL_PHILOX_FUNCTION PhiloxBlock philox_block(unsigned long long seed, unsigned long long counter) {
  unsigned int k0 = (unsigned int)seed;
  unsigned int k1 = (unsigned int)(seed >> 32);
  PhiloxBlock b = {(unsigned int)counter, (unsigned int)(counter >> 32), 0u, 0u};
  for (int round = 0; round < 10; ++round) {
    unsigned long long p0 = 0xD2511F53ull * b.w0;
    unsigned long long p1 = 0xCD9E8D57ull * b.w2;
    PhiloxBlock n = {(unsigned int)(p1 >> 32) ^ b.w1 ^ k0, (unsigned int)p1,
                     (unsigned int)(p0 >> 32) ^ b.w3 ^ k1, (unsigned int)p0};
    b = n;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return b;
}

FL_PHILOX_FUNCTION unsigned int philox_word(unsigned long long seed, unsigned long long offset, unsigned long long i) {
  PhiloxBlock b = philox_block(seed, offset + i / 4u);
  unsigned int word = (unsigned int)(i % 4u);
  return word < 2u ? (word == 0u ? b.w0 : b.w1) : (word == 2u ? b.w2 : b.w3);
}

FL_PHILOX_FUNCTION float philox_uniform(unsigned long long seed, unsigned long long offset, unsigned long long i) {
  return (float)(philox_word(seed, offset, i) >> 8) * 5.9604644775390625e-08f;
}

FL_PHILOX_FUNCTION double philox_uniform64(unsigned long long seed, unsigned long long offset, unsigned long long i) {
  return (double)philox_word(seed, offset, i) * 2.3283064365386962890625e-10;
}

/* -log(bits / 2^32) for bits != 0: the leading bit gives the exponent, the 24 bits from there the mantissa m in [1, 2),
   log m = 2 atanh((m - 1) / (m + 1)) by its series, after halving m above sqrt(2). */
FL_PHILOX_FUNCTION float philox_negative_log(unsigned int bits) {
  int exponent = -1;
  if (bits < 0x00010000u) { bits <<= 16; exponent -= 16; }
  if (bits < 0x01000000u) { bits <<= 8; exponent -= 8; }
  if (bits < 0x10000000u) { bits <<= 4; exponent -= 4; }
  if (bits < 0x40000000u) { bits <<= 2; exponent -= 2; }
  if (bits < 0x80000000u) { bits <<= 1; exponent -= 1; }
  float m = (float)(bits >> 8) * 1.1920928955078125e-07f;
  if (m > 1.41421354f) { m = m * 0.5f; exponent += 1; }
  float s = (m - 1.0f) / (m + 1.0f);
  float z = s * s;
  float series = 0.111111112f;
  series = series * z + 0.142857149f;
  series = series * z + 0.2f;
  series = series * z + 0.333333343f;
  float tail = series * z * s + s;
  return 0.0f - ((float)exponent * 0.693147182f + 2.0f * tail);
}

/* The cosine (quadrant 0) or sine (quadrant 3) of the angle turn / 2^32 of a full circle: the nearest multiple of a
   quarter circle is taken off exactly, in integers; Taylor series on [-pi/4, pi/4]. */
FL_PHILOX_FUNCTION float philox_cos_turn(unsigned int turn, unsigned int quadrant) {
  unsigned int shifted = turn + 0x20000000u;
  quadrant = (quadrant + (shifted >> 30)) & 3u;
  int rest = (int)(shifted & 0x3FFFFFFFu) - 0x20000000;
  float a = (float)rest * 1.46291808e-09f;
  float z = a * a;
  float c = -2.75573188e-07f;
  c = c * z + 2.48015876e-05f;
  c = c * z - 0.00138888892f;
  c = c * z + 0.0416666679f;
  c = c * z - 0.5f;
  c = c * z + 1.0f;
  float s = 2.75573188e-06f;
  s = s * z - 0.000198412701f;
  s = s * z + 0.00833333377f;
  s = s * z - 0.166666672f;
  s = s * z * a + a;
  float value = (quadrant & 1u) != 0u ? s : c;
  return quadrant == 1u || quadrant == 2u ? 0.0f - value : value;
}

FL_PHILOX_FUNCTION float philox_normal(unsigned long long seed, unsigned long long offset, unsigned long long i) {
  PhiloxBlock b = philox_block(seed, offset + i / 4u);
  unsigned int radius_bits = (i & 2u) != 0u ? b.w2 : b.w0;
  unsigned int turn = (i & 2u) != 0u ? b.w3 : b.w1;
  float radius = sqrtf(2.0f * philox_negative_log(radius_bits == 0u ? 1u : radius_bits));
  return radius * philox_cos_turn(turn, (i & 1u) != 0u ? 3u : 0u);
}
)
// clang-format on

#undef FL_PHILOX_SOURCE
#undef FL_PHILOX_FUNCTION

}  // namespace fuseloom::op::philox
