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
      case 0:
        range = Facts::size();
        break;
      case 1:
        range = {.low = 1, .high = Range::kMax, .divisor = random.uniform(1, 4)};
        break;
      case 2:
        range = {.low = random.uniform(-9, 0), .high = random.uniform(0, 9)};
        break;
      case 3:
        range = {.divisor = random.uniform(0, 8)};
        break;
      default:
        continue;
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

// Quotients and remainders by products of symbols, taken apart and put together: every rule on them has a condition on
// the sign of the divisor, which the facts may or may not meet.
TEST(SymFuzz, SymbolicDivisorsKeepTheirValue) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(kFuzzSeed));
  constexpr int kCases = 5000;
  for (int test = 0; test < kCases; ++test) {
    const uint64_t seed = kFuzzSeed + 5000000 + static_cast<uint64_t>(test);
    RandomExpr random(seed, kNames, {});
    const World world = random_world(random, 8);
    random.set_points(world.points);
    using Result = RandomExpr::Result;
    const auto combine = [&](const Result& x, const Result& y, auto&& build, auto&& value) {
      Result result{build(x.expr, y.expr), {}};
      for (size_t i = 0; i < x.values.size(); ++i) result.values.push_back(value(x.values[i], y.values[i]));
      return result;
    };
    const auto add = [&](const Result& x, const Result& y) {
      return combine(
          x, y, [](auto& u, auto& v) { return u + v; }, std::plus<int64_t>());
    };
    const auto multiply = [&](const Result& x, const Result& y) {
      return combine(
          x, y, [](auto& u, auto& v) { return u * v; }, std::multiplies<int64_t>());
    };
    const auto divide = [&](const Result& x, const Result& y) {
      return combine(
          x, y, [](auto& u, auto& v) { return floor_div(u, v); }, reference_floor_div);
    };
    const auto remainder = [&](const Result& x, const Result& y) {
      return combine(
          x, y, [](auto& u, auto& v) { return mod(u, v); }, reference_mod);
    };
    const auto symbol = [&] { return random.symbol(kNames[static_cast<size_t>(random.uniform(0, 5))]); };
    const auto monomial = [&](int64_t degree) {
      Result result = random.constant(random.uniform(0, 2) == 0 ? random.uniform(1, 4) : 1);
      for (int64_t i = 0; i < degree; ++i) result = multiply(result, symbol());
      return result;
    };
    const Result n = monomial(random.uniform(1, 2)), m = monomial(random.uniform(0, 1));
    const Result scale = multiply(monomial(random.uniform(0, 1)), random.constant(random.uniform(-2, 2)));
    Result x = monomial(1);
    switch (random.uniform(0, 3)) {
      case 0:
        x = add(multiply(monomial(1), n), symbol());
        break;  // a linearised pair
      case 1:
        x = add(multiply(multiply(monomial(1), m), n), monomial(2));
        break;
      case 2:
        x = add(add(monomial(2), symbol()), random.constant(random.uniform(-3, 3)));
        break;
      default:
        x = add(multiply(symbol(), m), remainder(symbol(), m));
        break;  // a digit by construction
    }
    Result result = x;
    switch (random.uniform(0, 6)) {
      case 0:
        result = divide(x, n);
        break;
      case 1:
        result = remainder(x, n);
        break;
      case 2:
        result = divide(divide(x, m), n);
        break;
      case 3:
        result = remainder(divide(x, m), n);
        break;
      case 4:
        result = divide(remainder(x, multiply(m, n)), m);
        break;
      case 5:
        result = add(multiply(scale, multiply(n, divide(x, n))), multiply(scale, remainder(x, n)));
        break;
      default:
        result = add(multiply(scale, multiply(n, remainder(divide(x, n), m))), multiply(scale, remainder(x, n)));
        break;
    }
    const Expr simple = simplify(result.expr, world.facts);
    SCOPED_TRACE("case seed " + std::to_string(seed) + ": " + to_string(result.expr) + " simplified " +
                 to_string(simple) + " with " + describe(world.facts));
    ASSERT_TRUE(simplify(simple, world.facts).same_node(simple)) << to_string(simplify(simple, world.facts));
    ASSERT_EQ(parse_expr(to_string(simple)), simple);
    for (size_t i = 0; i < world.points.size(); ++i) {
      ASSERT_EQ(evaluate(result.expr, world.points[i]), result.values[i]) << "canonical form, point " << i;
      ASSERT_EQ(evaluate(simple, world.points[i]), result.values[i]) << "simplified, point " << i;
    }
  }
}

