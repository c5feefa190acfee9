#include "sym/expr.h"

#include <gtest/gtest.h>

#include <chrono>

#include "base/lexer.h"
#include "fuseloom/error.h"
#include "sym/evaluator.h"

namespace fuseloom::sym {
namespace {

const Expr a = Expr::symbol("a"), b = Expr::symbol("b"), n = Expr::symbol("n");

TEST(SymExpr, ConstantsAndSymbols) {
  EXPECT_TRUE(Expr().is_const(0));
  EXPECT_EQ(Expr(7).as_const(), 7);
  EXPECT_EQ(Expr(7).kind(), Kind::Const);
  EXPECT_TRUE(a.is_symbol());
  EXPECT_EQ(a.name(), "a");
  EXPECT_TRUE(a.args().empty());
  EXPECT_EQ(a.as_const(), std::nullopt);
  EXPECT_THROW((a + b).name(), InternalError);
}

TEST(SymExpr, EqualityIsStructural) {
  const Expr x = a * 4 + b, y = b + 2 * a + 2 * a;
  EXPECT_EQ(x, y);
  EXPECT_FALSE(x.same_node(y));
  EXPECT_TRUE(x.same_node(Expr(x)));
  EXPECT_TRUE(Expr(3).same_node(Expr(3)));
  EXPECT_EQ(x.hash(), y.hash());
  EXPECT_NE(x, x + 1);
  EXPECT_NE(Expr(0), a);
}

TEST(SymExpr, OrderIsTotalAndFreeOfAddresses) {
  const std::vector<Expr> sorted = {a,
                                    b,
                                    n,
                                    a + b,
                                    a + 1,
                                    a * b,
                                    a * 2,
                                    floor_div(a, 2),
                                    mod(a, 2),
                                    min(a, b),
                                    max(a, b),
                                    eq(a, b),
                                    lt(a, b),
                                    le(a, b),
                                    select(lt(a, 1), b, n),
                                    -3,
                                    0,
                                    5};
  for (size_t i = 0; i < sorted.size(); ++i) {
    for (size_t j = 0; j < sorted.size(); ++j) {
      EXPECT_EQ(sorted[i] < sorted[j], i < j) << to_string(sorted[i]) << " and " << to_string(sorted[j]);
    }
  }
}

TEST(SymExpr, CeilDivAndRoundUp) {
  EXPECT_EQ(to_string(ceil_div(n, 4)), "floor_div(n + 3, 4)");
  EXPECT_EQ(to_string(round_up(n, 4)), "floor_div(n + 3, 4)*4");
  EXPECT_EQ(ceil_div(7, 2), 4);
  EXPECT_EQ(ceil_div(-7, 2), -3);
  EXPECT_EQ(ceil_div(7, -2), -3);
  EXPECT_EQ(ceil_div(7, 0), 0);
  EXPECT_EQ(round_up(n * 8, 4), n * 8);
  EXPECT_THROW(round_up(n, 0), InternalError);
  const std::map<std::string, int64_t> point = {{"a", 7}, {"b", 2}};
  EXPECT_EQ(evaluate(ceil_div(a, b), point), 4);
}

TEST(SymExpr, Product) {
  EXPECT_EQ(product({}), 1);
  const Expr shape[] = {a, 4, b, 2};
  EXPECT_EQ(to_string(product(shape)), "a*b*8");
}

TEST(SymExpr, IntegerOverflowWraps) {
  EXPECT_EQ(Expr(INT64_MAX) + 1, INT64_MIN);
  EXPECT_EQ(Expr(INT64_MIN) * -1, INT64_MIN);
  EXPECT_EQ(floor_div(INT64_MIN, -1), INT64_MIN);
  EXPECT_EQ(mod(INT64_MIN, -1), 0);
  EXPECT_EQ(le(INT64_MIN, INT64_MAX), 1);
  // Too large to compare by the difference.
  EXPECT_EQ(to_string(le(a + INT64_MIN, a + INT64_MAX)), "le(a + -9223372036854775808, a + 9223372036854775807)");
}

TEST(SymExpr, Symbols) {
  EXPECT_EQ(symbols_of(floor_div(a, n) + min(b, 3) + a), (std::set<std::string>{"a", "b", "n"}));
  EXPECT_TRUE(symbols_of(5).empty());
}

TEST(SymExpr, Substitute) {
  const Expr x = floor_div(a * 8 + b, 4);
  EXPECT_EQ(substitute(x, {{"b", 6}}), a * 2 + 1);
  EXPECT_EQ(substitute(a + b, {{"a", b}, {"b", a}}), a + b);  // all at once
  EXPECT_TRUE(substitute(x, {{"n", 1}}).same_node(x));
  EXPECT_TRUE(substitute(x, {{"b", b}, {"a", a}}) == x);
}

TEST(SymText, RoundTrip) {
  for (const char* text :
       {"0", "-5", "a", "-a", "a*4", "-a*4", "a - b*3 + 1", "a.b + c_1", "min(a, b, 3)", "max(a, floor_div(b, n))",
        "select(lt(a, b), n, mod(n, 3))", "eq(a, b + 1)", "ne(a, 0)", "le(a, b)", "-9223372036854775808",
        "a*-9223372036854775808", "a + -9223372036854775808", "a*b*b - 9223372036854775807"}) {
    EXPECT_EQ(to_string(parse_expr(text)), text);
  }
  // A product too large to expand keeps its sums.
  Expr sum = 0;
  for (int i = 0; i < 8; ++i) sum = sum + Expr::symbol("x" + std::to_string(i));
  const Expr wide = sum * (sum + 1) * 3;
  EXPECT_EQ(parse_expr(to_string(wide)), wide);
  EXPECT_EQ(wide - wide, 0);
  EXPECT_EQ(sum * 3 - sum * 2 - sum, 0);
}

TEST(SymText, ParsesWhatIsNotCanonical) {
  EXPECT_EQ(parse_expr(" ( a+ 2 ) * - (b)\n- 3*-4"), -a * b - 2 * b + 12);
  EXPECT_EQ(parse_expr("--a"), a);
  EXPECT_EQ(parse_expr("min"), Expr::symbol("min"));
}

TEST(SymText, LexerStopsBehindTheExpression) {
  base::Lexer lexer("a*4 + 1, b");
  EXPECT_EQ(parse_expr(lexer), a * 4 + 1);
  lexer.expect(",");
  EXPECT_EQ(parse_expr(lexer), b);
  EXPECT_TRUE(lexer.at_end());
}

TEST(SymText, Errors) {
  for (const char* text : {"", "a +", "a b", "(a", "f(a)", "min(a)", "mod(a)", "select(a, b)", "floor_div(a, b, n)",
                           "4.5", "9223372036854775808", "a * * b", "\"a\""}) {
    EXPECT_THROW(parse_expr(text), UserError) << text;
  }
  EXPECT_THROW(parse_expr(std::string(100000, '(')), UserError);
  EXPECT_THROW(parse_expr(std::string(100000, '-') + "1"), UserError);
  try {
    parse_expr("a + foo(b)");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("unknown function 'foo'"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("<expression>:1:"), std::string::npos) << error.what();
  }
}

// Shared subexpressions must cost once, not once per path: 2^60 paths, or the test does not end.
TEST(SymExpr, SharingDoesNotExplode) {
  const auto start = std::chrono::steady_clock::now();
  Facts facts;
  facts.symbols["a"] = facts.symbols["b"] = Facts::size();
  facts.symbols["n"] = {.low = 1};
  const auto grow = [&](int levels) {
    Expr x = a;
    for (int i = 0; i < levels; ++i) {
      switch (i % 3) {
        case 0:
          x = floor_div(x + mod(x, 3) * 5 + b, 7);
          break;
        case 1:
          x = max(min(x, b + i), floor_div(x, n)) + i;
          break;
        default:
          x = select(lt(x, n * i), x + 1, mod(x, n + i));
          break;
      }
    }
    return x;
  };
  const Expr x = grow(60), y = grow(60);
  EXPECT_EQ(x, y);
  EXPECT_FALSE(x < y);
  EXPECT_EQ(symbols_of(x).size(), 3u);
  const Expr simple = simplify(x, facts);
  const Expr substituted = substitute(x, {{"a", b + 1}});
  EXPECT_GE(bounds(x, facts).high, bounds(x, facts).low);
  const std::map<std::string, int64_t> point = {{"a", 1234567}, {"b", 89}, {"n", 5}};
  EXPECT_EQ(evaluate(x, point), evaluate(simple, point));
  EXPECT_NE(substituted, x);
  Expr sum = 0;
  for (int i = 0; i < 500; ++i)
    sum = sum + Expr::symbol("s" + std::to_string(i)) * i + floor_div(Expr::symbol("t"), i + 2);
  EXPECT_TRUE(simplify(sum, facts) == sum);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("shared and wide expressions: %.3f s\n", seconds);
  EXPECT_LT(seconds, 5);
}

}  // namespace
}  // namespace fuseloom::sym
