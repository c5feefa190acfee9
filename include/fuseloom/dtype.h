// Element types.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace fuseloom {

enum class DType : uint8_t {
  Bool, I8, I16, I32, I64, U8, U16, U32, U64, F16, BF16, F32, F64, C64, C128,
};
inline constexpr int kDTypeCount = 15;

// "bool", "i8", ..., "f16", "bf16", "f32", "f64", "c64" (complex of two f32), "c128".
std::string_view dtype_name(DType dtype);
std::optional<DType> parse_dtype(std::string_view name);

// Bits an element takes in memory. A multiple of 8 for every type there is today; sizes are still asked for in bits and
// rounded up over a whole tensor, so that 4-bit types can be added without touching the callers.
int64_t dtype_bits(DType dtype);
// Bytes that `count` elements take, rounded up.
int64_t dtype_bytes(DType dtype, int64_t count = 1);

inline bool is_complex(DType t) { return t == DType::C64 || t == DType::C128; }
inline bool is_float(DType t) { return t >= DType::F16 && t <= DType::F64; }
inline bool is_signed_int(DType t) { return t >= DType::I8 && t <= DType::I64; }
inline bool is_unsigned_int(DType t) { return t >= DType::U8 && t <= DType::U64; }
inline bool is_int(DType t) { return t >= DType::I8 && t <= DType::U64; }

// The type arithmetic is carried out in: f32 for f16 and bf16, the type itself otherwise (docs/numerics.md).
inline DType compute_dtype(DType t) { return t == DType::F16 || t == DType::BF16 ? DType::F32 : t; }

// Bit conversions. Round to nearest even; overflow gives infinity; NaN stays NaN (quiet).
float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value);
float bf16_to_f32(uint16_t bits);
uint16_t f32_to_bf16(float value);
uint16_t f64_to_f16(double value);    // one rounding
uint16_t f64_to_bf16(double value);   // one rounding

}  // namespace fuseloom
