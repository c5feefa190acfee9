// Scalar arithmetic of the domains where C++ has no operator for what docs/numerics.md asks for. Integers are int64_t
// or uint64_t; narrower types are extended before and wrapped after (op/element.h).
#pragma once
#include <cmath>
#include <complex>
#include <cstdint>
#include <type_traits>

namespace fuseloom::op {

// Signed overflow is undefined in C++, so that integers add, subtract and multiply unsigned.
template <class T>
T wrap_add(T a, T b) {
  return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
template <class T>
T wrap_sub(T a, T b) {
  return static_cast<T>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
}
template <class T>
T wrap_mul(T a, T b) {
  return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

template <class T>
T truncated_div(T a, T b) {
  if (b == 0) return 0;
  if constexpr (std::is_signed_v<T>) {
    if (b == -1) return wrap_sub<T>(0, a);
  }
  return a / b;
}

template <class T>
T truncated_mod(T a, T b) {
  if (b == 0) return 0;
  if constexpr (std::is_signed_v<T>) {
    if (b == -1) return 0;
  }
  return a % b;
}

template <class T>
T floor_mod(T a, T b) {
  const T remainder = truncated_mod(a, b);
  if constexpr (std::is_signed_v<T>) {
    if (remainder != 0 && (remainder < 0) != (b < 0)) return remainder + b;
  }
  return remainder;
}

template <class T>
T floor_div(T a, T b) {
  if (b == 0) return 0;
  const T quotient = truncated_div(a, b);
  if constexpr (std::is_signed_v<T>) {
    if (truncated_mod(a, b) != 0 && (a < 0) != (b < 0)) return quotient - 1;
  }
  return quotient;
}

// Python's // and %: the remainder is exact and has the sign of the divisor, the quotient is the integer that belongs
// to it. Division by zero follows IEEE: an infinity or NaN, and NaN for the remainder.
inline double floor_mod(double a, double b) {
  const double remainder = std::fmod(a, b);
  if (remainder == 0) return std::copysign(0.0, b);
  return (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

inline double floor_div(double a, double b) {
  if (b == 0) return a / b;
  double remainder = std::fmod(a, b);
  double quotient = (a - remainder) / b;
  if (remainder != 0 && (remainder < 0) != (b < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1 : floored;
}

// By squaring, wrapping. A negative exponent gives 1/a truncated.
template <class T>
T integer_power(T base, T exponent) {
  if constexpr (std::is_signed_v<T>) {
    if (exponent < 0) {
      if (base == 1) return 1;
      if (base == -1) return exponent % 2 == 0 ? 1 : -1;
      return 0;
    }
  }
  T result = 1;
  for (uint64_t left = static_cast<uint64_t>(exponent); left != 0; left >>= 1) {
    if (left & 1) result = wrap_mul(result, base);
    base = wrap_mul(base, base);
  }
  return result;
}

// NaN wins, +0 above -0.
inline double float_max(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return a + b;
  if (a == b) return std::signbit(a) ? b : a;
  return a > b ? a : b;
}
inline double float_min(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return a + b;
  if (a == b) return std::signbit(a) ? a : b;
  return a < b ? a : b;
}

// The domain is 64 bits wide and narrower types are sign- or zero-extended, so that a count at or above the type's
// width but below 64 gives the right bits by itself.
template <class T>
T left_shift(T a, T count) {
  if (static_cast<uint64_t>(count) >= 64) return 0;
  return static_cast<T>(static_cast<uint64_t>(a) << count);
}
template <class T>
T right_shift(T a, T count) {
  if (static_cast<uint64_t>(count) < 64) return a >> count;
  return a < T(0) ? static_cast<T>(-1) : T(0);
}

template <class T>
T sign_of(T a) {
  if constexpr (std::is_same_v<T, double>) {
    if (std::isnan(a)) return a;
  }
  return static_cast<T>(a > T(0) ? 1 : (a < T(0) ? -1 : 0));
}

// The plain formula, as kernels compute it; operator* would patch up infinities.
inline std::complex<double> complex_mul(std::complex<double> a, std::complex<double> b) {
  return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
}

// What reductions, scans and scatters combine with, in any domain.
template <class T>
T combine_add(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return a || b;
  } else if constexpr (std::is_integral_v<T>) {
    return wrap_add(a, b);
  } else {
    return a + b;
  }
}
template <class T>
T combine_mul(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return a && b;
  } else if constexpr (std::is_integral_v<T>) {
    return wrap_mul(a, b);
  } else if constexpr (std::is_same_v<T, double>) {
    return a * b;
  } else {
    return complex_mul(a, b);
  }
}
// Not for complex numbers.
template <class T>
T combine_max(T a, T b) {
  if constexpr (std::is_same_v<T, double>) {
    return float_max(a, b);
  } else {
    return a < b ? b : a;
  }
}
template <class T>
T combine_min(T a, T b) {
  if constexpr (std::is_same_v<T, double>) {
    return float_min(a, b);
  } else {
    return b < a ? b : a;
  }
}

}  // namespace fuseloom::op
