#include "op/type.h"

#include <algorithm>

#include "base/check.h"
#include "base/lexer.h"

namespace fuseloom::op {

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + sym::to_string(shape[i]);
  return text + "]";
}

std::string to_string(const TensorType& type) { return std::string(dtype_name(type.dtype)) + to_string(type.shape); }

Shape parse_shape(base::Lexer& lexer) {
  Shape shape;
  lexer.expect("[");
  if (lexer.accept("]")) return shape;
  do {
    shape.push_back(sym::parse_expr(lexer));
  } while (lexer.accept(","));
  lexer.expect("]");
  return shape;
}

TensorType parse_type(base::Lexer& lexer) {
  const std::optional<DType> dtype = parse_dtype(lexer.peek().text);
  if (lexer.peek().kind != base::Token::Kind::Name || !dtype) {
    lexer.fail(fmt::format("expected an element type such as f32, found '{}'", lexer.peek().text));
  }
  lexer.next();
  return {.dtype = *dtype, .shape = parse_shape(lexer)};
}

sym::Expr count_of(const Shape& shape) { return sym::product(shape); }

Shape strides_of(const Shape& shape) {
  Shape strides(shape.size());
  sym::Expr stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride = stride * shape[i];
  }
  return strides;
}

Shape shape_of(std::span<const int64_t> dims) { return Shape(dims.begin(), dims.end()); }

namespace {

// The sizes that a chain of select(eq(a, 1), b, a) chooses from.
void broadcast_leaves(const sym::Expr& size, std::vector<sym::Expr>& leaves) {
  if (size.kind() == sym::Kind::Select) {
    const std::span<const sym::Expr> args = size.args();
    if (args[0] == sym::eq(args[2], 1)) {
      broadcast_leaves(args[1], leaves);
      broadcast_leaves(args[2], leaves);
      return;
    }
  }
  leaves.push_back(size);
}

bool contains_all(const std::vector<sym::Expr>& all, const std::vector<sym::Expr>& some) {
  return std::all_of(some.begin(), some.end(),
                     [&](const sym::Expr& leaf) { return std::find(all.begin(), all.end(), leaf) != all.end(); });
}

}  // namespace

sym::Expr broadcast_size(const sym::Expr& a, const sym::Expr& b) {
  if (a == b || b.is_const(1)) return a;
  if (a.is_const(1)) return b;
  FL_REQUIRE(!a.is_const() || !b.is_const(), "sizes {} and {} do not broadcast: they differ and neither is 1",
             sym::to_string(a), sym::to_string(b));
  if (a.is_const()) return a;
  if (b.is_const()) return b;
  if (sym::prove_equal(a, b) == sym::Proof::Yes) return a;
  // A size that was already broadcast with the other one absorbs it: repeated broadcasting does not grow expressions.
  std::vector<sym::Expr> leaves_a, leaves_b;
  broadcast_leaves(a, leaves_a);
  broadcast_leaves(b, leaves_b);
  if (contains_all(leaves_a, leaves_b)) return a;
  if (contains_all(leaves_b, leaves_a)) return b;
  return sym::select(sym::eq(a, 1), b, a);
}

Shape broadcast_shapes(const Shape& a, const Shape& b) {
  const Shape& longer = a.size() >= b.size() ? a : b;
  Shape result = longer;
  const size_t common = std::min(a.size(), b.size());
  for (size_t back = 1; back <= common; ++back) {
    const sym::Expr& size_a = a[a.size() - back];
    const sym::Expr& size_b = b[b.size() - back];
    FL_REQUIRE(!size_a.is_const() || !size_b.is_const() || size_a == size_b || size_a.is_const(1) || size_b.is_const(1),
               "shapes {} and {} do not broadcast: dimension {} from the end is {} in one and {} in the other",
               to_string(a), to_string(b), back, sym::to_string(size_a), sym::to_string(size_b));
    result[longer.size() - back] = broadcast_size(size_a, size_b);
  }
  return result;
}

}  // namespace fuseloom::op