// Whatever is proven holds at every point.
TEST(SymFuzz, ProofsAreTrue) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(kFuzzSeed));
  constexpr int kCases = 4000;
  int yes = 0, no = 0;
  for (int test = 0; test < kCases; ++test) {
    const uint64_t seed = kFuzzSeed + 1000000 + static_cast<uint64_t>(test);
    RandomExpr random(seed, kNames, {});
    const World world = random_world(random, 6);
    random.set_points(world.points);
    const RandomExpr::Result a = random(static_cast<int>(random.uniform(1, 3)));
    RandomExpr::Result b = random(static_cast<int>(random.uniform(1, 3)));
    if (random.uniform(0, 1) != 0) {  // a relative of a, so that proofs have a chance
      const RandomExpr::Result shift = random(1);
      b.expr = a.expr + shift.expr;
      for (size_t i = 0; i < b.values.size(); ++i) b.values[i] = a.values[i] + shift.values[i];
    }
    SCOPED_TRACE("case seed " + std::to_string(seed) + ": " + to_string(a.expr) + " and " + to_string(b.expr) +
                 " with " + describe(world.facts));
    const int64_t divisor = random.uniform(-4, 8);
    const auto check = [&](Proof proof, auto&& holds) {
      yes += proof == Proof::Yes;
      no += proof == Proof::No;
      for (size_t i = 0; i < world.points.size(); ++i) {
        if (proof != Proof::Unknown) {
          ASSERT_EQ(holds(i), proof == Proof::Yes) << "point " << i;
        }
      }
    };
    check(prove_equal(a.expr, b.expr, world.facts), [&](size_t i) { return a.values[i] == b.values[i]; });
    check(prove_less_equal(a.expr, b.expr, world.facts), [&](size_t i) { return a.values[i] <= b.values[i]; });
    check(prove_divisible(a.expr, divisor, world.facts),
          [&](size_t i) { return divisor == 0 ? a.values[i] == 0 : reference_mod(a.values[i], divisor) == 0; });
  }
  EXPECT_GT(yes, kCases / 8);
  EXPECT_GT(no, kCases / 8);
}

