#include "sym/evaluator.h"

#include <gtest/gtest.h>

#include <chrono>

#include "fuseloom/error.h"
#include "random_expr.h"

namespace fuseloom::sym {
namespace {

int64_t run(const Evaluator& evaluator, std::vector<int64_t> symbols, size_t result = 0) {
  std::vector<int64_t> scratch(evaluator.scratch_size()), results(evaluator.result_count());
  evaluator.evaluate(symbols, scratch, results);
  return results[result];
}

TEST(SymEvaluator, EveryKind) {
  const std::vector<std::string> symbols = {"b", "a"};
  const struct {
    const char* text;
    int64_t expected;  // a = -7, b = 3
  } cases[] = {
      {"5", 5},
      {"a", -7},
      {"a + b", -4},
      {"a*b*2 + 1", -41},
      {"floor_div(a, b)", -3},
      {"floor_div(a, 4)", -2},
      {"floor_div(a, 5)", -2},
      {"floor_div(a, b - 3)", 0},
      {"mod(a, b)", 2},
      {"mod(a, 4)", 1},
      {"mod(a, 5)", 3},
      {"mod(a, b - 3)", 0},
      {"mod(b, a)", -4},
      {"min(a, b, -9)", -9},
      {"max(a, b, 1)", 3},
      {"eq(a, b)", 0},
      {"ne(a, b)", 1},
      {"lt(a, b)", 1},
      {"le(b, a)", 0},
      {"select(lt(a, b), 10, b)", 10},
      {"select(lt(b, a), 10, b)", 3},
  };
  std::vector<Expr> exprs;
  for (const auto& test : cases) exprs.push_back(parse_expr(test.text));
  const Evaluator all(symbols, exprs);
  EXPECT_EQ(all.symbol_count(), 2u);
  for (size_t i = 0; i < exprs.size(); ++i) {
    EXPECT_EQ(run(all, {3, -7}, i), cases[i].expected) << cases[i].text;
    EXPECT_EQ(run(Evaluator(symbols, {&exprs[i], 1}), {3, -7}), cases[i].expected) << cases[i].text;
    EXPECT_EQ(evaluate(exprs[i], {{"a", -7}, {"b", 3}}), cases[i].expected) << cases[i].text;
  }
}

TEST(SymEvaluator, Wraps) {
  EXPECT_EQ(evaluate(parse_expr("a + 1"), {{"a", INT64_MAX}}), INT64_MIN);
  EXPECT_EQ(evaluate(parse_expr("a*a"), {{"a", INT64_MIN}}), 0);
  EXPECT_EQ(evaluate(parse_expr("floor_div(a, b)"), {{"a", INT64_MIN}, {"b", -1}}), INT64_MIN);
  EXPECT_EQ(evaluate(parse_expr("mod(a, b)"), {{"a", INT64_MIN}, {"b", -1}}), 0);
}

TEST(SymEvaluator, SharesSubexpressions) {
  const std::vector<std::string> symbols = {"a", "b"};
  const Expr common = parse_expr("floor_div(a, b)");
  const std::vector<Expr> exprs = {common, common + 1, common * common, common};
  const Evaluator evaluator(symbols, exprs);
  // Two symbols, one quotient, one sum, one square.
  EXPECT_EQ(evaluator.scratch_size(), 5u);
  EXPECT_EQ(run(evaluator, {17, 5}, 2), 9);
}

TEST(SymEvaluator, Empty) {
  const Evaluator evaluator;
  EXPECT_EQ(evaluator.scratch_size(), 0u);
  evaluator.evaluate({}, {}, {});
}

TEST(SymEvaluator, Errors) {
  const std::vector<std::string> symbols = {"a"}, twice = {"a", "a"};
  const Expr expr = parse_expr("a + b");
  EXPECT_THROW(Evaluator(symbols, {&expr, 1}), InternalError);
  EXPECT_THROW(Evaluator(twice, {}), InternalError);
  try {
    evaluate(expr, {{"a", 1}});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "symbol 'b' has no value in a + b");
  }
}

// Ten terms, as in the offset of a strided tensor. The bound is generous: it is a test, not a benchmark.
TEST(SymEvaluator, TakesNanoseconds) {
  std::vector<std::string> symbols;
  std::vector<int64_t> values;
  Expr expr = 3;
  for (int i = 0; i < 10; ++i) {
    symbols.push_back("s" + std::to_string(i));
    values.push_back(i + 1);
    expr = expr + Expr::symbol(symbols.back()) * (i + 5);
  }
  const Evaluator evaluator(symbols, {&expr, 1});
  std::vector<int64_t> scratch(evaluator.scratch_size());
  int64_t result = 0, sum = 0;
  double best = 1e9;
  for (int repeat = 0; repeat < 5; ++repeat) {
    constexpr int kCalls = 20000;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) {
      values[0] = i;
      evaluator.evaluate(values, scratch, {&result, 1});
      sum += result;
    }
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
    best = std::min(best, time.count() / kCalls);
  }
  std::printf("ten-term expression: %.1f ns per evaluation (checksum %lld)\n", best, static_cast<long long>(sum));
  EXPECT_LT(best, 1000);
}

}  // namespace
}  // namespace fuseloom::sym
