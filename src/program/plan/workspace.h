// Elastic workspaces: what is free anyway is granted.
#pragma once
#include "program/plan/problem.h"

namespace fuseloom::program::plan {

// Moves each buffer with preferred_size > size, by index, to where it can have the most bytes up to preferred_size, and
// grants them in solution.sizes. Neither the height nor any other buffer changes. Buffers that take part in an in-place
// takeover keep their size.
void grant_workspaces(const Problem& problem, Solution& solution);

}  // namespace fuseloom::program::plan
