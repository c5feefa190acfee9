#include "sym/interval.h"

#include <algorithm>

#include "base/check.h"
#include "sym/node.h"

namespace fuseloom::sym {
namespace {

constexpr int64_t kMin = Range::kMin, kMax = Range::kMax;

bool is_point(const Range& range) { return range.low == range.high; }

// A saturated end stands for everything beyond it, so that it absorbs whatever is added on.
int64_t add_low(int64_t a, int64_t b) {
  if (a == kMin || b == kMin) return kMin;
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? (a < 0 ? kMin : kMax) : sum;
}
int64_t add_high(int64_t a, int64_t b) {
  if (a == kMax || b == kMax) return kMax;
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? (a < 0 ? kMin : kMax) : sum;
}
int64_t saturating_mul(int64_t a, int64_t b) {
  if (a == 0 || b == 0) return 0;
  const int64_t limit = (a < 0) == (b < 0) ? kMax : kMin;
  if (a == kMin || a == kMax || b == kMin || b == kMax) return limit;
  int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? limit : result;
}

Range negated(const Range& a) {
  return {a.high == kMax ? kMin : a.high == kMin ? kMax : -a.high, a.low == kMin ? kMax : -a.low, a.divisor};
}

Range hull(const Range& a, const Range& b) {
  return {std::min(a.low, b.low), std::max(a.high, b.high), gcd_int(a.divisor, b.divisor)};
}

Range add(const Range& a, const Range& b) {
  return {add_low(a.low, b.low), add_high(a.high, b.high), gcd_int(a.divisor, b.divisor)};
}

Range multiply(const Range& a, const Range& b) {
  const auto [low, high] = std::minmax({saturating_mul(a.low, b.low), saturating_mul(a.low, b.high),
                                        saturating_mul(a.high, b.low), saturating_mul(a.high, b.high)});
  int64_t divisor = 0;
  if (__builtin_mul_overflow(a.divisor, b.divisor, &divisor)) divisor = std::max(a.divisor, b.divisor);
  // An upper end of kMin can come from a lower end of exactly kMax times -1, which is kMin + 1.
  return {low, high == kMin ? kMin + 1 : high, divisor};
}

// Ends of floor(a / b) for b in [low, high], low >= 1. An unbounded end of a stays unbounded; an unbounded b drives the
// quotient to 0 or, from below, to -1.
int64_t quotient_low(int64_t a, const Range& b) {
  if (a == kMin) return kMin;
  if (a >= 0) return b.high == kMax ? 0 : a / b.high;
  return floor_div_int(a, b.low);
}
int64_t quotient_high(int64_t a, const Range& b) {
  if (a == kMax) return kMax;
  if (a >= 0) return a / b.low;
  return b.high == kMax ? -1 : floor_div_int(a, b.high);
}

// Applies `positive` to the positive part of the divisor's range and, by floor_div(a, b) = floor_div(-a, -b) and its
// like for mod, to the negative part; a divisor that can be zero adds the value 0.
template <class Positive, class Negative>
Range by_divisor_sign(const Range& b, Positive positive, Negative negative) {
  std::optional<Range> result;
  const auto include = [&](const Range& part) { result = result ? hull(*result, part) : part; };
  if (b.high >= 1) include(positive(Range{std::max<int64_t>(b.low, 1), b.high, b.divisor}));
  if (b.low <= -1) include(negative(negated({b.low, std::min<int64_t>(b.high, -1), b.divisor})));
  if (b.low <= 0 && b.high >= 0) include(constant_range(0));
  return result.value_or(Range{});  // an empty range of the divisor comes from contradictory facts
}

Range divide(const Range& a, const Range& b) {
  const auto positive = [](const Range& dividend, const Range& divisor) {
    Range result{quotient_low(dividend.low, divisor), quotient_high(dividend.high, divisor), 1};
    if (is_point(divisor) && dividend.divisor % divisor.low == 0) result.divisor = dividend.divisor / divisor.low;
    return result;
  };
  return by_divisor_sign(
      b, [&](const Range& part) { return positive(a, part); },
      [&](const Range& part) { return positive(negated(a), part); });
}

Range remainder(const Range& a, const Range& b) {
  const auto positive = [](const Range& dividend, const Range& divisor) {
    const int64_t common = gcd_int(dividend.divisor, divisor.divisor);
    if (dividend.low >= 0 && dividend.high < divisor.low) return dividend;
    Range result{0, divisor.high == kMax ? kMax : divisor.high - 1, common};
    if (dividend.low >= 0) result.high = std::min(result.high, dividend.high);
    return result;
  };
  return by_divisor_sign(
      b, [&](const Range& part) { return positive(a, part); },
      [&](const Range& part) { return negated(positive(negated(a), part)); });
}

Range decided(std::optional<bool> value) { return value ? constant_range(*value ? 1 : 0) : Range{0, 1, 1}; }

std::optional<bool> equal(const Range& a, const Range& b) {
  if (a.high < b.low || b.high < a.low) return false;
  if (is_point(a) && is_point(b) && a.low != kMin && a.low != kMax) return true;
  return std::nullopt;
}

// a < b from the ends. The ends are exact when finite; kMax as an upper end and kMin as a lower end are unbounded, and
// then the comparisons below are not decided by them.
std::optional<bool> less(const Range& a, const Range& b) {
  if (a.high != kMax && b.low != kMin && a.high < b.low) return true;
  if (a.low != kMin && b.high != kMax && a.low >= b.high) return false;
  return std::nullopt;
}
std::optional<bool> less_equal(const Range& a, const Range& b) {
  if (a.high != kMax && b.low != kMin && a.high <= b.low) return true;
  if (a.low != kMin && b.high != kMax && a.low > b.high) return false;
  return std::nullopt;
}

std::optional<bool> negation(std::optional<bool> value) { return value ? std::optional(!*value) : std::nullopt; }

Range transfer(Kind kind, std::span<const Range> args) {
  const auto fold = [&](auto&& combine) {
    Range result = args[0];
    for (const Range& next : args.subspan(1)) result = combine(result, next);
    return result;
  };
  switch (kind) {
    case Kind::Const:
    case Kind::Symbol:
      break;
    case Kind::Add:
      return fold(add);
    case Kind::Mul:
      return fold(multiply);
    case Kind::FloorDiv:
      return divide(args[0], args[1]);
    case Kind::Mod:
      return remainder(args[0], args[1]);
    case Kind::Min:
      return fold([](const Range& a, const Range& b) {
        return Range{std::min(a.low, b.low), std::min(a.high, b.high), gcd_int(a.divisor, b.divisor)};
      });
    case Kind::Max:
      return fold([](const Range& a, const Range& b) {
        return Range{std::max(a.low, b.low), std::max(a.high, b.high), gcd_int(a.divisor, b.divisor)};
      });
    case Kind::Eq:
      return decided(equal(args[0], args[1]));
    case Kind::Ne:
      return decided(negation(equal(args[0], args[1])));
    case Kind::Lt:
      return decided(less(args[0], args[1]));
    case Kind::Le:
      return decided(less_equal(args[0], args[1]));
    case Kind::Select: {
      if (excludes_zero(args[0])) return args[1];
      if (is_point(args[0]) && args[0].low == 0) return args[2];
      return hull(args[1], args[2]);
    }
  }
  FL_CHECK(false, "constants and symbols have no arguments");
}

}  // namespace

Range constant_range(int64_t value) { return {value, value, gcd_int(value, 0)}; }

Range tightened(Range range) {
  if (range.divisor == 0) return {0, 0, 0};
  if (range.divisor > 1) {
    if (range.low != kMin) {
      const int64_t past = floor_mod_int(range.low, range.divisor);
      if (past != 0 && range.low <= kMax - (range.divisor - past)) range.low += range.divisor - past;
    }
    if (range.high != kMax) {
      const int64_t past = floor_mod_int(range.high, range.divisor);
      if (range.high >= kMin + past) range.high -= past;
    }
  }
  if (is_point(range) && range.low != kMin && range.low != kMax) range.divisor = gcd_int(range.low, 0);
  return range;
}

Range range_of(Kind kind, std::span<const Range> args) { return tightened(transfer(kind, args)); }

}  // namespace fuseloom::sym
