// Small words for writing decompositions.
#pragma once
#include <string_view>

#include "op/op.h"

namespace fuseloom::op {

// A chain of elementwise calls reads as algebra with these.
class Algebra {
 public:
  explicit Algebra(OpBuilder& builder) : builder_(builder) {}
  Val add(Val a, Val b) { return builder_.apply("add", {a, b}); }
  Val sub(Val a, Val b) { return builder_.apply("sub", {a, b}); }
  Val mul(Val a, Val b) { return builder_.apply("mul", {a, b}); }
  Val div(Val a, Val b) { return builder_.apply("div", {a, b}); }
  Val unary(std::string_view op, Val x) { return builder_.apply(op, {x}); }
  Val reduce(std::string_view op, Val x, std::vector<int64_t> axes) {
    return builder_.apply(op, {x}, {{"axes", std::move(axes)}, {"keepdims", int64_t{1}}});
  }
  // A 0-d constant of x's dtype.
  Val number(Val x, double value) { return builder_.scalar(builder_.type(x).dtype, value); }
  Val where(Val condition, Val a, Val b) { return builder_.apply("select", {condition, a, b}); }
  // x in the type it is computed in: f32 for f16 and bf16.
  Val wide(Val x) { return builder_.cast(x, compute_dtype(builder_.type(x).dtype)); }
  // A vector [c] as [1, c, 1...], to broadcast along dimension 1 of a tensor of this rank.
  Val per_channel(Val vector, int64_t rank) {
    Shape shape(static_cast<size_t>(rank), sym::Expr(1));
    shape[rank > 1 ? 1 : 0] = builder_.type(vector).shape[0];
    return builder_.reshape(vector, shape);
  }

 private:
  OpBuilder& builder_;
};

std::vector<Val> decompose_conv_transpose(OpBuilder& builder, const DecomposeContext& context);   // conv_transpose.cpp
std::vector<Val> decompose_resize(OpBuilder& builder, const DecomposeContext& context);           // resize.cpp

}  // namespace fuseloom::op