// A random mixed-radix number over symbolic and constant extents: linearise, take apart, put together.
TEST(SymFuzz, IndexArithmeticRoundTrips) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(kFuzzSeed));
  for (int test = 0; test < 1000; ++test) {
    const uint64_t seed = kFuzzSeed + 2000000 + static_cast<uint64_t>(test);
    RandomExpr random(seed, {"a"}, {});
    const int rank = static_cast<int>(random.uniform(1, 5));
    Facts facts;
    std::vector<Expr> extents, indices;
    for (int axis = 0; axis < rank; ++axis) {
      const std::string suffix = std::to_string(axis);
      Expr extent = random.uniform(0, 2) != 0 ? Expr::symbol("s" + suffix) : Expr(random.uniform(1, 40));
      if (extent.is_symbol()) facts.symbols[extent.name()] = Facts::size();
      // An axis of a tile: the extent is a multiple.
      if (random.uniform(0, 3) == 0) extent = extent * random.uniform(1, 8);
      facts.upper_exclusive["i" + suffix] = extent;
      extents.push_back(extent);
      indices.push_back(Expr::symbol("i" + suffix));
    }
    Expr linear, total = 1;
    for (int axis = 0; axis < rank; ++axis) {
      linear = linear * extents[static_cast<size_t>(axis)] + indices[static_cast<size_t>(axis)];
      total = total * extents[static_cast<size_t>(axis)];
    }
    facts.upper_exclusive["x"] = total;
    SCOPED_TRACE("case seed " + std::to_string(seed) + ": " + to_string(linear) + " with " + describe(facts));
    ASSERT_EQ(prove_less_equal(linear, total - 1, facts), Proof::Yes);
    ASSERT_EQ(prove_less_equal(0, linear, facts), Proof::Yes);
    // From the innermost axis outwards, both by one division of the whole and by successive ones.
    const auto digits_of = [&](const Expr& number, bool successive) {
      std::vector<Expr> digits(static_cast<size_t>(rank));
      Expr rest = number, stride = 1;
      for (size_t axis = digits.size(); axis-- > 0;) {
        const Expr quotient = successive ? rest : floor_div(number, stride);
        digits[axis] = axis == 0 ? quotient : mod(quotient, extents[axis]);
        rest = floor_div(rest, extents[axis]);
        stride = stride * extents[axis];
      }
      return digits;
    };
    for (const bool successive : {false, true}) {
      const std::vector<Expr> digits = digits_of(linear, successive);
      for (size_t axis = 0; axis < digits.size(); ++axis) {
        const Expr simple = simplify(digits[axis], facts);
        const bool single = extents[axis].is_const(1);
        ASSERT_EQ(simple, single ? Expr(0) : indices[axis]) << "axis " << axis << ": " << to_string(digits[axis]);
      }
      const std::vector<Expr> parts = digits_of(Expr::symbol("x"), successive);
      Expr again;
      for (size_t axis = 0; axis < parts.size(); ++axis) {
        ASSERT_EQ(prove_less_equal(parts[axis], extents[axis] - 1, facts), Proof::Yes) << to_string(parts[axis]);
        again = again * extents[axis] + parts[axis];
      }
      const Expr expected = total.is_const(1) ? Expr(0) : Expr::symbol("x");
      ASSERT_EQ(simplify(again, facts), expected) << to_string(again);
    }
  }
}

// Constants at the ends of int64: nothing is undefined, text stays exact, ranges stay sound for what does not wrap.
TEST(SymFuzz, LargeConstantsAreHarmless) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(kFuzzSeed));
  const int64_t large[] = {
      INT64_MIN, INT64_MIN + 1, INT64_MAX, INT64_MAX - 1, int64_t{1} << 62, -(int64_t{1} << 61), -1, 1, 0};
  for (int test = 0; test < 3000; ++test) {
    const uint64_t seed = kFuzzSeed + 3000000 + static_cast<uint64_t>(test);
    RandomExpr random(seed, kNames, {});
    const World world = random_world(random, 1);
    const auto constant = [&] { return Expr(large[random.uniform(0, 8)]); };
    const auto grow = [&](auto&& self, int depth) -> Expr {
      if (depth == 0) {
        return random.uniform(0, 1) != 0 ? constant() : Expr::symbol(kNames[static_cast<size_t>(random.uniform(0, 5))]);
      }
      const Expr a = self(self, depth - 1), b = random.uniform(0, 1) != 0 ? constant() : self(self, depth - 1);
      switch (random.uniform(0, 9)) {
        case 0:
          return a + b;
        case 1:
          return a - b;
        case 2:
          return a * b;
        case 3:
          return floor_div(a, b);
        case 4:
          return mod(a, b);
        case 5:
          return min(a, b);
        case 6:
          return max(a, b);
        case 7:
          return le(a, b);
        case 8:
          return eq(a, b);
        default:
          return select(lt(a, b), a, b);
      }
    };
    const Expr expr = grow(grow, static_cast<int>(random.uniform(1, 4)));
    SCOPED_TRACE("case seed " + std::to_string(seed) + ": " + to_string(expr));
    ASSERT_EQ(parse_expr(to_string(expr)), expr);
    const Expr simple = simplify(expr, world.facts);
    ASSERT_EQ(parse_expr(to_string(simple)), simple) << to_string(simple);
    ASSERT_TRUE(simplify(simple, world.facts).same_node(simple)) << to_string(simple);
    evaluate(expr, world.points[0]);
    bounds(expr, world.facts);
  }
}

}  // namespace
}  // namespace fuseloom::sym
