#include <gtest/gtest.h>

#include "sym/expr.h"

namespace fuseloom::sym {
namespace {

Expr parse(const char* text) { return parse_expr(text); }

TEST(SymBounds, Golden) {
  Facts facts;
  facts.symbols["a"] = {.low = 0, .high = 10};
  facts.symbols["b"] = {.low = -3, .high = 5, .divisor = 2};  // -2, 0, 2, 4
  facts.symbols["s"] = Facts::size();
  facts.symbols["v"] = {.low = 1, .high = Range::kMax, .divisor = 8};
  facts.symbols["z"] = {.divisor = 0};
  facts.upper_exclusive = {{"i", parse("a")}, {"j", parse("s")}, {"k", 7}};
  constexpr int64_t kMin = Range::kMin, kMax = Range::kMax;
  const struct {
    const char* text;
    int64_t low, high, divisor;
  } cases[] = {
      {"5", 5, 5, 5},
      {"unknown", kMin, kMax, 1},
      {"a", 1, 10, 1},  // 0 <= i < a
      {"b", -2, 4, 2},
      {"z", 0, 0, 0},
      {"i", 0, 9, 1},
      {"j", 0, kMax, 1},
      {"k", 0, 6, 1},
      {"a + b", -1, 14, 1},
      {"a - b*3", -11, 16, 1},
      {"v*3", 24, kMax, 24},
      {"v*b", kMin, kMax, 16},
      {"v*4 + b", 30, kMax, 2},
      {"floor_div(a, 3)", 0, 3, 1},
      {"floor_div(b, -2)", -2, 1, 1},
      {"floor_div(v, 4)", 2, kMax, 2},
      {"floor_div(a, v)", 0, 1, 1},
      {"floor_div(b, s)", -2, 4, 1},
      {"mod(unknown, 6)", 0, 5, 1},
      {"mod(b, 6)", 0, 4, 2},
      {"mod(unknown, -6)", -5, 0, 1},
      {"mod(a, v)", 0, 10, 1},
      {"mod(unknown, k)", 0, 5, 1},
      {"min(a, b)", -2, 4, 1},
      {"max(a, b, s)", 1, kMax, 1},
      {"lt(b, 7)", 1, 1, 1},
      {"eq(a, b)", 0, 1, 1},
      {"select(lt(a, s), b, v)", -2, kMax, 2},
      {"s*s*1000000", 1000000, kMax, 1000000},
  };
  for (const auto& test : cases) {
    const Range range = bounds(parse(test.text), facts);
    EXPECT_EQ(range.low, test.low) << test.text;
    EXPECT_EQ(range.high, test.high) << test.text;
    EXPECT_EQ(range.divisor, test.divisor) << test.text;
  }
}

TEST(SymBounds, Saturates) {
  Facts facts;
  facts.symbols["a"] = {.low = -(int64_t{1} << 62), .high = int64_t{1} << 62};
  EXPECT_EQ(bounds(parse("a*4"), facts).low, Range::kMin);
  EXPECT_EQ(bounds(parse("a*4"), facts).high, Range::kMax);
  EXPECT_EQ(bounds(parse("a*a*a*a"), facts).high, Range::kMax);
  EXPECT_EQ(bounds(parse("max(a, 1) + 9223372036854775807"), facts).high, Range::kMax);
}

TEST(SymBounds, CyclicBoundsEnd) {
  Facts facts;
  facts.upper_exclusive = {{"i", parse("j + 1")}, {"j", parse("i + 1")}};
  EXPECT_EQ(bounds(parse("i + j"), facts).low, 0);
  EXPECT_EQ(simplify(parse("max(i, 0)"), facts), parse("i"));
  EXPECT_EQ(prove_less_equal(parse("i"), 100, facts), Proof::Unknown);
}

// What a kernel asks about its guards. n is a multiple of 128, m is any size.
TEST(SymProof, Guards) {
  Facts facts;
  facts.symbols["n"] = {.low = 0, .divisor = 128};
  facts.symbols["m"] = Facts::size();
  facts.symbols["t"] = {.low = 0, .high = 127};
  facts.upper_exclusive = {{"block", parse("floor_div(n + 127, 128)")},
                           {"tail", parse("floor_div(m + 127, 128)")},
                           {"i", parse("n")},
                           {"j", parse("i + 1")},
                           {"x", parse("n*m")},
                           {"part", parse("min(m - tail*128, 128)")}};
  const struct {
    const char *left, *right;
    Proof less_equal;
  } cases[] = {
      {"block*128 + t", "n - 1", Proof::Yes},          // no guard: the extent is a multiple of the block
      {"tail*128 + t", "m - 1", Proof::Unknown},       // a guard
      {"tail*128", "m - 1", Proof::Yes},               // every block has work
      {"tail*128 + part", "m - 1", Proof::Yes},        // a clipped block
      {"floor_div(i, 4)*4 + 3", "n - 1", Proof::Yes},  // a vector of four
      {"j", "n - 1", Proof::Yes},                      // a triangle
      {"n", "i", Proof::No},
      {"floor_div(x, m)", "n - 1", Proof::Yes},
      {"floor_div(x, m)*m + mod(x, m)", "n*m - 1", Proof::Yes},
      {"n", "n*m", Proof::Yes},  // x exists, so that m >= 1
      {"n*m", "n", Proof::Unknown},
      {"min(m, 128)*floor_div(n, 128)", "n", Proof::Yes},
      {"m", "floor_div(m + 3, 4)*4", Proof::Yes},
      {"floor_div(m + 3, 4)*4", "m + 3", Proof::Yes},
      {"floor_div(m + 3, 4)*4", "m + 2", Proof::Unknown},
      {"max(i, j)", "n - 1", Proof::Yes},
      {"select(eq(t, 0), i, j)", "n - 1", Proof::Yes},
  };
  for (const auto& test : cases) {
    EXPECT_EQ(prove_less_equal(parse(test.left), parse(test.right), facts), test.less_equal)
        << test.left << " <= " << test.right;
  }
}

TEST(SymProof, Equality) {
  Facts facts;
  facts.symbols["s"] = Facts::size();
  facts.symbols["v"] = {.divisor = 4};
  EXPECT_EQ(prove_equal(parse("(a + b)*(a - b)"), parse("a*a - b*b")), Proof::Yes);
  EXPECT_EQ(prove_equal(parse("a"), parse("a + 1")), Proof::No);
  EXPECT_EQ(prove_equal(parse("a"), parse("b")), Proof::Unknown);
  EXPECT_EQ(prove_equal(parse("s"), -1, facts), Proof::No);
  EXPECT_EQ(prove_equal(parse("v"), parse("v*3 + 2"), facts), Proof::No);
  EXPECT_EQ(prove_equal(parse("floor_div(v, 4)*4"), parse("v"), facts), Proof::Yes);
  EXPECT_EQ(prove_equal(parse("min(s, 0)"), 0, facts), Proof::Yes);
}

TEST(SymProof, Divisibility) {
  Facts facts;
  facts.symbols["v"] = {.divisor = 4};
  EXPECT_EQ(prove_divisible(parse("v*a*2"), 8, facts), Proof::Yes);
  EXPECT_EQ(prove_divisible(parse("v + 2"), 4, facts), Proof::No);
  EXPECT_EQ(prove_divisible(parse("v + 2"), 2, facts), Proof::Yes);
  EXPECT_EQ(prove_divisible(parse("v"), 8, facts), Proof::Unknown);
  EXPECT_EQ(prove_divisible(parse("v"), -4, facts), Proof::Yes);
  EXPECT_EQ(prove_divisible(parse("floor_div(a, 3)*6"), 3), Proof::Yes);
  EXPECT_EQ(prove_divisible(parse("min(v, v*a)"), 4, facts), Proof::Yes);
  EXPECT_EQ(prove_divisible(0, 0), Proof::Yes);
  EXPECT_EQ(prove_divisible(3, 0), Proof::No);
}

TEST(SymProof, LargeNumbersProveNothing) {
  Facts facts;
  facts.symbols["a"] = {.low = 0, .high = int64_t{1} << 61};
  facts.symbols["b"] = Facts::size();
  EXPECT_EQ(prove_less_equal(parse("a*16 - b*a"), 0, facts), Proof::Unknown);
  EXPECT_EQ(prove_less_equal(parse("a*16"), parse("b"), facts), Proof::Unknown);
}

}  // namespace
}  // namespace fuseloom::sym
