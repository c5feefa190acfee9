// Random expressions for the fuzz tests of sym. Each is grown twice at once: as a canonical Expr and as the value that
// its definition gives, so that canonicalisation itself is under test.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "sym/expr.h"

namespace fuseloom::sym {

inline int64_t reference_floor_div(int64_t a, int64_t b) {
  if (b == 0) return 0;
  int64_t q = a / b;
  if (a % b != 0 && (a < 0) != (b < 0)) --q;
  return q;
}
inline int64_t reference_mod(int64_t a, int64_t b) { return b == 0 ? 0 : a - b * reference_floor_div(a, b); }

class RandomExpr {
 public:
  // A canonical expression and, for each of the given points, the value by definition.
  struct Result {
    Expr expr;
    std::vector<int64_t> values;
  };

  RandomExpr(uint64_t seed, std::vector<std::string> names, std::vector<std::map<std::string, int64_t>> points)
      : random_(seed), names_(std::move(names)), points_(std::move(points)) {}

  int64_t uniform(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  void set_points(std::vector<std::map<std::string, int64_t>> points) { points_ = std::move(points); }

  Result constant(int64_t value) { return {value, std::vector<int64_t>(points_.size(), value)}; }
  Result symbol(const std::string& name) {
    Result result{Expr::symbol(name), {}};
    for (const auto& point : points_) result.values.push_back(point.at(name));
    return result;
  }

  Result operator()(int depth) {
    if (depth == 0 || uniform(0, 9) == 0) {
      if (uniform(0, 2) == 0) return constant(uniform(-9, 9));
      return symbol(names_[static_cast<size_t>(uniform(0, static_cast<int64_t>(names_.size()) - 1))]);
    }
    const auto binary = [&](const Result& a, const Result& b, auto&& build, auto&& value) {
      Result result{build(a.expr, b.expr), {}};
      for (size_t i = 0; i < a.values.size(); ++i) result.values.push_back(value(a.values[i], b.values[i]));
      return result;
    };
    const Result a = (*this)(depth - 1);
    // Divisors are often constants, as in index arithmetic.
    const auto divisor = [&] { return uniform(0, 2) != 0 ? constant(uniform(-4, 16)) : (*this)(depth - 1); };
    switch (uniform(0, 13)) {
      case 0:
      case 1:
        return binary(
            a, (*this)(depth - 1), [](auto& x, auto& y) { return x + y; }, std::plus<int64_t>());
      case 2:
        return binary(
            a, (*this)(depth - 1), [](auto& x, auto& y) { return x - y; }, std::minus<int64_t>());
      case 3:
        return binary(
            a, constant(uniform(-8, 8)), [](auto& x, auto& y) { return x * y; }, std::multiplies<int64_t>());
      case 4:
        return binary(
            a, (*this)(depth / 2), [](auto& x, auto& y) { return x * y; }, std::multiplies<int64_t>());
      case 5:
      case 6:
        return binary(
            a, divisor(), [](auto& x, auto& y) { return floor_div(x, y); }, reference_floor_div);
      case 7:
      case 8:
        return binary(
            a, divisor(), [](auto& x, auto& y) { return mod(x, y); }, reference_mod);
      case 9:
        return binary(
            a, (*this)(depth - 1), [](auto& x, auto& y) { return min(x, y); },
            [](int64_t x, int64_t y) { return std::min(x, y); });
      case 10:
        return binary(
            a, (*this)(depth - 1), [](auto& x, auto& y) { return max(x, y); },
            [](int64_t x, int64_t y) { return std::max(x, y); });
      case 11: {
        const Result b = (*this)(depth - 1);
        switch (uniform(0, 3)) {
          case 0:
            return binary(
                a, b, [](auto& x, auto& y) { return eq(x, y); }, std::equal_to<int64_t>());
          case 1:
            return binary(
                a, b, [](auto& x, auto& y) { return ne(x, y); }, std::not_equal_to<int64_t>());
          case 2:
            return binary(
                a, b, [](auto& x, auto& y) { return lt(x, y); }, std::less<int64_t>());
          default:
            return binary(
                a, b, [](auto& x, auto& y) { return le(x, y); }, std::less_equal<int64_t>());
        }
      }
      case 12: {
        const Result condition = (*this)(depth - 1), b = (*this)(depth - 1);
        Result result{select(condition.expr, a.expr, b.expr), {}};
        for (size_t i = 0; i < points_.size(); ++i) {
          result.values.push_back(condition.values[i] != 0 ? a.values[i] : b.values[i]);
        }
        return result;
      }
      default: {
        const Result d = divisor();
        return binary(
            a, d, [](auto& x, auto& y) { return ceil_div(x, y); },
            [](int64_t x, int64_t y) { return -reference_floor_div(-x, y); });
      }
    }
  }

 private:
  std::mt19937_64 random_;
  std::vector<std::string> names_;
  std::vector<std::map<std::string, int64_t>> points_;
};

// One seed for every fuzz test, printed by each.
constexpr uint64_t kFuzzSeed = 20240229;

}  // namespace fuseloom::sym
