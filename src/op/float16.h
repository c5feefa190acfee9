// The bit conversions of f16 and bf16, inline for the loops of the reference functions. See fuseloom/dtype.h.
//
// Narrowing works on the magnitude's bits. A normal result drops mantissa bits after adding half a unit (minus one bit,
// plus the lowest kept bit: ties to even); a carry walks into the exponent by itself, up to infinity. A subnormal
// result is rounded by an addition: a magic number whose unit in the last place is the narrow type's smallest
// subnormal.
#pragma once
#include <bit>
#include <cstdint>

namespace fuseloom::op {

inline float widen_f16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude > 0x7c00u) return std::bit_cast<float>(sign | 0x7fc00000u | (magnitude & 0x1ffu) << 13);
  if (magnitude == 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u);
  // The exponent is re-biased by an exact multiplication, which also normalises subnormals.
  const float value = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
}

inline float widen_bf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  const bool nan = (wide & 0x7fffffffu) > 0x7f800000u;
  return std::bit_cast<float>(nan ? wide | 0x00400000u : wide);
}

inline uint16_t narrow_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t result;
  if (magnitude > 0x7f800000u) {
    result = 0x7e00u | ((magnitude >> 13) & 0x1ffu);
  } else if (magnitude >= 0x47800000u) {  // 2^16 and above
    result = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {  // 2^-14 and above: normal
    magnitude += 0x0fffu + ((magnitude >> 13) & 1u);
    result = (magnitude - 0x38000000u) >> 13;
  } else {  // unit 2^-24 is the last place of 0.5
    result = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  }
  return static_cast<uint16_t>(sign | result);
}

inline uint16_t narrow_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Shared by the two narrowings from f64: `kMantissa` bits kept, exponent bias `kBias`.
template <int kMantissa, int kBias>
inline uint16_t narrow_f64(double value) {
  constexpr int kShift = 52 - kMantissa;
  constexpr uint64_t kInfinity = ((uint64_t{2} * kBias + 1) << kMantissa);
  constexpr uint64_t kOverflow = static_cast<uint64_t>(1023 + kBias + 1) << 52;
  constexpr uint64_t kNormal = static_cast<uint64_t>(1023 - kBias + 1) << 52;
  // The smallest subnormal is 2^(1 - kBias - kMantissa), which is the last place of 2^(53 - kBias - kMantissa).
  constexpr uint64_t kMagic = static_cast<uint64_t>(1023 + 53 - kBias - kMantissa) << 52;
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const uint64_t sign = (bits >> 48) & 0x8000u;
  uint64_t magnitude = bits & 0x7fffffffffffffffu;
  uint64_t result;
  if (magnitude > 0x7ff0000000000000u) {
    result =
        kInfinity | uint64_t{1} << (kMantissa - 1) | ((magnitude >> kShift) & ((uint64_t{1} << (kMantissa - 1)) - 1));
  } else if (magnitude >= kOverflow) {
    result = kInfinity;
  } else if (magnitude >= kNormal) {
    magnitude += (uint64_t{1} << (kShift - 1)) - 1 + ((magnitude >> kShift) & 1u);
    result = (magnitude - (static_cast<uint64_t>(1023 - kBias) << 52)) >> kShift;
  } else {
    result = std::bit_cast<uint64_t>(std::bit_cast<double>(magnitude) + std::bit_cast<double>(kMagic)) - kMagic;
  }
  return static_cast<uint16_t>(sign | result);
}
inline uint16_t narrow_f16(double value) { return narrow_f64<10, 15>(value); }
inline uint16_t narrow_bf16(double value) { return narrow_f64<7, 127>(value); }

}  // namespace fuseloom::op
