// Contiguous buffers in the type that references compute in: double for floats, uint64_t for integers and bool
// (sign-extended, so that wrapping arithmetic in 64 bits is exact in every narrower type), std::complex<double> for
// complex. Reading and writing a tensor through them costs one pass; loops between run on plain arrays.
#pragma once
#include <complex>
#include <cstdint>
#include <span>
#include <vector>

#include "fuseloom/tensor.h"
#include "op/type.h"

namespace fuseloom::op {

using Complex = std::complex<double>;

// All elements in row-major order, converted. T: double, int64_t, uint64_t or Complex.
template <class T>
std::vector<T> stage(const Tensor& tensor);
// Writes all elements of a contiguous tensor: floats round once, double → integer casts as docs/numerics.md says,
// integer → integer wraps.
template <class T>
void unstage(std::span<const T> values, Tensor& tensor);
template <class T>
void unstage(const std::vector<T>& values, Tensor& tensor) {
  unstage(std::span<const T>(values), tensor);
}

// Calls f with a value of the staging type of `dtype`: f(double()), f(uint64_t()) or f(Complex()).
template <class F>
void with_staging_type(DType dtype, F&& f) {
  if (is_complex(dtype)) {
    f(Complex());
  } else if (is_float(dtype)) {
    f(double());
  } else {
    f(uint64_t());
  }
}

// Sizes in a reference are concrete; these throw InternalError when one is not.
int64_t concrete_size(const sym::Expr& size);
Dims concrete_dims(const Shape& shape);

// For each element of `result` in row-major order, the row-major index of the element of `operand` that NumPy
// broadcasting reads. `operand` is right-aligned and broadcasts to `result`.
std::vector<int64_t> broadcast_map(const Dims& operand, const Dims& result);

// Product of the sizes in [first, last).
inline int64_t count_between(const Dims& dims, int64_t first, int64_t last) {
  int64_t count = 1;
  for (int64_t d = first; d < last; ++d) count *= dims[static_cast<size_t>(d)];
  return count;
}

// Copies elements of one size without looking at their type; for ops that only move data.
void copy_elements(const void* from, int64_t from_index, void* to, int64_t to_index, int64_t count, DType dtype);

}  // namespace fuseloom::op
