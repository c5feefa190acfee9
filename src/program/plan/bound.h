// What no plan can beat.
#pragma once
#include <cstdint>

#include "program/plan/problem.h"

namespace fuseloom::program::plan {

// The most bytes live at one step, every buffer counted: max over t of sum of size over buffers live at t. Without
// in-place alternatives no plan is lower.
int64_t max_live(const Problem& problem);

// A height that no plan can beat. It is max_live corrected for
//   - alignment: with g the greatest common divisor of all alignments, every buffer but the topmost one of a step
//     occupies at least its size rounded up to a multiple of g;
//   - in-place alternatives: at the step at which b is born and its alternative a dies, the smaller one of the two
//     may cost nothing.
int64_t lower_bound(const Problem& problem);

}  // namespace fuseloom::program::plan
