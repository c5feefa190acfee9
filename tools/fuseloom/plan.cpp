#include <chrono>
#include <fstream>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "program/plan/csv.h"
#include "program/plan/solve.h"
#include "program/plan/validate.h"
#include "verbs.h"

namespace fuseloom::tool {

int plan(const PlanArguments& arguments) {
  namespace planner = program::plan;
  planner::PlanFile file = planner::read_csv(arguments.path);
  planner::Problem& problem = file.problem;
  problem.alignment = arguments.alignment;
  if (arguments.capacity >= 0) problem.capacity = arguments.capacity;
  planner::Options options{.mode = arguments.quick ? planner::Options::Mode::Quick : planner::Options::Mode::Thorough, .step_budget = arguments.steps};
  const auto begin = std::chrono::steady_clock::now();
  const planner::Result result = planner::solve(problem, options);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  planner::Problem unlimited = problem;
  unlimited.capacity.reset();
  const std::optional<planner::Violation> violation = planner::validate(unlimited, result.solution);
  FL_CHECK(!violation, "{}: the plan is wrong: {}", arguments.path, violation->message);
  const bool fits = !problem.capacity || result.height <= *problem.capacity;
  if (!arguments.output.empty()) {
    std::ofstream out(arguments.output, std::ios::binary);
    out << planner::to_csv(problem, &result.solution);
    out.close();
    FL_REQUIRE(out.good(), "--output {}: cannot be written", arguments.output);
  }
  if (arguments.json) {
    nlohmann::ordered_json json = {{"file", arguments.path},
                                   {"buffers", problem.buffers.size()},
                                   {"lower_bound", result.lower_bound},
                                   {"height", result.height},
                                   {"ratio", result.ratio},
                                   {"proof", planner::name_of(result.proof)},
                                   {"seconds", seconds},
                                   {"max_live", result.max_live},
                                   {"steps", result.steps}};
    if (problem.capacity) json["fits"] = fits;
    fmt::print("{}\n", json.dump());
  } else {
    fmt::print("{} buffers: height {} bytes, lower bound {} bytes, ratio {:.4f}, {} after {:.3f} s\n", problem.buffers.size(), result.height,
               result.lower_bound, result.ratio, planner::name_of(result.proof), seconds);
    if (!fits) fmt::print("does not fit the capacity of {} bytes\n", *problem.capacity);
  }
  return fits ? kOk : kMismatch;
}

}  // namespace fuseloom::tool
