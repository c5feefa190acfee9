// The judge of the memory planner. It shares no code with the solver: it knows nothing but problem.h.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "program/plan/problem.h"

namespace fuseloom::program::plan {

struct Violation {
  enum class Kind : uint8_t {
    WrongCount,      // a vector of the solution has not one entry per buffer
    NegativeOffset,  // an offset < 0
    Misaligned,      // an offset that is no multiple of the alignment
    WrongSize,       // a granted size outside [size, preferred_size]
    IllegalInPlace,  // storage taken over without permission, or with another offset
    Overlap,         // two buffers that are live at the same step share bytes
    WrongHeight,     // height is not the highest end of a buffer
    AboveCapacity,   // the height exceeds the capacity
  };
  Kind kind = Kind::Overlap;
  int32_t buffer = -1;  // index, where one is to blame
  int32_t other = -1;   // index of the second one
  std::string message;  // found, expected, where
};

// The first violation, or nothing when the solution is a correct plan. Time: O(sum over buffers of the buffers live at
// its birth).
std::optional<Violation> validate(const Problem& problem, const Solution& solution);

// Throws UserError when the problem itself makes no sense: duplicate or empty id, lower >= upper, negative size,
// alignment < 1, gaps out of order, an in-place alternative that does not die at the birth of the buffer, or sizes
// whose sum could overflow an offset. Every function of the planner demands a well-formed problem.
void require_well_formed(const Problem& problem);

}  // namespace fuseloom::program::plan
