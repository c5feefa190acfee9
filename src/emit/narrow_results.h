// Which f32 values of a kernel are seen through f16 and bf16 only: nothing but a rounding to 8 or 11 bits tells of them, so
// that functions with errors of 2^-16 do (docs/numerics.md).
#pragma once
#include <vector>

#include "kernel/kernel.h"

namespace fuseloom::emit {

struct NarrowResults {
  explicit NarrowResults(const kernel::Kernel& kernel);

  // By scalar. Every way from the value to a result, through other values, accumulators and the kernel's own buffers, ends in a
  // conversion to f16 or bf16.
  std::vector<bool> coarse;
  // The value is converted to bf16 and nothing else happens to it.
  std::vector<bool> only_bf16;
  std::vector<const kernel::Source*> sources;   // nullptr: of an accumulator
};

}  // namespace fuseloom::emit
