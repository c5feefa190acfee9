// Walks over the parts of a kernel.
#pragma once
#include <functional>
#include <set>
#include <string>

#include "kernel/kernel.h"

namespace fuseloom::kernel {

// Where an expression stands.
enum class ExprRole : uint8_t {
  Size,        // of a buffer or a contraction, an extent, a guard, an index: anything that may be computed at run time
  Unrolled,    // a bound of an Unroll loop: a constant
  CoreDefine,  // a Define that is computed once in an iteration of the Core loop
};
// Every expression of the kernel, in order; the function may replace it.
void for_each_expr(Kernel& kernel, const std::function<void(sym::Expr&, ExprRole)>& visit);
// Every name that a statement binds: axes and Defines, in order of appearance. The function may replace it.
void for_each_name(Kernel& kernel, const std::function<void(std::string&)>& visit);
// Every Let, in order.
void for_each_let(Kernel& kernel, const std::function<void(Let&)>& visit);

// A kernel with its sizes taken out: equal forms differ in sizes only.
//
// Every largest part of an expression that depends on the kernel's symbols alone becomes a parameter, in order of
// appearance; its value in this kernel is an expression over the old symbols. Names are replaced by canonical ones. A
// constant divisor stays (dividing by a constant is cheaper by far), and so do 0, 1 and -1. The f32 constants are taken out
// as well.
struct GeneralForm {
  Kernel kernel;                     // symbols: the parameters p0_, p1_, ...
  std::vector<sym::Expr> values;     // of the parameters
  std::vector<double> constants;     // the f32 constants, in order of appearance; 0 stands in their place
};
GeneralForm general_form(const Kernel& kernel);

}  // namespace fuseloom::kernel
