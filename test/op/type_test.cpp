#include "op/type.h"

#include "base/lexer.h"
#include "op/op_testing.h"
#include "sym/evaluator.h"

namespace fuseloom::op {
namespace {

const sym::Expr a = sym::Expr::symbol("a"), b = sym::Expr::symbol("b"), c = sym::Expr::symbol("c");

TensorType parse(std::string_view text) {
  base::Lexer lexer(text);
  return parse_type(lexer);
}

TEST(Type, TextRoundTrips) {
  for (const char* text : {"f32[]", "bf16[a, 3, b*2]", "c128[0]"}) EXPECT_EQ(to_string(parse(text)), text);
  EXPECT_EQ(parse("i8[a]"), (TensorType{DType::I8, {a}}));
  EXPECT_THROW(parse("f31[2]"), UserError);
  EXPECT_THROW(parse("f32[2"), UserError);
  EXPECT_THROW(parse("f32"), UserError);
}

TEST(Type, CountsAndStrides) {
  EXPECT_EQ(count_of({a, 3, b}), a * b * 3);
  EXPECT_EQ(count_of({}), sym::Expr(1));
  EXPECT_EQ(strides_of({a, 3, b}), (Shape{b * 3, b, 1}));
}

TEST(Type, BroadcastSizes) {
  EXPECT_EQ(broadcast_size(4, 4), sym::Expr(4));
  EXPECT_EQ(broadcast_size(1, a), a);
  EXPECT_EQ(broadcast_size(a, 1), a);
  EXPECT_EQ(broadcast_size(a, 4), sym::Expr(4));
  EXPECT_EQ(broadcast_size(0, a), sym::Expr(0));
  EXPECT_EQ(broadcast_size(a, a), a);
  EXPECT_EQ(broadcast_size(a * 2 + a, a * 3), a * 3);
  EXPECT_THROW(broadcast_size(3, 4), UserError);
  EXPECT_THROW(broadcast_size(0, 3), UserError);
  const sym::Expr both = broadcast_size(a, b);
  EXPECT_EQ(sym::evaluate(both, {{"a", 1}, {"b", 7}}), 7);
  EXPECT_EQ(sym::evaluate(both, {{"a", 7}, {"b", 1}}), 7);
  EXPECT_EQ(sym::evaluate(both, {{"a", 1}, {"b", 0}}), 0);
}

TEST(Type, BroadcastingAgainDoesNotGrow) {
  const sym::Expr both = broadcast_size(a, b);
  EXPECT_EQ(broadcast_size(both, a), both);
  EXPECT_EQ(broadcast_size(b, both), both);
  EXPECT_EQ(broadcast_size(both, both), both);
  const sym::Expr three = broadcast_size(both, c);
  EXPECT_EQ(broadcast_size(three, broadcast_size(b, c)), three);
}

TEST(Type, BroadcastShapes) {
  EXPECT_EQ(broadcast_shapes({a, 1}, {3}), (Shape{a, 3}));
  EXPECT_EQ(broadcast_shapes({}, {a, b}), (Shape{a, b}));
  EXPECT_EQ(broadcast_shapes({1, 0}, {0, 1}), (Shape{0, 0}));  // R42
  expect_user_error(
      [] {
        broadcast_shapes({2, 3}, {2, 1, 4});
      },
      "dimension 1 from the end is 3 in one and 4 in the other");
}

}  // namespace
}  // namespace fuseloom::op
