#include "emit/cpp_prelude.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "emit/c_like.h"
#include "emit/cpp_function.h"

namespace fuseloom::emit {
namespace {

using Kind = CppFunction::Kind;

// ---- the plain functions ---------------------------------------------------------------------------------------------
constexpr CppFunction kBasic[] = {
    // Integers wrap: they are added, subtracted and multiplied unsigned.
    {"neg", "iu", "T:T", Kind::Same, 0, "", "  return ($T)(-($V)a);\n"},
    {"neg", "fd", "T:T", Kind::Same, 0, "", "  return -a;\n"},
    {"add", "iu", "T:TT", Kind::Same, 0, "", "  return ($T)(($V)a + ($V)b);\n"},
    {"sub", "iu", "T:TT", Kind::Same, 0, "", "  return ($T)(($V)a - ($V)b);\n"},
    {"mul", "iu", "T:TT", Kind::Same, 0, "", "  return ($T)(($V)a * ($V)b);\n"},
    {"add", "fd", "T:TT", Kind::Same, 0, "", "  return a + b;\n"},
    {"sub", "fd", "T:TT", Kind::Same, 0, "", "  return a - b;\n"},
    {"mul", "fd", "T:TT", Kind::Same, 0, "", "  return a * b;\n"},
    {"div", "fd", "T:TT", Kind::Same, 0, "", "  return a / b;\n"},
    {"abs", "u", "T:T", Kind::Same, 0, "", "  return a;\n"},
    {"abs", "i", "T:T", Kind::Same, 0, "", "  return a < $splat(0) ? ($T)(-($V)a) : a;\n"},
    {"abs", "fd", "T:T", Kind::Same, 0, "",
     "  return __builtin_bit_cast($T, ($U)(__builtin_bit_cast($U, a) & $splat@U($MAX)));\n"},
    {"copysign", "fd", "T:TT", Kind::Same, 0, "", R"(
  const $U magnitude = __builtin_bit_cast($U, a) & $splat@U($MAX);
  return __builtin_bit_cast($T, ($U)(magnitude | (__builtin_bit_cast($U, b) & ~$splat@U($MAX))));
)"},
    {"sign", "u", "T:T", Kind::Same, 0, "", "  return a != $splat(0) ? $splat(1) : $splat(0);\n"},
    {"sign", "i", "T:T", Kind::Same, 0, "", R"(
  const $T y = a < $splat(0) ? $splat(-1) : $splat(0);
  return a > $splat(0) ? $splat(1) : y;
)"},
    {"sign", "fd", "T:T", Kind::Same, 0, "", R"(
  $T y = a < $splat(0) ? $splat(-1) : $splat(0);
  y = a > $splat(0) ? $splat(1) : y;
  return a != a ? a : y;
)"},
    {"floor", "iu", "T:T", Kind::Same, 0, "", "  return a;\n"},
    {"ceil", "iu", "T:T", Kind::Same, 0, "", "  return a;\n"},
    {"trunc", "iu", "T:T", Kind::Same, 0, "", "  return a;\n"},
    {"round", "iu", "T:T", Kind::Same, 0, "", "  return a;\n"},
    {"reciprocal", "fd", "T:T", Kind::Same, 0, "", "  return $splat(1) / a;\n"},
    {"rsqrt", "fd", "T:T", Kind::Same, 0, "", "  return $splat(1) / $sqrt(a);\n"},
    {"is_nan", "fd", "M:T", Kind::Same, 0, "", "  return ($M)(a != a);\n"},
    {"is_inf", "fd", "M:T", Kind::Same, 0, "", "  return ($M)($abs(a) == $splat($INF));\n"},
    {"is_positive_inf", "fd", "M:T", Kind::Same, 0, "", "  return ($M)(a == $splat($INF));\n"},
    {"is_negative_inf", "fd", "M:T", Kind::Same, 0, "", "  return ($M)(a == $splat(-$INF));\n"},
    {"bit_not", "iu", "T:T", Kind::Same, 0, "", "  return ($T)~a;\n"},
    {"bit_and", "iu", "T:TT", Kind::Same, 0, "", "  return ($T)(a & b);\n"},
    {"bit_or", "iu", "T:TT", Kind::Same, 0, "", "  return ($T)(a | b);\n"},
    {"bit_xor", "iu", "T:TT", Kind::Same, 0, "", "  return ($T)(a ^ b);\n"},
    // A count at or above the width, or negative, shifts everything out.
    {"shift_left", "iu", "T:TT", Kind::Same, 0, "", R"(
  const $U n = ($U)b;
  const $T y = ($T)(($V)a << ($V)(n & $splat@U($B - 1)));
  return n > $splat@U($B - 1) ? $splat(0) : y;
)"},
    {"shift_right", "u", "T:TT", Kind::Same, 0, "", R"(
  const $T y = ($T)(a >> (b & $splat($B - 1)));
  return b > $splat($B - 1) ? $splat(0) : y;
)"},
    {"shift_right", "i", "T:TT", Kind::Same, 0, "", R"(
  const $U n = ($U)b > $splat@U($B - 1) ? $splat@U($B - 1) : ($U)b;
  return ($T)(a >> ($I)n);
)"},
    {"eq", "iufd", "M:TT", Kind::Same, 0, "", "  return ($M)(a == b);\n"},
    {"ne", "iufd", "M:TT", Kind::Same, 0, "", "  return ($M)(a != b);\n"},
    {"lt", "iufd", "M:TT", Kind::Same, 0, "", "  return ($M)(a < b);\n"},
    {"le", "iufd", "M:TT", Kind::Same, 0, "", "  return ($M)(a <= b);\n"},
    {"gt", "iufd", "M:TT", Kind::Same, 0, "", "  return ($M)(a > b);\n"},
    {"ge", "iufd", "M:TT", Kind::Same, 0, "", "  return ($M)(a >= b);\n"},
    {"select", "iufdhg", "T:MTT", Kind::Same, 0, "", "  return a ? b : c;\n"},
    {"max", "iu", "T:TT", Kind::Same, 0, "", "  return a > b ? a : b;\n"},
    {"min", "iu", "T:TT", Kind::Same, 0, "", "  return a < b ? a : b;\n"},
    // NaN wins. Of two zeros, max takes +0 and min -0: equal numbers have equal bits but for that sign.
    {"max", "fd", "T:TT", Kind::Same, 0, "", R"(
  $T y = a > b ? a : b;
  y = a == b ? __builtin_bit_cast($T, ($U)(__builtin_bit_cast($U, a) & __builtin_bit_cast($U, b))) : y;
  return a != a ? a : y;
)"},
    {"min", "fd", "T:TT", Kind::Same, 0, "", R"(
  $T y = a < b ? a : b;
  y = a == b ? __builtin_bit_cast($T, ($U)(__builtin_bit_cast($U, a) | __builtin_bit_cast($U, b))) : y;
  return a != a ? a : y;
)"},
    // Division by zero gives 0; the lowest integer over -1 wraps to itself, remainder 0.
    {"div", "i", "T:TT", Kind::Lanes, 0, "", R"(
  if (b == 0) return 0;
  if (b == -1) return ($T)(-($V)a);
  return ($T)(a / b);
)"},
    {"div", "u", "T:TT", Kind::Lanes, 0, "", "  return b == 0 ? ($T)0 : ($T)(a / b);\n"},
    {"fmod", "i", "T:TT", Kind::Lanes, 0, "", "  return b == 0 || b == -1 ? ($T)0 : ($T)(a % b);\n"},
    {"fmod", "u", "T:TT", Kind::Lanes, 0, "", "  return b == 0 ? ($T)0 : ($T)(a % b);\n"},
    {"floor_div", "u", "T:TT", Kind::Lanes, 0, "", "  return b == 0 ? ($T)0 : ($T)(a / b);\n"},
    {"floor_mod", "u", "T:TT", Kind::Lanes, 0, "", "  return b == 0 ? ($T)0 : ($T)(a % b);\n"},
    {"floor_div", "i", "T:TT", Kind::Lanes, 0, "", R"(
  if (b == 0) return 0;
  if (b == -1) return ($T)(-($V)a);
  const $T q = ($T)(a / b), r = ($T)(a % b);
  return r != 0 && (r < 0) != (b < 0) ? ($T)(q - 1) : q;
)"},
    {"floor_mod", "i", "T:TT", Kind::Lanes, 0, "", R"(
  if (b == 0 || b == -1) return 0;
  const $T r = ($T)(a % b);
  return r != 0 && (r < 0) != (b < 0) ? ($T)(r + b) : r;
)"},
    // Whether value a at index b beats the best value c at index d. NaN beats every number; of equals, the first or the last.
    {"argmax_first", "iu", "M:TLTL", Kind::Same, 64, "", "  return ($M)($gt(a, c) | ($eq(a, c) & $cast@LI(($L)(b < d))));\n"},
    {"argmax_last", "iu", "M:TLTL", Kind::Same, 64, "", "  return ($M)($gt(a, c) | ($eq(a, c) & $cast@LI(($L)(b > d))));\n"},
    {"argmin_first", "iu", "M:TLTL", Kind::Same, 64, "", "  return ($M)($lt(a, c) | ($eq(a, c) & $cast@LI(($L)(b < d))));\n"},
    {"argmin_last", "iu", "M:TLTL", Kind::Same, 64, "", "  return ($M)($lt(a, c) | ($eq(a, c) & $cast@LI(($L)(b > d))));\n"},
    {"argmax_first", "fd", "M:TLTL", Kind::Same, 64, "", R"(
  const $I earlier = $cast@LI(($L)(b < d));
  return ($M)($gt(a, c) | ($eq(a, c) & earlier) | ($is_nan(a) & ($eq(c, c) | earlier)));
)"},
    {"argmax_last", "fd", "M:TLTL", Kind::Same, 64, "", R"(
  const $I later = $cast@LI(($L)(b > d));
  return ($M)($gt(a, c) | ($eq(a, c) & later) | ($is_nan(a) & ($eq(c, c) | later)));
)"},
    {"argmin_first", "fd", "M:TLTL", Kind::Same, 64, "", R"(
  const $I earlier = $cast@LI(($L)(b < d));
  return ($M)($lt(a, c) | ($eq(a, c) & earlier) | ($is_nan(a) & ($eq(c, c) | earlier)));
)"},
    {"argmin_last", "fd", "M:TLTL", Kind::Same, 64, "", R"(
  const $I later = $cast@LI(($L)(b > d));
  return ($M)($lt(a, c) | ($eq(a, c) & later) | ($is_nan(a) & ($eq(c, c) | later)));
)"},
    // What index expressions call.
    {"index_floor_div", "i", "T:TT", Kind::Lanes, 0, "", "  return $floor_div(a, b);\n"},
    {"index_mod", "i", "T:TT", Kind::Lanes, 0, "", "  return $floor_mod(a, b);\n"},
    {"index_min", "i", "T:TT", Kind::Same, 0, "", "  return a < b ? a : b;\n"},
    {"index_max", "i", "T:TT", Kind::Same, 0, "", "  return a > b ? a : b;\n"},

    {"neg", "c", "T:T", Kind::Same, 0, "", "  return {-a.re, -a.im};\n"},
    {"conj", "c", "T:T", Kind::Same, 0, "", "  return {a.re, -a.im};\n"},
    {"real", "c", "P:T", Kind::Same, 0, "", "  return a.re;\n"},
    {"imag", "c", "P:T", Kind::Same, 0, "", "  return a.im;\n"},
    {"add", "c", "T:TT", Kind::Same, 0, "", "  return {a.re + b.re, a.im + b.im};\n"},
    {"sub", "c", "T:TT", Kind::Same, 0, "", "  return {a.re - b.re, a.im - b.im};\n"},
    {"mul", "c", "T:TT", Kind::Same, 0, "", "  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};\n"},
    {"eq", "c", "M:TT", Kind::Same, 0, "", "  return ($M)($eq@P(a.re, b.re) & $eq@P(a.im, b.im));\n"},
    {"ne", "c", "M:TT", Kind::Same, 0, "", "  return ($M)($ne@P(a.re, b.re) | $ne@P(a.im, b.im));\n"},
    {"select", "c", "T:MTT", Kind::Same, 0, "", "  return {$select@P(a, b.re, c.re), $select@P(a, b.im, c.im)};\n"},

    // Bits of f16 and bf16 to f32 and back: nearest even, overflow to infinity, NaN kept and quiet.
    {"widen", "h", "F:T", Kind::Same, 32, "", R"(
  const $W h = $cast@SW(a);
  const $W sign = (h & $splat@W(0x8000u)) << 16, magnitude = h & $splat@W(0x7fffu);
  // Re-biased by an exact multiplication with 2^112, which also normalises subnormals.
  const $F y = __builtin_bit_cast($F, ($W)(magnitude << 13)) * $splat@F(5.192296858534828e33f);
  $W bits = __builtin_bit_cast($W, y);
  bits = magnitude >= $splat@W(0x7c00u) ? (magnitude << 13) | $splat@W(0x7f800000u) : bits;
  bits = magnitude > $splat@W(0x7c00u) ? bits | $splat@W(0x400000u) : bits;
  return __builtin_bit_cast($F, ($W)(bits | sign));
)"},
    {"widen", "g", "F:T", Kind::Same, 32, "", "  return __builtin_bit_cast($F, ($W)($cast@SW(a) << 16));\n"},
    {"narrow_f16", "f", "h:T", Kind::Same, 0, "", R"(
  const $U bits = __builtin_bit_cast($U, a), magnitude = bits & $splat@U(0x7fffffffu);
  const $U sign = (bits >> 16) & $splat@U(0x8000u);
  $U y = (magnitude + $splat@U(0xfffu) + ((magnitude >> 13) & $splat@U(1u)) - $splat@U(0x38000000u)) >> 13;
  // Below 2^-14 the unit of 0.5f is the smallest subnormal: the addition rounds.
  const $T shifted = __builtin_bit_cast($T, magnitude) + $splat(0.5f);
  y = magnitude < $splat@U(0x38800000u) ? __builtin_bit_cast($U, shifted) - $splat@U(0x3f000000u) : y;
  y = magnitude >= $splat@U(0x47800000u) ? $splat@U(0x7c00u) : y;
  y = magnitude > $splat@U(0x7f800000u) ? $splat@U(0x7e00u) | ((magnitude >> 13) & $splat@U(0x1ffu)) : y;
  return $cast@US(y | sign);
)"},
    {"narrow_bf16", "f", "g:T", Kind::Same, 0, "", R"(
  const $U bits = __builtin_bit_cast($U, a);
  const $U y = (bits + $splat@U(0x7fffu) + ((bits >> 16) & $splat@U(1u))) >> 16;
  const $U nan = (bits >> 16) | $splat@U(0x40u);
  return $cast@US(a != a ? nan : y);
)"},
    // Two elements in a word, the first one low.
    {"pack_f16", "f", "W:TT", Kind::Lanes, 0, "", "  return (u32)$narrow_f16(a) | ((u32)$narrow_f16(b) << 16);\n"},
    {"pack_bf16", "f", "W:TT", Kind::Lanes, 0, "", "  return (u32)$narrow_bf16(a) | ((u32)$narrow_bf16(b) << 16);\n"},
    {"low_f16", "u", "F:T", Kind::Lanes, 0, "", "  return $widen@h((u16)a);\n"},
    {"high_f16", "u", "F:T", Kind::Lanes, 0, "", "  return $widen@h((u16)(a >> 16));\n"},
    {"low_bf16", "u", "F:T", Kind::Lanes, 0, "", "  return __builtin_bit_cast($F, (u32)(a << 16));\n"},
    {"high_bf16", "u", "F:T", Kind::Lanes, 0, "", "  return __builtin_bit_cast($F, (u32)(a & 0xffff0000u));\n"},
    // The f32 that widen(narrow_bf16(a)) gives.
    {"round_bf16", "f", "T:T", Kind::Same, 0, "", R"(
  const $U bits = __builtin_bit_cast($U, a);
  const $U y = bits + $splat@U(0x7fffu) + ((bits >> 16) & $splat@U(1u));
  const $U nan = bits | $splat@U(0x400000u);
  return __builtin_bit_cast($T, ($U)((a != a ? nan : y) & $splat@U(0xffff0000u)));
)"},
    // f64 → f32 rounded to odd: what was lost stays visible in the last bit, so that rounding again is right.
    {"narrow_odd", "d", "F:T", Kind::Lanes, 0, "", R"(
  const f32 y = (f32)a;
  const f64 back = (f64)y;
  if (back == a || a != a) return y;
  u32 bits = __builtin_bit_cast(u32, y);
  if (__builtin_fabs(back) > __builtin_fabs(a)) --bits;
  return __builtin_bit_cast(f32, bits | 1u);
)"},
    // 64-bit integer → f64 rounded to odd.
    {"widen_odd", "u", "D:T", Kind::Lanes, 0, "", R"(
  if ((a >> 53) == 0) return (f64)a;
  return (f64)((a & ~($T)0xfff) | ((a & 0xfff) != 0 ? 0x800 : 0));
)"},
    {"widen_odd", "i", "D:T", Kind::Lanes, 0, "", R"(
  const $U magnitude = a < 0 ? ~($U)a + 1 : ($U)a;
  return a < 0 ? -$widen_odd@U(magnitude) : $widen_odd@U(magnitude);
)"},
};

// ---- dtypes of the letters -------------------------------------------------------------------------------------------
DType signed_of(int bits) {
  switch (bits) {
    case 8: return DType::I8;
    case 16: return DType::I16;
    case 32: return DType::I32;
    default: return DType::I64;
  }
}
DType unsigned_of(int bits) {
  switch (bits) {
    case 8: return DType::U8;
    case 16: return DType::U16;
    case 32: return DType::U32;
    default: return DType::U64;
  }
}
int bits_of(DType dtype) { return static_cast<int>(dtype_bits(dtype)); }
DType part_of(DType dtype) { return dtype == DType::C64 ? DType::F32 : DType::F64; }

char class_of(DType dtype) {
  switch (dtype) {
    case DType::Bool: return 'b';
    case DType::I8: case DType::I16: case DType::I32: case DType::I64: return 'i';
    case DType::U8: case DType::U16: case DType::U32: case DType::U64: return 'u';
    case DType::F16: return 'h';
    case DType::BF16: return 'g';
    case DType::F32: return 'f';
    case DType::F64: return 'd';
    case DType::C64: case DType::C128: return 'c';
  }
  return '?';
}

// What a letter stands for when T is `dtype`. M counts as I; see mask_type for scalars.
DType letter_dtype(char letter, DType dtype, int lanes) {
  const int bits = is_complex(dtype) ? bits_of(part_of(dtype)) : bits_of(dtype);
  switch (letter) {
    case 'T': return dtype;
    case 'I': case 'M': return signed_of(bits);
    case 'U': return unsigned_of(bits);
    case 'V': return unsigned_of(lanes == 0 ? std::max(bits, 32) : bits);
    case 'F': return DType::F32;
    case 'D': return DType::F64;
    case 'H': return DType::I32;
    case 'S': return DType::U16;
    case 'W': return DType::U32;
    case 'L': return DType::I64;
    case 'Q': return DType::U64;
    case 'P': return part_of(dtype);
    case 'h': return DType::F16;
    case 'g': return DType::BF16;
    default: throw InternalError(fmt::format("prelude: unknown type letter '{}'", letter));
  }
}

}  // namespace

std::span<const CppFunction> basic_functions() { return kBasic; }

const CppFunction* find_function(std::string_view name, DType dtype) {
  for (const std::span<const CppFunction> table : {basic_functions(), math_functions()})
    for (const CppFunction& entry : table)
      if (entry.name == name && entry.types.find(class_of(dtype)) != std::string_view::npos) return &entry;
  return nullptr;
}

// ---- types -----------------------------------------------------------------------------------------------------------
std::string CppPrelude::plain_type(const std::string& element, int lanes) {
  if (begin(element)) typedefs_ += fmt::format("{}\n", c_typedef(element));
  if (lanes == 0) return element;
  std::string name = fmt::format("{}x{}", element, lanes);
  if (begin(name)) {
    const int bytes = std::stoi(element.substr(1)) / 8 * lanes;
    typedefs_ += fmt::format("typedef {} {} __attribute__((vector_size({})));\n", element, name, bytes);
    if (bytes > target_.vector_bytes) wide_.insert(name);
  }
  return name;
}

std::string CppPrelude::type(DType dtype, int lanes) {
  if (dtype == DType::Bool) {
    FL_CHECK(lanes == 0, "prelude: a vector of bool is a mask");
    return "bool";
  }
  if (is_complex(dtype)) {
    const std::string part = type(part_of(dtype), lanes);
    std::string name = fmt::format("{}{}", c_type(dtype), lanes == 0 ? "" : fmt::format("x{}", lanes));
    if (begin(name)) {
      typedefs_ += fmt::format("struct {} {{ {} re, im; }};\n", name, part);
      if (wide_.contains(part)) wide_.insert(name);
    }
    return name;
  }
  return plain_type(std::string(c_type(dtype)), lanes);
}

std::string CppPrelude::passed(const std::string& type) const { return wide_.contains(type) ? fmt::format("const {}&", type) : type; }

std::string CppPrelude::storage_type(DType dtype, int lanes) {
  return dtype == DType::Bool ? type(DType::U8, lanes) : type(dtype, lanes);
}

std::string CppPrelude::mask_type(int bits, int lanes) { return lanes == 0 ? "bool" : type(signed_of(bits), lanes); }

// ---- templates -------------------------------------------------------------------------------------------------------
// Expands the body of a table entry.
class FunctionText {
 public:
  FunctionText(CppPrelude& prelude, DType dtype, int lanes) : prelude_(prelude), dtype_(dtype), lanes_(lanes) {}

