// Elements as the reference functions see them.
//
// A tensor stores one of 15 element types; a reference computes in one of five C++ types, its *domain*: bool, int64_t,
// uint64_t, double, complex<double>. Loading widens exactly. Storing narrows as a cast does (docs/numerics.md): floats
// round once, integers wrap. Two's-complement arithmetic modulo 2^64 followed by wrapping to n bits is arithmetic
// modulo 2^n, so one integer domain serves every width.
#pragma once
#include <bit>
#include <cmath>
#include <complex>
#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "fuseloom/dtype.h"
#include "op/float16.h"

namespace fuseloom::op {

// Storage of the types that C++ has no arithmetic type for. Any nonzero byte of a bool is true.
struct Bool8 {
  uint8_t byte;
};
struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};

struct Bytes16 {
  uint64_t low, high;
};

// Calls f.operator()<Unit>() for an unsigned type of as many bytes as an element has: elements that are only moved.
template <class F>
decltype(auto) with_unit(DType dtype, F&& f) {
  switch (dtype_bits(dtype)) {
    case 8:
      return f.template operator()<uint8_t>();
    case 16:
      return f.template operator()<uint16_t>();
    case 32:
      return f.template operator()<uint32_t>();
    case 64:
      return f.template operator()<uint64_t>();
    default:
      return f.template operator()<Bytes16>();
  }
}

enum class Domain : uint8_t { Bool, Int, Uint, Real, Complex };
inline constexpr int kDomainCount = 5;

inline Domain domain_of(DType dtype) {
  if (dtype == DType::Bool) return Domain::Bool;
  if (is_signed_int(dtype)) return Domain::Int;
  if (is_unsigned_int(dtype)) return Domain::Uint;
  return is_complex(dtype) ? Domain::Complex : Domain::Real;
}

// Calls f.operator()<Storage>() for the storage type of a dtype.
template <class F>
decltype(auto) with_storage(DType dtype, F&& f) {
  switch (dtype) {
    case DType::Bool:
      return f.template operator()<Bool8>();
    case DType::I8:
      return f.template operator()<int8_t>();
    case DType::I16:
      return f.template operator()<int16_t>();
    case DType::I32:
      return f.template operator()<int32_t>();
    case DType::I64:
      return f.template operator()<int64_t>();
    case DType::U8:
      return f.template operator()<uint8_t>();
    case DType::U16:
      return f.template operator()<uint16_t>();
    case DType::U32:
      return f.template operator()<uint32_t>();
    case DType::U64:
      return f.template operator()<uint64_t>();
    case DType::F16:
      return f.template operator()<F16>();
    case DType::BF16:
      return f.template operator()<BF16>();
    case DType::F32:
      return f.template operator()<float>();
    case DType::F64:
      return f.template operator()<double>();
    case DType::C64:
      return f.template operator()<std::complex<float>>();
    case DType::C128:
      return f.template operator()<std::complex<double>>();
  }
  __builtin_unreachable();
}

// Calls f.operator()<Computed>() for the C++ type of a domain.
template <class F>
decltype(auto) with_domain(Domain domain, F&& f) {
  switch (domain) {
    case Domain::Bool:
      return f.template operator()<bool>();
    case Domain::Int:
      return f.template operator()<int64_t>();
    case Domain::Uint:
      return f.template operator()<uint64_t>();
    case Domain::Real:
      return f.template operator()<double>();
    case Domain::Complex:
      return f.template operator()<std::complex<double>>();
  }
  __builtin_unreachable();
}

inline bool load(Bool8 value) { return value.byte != 0; }
template <std::signed_integral T>
int64_t load(T value) {
  return value;
}
template <std::unsigned_integral T>
uint64_t load(T value) {
  return value;
}
inline double load(F16 value) { return widen_f16(value.bits); }
inline double load(BF16 value) { return widen_bf16(value.bits); }
inline double load(float value) { return value; }
inline double load(double value) { return value; }
inline std::complex<double> load(std::complex<float> value) { return {value.real(), value.imag()}; }
inline std::complex<double> load(std::complex<double> value) { return value; }

template <class Storage>
using Computed = decltype(load(std::declval<Storage>()));

// Truncates toward zero, saturates, NaN gives 0.
template <class Integer>
Integer saturate(double value) {
  constexpr double kLow = static_cast<double>(std::numeric_limits<Integer>::min());
  constexpr double kAbove = 2.0 * static_cast<double>(uint64_t{1} << (std::numeric_limits<Integer>::digits - 1));
  if (std::isnan(value)) return 0;
  if (value <= kLow) return std::numeric_limits<Integer>::min();
  if (value >= kAbove) return std::numeric_limits<Integer>::max();
  return static_cast<Integer>(value);
}

// A double whose rounding to any type of at most 42 significant bits equals that of the integer: bits that a double
// cannot hold are folded into the lowest one it can (round to odd).
inline double sticky_double(uint64_t magnitude) {
  if (magnitude >> 53 != 0) magnitude = (magnitude & ~uint64_t{0xfff}) | ((magnitude & 0xfff) != 0 ? 0x800 : 0);
  return static_cast<double>(magnitude);
}
inline double sticky_double(int64_t value) {
  const uint64_t magnitude = value < 0 ? ~static_cast<uint64_t>(value) + 1 : static_cast<uint64_t>(value);
  return value < 0 ? -sticky_double(magnitude) : sticky_double(magnitude);
}

// Stores a value of any domain as any storage type, as `cast` does.
template <class Storage, class Value>
Storage store(Value value) {
  constexpr bool kComplexValue = std::is_same_v<Value, std::complex<double>>;
  if constexpr (std::is_same_v<Storage, Bool8>) {
    return Bool8{static_cast<uint8_t>(value != Value(0) ? 1 : 0)};
  } else if constexpr (std::is_same_v<Storage, std::complex<float>> || std::is_same_v<Storage, std::complex<double>>) {
    using Part = typename Storage::value_type;
    if constexpr (kComplexValue) {
      return Storage(static_cast<Part>(value.real()), static_cast<Part>(value.imag()));
    } else {
      return Storage(static_cast<Part>(value), Part(0));
    }
  } else if constexpr (kComplexValue) {
    return store<Storage>(value.real());
  } else if constexpr (std::is_same_v<Storage, F16> || std::is_same_v<Storage, BF16>) {
    double wide;
    if constexpr (std::is_same_v<Value, int64_t> || std::is_same_v<Value, uint64_t>) {
      wide = sticky_double(value);
    } else {
      wide = static_cast<double>(value);
    }
    if constexpr (std::is_same_v<Storage, F16>) {
      return F16{narrow_f16(wide)};
    } else {
      return BF16{narrow_bf16(wide)};
    }
  } else if constexpr (std::is_same_v<Value, double> && std::integral<Storage>) {
    return saturate<Storage>(value);
  } else {
    return static_cast<Storage>(value);
  }
}

}  // namespace fuseloom::op
