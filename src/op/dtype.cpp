#include "fuseloom/dtype.h"

#include <array>

#include "base/check.h"
#include "op/float16.h"

namespace fuseloom {
namespace {

struct DTypeRow {
  std::string_view name;
  int64_t bits;
};
// In the order of DType.
constexpr std::array<DTypeRow, kDTypeCount> kRows = {{
    {"bool", 8},
    {"i8", 8},
    {"i16", 16},
    {"i32", 32},
    {"i64", 64},
    {"u8", 8},
    {"u16", 16},
    {"u32", 32},
    {"u64", 64},
    {"f16", 16},
    {"bf16", 16},
    {"f32", 32},
    {"f64", 64},
    {"c64", 64},
    {"c128", 128},
}};

}  // namespace

std::string_view dtype_name(DType dtype) { return kRows[static_cast<size_t>(dtype)].name; }

std::optional<DType> parse_dtype(std::string_view name) {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

int64_t dtype_bits(DType dtype) { return kRows[static_cast<size_t>(dtype)].bits; }

int64_t dtype_bytes(DType dtype, int64_t count) {
  int64_t bits = 0;
  FL_REQUIRE(!__builtin_mul_overflow(count, dtype_bits(dtype), &bits) && bits <= INT64_MAX - 7,
             "{} elements of {} take more than 2^63 bits", count, dtype_name(dtype));
  return (bits + 7) / 8;
}

float f16_to_f32(uint16_t bits) { return op::widen_f16(bits); }
uint16_t f32_to_f16(float value) { return op::narrow_f16(value); }
float bf16_to_f32(uint16_t bits) { return op::widen_bf16(bits); }
uint16_t f32_to_bf16(float value) { return op::narrow_bf16(value); }
uint16_t f64_to_f16(double value) { return op::narrow_f16(value); }
uint16_t f64_to_bf16(double value) { return op::narrow_bf16(value); }

}  // namespace fuseloom
