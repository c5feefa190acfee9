// The type of a value: element type and symbolic shape.
#pragma once
#include <string>
#include <vector>

#include "fuseloom/dtype.h"
#include "fuseloom/tensor.h"
#include "sym/expr.h"

namespace fuseloom::op {

using Shape = std::vector<sym::Expr>;

struct TensorType {
  DType dtype = DType::F32;
  Shape shape;
  int64_t rank() const { return static_cast<int64_t>(shape.size()); }
  friend bool operator==(const TensorType&, const TensorType&) = default;
};

std::string to_string(const TensorType& type);     // f32[batch, 3, h*2]
std::string to_string(const Shape& shape);         // [batch, 3, h*2]
TensorType parse_type(base::Lexer& lexer);         // throws UserError
Shape parse_shape(base::Lexer& lexer);
sym::Expr count_of(const Shape& shape);            // product of the sizes
Shape strides_of(const Shape& shape);              // row-major, in elements
Shape shape_of(std::span<const int64_t> dims);

// NumPy broadcasting of two sizes. Equal or proven equal: that size; a constant 1: the other; a constant c != 1: c.
// Both symbolic and not proven equal: select(eq(a, 1), b, a), resolved at run time.
// Throws UserError for two constants that differ and neither is 1.
sym::Expr broadcast_size(const sym::Expr& a, const sym::Expr& b);
Shape broadcast_shapes(const Shape& a, const Shape& b);

}  // namespace fuseloom::op
