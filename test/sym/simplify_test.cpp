#include <gtest/gtest.h>

#include "sym/expr.h"

namespace fuseloom::sym {
namespace {

std::string canonical(std::string_view text) { return to_string(parse_expr(text)); }

struct Golden {
  const char* text;
  const char* expected;
};

TEST(SymCanonical, Golden) {
  const Golden cases[] = {
      // Sums and products.
      {"a + a", "a*2"},
      {"a - a", "0"},
      {"b + 3 + a - 5", "a + b - 2"},
      {"(a + b)*2 - 2*a - 2*b", "0"},
      {"(a + b)*(a - b)", "a*a - b*b"},
      {"(a + 1)*(b + 1) - a*b", "a + b + 1"},
      {"-(a - b)", "-a + b"},
      {"3*a*0 + 0*b", "0"},
      {"a*4*b*2", "a*b*8"},
      {"-9223372036854775808 + a", "a + -9223372036854775808"},
      // Quotients.
      {"floor_div(a*8 + 4, 4)", "a*2 + 1"},
      {"floor_div(floor_div(a, 3), 4)", "floor_div(a, 12)"},
      {"floor_div(floor_div(a, 3) + 1, 4)", "floor_div(a + 3, 12)"},
      {"floor_div(a, 1)", "a"},
      {"floor_div(a, -1)", "-a"},
      {"floor_div(a, 0)", "0"},
      {"floor_div(-7, 2)", "-4"},
      {"floor_div(a*6 + 5, 4)", "a + floor_div(a, 2) + 1"},
      {"floor_div(a*4 + mod(b, 4), 8)", "floor_div(a, 2)"},
      {"floor_div(mod(a, 4), 4)", "0"},
      {"floor_div(mod(a, 12), 4)", "mod(floor_div(a, 4), 3)"},
      {"floor_div(-a, 4) + floor_div(a + 3, 4)", "0"},
      {"floor_div(a, a)", "floor_div(a, a)"},
      // Remainders.
      {"mod(a, 1)", "0"},
      {"mod(a, 0)", "0"},
      {"mod(-7, 4)", "1"},
      {"mod(7, -4)", "-1"},
      {"mod(a*8 + b, 4)", "mod(b, 4)"},
      {"mod(a*4, 8)", "mod(a, 2)*4"},
      {"mod(a*4 + 3, 8)", "mod(a, 2)*4 + 3"},
      {"mod(mod(a, 8), 4)", "mod(a, 4)"},
      {"mod(mod(a, 4), 8)", "mod(a, 4)"},
      {"mod(a*n + b, n)", "mod(b, n)"},
      {"mod(a*4 + mod(b, 4), 8)", "mod(a, 2)*4 + mod(b, 4)"},
      // Together again.
      {"floor_div(a, 4)*4 + mod(a, 4)", "a"},
      {"a - floor_div(a, 4)*4", "mod(a, 4)"},
      {"floor_div(a, 12)*12 + mod(floor_div(a, 4), 3)*4 + mod(a, 4)", "a"},
      {"mod(floor_div(a, 4), 3)*4 + mod(a, 4)", "mod(a, 12)"},
      {"(floor_div(a + b, 4)*4 + mod(a + b, 4))*n", "a*n + b*n"},
      // min, max.
      {"min(b, a, min(c, a))", "min(a, b, c)"},
      {"min(a, 3, 5)", "min(a, 3)"},
      {"min(a, a + 3)", "a"},
      {"max(a, a + 3, b)", "max(b, a + 3)"},
      {"min(a, max(a, b))", "a"},
      {"max(mod(a, 4), 5)", "5"},
      // Comparisons.
      {"lt(a, a + 1)", "1"},
      {"le(a + 1, a)", "0"},
      {"lt(a + 2, b + 2)", "lt(a, b)"},
      {"le(a + 1, b)", "lt(a, b)"},
      {"lt(a*4, 7)", "le(a, 1)"},
      {"eq(a*4, 7)", "0"},
      {"eq(b, a)", "eq(a, b)"},
      {"ne(lt(a, b), 0)", "lt(a, b)"},
      {"eq(lt(a, b), 0)", "le(b, a)"},
      {"lt(mod(a, 4), 4)", "1"},
      {"eq(a, b) + eq(b, a)", "eq(a, b)*2"},
      // select.
      {"select(1, a, b)", "a"},
      {"select(c, a, a)", "a"},
      {"select(c, a, b)", "select(ne(c, 0), a, b)"},
      {"select(lt(a, b), a, b)", "min(a, b)"},
      {"select(lt(a, b), b, a)", "max(a, b)"},
      {"select(le(b, a), a, b)", "max(a, b)"},
      {"select(lt(a, b), 1, 0)", "lt(a, b)"},
      {"select(lt(a, b), 0, 1)", "le(b, a)"},
  };
  for (const Golden& golden : cases) {
    EXPECT_EQ(canonical(golden.text), golden.expected) << golden.text;
  }
}

// i < s0, j < s1, k < s2, x < s0*s1*s2; v is a multiple of 4 and t < 128.
Facts index_facts() {
  Facts facts;
  for (const char* name : {"s", "s0", "s1", "s2", "a", "b"}) facts.symbols[name] = Facts::size();
  facts.symbols["v"] = {.low = 0, .divisor = 4};
  facts.symbols["t"] = {.low = 0, .high = 127};
  facts.upper_exclusive = {
      {"i", Expr::symbol("s0")}, {"j", Expr::symbol("s1")}, {"k", Expr::symbol("s2")}, {"x", parse_expr("s0*s1*s2")}};
  facts.nonzero = {parse_expr("a*b + b")};
  return facts;
}

TEST(SymSimplify, Golden) {
  const Golden cases[] = {
      // Linearised indices with symbolic extents.
      {"floor_div(i*s1 + j, s1)", "i"},
      {"mod(i*s1 + j, s1)", "j"},
      {"mod(j, s1)", "j"},
      {"floor_div(i*s1*s2 + j*s2 + k, s1*s2)", "i"},
      {"floor_div(i*s1*s2 + j*s2 + k, s2)", "i*s1 + j"},
      {"mod(floor_div(i*s1*s2 + j*s2 + k, s2), s1)", "j"},
      {"mod(i*s1*s2 + j*s2 + k, s2)", "k"},
      {"mod(i*s1*s2 + j*s2 + k, s1*s2)", "j*s2 + k"},
      {"floor_div(j*s2 + k, s1*s2)", "0"},
      {"floor_div(i*s2 + k, s1*s2)", "floor_div(i, s1)"},
      {"mod(i*s2 + k, s1*s2)", "s2*mod(i, s1) + k"},
      // Delinearise and linearise again.
      {"floor_div(x, s1*s2)*s1*s2 + mod(floor_div(x, s2), s1)*s2 + mod(x, s2)", "x"},
      {"floor_div(x, s2)*s2 + mod(x, s2)", "x"},
      {"mod(floor_div(x, s2), s1)*s2 + mod(x, s2)", "mod(x, s1*s2)"},
      {"floor_div(floor_div(x, s2), s1)", "floor_div(x, s1*s2)"},
      {"mod(floor_div(x, s1*s2), s0)", "floor_div(x, s1*s2)"},
      {"floor_div(x, s0*s1*s2)", "0"},
      {"lt(floor_div(x, s1*s2), s0)", "1"},
      {"lt(i*s1 + j, s0*s1)", "1"},
      {"le(s0*s1, i*s1 + j)", "0"},
      // Common factors (R50).
      {"floor_div(s*(a*b + b), a*b + b)", "s"},
      {"floor_div(s*s1, s1*s2)", "floor_div(s, s2)"},
      {"floor_div(s1, s1)", "1"},
      {"floor_div(a*b + b, a + 1)", "b"},
      // Divisibility.
      {"floor_div(v, 4)*4", "v"},
      {"mod(v + 3, 4)", "3"},
      {"floor_div(v + 3, 4)", "floor_div(v, 4)"},
      {"mod(v*3, 12)", "0"},
      {"eq(v, 2)", "0"},
      // Intervals.
      {"floor_div(t, 128)", "0"},
      {"mod(t, 32) + floor_div(t, 32)*32", "t"},
      {"floor_div(s*128 + t, 128)", "s"},
      {"min(t, 200)", "t"},
      {"max(s, 0)", "s"},
      {"select(lt(t, 128), a, b)", "a"},
      {"min(i, s0 - 1)", "i"},
      {"max(min(i, 7), 0)", "min(i, 7)"},
  };
  const Facts facts = index_facts();
  for (const Golden& golden : cases) {
    const Expr expr = parse_expr(golden.text);
    EXPECT_EQ(to_string(simplify(expr, facts)), golden.expected) << golden.text << " canonical: " << to_string(expr);
  }
}

}  // namespace
}  // namespace fuseloom::sym
