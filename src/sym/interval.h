// Private to sym: interval and divisibility arithmetic on Range. Every function is sound: its answer contains the value
// of the operation for all operands in the given ranges. An end that does not fit int64 saturates to unbounded.
#pragma once
#include <span>

#include "sym/expr.h"

namespace fuseloom::sym {

Range constant_range(int64_t value);
// Rounds the ends inward to multiples of the divisor.
Range tightened(Range range);
// The range of kind(args...) from the ranges of its arguments. Not for Const and Symbol.
Range range_of(Kind kind, std::span<const Range> args);

inline bool excludes_zero(const Range& range) { return range.low > 0 || range.high < 0; }

}  // namespace fuseloom::sym
