// Properties that every expression has: canonical form and simplification keep the value, text is exact, bounds hold.
#include <gtest/gtest.h>

#include <cstdio>

#include "random_expr.h"
#include "sym/evaluator.h"

namespace fuseloom::sym {
namespace {

using Point = std::map<std::string, int64_t>;

const std::vector<std::string> kNames = {"a", "b", "c", "i", "j", "n"};

// Facts, and points that satisfy them.
struct World {
  Facts facts;
  std::vector<Point> points;
};

World random_world(RandomExpr& random, size_t point_count) {
  World world;
  Facts& facts = world.facts;
  for (const char* name : {"a", "b", "c", "n"}) {
    Range range;
    switch (random.uniform(0, 4)) {
      case 0: range = Facts::size(); break;
      case 1: range = {.low = 1, .high = Range::kMax, .divisor = random.uniform(1, 4)}; break;
      case 2: range = {.low = random.uniform(-9, 0), .high = random.uniform(0, 9)}; break;
      case 3: range = {.divisor = random.uniform(0, 8)}; break;
      default: continue;
    }
    facts.symbols[name] = range;
  }
  const bool bounded = random.uniform(0, 1) != 0, nested = random.uniform(0, 1) != 0;
  if (bounded) {
    facts.upper_exclusive["i"] = Expr::symbol("n");
    facts.upper_exclusive["j"] = nested ? Expr::symbol("i") + 1 : Expr::symbol("n") * Expr::symbol("a");
  }
  const auto value_of = [&](const std::string& name) {
    const auto it = facts.symbols.find(name);
    if (it == facts.symbols.end()) return random.uniform(-20, 20);
    const Range& range = it->second;
    const int64_t low = std::max<int64_t>(range.low, -24), high = std::min<int64_t>(range.high, 24);
    if (range.divisor == 0) return int64_t{0};
    int64_t value = random.uniform(low, high);
    value -= reference_mod(value, range.divisor);
    return value < low ? value + range.divisor : value;
  };
  while (world.points.size() < point_count) {
    bool found = false;
    for (int attempt = 0; attempt < 50 && !found; ++attempt) {
      Point point;
      for (const std::string& name : kNames) point[name] = value_of(name);
      if (bounded) {
        if (point["n"] <= 0) continue;
        point["i"] = random.uniform(0, point["n"] - 1);
        const int64_t extent = nested ? point["i"] + 1 : point["n"] * point["a"];
        if (extent <= 0) continue;
        point["j"] = random.uniform(0, extent - 1);
      }
      world.points.push_back(point);
      found = true;
    }
    if (!found) return random_world(random, point_count);  // no point satisfies these facts
  }
  if (random.uniform(0, 1) != 0) {
    for (const Expr& candidate : {Expr::symbol("a") * Expr::symbol("b") + Expr::symbol("b"), Expr::symbol("c")}) {
      bool nonzero = true;
      for (const Point& point : world.points) nonzero &= evaluate(candidate, point) != 0;
      if (nonzero) facts.nonzero.push_back(candidate);
    }
  }
  return world;
}

std::string describe(const Facts& facts) {
  std::string out;
  for (const auto& [name, range] : facts.symbols) {
    out += name + " in [" + std::to_string(range.low) + ", " + std::to_string(range.high) + "] by " +
           std::to_string(range.divisor) + "; ";
  }
  for (const auto& [name, bound] : facts.upper_exclusive) out += name + " < " + to_string(bound) + "; ";
  for (const Expr& expr : facts.nonzero) out += to_string(expr) + " != 0; ";
  return out;
}

TEST(SymFuzz, EveryExpressionKeepsItsValue) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(kFuzzSeed));
  constexpr int kCases = 20000;
  for (int test = 0; test < kCases; ++test) {
    const uint64_t seed = kFuzzSeed + static_cast<uint64_t>(test);
    RandomExpr random(seed, kNames, {});
    const World world = random_world(random, 4);
    random.set_points(world.points);
    const RandomExpr::Result result = random(static_cast<int>(random.uniform(1, 4)));
    const Expr& expr = result.expr;
    const std::string text = to_string(expr);
    SCOPED_TRACE("case seed " + std::to_string(seed) + ": " + text + " with " + describe(world.facts));

    // Text is exact.
    ASSERT_EQ(parse_expr(text), expr) << to_string(parse_expr(text));

    const Expr simple = simplify(expr, world.facts);
    SCOPED_TRACE("simplified: " + to_string(simple));
    ASSERT_TRUE(simplify(simple, world.facts).same_node(simple)) << to_string(simplify(simple, world.facts));
    ASSERT_EQ(parse_expr(to_string(simple)), simple) << to_string(parse_expr(to_string(simple)));

    const Range range = bounds(expr, world.facts), plain = bounds(expr, {});
    const Range simple_range = bounds(simple, world.facts);
    for (size_t i = 0; i < world.points.size(); ++i) {
      const int64_t value = result.values[i];
      ASSERT_EQ(evaluate(expr, world.points[i]), value) << "canonical form, point " << i;
      ASSERT_EQ(evaluate(simple, world.points[i]), value) << "simplified, point " << i;
      for (const Range& bound : {range, plain, simple_range}) {
        ASSERT_LE(bound.low, value);
        ASSERT_GE(bound.high, value);
        ASSERT_EQ(bound.divisor == 0 ? value : value % bound.divisor, 0) << "divisor " << bound.divisor;
      }
    }
  }
}

}  // namespace
}  // namespace fuseloom::sym
