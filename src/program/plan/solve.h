// The memory planner: offsets for all buffers of a problem, and how good they are.
//
//   1. In-place choices are fixed, in as many ways as the budget allows; for each way:
//   2. buffers become blocks, and blocks components that never meet (component.h);
//   3. every component is placed greedily, in many orders (greedy.h, skyline.h);
//   4. then, where that is above the lower bound, in turns with ever larger budgets:
//        - exact search at the lowest height not excluded, one order of priorities after the other (search.h);
//        - exact search halfway between that and the best height known;
//        - improvement of the greedy placements (improve.h);
//      until the height is proven optimal, reaches the target, or the budget is spent;
//   5. elastic workspaces get what is free (workspace.h).
//
// A budget is counted in steps (one look at one block by another), not in time, so that the same problem and options
// give the same plan on every machine.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "program/plan/problem.h"
#include "program/plan/search.h"

namespace fuseloom::program::plan {

struct Options {
  enum class Mode : uint8_t {
    Quick,     // greedy placement only: milliseconds; for compile time
    Thorough,  // everything; seconds at most with the default budget, mostly much less
  };
  Mode mode = Mode::Thorough;
  // Steps to spend, about 2 to 4 ns each; 0: 20 million when quick, 2 billion when thorough. Greedy placement in one
  // order is always done.
  int64_t step_budget = 0;
  // A height that is good enough. Unset: the problem's capacity if it has one, else the lower bound.
  std::optional<int64_t> target;

  // What may be used. Every combination gives valid plans and true proofs.
  bool stack_common = true;  // component.h, step 2
  bool search = true;
  bool improve = true;
  Techniques techniques;  // of the search
};

enum class Proof : uint8_t {
  Optimal,  // the height equals the lower bound: no plan is lower
  Bound,    // stopped as asked, by the mode or at the target, with a height above the lower bound
  Timeout,  // the budget was spent with a height above the lower bound
};
std::string_view name_of(Proof proof);  // "optimal", "bound", "timeout"

struct Result {
  Solution solution;        // always a valid plan, but for the capacity, which it may exceed: compare the height
  int64_t height = 0;       // of the solution
  int64_t max_live = 0;     // bytes live at the busiest step (bound.h)
  int64_t lower_bound = 0;  // the height that no plan can beat, as far as is proven
  double ratio = 1;         // height / lower_bound; 1 when both are 0
  Proof proof = Proof::Optimal;
  int64_t steps = 0;  // spent
};

// Throws UserError for a problem that is not well-formed (validate.h).
Result solve(const Problem& problem, const Options& options = {});

}  // namespace fuseloom::program::plan