  std::string letter_type(char letter) const {
    if (letter == 'M') return prelude_.mask_type(bits_of(letter_dtype('I', dtype_, lanes_)), lanes_);
    if (letter == 'E') return prelude_.type(dtype_, 0);
    return prelude_.type(letter_dtype(letter, dtype_, lanes_), lanes_);
  }

  std::string expand(std::string_view body) const {
    std::string out;
    if (!body.empty() && body.front() == '\n') body.remove_prefix(1);
    const auto is_part = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
    for (size_t i = 0; i < body.size();) {
      if (body[i] != '$') {
        const size_t begin = i++;
        if (is_part(body[begin])) {
          while (i < body.size() && is_part(body[i])) ++i;
          declare_type(body.substr(begin, i - begin));
        }
        out += body.substr(begin, i - begin);
        continue;
      }
      size_t end = ++i;
      while (end < body.size() && is_part(body[end])) ++end;
      const std::string_view word = body.substr(i, end - i);
      i = end;
      std::string letters;
      if (i < body.size() && body[i] == '@') {
        for (++i; i < body.size() && std::isalpha(static_cast<unsigned char>(body[i])); ++i) letters += body[i];
      }
      out += expand_word(word, letters);
    }
    return out;
  }

 private:
  // A body may name the plain types.
  void declare_type(std::string_view word) const {
    for (const DType plain : {DType::I8, DType::I16, DType::I32, DType::I64, DType::U8, DType::U16, DType::U32, DType::U64, DType::F32, DType::F64})
      if (word == c_type(plain)) prelude_.type(plain, 0);
  }

