// What symbolic integers cost: building and simplifying at compile time, evaluating at every launch.
#include <benchmark/benchmark.h>

#include "sym/evaluator.h"
#include "sym/expr.h"

namespace fuseloom::sym {
namespace {

void evaluate_linear(benchmark::State& state) {
  std::vector<std::string> symbols;
  Expr expr = 3;
  for (int i = 0; i < state.range(0); ++i) {
    symbols.push_back("s" + std::to_string(i));
    expr = expr + Expr::symbol(symbols.back()) * (i + 5);
  }
  const Evaluator evaluator(symbols, {&expr, 1});
  std::vector<int64_t> values(symbols.size(), 7), scratch(evaluator.scratch_size());
  int64_t result = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(values.data());
    evaluator.evaluate(values, scratch, {&result, 1});
    benchmark::DoNotOptimize(result);
  }
}
BENCHMARK(evaluate_linear)->Arg(1)->Arg(10)->Arg(100);

// Grid, block and three strides of a tiled kernel.
void evaluate_launch(benchmark::State& state) {
  const std::vector<std::string> symbols = {"b", "h", "w"};
  std::vector<Expr> exprs;
  for (const char* text :
       {"floor_div(b*h*w + 1023, 1024)", "min(w, 1024)", "h*w", "b*h*w*4", "floor_div(w + 3, 4)*4"}) {
    exprs.push_back(parse_expr(text));
  }
  const Evaluator evaluator(symbols, exprs);
  std::vector<int64_t> values = {8, 224, 224}, scratch(evaluator.scratch_size()), results(exprs.size());
  for (auto _ : state) {
    benchmark::DoNotOptimize(values.data());
    evaluator.evaluate(values, scratch, results);
    benchmark::DoNotOptimize(results.data());
  }
}
BENCHMARK(evaluate_launch);

void build_sum(benchmark::State& state) {
  const Expr a = Expr::symbol("a"), b = Expr::symbol("b"), c = Expr::symbol("c");
  for (auto _ : state) benchmark::DoNotOptimize(a * 4 + b * c + 7);
}
BENCHMARK(build_sum);

void build_quotient(benchmark::State& state) {
  const Expr a = parse_expr("a*8 + b + 4");
  for (auto _ : state) benchmark::DoNotOptimize(floor_div(a, 4));
}
BENCHMARK(build_quotient);

// The digits of a linearised index over symbolic extents.
void simplify_index(benchmark::State& state) {
  Facts facts;
  Expr linear, last;
  for (int axis = 0; axis < state.range(0); ++axis) {
    const Expr extent = Expr::symbol("s" + std::to_string(axis)), index = Expr::symbol("i" + std::to_string(axis));
    facts.symbols[extent.name()] = Facts::size();
    facts.upper_exclusive[index.name()] = extent;
    linear = linear * extent + index;
    last = extent;
  }
  const Expr expr = floor_div(linear, last);
  for (auto _ : state) benchmark::DoNotOptimize(simplify(expr, facts));
}
BENCHMARK(simplify_index)->DenseRange(2, 6);

void parse(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(parse_expr("floor_div(a*8 + b + 4, 4) + min(a, b*2)*n - 3"));
}
BENCHMARK(parse);

}  // namespace
}  // namespace fuseloom::sym

BENCHMARK_MAIN();
