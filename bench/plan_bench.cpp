// The memory planner on buffer lists: height, lower bound, proof, steps, and CPU seconds of one thread.
//
//   plan_bench [--quick] [--target BYTES] [--budget STEPS] [FILE.csv ...]
//
// Without files: generated tight packings of a 1 MiB arena, and training steps.
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <string_view>
#include <vector>

#include "../test/program/plan_instances.h"
#include "base/check.h"
#include "program/plan/csv.h"
#include "program/plan/solve.h"
#include "program/plan/validate.h"

namespace fuseloom::program::plan {
namespace {

struct Case {
  std::string name;
  Problem problem;
};

std::vector<Case> generated() {
  constexpr int64_t kArena = 1 << 20, kGranule = 1024;
  std::vector<Case> cases;
  for (const int count : {150, 200, 300}) {
    for (const int loosen : {0, 5, 20}) {
      for (const uint64_t seed : {1, 2, 3}) {
        cases.push_back({fmt::format("packing {} loose {}% #{}", count, loosen, seed),
                         tight_packing(seed, count, kArena, kArena, kGranule, loosen)});
        cases.back().problem.capacity = kArena;
      }
    }
  }
  for (const int layers : {50, 200, 1000})
    cases.push_back({fmt::format("training step {} layers", layers), training_step(1, layers, 4)});
  return cases;
}

int64_t bytes(std::string_view option, const char* text) {
  char* end = nullptr;
  const int64_t value = text ? std::strtoll(text, &end, 10) : -1;
  FL_REQUIRE(text && *text != '\0' && *end == '\0' && value >= 0, "{}: expected a number of at least 0, got '{}'",
             option, text ? text : "");
  return value;
}

int run(int argc, char** argv) {
  Options options;
  std::vector<Case> cases;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--quick") {
      options.mode = Options::Mode::Quick;
    } else if (argument == "--target") {
      options.target = bytes(argument, argv[++i]);
    } else if (argument == "--budget") {
      options.step_budget = bytes(argument, argv[++i]);
    } else {
      const std::string path(argument);
      cases.push_back({path.substr(path.rfind('/') + 1), read_csv(path).problem});
    }
  }
  if (cases.empty()) cases = generated();

  std::cout << fmt::format("| {:<28} | {:>7} | {:>11} | {:>11} | {:>6} | {:<7} | {:>10} | {:>7} |\n", "case", "buffers",
                           "lower bound", "height", "ratio", "proof", "steps", "seconds");
  std::cout << "|---|--:|--:|--:|--:|---|--:|--:|\n";
  for (const Case& item : cases) {
    const std::clock_t start = std::clock();
    const Result result = solve(item.problem, options);
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    Problem unlimited = item.problem;
    unlimited.capacity.reset();
    const std::optional<Violation> violation = validate(unlimited, result.solution);
    FL_CHECK(!violation, "{}: {}", item.name, violation->message);
    std::cout << fmt::format("| {:<28} | {:>7} | {:>11} | {:>11} | {:>6.4f} | {:<7} | {:>10} | {:>7.3f} |\n", item.name,
                             item.problem.buffers.size(), result.lower_bound, result.height, result.ratio,
                             name_of(result.proof), result.steps, seconds)
              << std::flush;
  }
  return 0;
}

}  // namespace
}  // namespace fuseloom::program::plan

int main(int argc, char** argv) {
  try {
    return fuseloom::program::plan::run(argc, argv);
  } catch (const fuseloom::Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