  std::string expand_word(std::string_view word, const std::string& letters) const {
    const int bits = is_complex(dtype_) ? bits_of(part_of(dtype_)) : bits_of(dtype_);
    if (word == "B") return fmt::format("{}", bits);
    if (word == "N") return fmt::format("{}", std::max(lanes_, 1));
    if (word == "MAX") return bits == 32 ? "0x7fffffffu" : "0x7fffffffffffffffu";   // the greatest signed integer
    if (word == "INF") return dtype_ == DType::F32 ? "__builtin_inff()" : "__builtin_inf()";
    if (word.size() == 1) return letter_type(word[0]);
    if (word == "cast")
      return prelude_.cast(letter_dtype(letters.at(0), dtype_, lanes_), letter_dtype(letters.at(1), dtype_, lanes_), lanes_);
    const DType operand = letters.empty() ? dtype_ : letter_dtype(letters[0], dtype_, lanes_);
    return prelude_.function(word, operand, lanes_);
  }

  CppPrelude& prelude_;
  DType dtype_;
  int lanes_;
};

namespace {
constexpr std::string_view kInline = "static inline __attribute__((always_inline)) ";
}

std::string CppPrelude::function(std::string_view function, DType dtype, int lanes) {
  const std::string name =
      fmt::format("{}_{}{}", function, dtype == DType::F16 ? "f16" : dtype == DType::BF16 ? "bf16" : c_type(dtype),
                  lanes == 0 ? "" : fmt::format("x{}", lanes));
  if (written_.contains(name)) return name;
  if (function == "splat" || function == "fma" || function == "sqrt" || function == "floor" || function == "ceil" ||
      function == "trunc" || function == "round" || function == "sin_patch") {
    if (function == "splat" || is_float(dtype)) {
      begin(name);
      write_vector_builtin(function, dtype, lanes);
      return name;
    }
  }
  const CppFunction* entry = find_function(function, dtype);
  FL_SUPPORTED(entry != nullptr, "generated C++ has no {} of {}", function, dtype_name(dtype));

  const FunctionText text(*this, dtype, lanes);
  const std::string_view params = entry->signature.substr(2);
  const char result = entry->signature[0];
  // Types first, then what the body calls, then the function itself.
  std::string declaration = std::string(kInline) + text.letter_type(result) + " " + name + "(";
  for (size_t i = 0; i < params.size(); ++i)
    declaration += fmt::format("{}{} {}", i == 0 ? "" : ", ", passed(text.letter_type(params[i])), static_cast<char>('a' + i));
  declaration += ") {\n";
  for (size_t at = 0; at < entry->libm.size();) {
    const size_t space = std::min(entry->libm.find(' ', at), entry->libm.size());
    const std::string_view item = entry->libm.substr(at, space - at);
    declare_libm(item.substr(0, item.size() - 2), item.back() - '0');
    at = space + 1;
  }

  if (entry->kind == Kind::Lanes && lanes > 0) {
    const std::string scalar = this->function(function, dtype, 0);
    std::string args;
    for (size_t i = 0; i < params.size(); ++i) {
      const std::string param(1, static_cast<char>('a' + i));
      const bool complex_param = is_complex(dtype) && params[i] == 'T';
      args += i == 0 ? "" : ", ";
      args += complex_param ? fmt::format("{}{{{}.re[l], {}.im[l]}}", type(dtype, 0), param, param) : param + "[l]";
    }
    begin(name);
    const std::string result_type = text.letter_type(result);
    if (is_complex(dtype) && result == 'T') {
      append(fmt::format("{}  {} y = {{}};\n  for (int l = 0; l < {}; ++l) {{\n    const {} v = {}({});\n"
                         "    y.re[l] = v.re;\n    y.im[l] = v.im;\n  }}\n  return y;\n}}\n",
                         declaration, result_type, lanes, type(dtype, 0), scalar, args));
    } else {
      append(fmt::format("{}  {} y = {{}};\n  for (int l = 0; l < {}; ++l) y[l] = {}({});\n  return y;\n}}\n", declaration,
                         result_type, lanes, scalar, args));
    }
    return name;
  }

  int widest = entry->widest != 0 ? entry->widest : bits_of(dtype);
  if (is_complex(dtype)) widest = 0;   // the functions on the parts split themselves
  if (is_wide(widest, lanes)) {
    const std::string narrow = this->function(function, dtype, lanes / 2);
    begin(name);
    std::vector<DType> types;
    for (const char param : params) types.push_back(letter_dtype(param, dtype, lanes));
    split(name, narrow, letter_dtype(result, dtype, lanes), types, lanes);
    return name;
  }
  std::string body = text.expand(entry->body);
  if (const std::string_view device = target_.cuda && lanes == 0 ? device_body(function, dtype) : ""; !device.empty())
    body = fmt::format("#ifdef __CUDACC_RTC__\n{}#else\n{}#endif\n", device, body);
  if (const std::string instructions = target_.cuda ? "" : avx512_body(function, dtype, lanes); !instructions.empty())
    body = fmt::format("#ifndef __clang__\n{}#else\n{}#endif\n", instructions, body);
  begin(name);
  append(declaration + body + "}\n");
  return name;
}

// Where AVX-512 has the very function as an instruction or two: the body for GCC (Clang names the builtins differently).
std::string CppPrelude::avx512_body(std::string_view function, DType dtype, int lanes) {
  if (!target_.avx512 || !is_float(dtype) || lanes * bits_of(dtype) != 512) return "";
  const std::string_view letter = dtype == DType::F32 ? "s" : "d";
  const std::string bits = type(dtype == DType::F32 ? DType::U16 : DType::U8, 0), all = fmt::format("({})-1", bits);
  if (function == "times_pow2") {   // rounds once
    const std::string splat = this->function("splat", dtype, lanes);
    return fmt::format("  return __builtin_ia32_scalefp{}512_mask(a, b - {}({}), a, {}, 4);\n", letter, splat,
                       dtype == DType::F32 ? "12582912.0f" : "6755399441055744.0", all);
  }
  if (function == "max" || function == "min") {   // the range instruction orders the zeros, but drops NaN: where one is, the sum
    return fmt::format("  const {} nan = __builtin_ia32_cmpp{}512_mask(a, b, 3, {}, 4);\n"
                       "  return __builtin_ia32_addp{}512_mask(a, b, __builtin_ia32_rangep{}512_mask(a, b, {}, a, {}, 4), nan, 4);\n",
                       bits, letter, all, letter, letter, function == "max" ? 5 : 4, all);
  }
  return "";
}

// ---- halves ----------------------------------------------------------------------------------------------------------
namespace {
std::string numbers(int from, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", from + i);
  return text;
}
}  // namespace

std::string CppPrelude::half(std::string_view which, DType dtype, int lanes) {
  const std::string wide = type(dtype, lanes);
  const std::string name = fmt::format("{}_{}", which, wide);
  if (!begin(name)) return name;
  if (lanes == 2) {
    append(fmt::format("{}{} {}({} a) {{ return {}{{a[{}]}}; }}\n", kInline, type(dtype, 1), name, passed(wide), type(dtype, 1),
                       which == "lo" ? 0 : 1));
    return name;
  }
  append(fmt::format("{}{} {}({} a) {{ return __builtin_shufflevector(a, a, {}); }}\n", kInline, type(dtype, lanes / 2), name,
                     passed(wide), numbers(which == "lo" ? 0 : lanes / 2, lanes / 2)));
  return name;
}

std::string CppPrelude::join(DType dtype, int lanes) {
  const std::string narrow = type(dtype, lanes), name = fmt::format("join_{}", narrow);
  if (!begin(name)) return name;
  if (lanes == 1) {
    append(fmt::format("{}{} {}({} a, {} b) {{ return {}{{a[0], b[0]}}; }}\n", kInline, type(dtype, 2), name, narrow, narrow,
                       type(dtype, 2)));
    return name;
  }
  append(fmt::format("{}{} {}({} a, {} b) {{ return __builtin_shufflevector(a, b, {}); }}\n", kInline, type(dtype, lanes * 2),
                     name, passed(narrow), passed(narrow), numbers(0, lanes * 2)));
  return name;
}

void CppPrelude::split(const std::string& name, const std::string& narrow, DType result, std::span<const DType> params,
                       int lanes) {
  std::string declaration, low, high;
  for (size_t i = 0; i < params.size(); ++i) {
    const char param = static_cast<char>('a' + i);
    const std::string_view comma = i == 0 ? "" : ", ";
    declaration += fmt::format("{}{} {}", comma, passed(type(params[i], lanes)), param);
    low += fmt::format("{}{}({})", comma, half("lo", params[i], lanes), param);
    high += fmt::format("{}{}({})", comma, half("hi", params[i], lanes), param);
  }
  append(fmt::format("{}{} {}({}) {{\n  return {}({}({}), {}({}));\n}}\n", kInline, type(result, lanes), name, declaration,
                     join(result, lanes / 2), narrow, low, narrow, high));
}

void CppPrelude::declare_libm(std::string_view function, int arguments) {
  if (!begin(fmt::format("extern {}", function))) return;
  std::string params = "double";
  for (int i = 1; i < arguments; ++i) params += ", double";
  externs_ += fmt::format("extern \"C\" double {}({}) noexcept;\n", function, params);
}

// ---- functions the compilers have builtins for -----------------------------------------------------------------------
void CppPrelude::write_vector_builtin(std::string_view function, DType dtype, int lanes) {
  const std::string vector = type(dtype, lanes);
  const std::string name = fmt::format(
      "{}_{}{}", function, dtype == DType::F16 ? "f16" : dtype == DType::BF16 ? "bf16" : c_type(dtype),
      lanes == 0 ? "" : fmt::format("x{}", lanes));
  if (function == "splat") {
    const std::string element = type(dtype, 0);
    if (lanes == 0) {
      append(fmt::format("{}{} {}({} a) {{ return a; }}\n", kInline, element, name, element));
    } else {
      std::string list = "a";
      for (int l = 1; l < lanes; ++l) list += ", a";
      if (is_complex(dtype)) {
        const std::string part = this->function("splat", part_of(dtype), lanes);
        append(fmt::format("{}{} {}({} a) {{ return {{{}(a.re), {}(a.im)}}; }}\n", kInline, vector, name, element, part, part));
      } else {
        append(fmt::format("{}{} {}({} a) {{ return {}{{{}}}; }}\n", kInline, vector, name, element, vector, list));
      }
    }
    return;
  }
  if (function == "sin_patch") {
    const std::string absolute = this->function("abs", dtype, lanes), huge = this->function("sin_huge", dtype, 0);
    const std::string quadrant = type(DType::I32, lanes);
    if (lanes == 0) {
      append(fmt::format("{}{} {}({} a, {} b, {} c) {{ return {}(b) > 1e6f ? {}(b, c) : a; }}\n", kInline, vector, name, vector,
                         vector, quadrant, absolute, huge));
      return;
    }
    const std::string limit = this->function("splat", dtype, lanes), some = any(32, lanes);
    append(fmt::format("{}{} {}({} a, {} b, {} c) {{\n  {} y = a;\n  const {} far = {}(b) > {}(1e6f);\n  if ({}(far))\n"
                       "    for (int l = 0; l < {}; ++l) y[l] = far[l] ? {}(b[l], c[l]) : a[l];\n  return y;\n}}\n",
                       kInline, vector, name, passed(vector), passed(vector), passed(quadrant), vector, mask_type(32, lanes), absolute, limit, some, lanes, huge));
    return;
  }

  const bool single = dtype == DType::F32;
  const int bytes = bits_of(dtype) / 8 * lanes;
  if (is_wide(bits_of(dtype), lanes)) {
    const std::string narrow = this->function(function, dtype, lanes / 2);
    const std::vector<DType> params(function == "fma" ? 3 : 1, dtype);
    split(name, narrow, dtype, params, lanes);
    return;
  }
  const std::string_view letter = single ? "s" : "d", suffix = single ? "f" : "";
  const std::string_view full = lanes == 16 ? "(u16)-1" : "(u8)-1";
  const bool zmm = bytes == 64 && target_.avx512;
  if (zmm) type(lanes == 16 ? DType::U16 : DType::U8, 0);
  if (function == "fma") {
    std::string body = "a * b + c";
    if (target_.fma) {
      if (lanes == 0) body = fmt::format("__builtin_fma{}(a, b, c)", suffix);
      else if (zmm) body = fmt::format("__builtin_ia32_vfmaddp{}512_mask(a, b, c, {}, 4)", letter, full);
      else if (bytes == 32) body = fmt::format("__builtin_ia32_vfmaddp{}256(a, b, c)", letter);
      else if (bytes == 16) body = fmt::format("__builtin_ia32_vfmaddp{}(a, b, c)", letter);
      else {
        const std::string scalar = this->function("fma", dtype, 0);
        append(fmt::format("{}{} {}({} a, {} b, {} c) {{\n  for (int l = 0; l < {}; ++l) a[l] = {}(a[l], b[l], c[l]);\n"
                           "  return a;\n}}\n", kInline, vector, name, vector, vector, vector, lanes, scalar));
        return;
      }
    }
    append(fmt::format("{}{} {}({} a, {} b, {} c) {{ return {}; }}\n", kInline, vector, name, vector, vector, vector, body));
    return;
  }
  std::string body;
  if (function == "sqrt") {
    if (lanes == 0) body = fmt::format("return __builtin_sqrt{}(a);", suffix);
    else if (zmm) body = fmt::format("return __builtin_ia32_sqrtp{}512_mask(a, a, {}, 4);", letter, full);
    else if (bytes == 32 && target_.vector_bytes >= 32) body = fmt::format("return __builtin_ia32_sqrtp{}256(a);", letter);
    else if (bytes == 16) body = fmt::format("return __builtin_ia32_sqrtp{}(a);", letter);
    if (zmm) {
      // Clang names the unmasked form.
      append(fmt::format("#ifdef __clang__\n{}{} {}({} a) {{ return __builtin_ia32_sqrtp{}512(a, 4); }}\n#else\n{}{} {}({} a) {{ {} }}\n#endif\n",
                         kInline, vector, name, vector, letter, kInline, vector, name, vector, body));
      return;
    }
  } else {
    const int mode = function == "floor" ? 1 : function == "ceil" ? 2 : function == "trunc" ? 3 : 0;
    const std::string_view builtin = mode == 1 ? "floor" : mode == 2 ? "ceil" : mode == 3 ? "trunc" : "rint";
    if (lanes == 0) body = fmt::format("return __builtin_{}{}(a);", builtin, suffix);
    else if (zmm) body = fmt::format("return __builtin_ia32_rndscalep{}_mask(a, {}, a, {}, 4);", letter, 8 + mode, full);
    else if (bytes == 32 && target_.vector_bytes >= 32) body = fmt::format("return __builtin_ia32_roundp{}256(a, {});", letter, 8 + mode);
    else if (bytes == 16 && target_.vector_bytes >= 32) body = fmt::format("return __builtin_ia32_roundp{}(a, {});", letter, 8 + mode);
  }
  if (body.empty()) {
    const std::string scalar = this->function(function, dtype, 0);
    body = fmt::format("for (int l = 0; l < {}; ++l) a[l] = {}(a[l]); return a;", lanes, scalar);
  }
  append(fmt::format("{}{} {}({} a) {{ {} }}\n", kInline, vector, name, vector, body));
}

// ---- casts -----------------------------------------------------------------------------------------------------------
std::string CppPrelude::cast(DType from, DType to, int lanes) {
  FL_CHECK(lanes == 0 || (from != DType::Bool && to != DType::Bool), "prelude: casts of masks have functions of their own");
  const auto label = [&](DType dtype) { return dtype == DType::F16 ? "f16" : dtype == DType::BF16 ? "bf16" : c_type(dtype); };
  const std::string name =
      fmt::format("to_{}_{}{}", label(to), label(from), lanes == 0 ? "" : fmt::format("x{}", lanes));
  if (written_.contains(name)) return name;
  const std::string source = type(from, lanes), result = type(to, lanes);
  const auto define = [&](const std::string& body) {
    begin(name);
    append(fmt::format("{}{} {}({} a) {{\n{}}}\n", kInline, result, name, passed(source), body));
    return name;
  };
  const auto through = [&](DType middle) {
    const std::string first = cast(from, middle, lanes), second = cast(middle, to, lanes);
    return define(fmt::format("  return {}({}(a));\n", second, first));
  };
  if (from == to) return define("  return a;\n");
  if (is_complex(from)) {
    if (to == DType::Bool) return define("  return a.re != 0 || a.im != 0;\n");
    const DType part = part_of(from);
    if (is_complex(to)) {
      const std::string convert = cast(part, part_of(to), lanes);
      return define(fmt::format("  return {{{}(a.re), {}(a.im)}};\n", convert, convert));
    }
    return define(fmt::format("  return {}(a.re);\n", cast(part, to, lanes)));
  }
  if (is_complex(to)) {
    const std::string convert = cast(from, part_of(to), lanes), zero = function("splat", part_of(to), lanes);
    return define(fmt::format("  return {{{}(a), {}(0)}};\n", convert, zero));
  }
  const bool half_from = from == DType::F16 || from == DType::BF16, half_to = to == DType::F16 || to == DType::BF16;
  if (from == DType::Bool) return half_to ? through(DType::F32) : define(fmt::format("  return ({})a;\n", result));
  if (to == DType::Bool) return half_from ? through(DType::F32) : define("  return a != 0;\n");
  const int widest = std::max(bits_of(from), bits_of(to));
  if (half_from) {
    if (to != DType::F32) return through(DType::F32);
    if (is_wide(32, lanes)) {
      const std::string narrow = cast(from, to, lanes / 2);
      begin(name);
      split(name, narrow, to, std::vector<DType>{from}, lanes);
      return name;
    }
    if (from == DType::F16 && lanes == 16 && target_.avx512)
      return define(fmt::format("  return __builtin_ia32_vcvtph2ps512_mask(({})a, {}{{}}, ({})-1, 4);\n", type(DType::I16, 16),
                                result, type(DType::U16, 0)));
    if (from == DType::F16 && lanes == 8 && target_.vector_bytes >= 32)
      return define(fmt::format("  return __builtin_ia32_vcvtph2ps256(({})a);\n", type(DType::I16, 8)));
    return define(fmt::format("  return {}(a);\n", function("widen", from, lanes)));
  }
  if (half_to) {
    if (from == DType::F64) {
      const std::string odd = function("narrow_odd", DType::F64, lanes), narrow = cast(DType::F32, to, lanes);
      return define(fmt::format("  return {}({}(a));\n", narrow, odd));
    }
    if (from == DType::I64 || from == DType::U64) {
      const std::string odd = function("widen_odd", from, lanes), narrow = cast(DType::F64, to, lanes);
      return define(fmt::format("  return {}({}(a));\n", narrow, odd));
    }
    if (from != DType::F32) return through(bits_of(from) == 32 ? DType::F64 : DType::F32);   // exact so far
    if (is_wide(32, lanes)) {
      const std::string narrow = cast(from, to, lanes / 2);
      begin(name);
      split(name, narrow, to, std::vector<DType>{from}, lanes);
      return name;
    }
    if (to == DType::F16 && lanes == 16 && target_.avx512)
      return define(fmt::format("  return ({})__builtin_ia32_vcvtps2ph512_mask(a, 8, {}{{}}, ({})-1);\n", result,
                                type(DType::I16, 16), type(DType::U16, 0)));
    if (to == DType::F16 && lanes == 8 && target_.vector_bytes >= 32)
      return define(fmt::format("  return ({})__builtin_ia32_vcvtps2ph256(a, 0);\n", result));
    return define(fmt::format("  return {}(a);\n", function(to == DType::F16 ? "narrow_f16" : "narrow_bf16", from, lanes)));
  }

  if (is_wide(widest, lanes)) {
    const std::string narrow = cast(from, to, lanes / 2);
    begin(name);
    split(name, narrow, to, std::vector<DType>{from}, lanes);
    return name;
  }
  // GCC 12 converts by halves what AVX-512 does at once.
  const bool widens = bits_of(from) == 16 && bits_of(to) == 32, narrows = bits_of(from) == 32 && bits_of(to) == 16;
  if (target_.avx512 && lanes == 16 && !is_float(from) && !is_float(to) && (widens || narrows)) {
    const std::string_view sign = is_signed_int(from) ? "s" : "z";
    const std::string wide = type(DType::I32, 16), small = type(DType::I16, 16), all = fmt::format("({})-1", type(DType::U16, 0));
    const std::string builtin =
        widens ? fmt::format("({})__builtin_ia32_pmov{}xwd512_mask(({})a, {}{{}}, {})", result, sign, small, wide, all)
               : fmt::format("({})__builtin_ia32_pmovdw512_mask(({})a, {}{{}}, {})", result, wide, small, all);
    return define(fmt::format("#ifndef __clang__\n  return {};\n#else\n  return __builtin_convertvector(a, {});\n#endif\n", builtin, result));
  }
  const auto converted = [&](std::string_view value, const std::string& target) {
    return lanes == 0 ? fmt::format("({}){}", target, value) : fmt::format("__builtin_convertvector({}, {})", value, target);
  };
  if (!is_float(from) || is_float(to)) {
    // GCC has instructions for steps of two in width and goes lane by lane otherwise. A narrow integer fits i32, and i32
    // either float or rounds once.
    const int from_bits = bits_of(from), to_bits = bits_of(to);
    if (lanes > 0 && !is_float(from) && !is_float(to)) {
      if (to_bits > 2 * from_bits) return through(is_signed_int(from) ? signed_of(2 * from_bits) : unsigned_of(2 * from_bits));
      if (2 * to_bits < from_bits) return through(is_signed_int(from) ? signed_of(from_bits / 2) : unsigned_of(from_bits / 2));
    }
    if (lanes > 0 && !is_float(from) && is_float(to)) {
      if (from_bits < 32) return through(DType::I32);
      if (from == DType::U32 && to == DType::F64 && target_.avx512) return through(DType::I64);
    }
    return define(fmt::format("  return {};\n", converted("a", result)));
  }

  // Float → integer: truncates, saturates, NaN gives 0. The value is brought into range before the conversion, whose result
  // outside of it is undefined.
  const int bits = bits_of(to);
  const bool is_signed = is_signed_int(to);
  const std::string splat = function("splat", from, lanes);
  const double low = is_signed ? -static_cast<double>(uint64_t{1} << (bits - 1)) : 0.0;
  const double above = 2.0 * static_cast<double>(uint64_t{1} << (bits - (is_signed ? 2 : 1)));   // one above the highest
  const int mantissa = from == DType::F32 ? 24 : 53;
  std::string body = fmt::format("  {} x = a != a ? {}(0) : a;\n", source, splat);
  body += fmt::format("  x = x < {}({}) ? {}({}) : x;\n", splat, float_literal(from, low), splat, float_literal(from, low));
  if (bits - (is_signed ? 1 : 0) <= mantissa) {
    const std::string high = float_literal(from, above - 1);
    body += fmt::format("  x = x > {}({}) ? {}({}) : x;\n", splat, high, splat, high);
    if (lanes > 0 && bits < 32 && !is_wide(32, lanes)) {
      const std::string middle = type(DType::I32, lanes), narrow = cast(DType::I32, to, lanes);
      body += fmt::format("  return {}(__builtin_convertvector(x, {}));\n", narrow, middle);
    } else {
      body += fmt::format("  return {};\n", converted("x", result));
    }
    return define(body);
  }
  // The highest integer is no float of this type: replace it behind the conversion.
  const std::string limit = float_literal(from, above);
  const std::string highest = is_signed ? fmt::format("({})((({})1 << {}) - 1)", type(to, 0), type(unsigned_of(bits), 0), bits - 1)
                                        : fmt::format("({})-1", type(to, 0));
  const std::string mask = mask_type(bits_of(from), lanes), splat_to = function("splat", to, lanes);
  body += fmt::format("  const {} over = ({})(x >= {}({}));\n  x = over ? {}(0) : x;\n", mask, mask, splat, limit, splat);
  const std::string resized = lanes == 0 ? std::string("over") : fmt::format("{}(over)", resize_mask(bits_of(from), bits, lanes));
  body += fmt::format("  const {} y = {};\n  return {} ? {}({}) : y;\n", result, converted("x", result), resized, splat_to, highest);
  return define(body);
}

std::string CppPrelude::to_mask(DType from, int lanes) {
  if (is_complex(from)) {
    const std::string name = fmt::format("nonzero_{}x{}", c_type(from), lanes);
    if (written_.contains(name)) return name;
    const std::string part = to_mask(part_of(from), lanes);
    begin(name);
    append(fmt::format("{}{} {}({} a) {{ return {}(a.re) | {}(a.im); }}\n", kInline,
                       mask_type(bits_of(part_of(from)), lanes), name, passed(type(from, lanes)), part, part));
    return name;
  }
  const std::string name =
      fmt::format("nonzero_{}x{}", from == DType::F16 ? "f16" : from == DType::BF16 ? "bf16" : c_type(from), lanes);
  if (written_.contains(name)) return name;
  const std::string mask = mask_type(bits_of(from), lanes), vector = type(from, lanes);
  if (is_wide(bits_of(from), lanes)) {
    const std::string narrow = to_mask(from, lanes / 2);
    begin(name);
    split(name, narrow, signed_of(bits_of(from)), std::vector<DType>{from}, lanes);
    return name;
  }
  // f16 and bf16 are their bits here: a zero is nothing but a sign.
  const std::string splat = function("splat", from, lanes);
  const bool half_float = from == DType::F16 || from == DType::BF16;
  begin(name);
  append(fmt::format("{}{} {}({} a) {{ return ({})({} != {}(0)); }}\n", kInline, mask, name, passed(vector), mask,
                     half_float ? fmt::format("(a & {}((u16)0x7fff))", splat) : std::string("a"), splat));
  return name;
}

std::string CppPrelude::from_mask(int bits, DType to, int lanes) {
  const std::string name =
      fmt::format("from_mask{}_{}x{}", bits, to == DType::F16 ? "f16" : to == DType::BF16 ? "bf16" : c_type(to), lanes);
  if (written_.contains(name)) return name;
  const std::string source = mask_type(bits, lanes);
  const std::string one = function("splat", signed_of(bits), lanes), convert = cast(signed_of(bits), to, lanes);
  begin(name);
  append(fmt::format("{}{} {}({} a) {{ return {}(a & {}(1)); }}\n", kInline, type(to, lanes), name, passed(source), convert, one));
  return name;
}

std::string CppPrelude::resize_mask(int from_bits, int to_bits, int lanes) {
  return cast(signed_of(from_bits), signed_of(to_bits), lanes);
}

std::string CppPrelude::pow(DType base, DType exponent, int lanes) {
  const DType middle = is_float(base) ? DType::F64 : is_float(exponent) ? DType::F64 : is_signed_int(base) ? DType::I64 : DType::U64;
  const auto suffix = lanes == 0 ? std::string() : fmt::format("x{}", lanes);
  const std::string name = fmt::format("pow_{}_{}{}", c_type(exponent), c_type(base), suffix);
  if (written_.contains(name)) return name;
  const std::string convert = cast(exponent, middle, lanes);
  std::string body;
  if (!is_float(base) && is_float(exponent)) {
    const std::string wide = cast(base, DType::F64, lanes), power = function("pow", DType::F64, lanes),
                      back = cast(DType::F64, base, lanes);
    body = fmt::format("{}({}({}(a), {}(b)))", back, power, wide, convert);
  } else {
    body = fmt::format("{}(a, {}(b))", function("pow", base, lanes), convert);
  }
  begin(name);
  append(fmt::format("{}{} {}({} a, {} b) {{ return {}; }}\n", kInline, type(base, lanes), name, passed(type(base, lanes)),
                     passed(type(exponent, lanes)), body));
  return name;
}

std::string CppPrelude::bitcast(DType from, DType to, int lanes) {
  const auto label = [&](DType dtype) { return dtype == DType::F16 ? "f16" : dtype == DType::BF16 ? "bf16" : c_type(dtype); };
  const std::string name = fmt::format("bits_as_{}_{}{}", label(to), label(from), lanes == 0 ? "" : fmt::format("x{}", lanes));
  if (written_.contains(name)) return name;
  const std::string source = type(from, lanes), result = type(to, lanes);
  if (lanes > 0 && (is_complex(from) != is_complex(to))) {
    // A complex vector is two vectors of parts: re-paired lane by lane.
    const std::string from_scalar = type(from, 0), to_scalar = type(to, 0);
    begin(name);
    if (is_complex(from)) {
      append(fmt::format("{}{} {}({} a) {{\n  {} y = {{}};\n  for (int l = 0; l < {}; ++l) y[l] = __builtin_bit_cast({}, {}{{a.re[l], a.im[l]}});\n"
                         "  return y;\n}}\n", kInline, result, name, passed(source), result, lanes, to_scalar, from_scalar));
    } else {
      append(fmt::format("{}{} {}({} a) {{\n  {} y = {{}};\n  for (int l = 0; l < {}; ++l) {{\n    const {} x = a[l];\n"
                         "    const {} v = __builtin_bit_cast({}, x);\n    y.re[l] = v.re;\n    y.im[l] = v.im;\n  }}\n  return y;\n}}\n",
                         kInline, result, name, passed(source), result, lanes, from_scalar, to_scalar, to_scalar));
    }
    return name;
  }
  begin(name);
  append(fmt::format("{}{} {}({} a) {{ return __builtin_bit_cast({}, a); }}\n", kInline, result, name, passed(source), result));
  return name;
}

// ---- masks -----------------------------------------------------------------------------------------------------------
std::string CppPrelude::lanes_below(int bits, int lanes) {
  const std::string mask = mask_type(bits, lanes), name = fmt::format("lanes_below_{}", mask);
  if (written_.contains(name)) return name;
  if (is_wide(bits, lanes)) {
    const std::string narrow = lanes_below(bits, lanes / 2), together = join(signed_of(bits), lanes / 2);
    begin(name);
    append(fmt::format("{}{} {}(i64 n) {{ return {}({}(n), {}(n - {})); }}\n", kInline, mask, name, together, narrow, narrow,
                       lanes / 2));
    return name;
  }
  const std::string element = type(signed_of(bits), 0), splat = function("splat", signed_of(bits), lanes);
  type(DType::I64, 0);
  begin(name);
  append(fmt::format("{}{} {}(i64 n) {{\n  n = n < 0 ? 0 : n > {} ? {} : n;\n  return ({})({}{{{}}} < {}(({})n));\n}}\n", kInline, mask,
                     name, lanes, lanes, mask, mask, numbers(0, lanes), splat, element));
  return name;
}

std::string CppPrelude::lanes_from(int lanes) {
  const std::string vector = type(DType::I64, lanes), name = fmt::format("lanes_from_{}", vector);
  if (written_.contains(name)) return name;
  const std::string splat = function("splat", DType::I64, lanes);
  begin(name);
  append(fmt::format("{}{} {}(i64 n) {{ return {}{{{}}} + {}(n); }}\n", kInline, vector, name, vector, numbers(0, lanes), splat));
  return name;
}

std::string CppPrelude::mask_bits(int bits, int lanes) {
  // AVX-512's mask registers, for vectors of 16, 32 and 64 bytes.
  const std::string vector = mask_type(bits, lanes), name = fmt::format("mask_bits_{}", vector);
  if (written_.contains(name)) return name;
  const std::string integer = type(unsigned_of(std::max(8, lanes)), 0);
  const char letter = bits == 8 ? 'b' : bits == 16 ? 'w' : bits == 32 ? 'd' : 'q';
  std::string argument = "a";
  if (bits == 8) {
    // char, not signed char.
    if (begin(fmt::format("charx{}", lanes))) typedefs_ += fmt::format("typedef char charx{} __attribute__((vector_size({})));\n", lanes, lanes);
    argument = fmt::format("(charx{})a", lanes);
  }
  begin(name);
  append(fmt::format("{}{} {}({} a) {{ return ({})__builtin_ia32_cvt{}2mask{}({}); }}\n", kInline, integer, name, vector, integer,
                     letter, bits * lanes, argument));
  return name;
}

std::string CppPrelude::any(int bits, int lanes) {
  const std::string mask = mask_type(bits, lanes), name = fmt::format("any_{}", mask);
  if (written_.contains(name)) return name;
  const int bytes = bits / 8 * lanes;
  if (is_wide(bits, lanes)) {
    const std::string narrow = any(bits, lanes / 2), low = half("lo", signed_of(bits), lanes), high = half("hi", signed_of(bits), lanes);
    begin(name);
    append(fmt::format("{}bool {}({} a) {{ return {}({}(a) | {}(a)); }}\n", kInline, name, passed(mask), narrow, low, high));
  } else if (target_.avx512 && bytes >= 16) {
    const std::string to_bits = mask_bits(bits, lanes);
    begin(name);
    append(fmt::format("{}bool {}({} a) {{ return {}(a) != 0; }}\n", kInline, name, mask, to_bits));
  } else if (bytes >= 16) {
    const std::string words = type(DType::I64, bytes / 8);
    std::string test = "v[0]";
    for (int i = 1; i < bytes / 8; ++i) test += fmt::format(" | v[{}]", i);
    begin(name);
    append(fmt::format("{}bool {}({} a) {{\n  const {} v = __builtin_bit_cast({}, a);\n  return ({}) != 0;\n}}\n", kInline, name, mask,
                       words, words, test));
  } else {
    std::string test = "a[0]";
    for (int l = 1; l < lanes; ++l) test += fmt::format(" | a[{}]", l);
    begin(name);
    append(fmt::format("{}bool {}({} a) {{ return ({}) != 0; }}\n", kInline, name, mask, test));
  }
  return name;
}

// ---- memory ----------------------------------------------------------------------------------------------------------
std::string CppPrelude::memory(std::string_view function, DType dtype, int lanes) {
  const std::string_view label = dtype == DType::Bool ? "u8" : c_type(dtype);
  const std::string name = fmt::format("{}_{}x{}", function, label, lanes);
  if (written_.contains(name)) return name;
  const std::string vector = storage_type(dtype, lanes), element = storage_type(dtype, 0);
  type(DType::I64, 0);
  // By the bits: every type moves as integers of its width; a complex number as two parts.
  if (is_complex(dtype)) {
    const DType part = part_of(dtype);
    const std::string part_type = type(part, 0);
    const bool is_store = function.starts_with("store") || function.starts_with("scatter");
    std::string params, body;
    const auto step = [&](std::string_view stride) {   // parts l*stride numbers apart
      const bool partial = function.ends_with("_part");
      if (is_store) {
        const std::string f = memory(partial ? "scatter_step_part" : "scatter_step", part, lanes);
        const std::string_view count = partial ? ", n" : "";
        body = fmt::format("  {}(({}*)p, {}, v.re{});\n  {}(({}*)p + 1, {}, v.im{});\n", f, part_type, stride, count, f, part_type,
                           stride, count);
      } else {
        const std::string f = memory(partial ? "gather_step_part" : "gather_step", part, lanes);
        const std::string_view count = partial ? ", n" : "";
        body = fmt::format("  return {{{}((const {}*)p, {}{}), {}((const {}*)p + 1, {}{})}};\n", f, part_type, stride, count, f,
                           part_type, stride, count);
      }
    };
    if (function == "load" || function == "load_part" || function == "store" || function == "store_part") {
      step("2");
      params = is_store ? fmt::format("{} v", passed(vector)) : "";
      if (function.ends_with("_part")) params += params.empty() ? "i64 n" : ", i64 n";
    } else if (function == "load_reverse" || function == "store_reverse") {
      step("-2");
      params = is_store ? fmt::format("{} v", passed(vector)) : "";
    } else if (function.starts_with("load_stride")) {
      step(std::to_string(2 * (function.back() - '0')));
    } else if (function.find("_step") != std::string_view::npos) {
      step("step*2");
      params = "i64 step";
      if (is_store) params += fmt::format(", {} v", passed(vector));
      if (function.ends_with("_part")) params += ", i64 n";
    } else if (function == "load_masked" || function == "store_masked") {
      // The complex number's width has no mask type: masks come in the parts' width, one lane per number.
      const std::string mask = mask_type(bits_of(part), lanes);
      if (is_store) {
        params = fmt::format("{} v, {} m", passed(vector), passed(mask));
        body = fmt::format("  for (int l = 0; l < {}; ++l)\n    if (m[l]) p[l] = {}{{v.re[l], v.im[l]}};\n", lanes, element);
      } else {
        params = fmt::format("{} m, {} fill", passed(mask), element);
        body = fmt::format("  {} v = {{}};\n  for (int l = 0; l < {}; ++l) {{\n    const {} x = m[l] ? p[l] : fill;\n    v.re[l] = x.re;\n"
                           "    v.im[l] = x.im;\n  }}\n  return v;\n", vector, lanes, element);
      }
    } else {
      const bool masked = function.ends_with("_masked");
      const std::string mask = mask_type(bits_of(part), lanes), index = type(DType::I64, lanes);
      params = fmt::format("{} index", passed(index));
      if (is_store) {
        params += fmt::format(", {} v{}", passed(vector), masked ? ", " + passed(mask) + " m" : "");
        body = fmt::format("  for (int l = 0; l < {}; ++l)\n    {}p[index[l]] = {}{{v.re[l], v.im[l]}};\n", lanes,
                           masked ? "if (m[l]) " : "", element);
      } else {
        params += masked ? fmt::format(", {} m, {} fill", passed(mask), element) : "";
        body = fmt::format("  {} v = {{}};\n  for (int l = 0; l < {}; ++l) {{\n    const {} x = {}p[index[l]]{};\n    v.re[l] = x.re;\n"
                           "    v.im[l] = x.im;\n  }}\n  return v;\n", vector, lanes, element, masked ? "m[l] ? " : "",
                           masked ? " : fill" : "");
      }
    }
    begin(name);
    append(fmt::format("{}{} {}({}{}* p{}{}) {{\n{}}}\n", kInline, is_store ? "void" : vector, name, is_store ? "" : "const ", element,
                       params.empty() ? "" : ", ", params, body));
    return name;
  }

  const int bits = dtype == DType::Bool ? 8 : bits_of(dtype);
  const int bytes = bits / 8 * lanes;
  const bool wide = is_wide(bits, lanes);
  const std::string mask = mask_type(bits, lanes);
  const DType integer = signed_of(bits), plain = dtype == DType::Bool ? DType::U8 : dtype;
  const std::string read = fmt::format("{}{} {}(const {}* p", kInline, vector, name, element);
  const std::string write = fmt::format("{}void {}({}* p", kInline, name, element);
  const auto define = [&](const std::string& declaration, const std::string& body) {
    begin(name);
    append(fmt::format("{}) {{\n{}}}\n", declaration, body));
    return name;
  };
  // An AVX-512 masked move. GCC wants a pointer to the element; so does Clang for some, and one to the vector for others.
  const auto avx512_move = [&](std::string_view operation, std::string_view value, std::string_view bits_text) {
    const std::string_view width = bits == 8 ? "qi" : bits == 16 ? "hi" : bits == 32 ? "si" : "di";
    const std::string builtin = fmt::format("__builtin_ia32_{}dqu{}{}_mask", operation, width, bytes * 8);
    const std::string_view plain_pointer = bits == 8 ? "char" : bits == 16 ? "short" : bits == 32 ? "int" : "long long";
    std::string integers = type(integer, lanes);
    if (bits == 8) {
      integers = fmt::format("charx{}", lanes);
      if (begin(integers)) typedefs_ += fmt::format("typedef char {} __attribute__((vector_size({})));\n", integers, lanes);
    }
    const std::string_view constant = operation == "load" ? "const " : "";
    std::string pointer(plain_pointer);
    if (bytes < 64 || bits < 32) {
      pointer = fmt::format("{}_pointer", integers);
      if (begin(pointer))
        append(fmt::format("#ifdef __clang__\ntypedef {} {};\n#else\ntypedef {} {};\n#endif\n", integers, pointer, plain_pointer, pointer));
    }
    return fmt::format("{}(({}{}*)p, ({}){}, {})", builtin, constant, pointer, integers, value, bits_text);
  };
  const bool avx512 = target_.avx512 && bytes >= 16 && !wide;
  const std::string mask_integer = lanes <= 64 ? type(unsigned_of(std::max(8, lanes)), 0) : "";
  const std::string first_bits = fmt::format("({})(n <= 0 ? 0 : ~0ull >> (64 - (n < {} ? n : {})))", mask_integer, lanes, lanes);
  const bool avx2_size = !wide && target_.vector_bytes >= 32 && bits >= 32 && (bytes == 16 || bytes == 32);
  const bool avx2_mask = !avx512 && avx2_size;
  // GCC merges a masked store of half a register with the extraction of that half, and that instruction faults on lanes
  // that are off. AVX2's masked stores are a single instruction for sure.
  const bool avx512_store = avx512 && (bytes == 64 || bits < 32);

  if (function == "load") return define(read, fmt::format("  {} v;\n  __builtin_memcpy(&v, p, sizeof v);\n  return v;\n", vector));
  if (function == "store") return define(fmt::format("{}, {} v", write, passed(vector)), "  __builtin_memcpy(p, &v, sizeof v);\n");
  if (function == "stream") {
    if (wide) {
      const std::string narrow = memory("stream", dtype, lanes / 2), low = half("lo", plain, lanes), high = half("hi", plain, lanes);
      return define(fmt::format("{}, {} v, bool on", write, passed(vector)),
                    fmt::format("  {0}(p, {1}(v), on);\n  {0}(p + {2}, {3}(v), on);\n", narrow, low, lanes / 2, high));
    }
    const std::string store = memory("store", dtype, lanes), words = type(DType::I64, bytes / 8);
    const std::string address = type(DType::U64, 0);
    return define(fmt::format("{}, {} v, bool on", write, passed(vector)),
                  fmt::format("  if (!on || (({0})p & {1}) != 0) return {2}(p, v);\n"
                              "#ifdef __clang__\n  __builtin_nontemporal_store(v, ({3}*)p);\n"
                              "#else\n  __builtin_ia32_movntdq{4}(({5}*)p, ({5})v);\n#endif\n",
                              address, bytes - 1, store, vector, bytes == 64 ? "512" : bytes == 32 ? "256" : "",
                              words));
  }
  if (function == "load_part") {
    const std::string declaration = read + ", i64 n";
    if (wide) {
      const std::string narrow = memory("load_part", dtype, lanes / 2), together = join(plain, lanes / 2);
      return define(declaration, fmt::format("  return {}({}(p, n), {}(p + {}, n - {}));\n", together, narrow, narrow, lanes / 2, lanes / 2));
    }
    if (avx512) {
      const std::string move = avx512_move("load", fmt::format("{}{{}}", vector), first_bits);
      return define(declaration, fmt::format("  return ({}){};\n", vector, move));
    }
    if (avx2_mask) {
      const std::string below = lanes_below(bits, lanes), integers = type(integer, lanes);
      return define(declaration, fmt::format("  return ({})__builtin_ia32_maskload{}{}((const {}*)p, {}(n));\n", vector,
                                             bits == 32 ? "d" : "q", bytes == 32 ? "256" : "", integers, below));
    }
    return define(declaration, fmt::format("  {} v = {{}};\n  for (int l = 0; l < {}; ++l) v[l] = l < n ? p[l] : ({})0;\n  return v;\n",
                                           vector, lanes, element));
  }
  if (function == "store_part") {
    const std::string declaration = fmt::format("{}, {} v, i64 n", write, passed(vector));
    if (wide) {
      const std::string narrow = memory("store_part", dtype, lanes / 2), low = half("lo", plain, lanes), high = half("hi", plain, lanes);
      return define(declaration, fmt::format("  {}(p, {}(v), n);\n  {}(p + {}, {}(v), n - {});\n", narrow, low, narrow, lanes / 2, high,
                                             lanes / 2));
    }
    if (avx512_store) return define(declaration, fmt::format("  {};\n", avx512_move("store", "v", first_bits)));
    if (avx2_size) {
      const std::string below = lanes_below(bits, lanes), integers = type(integer, lanes);
      return define(declaration, fmt::format("  __builtin_ia32_maskstore{}{}(({}*)p, {}(n), ({})v);\n", bits == 32 ? "d" : "q",
                                             bytes == 32 ? "256" : "", integers, below, integers));
    }
    return define(declaration, fmt::format("  for (int l = 0; l < {} && l < n; ++l) p[l] = v[l];\n", lanes));
  }
  if (function == "load_masked") {
    const std::string declaration = fmt::format("{}, {} m, {} fill", read, passed(mask), element);
    if (wide) {
      const std::string narrow = memory("load_masked", dtype, lanes / 2), together = join(plain, lanes / 2);
      const std::string low = half("lo", integer, lanes), high = half("hi", integer, lanes);
      return define(declaration, fmt::format("  return {}({}(p, {}(m), fill), {}(p + {}, {}(m), fill));\n", together, narrow, low, narrow,
                                             lanes / 2, high));
    }
    if (avx512) {
      const std::string splat = this->function("splat", plain, lanes), to_bits = mask_bits(bits, lanes);
      const std::string move = avx512_move("load", fmt::format("{}(fill)", splat), fmt::format("{}(m)", to_bits));
      return define(declaration, fmt::format("  return ({}){};\n", vector, move));
    }
    if (avx2_mask) {
      const std::string integers = type(integer, lanes), splat = this->function("splat", plain, lanes);
      return define(declaration, fmt::format("  const {} v = ({})__builtin_ia32_maskload{}{}((const {}*)p, m);\n  return m ? v : {}(fill);\n",
                                             vector, vector, bits == 32 ? "d" : "q", bytes == 32 ? "256" : "", integers, splat));
    }
    return define(declaration, fmt::format("  {} v = {{}};\n  for (int l = 0; l < {}; ++l) v[l] = m[l] ? p[l] : fill;\n  return v;\n",
                                           vector, lanes));
  }
  if (function == "store_masked") {
    const std::string declaration = fmt::format("{}, {} v, {} m", write, passed(vector), passed(mask));
    if (wide) {
      const std::string narrow = memory("store_masked", dtype, lanes / 2);
      const std::string low = half("lo", plain, lanes), high = half("hi", plain, lanes);
      const std::string low_mask = half("lo", integer, lanes), high_mask = half("hi", integer, lanes);
      return define(declaration, fmt::format("  {}(p, {}(v), {}(m));\n  {}(p + {}, {}(v), {}(m));\n", narrow, low, low_mask, narrow,
                                             lanes / 2, high, high_mask));
    }
    if (avx512_store) {
      const std::string to_bits = mask_bits(bits, lanes);
      return define(declaration, fmt::format("  {};\n", avx512_move("store", "v", fmt::format("{}(m)", to_bits))));
    }
    if (avx2_size) {
      const std::string integers = type(integer, lanes);
      return define(declaration, fmt::format("  __builtin_ia32_maskstore{}{}(({}*)p, m, ({})v);\n", bits == 32 ? "d" : "q",
                                             bytes == 32 ? "256" : "", integers, integers));
    }
    return define(declaration, fmt::format("  for (int l = 0; l < {}; ++l)\n    if (m[l]) p[l] = v[l];\n", lanes));
  }
  if (function == "load_reverse" || function == "store_reverse") {
    std::string order;
    for (int l = 0; l < lanes; ++l) order += fmt::format(", {}", lanes - 1 - l);
    if (function == "load_reverse") {
      const std::string load = memory("load", dtype, lanes);
      return define(read, fmt::format("  const {} v = {}(p - {});\n  return __builtin_shufflevector(v, v{});\n", vector, load, lanes - 1, order));
    }
    const std::string store = memory("store", dtype, lanes);
    return define(fmt::format("{}, {} v", write, passed(vector)),
                  fmt::format("  {}(p - {}, __builtin_shufflevector(v, v{}));\n", store, lanes - 1, order));
  }
  if (function.starts_with("load_stride")) {
    const int stride = function.back() - '0';
    if (lanes < stride || wide) {
      const std::string gather = memory("gather_step", dtype, lanes);
      return define(read, fmt::format("  return {}(p, {});\n", gather, stride));
    }
    // `stride` vectors cover the elements; the last begins early, so that it ends with the last element that is used.
    // Element l*stride is in vector l*stride / lanes; each shuffle takes over the lanes found so far.
    const std::string load = memory("load", dtype, lanes);
    const int last_begin = stride * (lanes - 1) + 1 - lanes;
    std::string body = fmt::format("  {} v = {}(p);\n", vector, load);
    for (int part = 1; part < stride; ++part) {
      const int begin_at = part == stride - 1 ? last_begin : part * lanes;
      std::string order;
      for (int l = 0; l < lanes; ++l) {
        const int at = l * stride;
        const int home = std::min(at / lanes, stride - 1);
        int lane = l;                                             // found before, or not yet: whatever is there
        if (part == 1 && home == 0) lane = at;
        if (home == part) lane = lanes + at - begin_at;
        order += fmt::format(", {}", lane);
      }
      body += fmt::format("  v = __builtin_shufflevector(v, {}(p + {}){});\n", load, begin_at, order);
    }
    return define(read, body + "  return v;\n");
  }
  if (function == "gather_step") {
    std::string list;
    for (int l = 0; l < lanes; ++l) list += l == 0 ? "p[0]" : l == 1 ? ", p[step]" : fmt::format(", p[step*{}]", l);
    return define(read + ", i64 step", fmt::format("  return {}{{{}}};\n", vector, list));
  }
  if (function == "gather_step_part")
    return define(read + ", i64 step, i64 n", fmt::format("  {} v = {{}};\n  for (int l = 0; l < {}; ++l) v[l] = l < n ? p[l*step] : ({})0;\n  return v;\n",
                                                          vector, lanes, element));
  if (function == "scatter_step")
    return define(fmt::format("{}, i64 step, {} v", write, passed(vector)), fmt::format("  for (int l = 0; l < {}; ++l) p[l*step] = v[l];\n", lanes));
  if (function == "scatter_step_part")
    return define(fmt::format("{}, i64 step, {} v, i64 n", write, passed(vector)),
                  fmt::format("  for (int l = 0; l < {} && l < n; ++l) p[l*step] = v[l];\n", lanes));
  const std::string index = type(DType::I64, lanes);
  if (function == "gather") {
    std::string list;
    for (int l = 0; l < lanes; ++l) list += fmt::format("{}p[index[{}]]", l == 0 ? "" : ", ", l);
    return define(fmt::format("{}, {} index", read, passed(index)), fmt::format("  return {}{{{}}};\n", vector, list));
  }
  if (function == "gather_masked")
    return define(fmt::format("{}, {} index, {} m, {} fill", read, passed(index), passed(mask), element),
                  fmt::format("  {} v = {{}};\n  for (int l = 0; l < {}; ++l) v[l] = m[l] ? p[index[l]] : fill;\n  return v;\n", vector, lanes));
  if (function == "scatter")
    return define(fmt::format("{}, {} index, {} v", write, passed(index), passed(vector)),
                  fmt::format("  for (int l = 0; l < {}; ++l) p[index[l]] = v[l];\n", lanes));
  if (function == "scatter_masked")
    return define(fmt::format("{}, {} index, {} v, {} m", write, passed(index), passed(vector), passed(mask)),
                  fmt::format("  for (int l = 0; l < {}; ++l)\n    if (m[l]) p[index[l]] = v[l];\n", lanes));
  throw InternalError(fmt::format("prelude: unknown memory function '{}'", function));
}

// ---- reductions ------------------------------------------------------------------------------------------------------
std::string CppPrelude::horizontal(op::Combine combine, DType dtype, int lanes) {
  const std::string_view op = combine == op::Combine::Add ? "add" : combine == op::Combine::Mul ? "mul"
                              : combine == op::Combine::Max ? "max" : "min";
  const std::string vector = type(dtype, lanes), name = fmt::format("reduce_{}_{}", op, vector);
  if (written_.contains(name)) return name;
  if (is_complex(dtype)) {
    const std::string scalar = function(op, dtype, 0), element = type(dtype, 0);
    begin(name);
    append(fmt::format("{}{} {}({} a) {{\n  {} y[{}];\n  for (int l = 0; l < {}; ++l) y[l] = {}{{a.re[l], a.im[l]}};\n"
                       "  for (int half = {}; half > 0; half /= 2)\n    for (int l = 0; l < half; ++l) y[l] = {}(y[l], y[l + half]);\n"
                       "  return y[0];\n}}\n", kInline, element, name, passed(vector), element, lanes, lanes, element, lanes / 2, scalar));
    return name;
  }
  std::string body;
  if (lanes == 1) {
    body = "  return a[0];\n";
  } else {
    const std::string narrow = horizontal(combine, dtype, lanes / 2), both = function(op, dtype, lanes / 2);
    const std::string low = half("lo", dtype, lanes), high = half("hi", dtype, lanes);
    body = fmt::format("  return {}({}({}(a), {}(a)));\n", narrow, both, low, high);
  }
  begin(name);
  append(fmt::format("{}{} {}({} a) {{\n{}}}\n", kInline, type(dtype, 0), name, passed(vector), body));
  return name;
}

std::string CppPrelude::transpose(DType dtype, int lanes) {
  const std::string vector = type(dtype, lanes), name = fmt::format("transpose_{}", vector);
  if (!begin(name)) return name;
  // Blocks off the diagonal change places, from single lanes to halves. Written out, so that all of it is in registers.
  std::string body;
  std::vector<std::string> rows;
  for (int i = 0; i < lanes; ++i) rows.push_back(fmt::format("v[{}]", i));
  for (int step = 1; step < lanes; step *= 2) {
    std::string low, high;
    for (int l = 0; l < lanes; ++l) {
      low += fmt::format(", {}", (l & step) == 0 ? l : lanes + l - step);
      high += fmt::format(", {}", (l & step) == 0 ? l + step : lanes + l);
    }
    const std::vector<std::string> before = rows;
    for (int i = 0; i < lanes; ++i) {
      const int other = i & ~step;
      rows[static_cast<size_t>(i)] = fmt::format("r{}_{}", step, i);
      body += fmt::format("  const {} {} = __builtin_shufflevector({}, {}{});\n", vector, rows[static_cast<size_t>(i)],
                          before[static_cast<size_t>(other)], before[static_cast<size_t>(other + step)], (i & step) == 0 ? low : high);
    }
  }
  for (int i = 0; i < lanes; ++i) body += fmt::format("  v[{}] = {};\n", i, rows[static_cast<size_t>(i)]);
  append(fmt::format("{}void {}({}* v) {{\n{}}}\n", kInline, name, vector, body));
  return name;
}

std::string CppPrelude::transpose_block(DType dtype) {
  // Whole squares in registers; the rows and columns left over one element at a time.
  const DType bits = unsigned_of(bits_of(dtype == DType::Bool ? DType::U8 : dtype));
  const int lanes = std::min(16, target_.vector_bytes * 8 / bits_of(bits));
  const std::string element = storage_type(dtype, 0), raw = type(bits, 0), vector = type(bits, lanes), i64 = type(DType::I64, 0);
  const std::string name = fmt::format("transpose_block_{}", element);
  if (written_.contains(name)) return name;
  const std::string load = memory("load", bits, lanes), store = memory("store", bits, lanes), square = transpose(bits, lanes);
  begin(name);
  std::string loads, stores;
  for (int i = 0; i < lanes; ++i) {
    loads += fmt::format("      v[{0}] = {1}((const {2}*)from + (r + {0})*from_pitch + c);\n", i, load, raw);
    stores += fmt::format("      {1}(({2}*)to + (c + {0})*to_pitch + r, v[{0}]);\n", i, store, raw);
  }
  append(fmt::format("static void {0}({1}* to, i64 to_pitch, const {1}* from, i64 from_pitch, i64 rows, i64 columns) {{\n"
                     "  const i64 whole = columns/{2}*{2};\n"
                     "  i64 r = 0;\n"
                     "  for (; r + {2} <= rows; r += {2}) {{\n"
                     "    for (i64 c = 0; c < whole; c += {2}) {{\n"
                     "      {3} v[{2}];\n{4}      {5}(v);\n{6}    }}\n"
                     "    for (i64 c = whole; c < columns; ++c)\n"
                     "      for (int l = 0; l < {2}; ++l) to[c*to_pitch + r + l] = from[(r + l)*from_pitch + c];\n"
                     "  }}\n"
                     "  for (; r < rows; ++r)\n"
                     "    for (i64 c = 0; c < columns; ++c) to[c*to_pitch + r] = from[r*from_pitch + c];\n}}\n",
                     name, element, lanes, vector, loads, square, stores));
  return name;
}

std::string CppPrelude::text() const {
  // The warning is about calls across object files; every function here is inlined.
  std::string text = "#pragma GCC diagnostic ignored \"-Wpsabi\"\n";
  // A kernel may define values that nothing reads.
  text += "#pragma GCC diagnostic ignored \"-Wunused-variable\"\n#pragma GCC diagnostic ignored \"-Wunused-but-set-variable\"\n";
  text += typedefs_;
  // NVRTC declares the functions of libm itself.
  text += target_.cuda && !externs_.empty() ? "#ifndef __CUDACC_RTC__\n" + externs_ + "#endif\n" : externs_;
  return text + functions_;
}

}  // namespace fuseloom::emit
