// How far two tensors are apart, and how far they may be.
#pragma once
#include <string>

#include "fuseloom/tensor.h"

namespace fuseloom::tool {

// |got - expected| <= absolute * largest + relative * |expected|, with `largest` the largest finite magnitude of the
// expected tensor: an error in a sum is measured by what was summed up, not by what was left.
struct Tolerance {
  double absolute = 0, relative = 0;
};
// By element type: a few thousand roundings of the type. 0 for integers, bool included.
Tolerance tolerance_of(DType dtype);

struct Difference {
  bool ok = true;
  double max_abs = 0;              // greatest |got - expected|
  double max_rel = 0;              // greatest |got - expected| / max(|expected|, absolute tolerance * largest)
  std::string words;               // of the first element beyond the tolerance, or of a type that differs; "" when ok
};
// NaN equals NaN, an infinity equals itself.
Difference compare(const Tensor& got, const Tensor& expected, const Tolerance& tolerance);

}  // namespace fuseloom::tool
