#include "fuseloom/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

namespace fuseloom {
namespace {

// The value of a narrow float from its fields; independent of the conversions under test.
double decode(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = static_cast<int>(bits) & ((1 << mantissa_bits) - 1);
  const double sign = (bits >> (exponent_bits + mantissa_bits)) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

TEST(DType, NamesRoundTrip) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const DType dtype = static_cast<DType>(i);
    EXPECT_EQ(parse_dtype(dtype_name(dtype)), dtype);
    EXPECT_EQ(dtype_bytes(dtype, 3) * 8, dtype_bits(dtype) * 3);
  }
  EXPECT_FALSE(parse_dtype("float").has_value());
  EXPECT_EQ(dtype_bytes(DType::C128), 16);
}

TEST(DType, EveryPatternOfF16AndBf16WidensAndNarrowsBack) {
  for (uint32_t pattern = 0; pattern < 65536; ++pattern) {
    const uint16_t bits = static_cast<uint16_t>(pattern);
    const double half = decode(pattern, 5, 10), brain = decode(pattern, 8, 7);
    if (std::isnan(half)) {
      EXPECT_TRUE(std::isnan(f16_to_f32(bits)));
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(f16_to_f32(bits)))));
      EXPECT_TRUE(std::isnan(f16_to_f32(f64_to_f16(f16_to_f32(bits)))));
    } else {
      ASSERT_EQ(f16_to_f32(bits), half) << pattern;
      ASSERT_EQ(std::signbit(f16_to_f32(bits)), std::signbit(half)) << pattern;
      ASSERT_EQ(f32_to_f16(static_cast<float>(half)), bits);
      ASSERT_EQ(f64_to_f16(half), bits);
    }
    if (std::isnan(brain)) {
      EXPECT_TRUE(std::isnan(bf16_to_f32(bits)));
      EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(bf16_to_f32(bits)))));
      EXPECT_TRUE(std::isnan(bf16_to_f32(f64_to_bf16(bf16_to_f32(bits)))));
    } else {
      ASSERT_EQ(bf16_to_f32(bits), brain) << pattern;
      ASSERT_EQ(f32_to_bf16(static_cast<float>(brain)), bits);
      ASSERT_EQ(f64_to_bf16(brain), bits);
    }
  }
}

// Between two neighbours: below the middle rounds down, above rounds up, the middle goes to the even one.
void check_midpoints(int exponent_bits, int mantissa_bits, uint16_t (*narrow)(double), uint16_t (*narrow32)(float)) {
  const uint32_t infinity = ((1u << exponent_bits) - 1) << mantissa_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  for (uint32_t bits = 0; bits < infinity; ++bits) {
    const double low = decode(bits, exponent_bits, mantissa_bits);
    // The neighbour of the largest number is the power of two that infinity stands in for.
    const double high =
        bits + 1 == infinity ? std::ldexp(1.0, bias + 1) : decode(bits + 1, exponent_bits, mantissa_bits);
    const double middle = low / 2 + high / 2;
    ASSERT_EQ(narrow(middle), bits % 2 == 0 ? bits : bits + 1) << bits;
    ASSERT_EQ(narrow(-middle), (bits % 2 == 0 ? bits : bits + 1) | 0x8000u) << bits;
    ASSERT_EQ(narrow(std::nextafter(middle, 0)), bits) << bits;
    ASSERT_EQ(narrow(std::nextafter(middle, high)), bits + 1) << bits;
    if (static_cast<double>(static_cast<float>(middle)) == middle) {
      ASSERT_EQ(narrow32(static_cast<float>(middle)), narrow(middle)) << bits;
      ASSERT_EQ(narrow32(std::nextafterf(static_cast<float>(middle), 0)), bits) << bits;
    }
  }
}

TEST(DType, NarrowingIsNearestEvenAtEveryMidpoint) {
  check_midpoints(5, 10, f64_to_f16, f32_to_f16);
  check_midpoints(8, 7, f64_to_bf16, f32_to_bf16);
}

TEST(DType, F64NarrowsWithOneRounding) {
  // Through f32 this is a tie after the first rounding and goes down; in one rounding it is above the middle.
  const double value = 1.0 + 0x1p-11 + 0x1p-40;
  EXPECT_EQ(f32_to_f16(static_cast<float>(value)), 0x3c00);
  EXPECT_EQ(f64_to_f16(value), 0x3c01);
  EXPECT_EQ(f64_to_f16(70000.0), 0x7c00);
  EXPECT_EQ(f64_to_f16(-1e300), 0xfc00);
  EXPECT_EQ(f64_to_f16(1e-8), 0);
  EXPECT_EQ(f64_to_f16(2049.0), f64_to_f16(2048.0));
}

TEST(DType, RandomF32PatternsAgreeWithF64) {
  constexpr uint64_t kSeed = 7;
  std::mt19937_64 random(kSeed);
  for (int i = 0; i < 200000; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isnan(value)) continue;
    ASSERT_EQ(f32_to_f16(value), f64_to_f16(value)) << "seed " << kSeed << " value " << value;
    ASSERT_EQ(f32_to_bf16(value), f64_to_bf16(value)) << "seed " << kSeed << " value " << value;
  }
}

}  // namespace
}  // namespace fuseloom
