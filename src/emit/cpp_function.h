// The table of functions that CppPrelude can write: text over type letters.
//
// `signature` is "R:PP": the result's letter, then one per parameter; parameters are named a, b, c. In `body`, `$X` is the
// type of a letter, `$f(` calls the prelude function f on operands of T, `$f@X(` on operands of X, `$cast@XY(` casts from X
// to Y, and `$N`, `$B` are the lanes (at least 1) and the bits of T.
//   T the operand type      E one element of T        I U signed and unsigned integer of T's width
//   M the mask of T         V as U, but at least u32 for scalars: what C computes in
//   F f32   D f64   H i32   W u32   L i64   Q u64   S u16, what f16 and bf16 are   P the part type of a complex T
#pragma once
#include <span>
#include <string_view>

#include "fuseloom/dtype.h"

namespace fuseloom::emit {

struct CppFunction {
  enum class Kind : unsigned char {
    Same,    // the body is right for scalars and for vectors alike
    Lanes,   // the body is for scalars; the vector function calls it lane by lane
  };
  std::string_view name;
  std::string_view types;      // of T: i signed, u unsigned integer, f f32, d f64, c complex, h f16, g bf16
  std::string_view signature;
  Kind kind = Kind::Same;
  int widest = 0;              // bits of the widest type inside; 0: those of T
  std::string_view libm;       // names declared extern "C" in f64, with ':' and the number of arguments: "pow:2"
  std::string_view body;
};

std::span<const CppFunction> basic_functions();    // cpp_prelude.cpp
std::span<const CppFunction> math_functions();     // cpp_math.cpp
// What the function is on a CUDA device, by NVRTC's own functions or an instruction: the body, or empty.
std::string_view device_body(std::string_view name, DType dtype);   // cuda_math.cpp

// The entry for this name and dtype, or nullptr.
const CppFunction* find_function(std::string_view name, DType dtype);

}  // namespace fuseloom::emit
