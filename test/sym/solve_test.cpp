#include <gtest/gtest.h>

#include "random_expr.h"
#include "sym/evaluator.h"

namespace fuseloom::sym {
namespace {

TEST(SymSolve, Golden) {
  Facts facts;
  facts.symbols["h"] = {.low = 1};
  facts.nonzero = {parse_expr("p*q + q")};
  const struct {
    const char *expr, *expected;  // expected: nullptr when there is no answer
  } cases[] = {
      {"s", "t"},
      {"s + 3", "t - 3"},
      {"s*4", "floor_div(t, 4)"},
      {"5 - s*2", "-floor_div(t, 2) + 2"},
      {"s*4 + a*8 + 4", "-a*2 + floor_div(t, 4) - 1"},
      {"s*h", "floor_div(t, h)"},
      {"s*h*2 + a", "floor_div(-a + t, h*2)"},
      {"s*p*q + s*q", "floor_div(t, p*q + q)"},
      {"s*q", "floor_div(t, q)"},
      {"s*a", nullptr},
      {"s*s", nullptr},
      {"s + mod(s, 4)", nullptr},
      {"mod(s, 4)", nullptr},
      {"floor_div(s, 2)", "t*2"},
      {"floor_div(s + 3, 4)", "t*4 - 3"},
      {"floor_div(s - 1, 2)*3 + 1", "floor_div(t + 2, 3)*2 - 1"},
      {"floor_div(s*7, 120)", "t*17 + floor_div(t + 6, 7)"},
      {"floor_div(5 - s*h, 4)", "-floor_div(t*4 - 2, h)"},
      {"floor_div(s, a)", nullptr},
      {"a + 1", nullptr},
      {"min(s, 4)", nullptr},
  };
  for (const auto& test : cases) {
    const auto solution = solve_for(parse_expr(test.expr), "s", Expr::symbol("t"), facts);
    if (!test.expected) {
      EXPECT_FALSE(solution.has_value()) << test.expr << ": " << to_string(*solution);
    } else {
      ASSERT_TRUE(solution.has_value()) << test.expr;
      EXPECT_EQ(to_string(*solution), test.expected) << test.expr;
    }
  }
}

// When some value of the symbol gives the target, the answer does.
TEST(SymSolve, AnswersAreSolutions) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(kFuzzSeed));
  int solved = 0;
  for (int test = 0; test < 4000; ++test) {
    const uint64_t seed = kFuzzSeed + 4000000 + static_cast<uint64_t>(test);
    const std::vector<std::map<std::string, int64_t>> points(1);
    RandomExpr random(seed, {"s", "a", "b"}, {});
    const std::map<std::string, int64_t> point = {
        {"s", random.uniform(-9, 30)}, {"a", random.uniform(1, 9)}, {"b", random.uniform(-5, 9)}};
    random.set_points({point});
    const RandomExpr::Result side = random(static_cast<int>(random.uniform(0, 2)));
    const RandomExpr::Result expr = random(static_cast<int>(random.uniform(1, 3)));
    Facts facts;
    facts.symbols["a"] = {.low = 1};
    SCOPED_TRACE("case seed " + std::to_string(seed) + ": " + to_string(expr.expr));
    const auto solution = solve_for(expr.expr, "s", Expr::symbol("t"), facts);
    if (!solution) continue;
    ++solved;
    std::map<std::string, int64_t> bound = point;
    bound["t"] = expr.values[0];
    bound["s"] = evaluate(*solution, bound);
    ASSERT_EQ(evaluate(expr.expr, bound), expr.values[0]) << to_string(*solution);
  }
  EXPECT_GT(solved, 400);
}

}  // namespace
}  // namespace fuseloom::sym
