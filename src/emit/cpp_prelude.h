// The prelude of generated C++: the types and functions that kernels call, each written once and only when used.
//
// A function is named after the op and the type of its operands: exp_f32x16 works on 16 lanes, exp_f32 on one scalar. Both
// are the same text over different types, so that an element has the same bits wherever it is computed: in the body of a
// vector loop, in its tail, or outside. A vector type that is wider than the target's registers is handled in halves, by
// functions of the narrower type, because compilers lower wide comparisons and selects lane by lane.
//
// Lanes: 0 means a scalar. A bool is `bool` as a scalar, and a mask of 0 and -1 as a vector, of signed integers as wide as
// the values it came from (8 bits from memory); see mask_type.
#pragma once
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "emit/cpp.h"

namespace fuseloom::emit {

class CppPrelude {
 public:
  explicit CppPrelude(const CppTarget& target) : target_(target) {}

  // The C type of `lanes` values ("f32x16"); of f16 and bf16 the u16 of their bits. Bool: only scalar.
  std::string type(DType dtype, int lanes);
  std::string storage_type(DType dtype, int lanes);      // as in memory: bool is u8
  std::string mask_type(int bits, int lanes);            // lanes 0: bool

  // The function `name` for operands of this type. Throws Unsupported for an op or type it does not know.
  std::string function(std::string_view name, DType dtype, int lanes);
  // A cast. To and from bool: scalars only; see to_mask, from_mask.
  std::string cast(DType from, DType to, int lanes);
  std::string to_mask(DType from, int lanes);            // x != 0, a mask of from's width
  std::string from_mask(int bits, DType to, int lanes);  // 0 and 1
  std::string resize_mask(int from_bits, int to_bits, int lanes);
  std::string pow(DType base, DType exponent, int lanes);
  // Same bits, another type; masks excluded.
  std::string bitcast(DType from, DType to, int lanes);

  // Memory. `dtype` is that of the buffer; pointers are to storage_type. All accept any alignment of whole elements.
  //   load(p) store(p, v)                     lanes consecutive elements
  //   stream(p, v, on)                        store; past the caches where `on` and p is aligned. At least 16 bytes, not complex
  //   load_part(p, n) store_part(p, v, n)     the first n only; the others are 0
  //   load_masked(p, m, fill) store_masked(p, v, m)
  //   load_stride<S>(p) (S = 2, 3, 4)         p[l*S], without touching anything behind the last one
  //   load_reverse(p) store_reverse(p, v)     p[-l]
  //   gather_step(p, step), gather_step_part(p, step, n), scatter_step(p, step, v), scatter_step_part(p, step, v, n)   p[l*step]
  //   gather(p, index), gather_masked(p, index, m, fill), scatter(p, index, v), scatter_masked(p, index, v, m)
  // m: a mask of the storage's width. index: i64 lanes.
  std::string memory(std::string_view name, DType dtype, int lanes);
  // Lanes below n: a mask.
  std::string lanes_below(int bits, int lanes);
  // {0, 1, 2, ...} + n as i64.
  std::string lanes_from(int lanes);
  // Turns a square of `lanes` vectors in place.
  std::string transpose(DType dtype, int lanes);
  // (to, to_pitch, from, from_pitch, rows, columns): to[c*to_pitch + r] = from[r*from_pitch + c].
  std::string transpose_block(DType dtype);
  // All lanes combined into one value, by halves.
  std::string horizontal(op::Combine combine, DType dtype, int lanes);
  std::string any(int bits, int lanes);                  // whether a lane of the mask is on

  // An integer helper of sym expressions: floor_div, mod, min, max on i64 (lanes 0 or more).
  std::string integer(std::string_view name, int lanes) { return function("index_" + std::string(name), DType::I64, lanes); }

  // Adds a function that the caller wrote, under its name.
  void write_once(const std::string& name, std::string_view text) {
    if (begin(name)) append(text);
  }
  std::string text() const;

 private:
  friend class FunctionText;
  bool is_wide(int bits, int lanes) const { return lanes > 1 && static_cast<int64_t>(bits) / 8 * lanes > target_.vector_bytes; }
  // Marks the name as written. True the first time.
  bool begin(const std::string& name) { return written_.insert(name).second; }
  void append(std::string_view text) { functions_ += text; }
  std::string plain_type(const std::string& element, int lanes);
  // The type of a parameter. Vectors wider than a register go by reference: how GCC passes them by value has changed once, which it
  // says in a note that no pragma silences. All of it is inlined, so that nothing is passed at all.
  std::string passed(const std::string& type) const;
  std::string half(std::string_view which, DType dtype, int lanes);   // lo, hi: to half as many lanes
  std::string join(DType dtype, int lanes);                           // of two vectors of `lanes`
  // Writes `name` for a wide vector in terms of the function `narrow` on halves. Signature letters as in FunctionText.
  void split(const std::string& name, const std::string& narrow, DType result, std::span<const DType> params, int lanes);
  void declare_libm(std::string_view function, int arguments);
  std::string avx512_body(std::string_view function, DType dtype, int lanes);
  void write_vector_builtin(std::string_view name, DType dtype, int lanes);
  std::string mask_bits(int bits, int lanes);            // mask → the integer that AVX-512 builtins take

  CppTarget target_;
  std::set<std::string, std::less<>> written_;
  std::set<std::string, std::less<>> wide_;   // vector types wider than a register
  std::string typedefs_, externs_, functions_;
};

}  // namespace fuseloom::emit
