#include <gtest/gtest.h>

#include <bit>

#include "fuseloom/error.h"
#include "program/plan/bound.h"
#include "program/plan/solve.h"
#include "program/plan/validate.h"
#include "program/plan_instances.h"

namespace fuseloom::program::plan {
namespace {

// Solves, and checks what holds for every result.
Result checked(const Problem& problem, const Options& options = {}) {
  Result result = solve(problem, options);
  Problem unlimited = problem;
  unlimited.capacity.reset();
  const std::optional<Violation> violation = validate(unlimited, result.solution);
  EXPECT_FALSE(violation) << violation->message;
  EXPECT_EQ(result.height, result.solution.height);
  EXPECT_EQ(result.max_live, max_live(problem));
  EXPECT_GE(result.lower_bound, lower_bound(problem));
  EXPECT_LE(result.lower_bound, result.height);
  EXPECT_EQ(result.proof == Proof::Optimal, result.height == result.lower_bound);
  return result;
}

// The techniques and the other switches as bits.
constexpr int kSwitches = 12;
Options with_switches(unsigned bits) {
  const auto on = [&](int bit) { return ((bits >> bit) & 1) != 0; };
  Options options;
  options.techniques = {.dynamic_order = on(0),
                        .preorder = on(1),
                        .dynamic_preorder = on(2),
                        .canonical_order = on(3),
                        .section_bound = on(4),
                        .unallocated_floor = on(5),
                        .monotonic_floor = on(6),
                        .lift_skipped = on(7),
                        .dominance = on(8),
                        .hatless = on(9),
                        .decomposition = on(10)};
  options.stack_common = on(11);
  options.improve = false;
  return options;
}

TEST(PlanSolve, EveryCombinationOfTechniquesIsExact) {
  // Problems that greedy placement does not solve, so that the search has something to do.
  const auto unsolved = [](auto&& problem_of) {
    for (uint64_t seed = 1;; ++seed) {
      const Problem problem = problem_of(seed);
      const Result quick = solve(problem, {.mode = Options::Mode::Quick});
      if (quick.height > quick.lower_bound) return problem;
    }
  };
  const auto small = [&](bool alignments, bool gaps) {
    const Problem problem = unsolved([&](uint64_t seed) {
      Random random(seed);
      return small_problem(random, {.alignments = alignments, .gaps = gaps});
    });
    return std::pair(problem, BruteForce(problem).height());
  };
  const auto packing = [&](int count) {
    constexpr int64_t kHeight = 12;
    return std::pair(unsolved([&](uint64_t seed) { return tight_packing(seed, count, kHeight, 12, 1, 0); }), kHeight);
  };
  const std::vector<std::pair<Problem, int64_t>> problems = {packing(10), small(true, false), small(false, true)};
  // All combinations of the search's techniques; the switch outside the search goes along in every other one.
  for (unsigned techniques = 0; techniques < (1u << (kSwitches - 1)); ++techniques) {
    const unsigned bits = techniques | (std::popcount(techniques) % 2 == 0 ? 1u << (kSwitches - 1) : 0u);
    for (size_t i = 0; i < problems.size(); ++i) {
      const Result result = checked(problems[i].first, with_switches(bits));
      EXPECT_EQ(result.height, problems[i].second) << "switches " << bits << ", problem " << i;
      EXPECT_EQ(result.proof, Proof::Optimal) << "switches " << bits << ", problem " << i;
    }
  }
}

TEST(PlanSolve, SmallProblemsAreOptimal) {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const Problem problem = small_problem(random, {.count = static_cast<int>(random.between(1, 7)),
                                                   .alignments = random.chance(40),
                                                   .gaps = random.chance(40),
                                                   .in_place = random.chance(40),
                                                   .empty = random.chance(20),
                                                   .workspaces = random.chance(30)});
    const int64_t optimal = BruteForce(problem).height();
    // Some technique is off in half of the runs.
    Options options = with_switches(static_cast<unsigned>(random.between(0, (1 << kSwitches) - 1)));
    if (random.chance(50)) options = {};
    const Result result = checked(problem, options);
    EXPECT_EQ(result.height, optimal);
    EXPECT_EQ(result.proof, Proof::Optimal);
    EXPECT_GE(checked(problem, {.mode = Options::Mode::Quick}).height, optimal);
    EXPECT_LE(lower_bound(problem), optimal);
  }
}

TEST(PlanSolve, TightPackingsAreSolved) {
  // Similar in size, load and difficulty to the instances A to I that come with MiniMalloc.
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const int64_t height = 1 << 20;
    const Problem problem = tight_packing(seed, 100, height, 1 << 20, 1024, static_cast<int>(seed) * 2);
    const Result result = checked(problem, {.step_budget = 300'000'000, .target = height});
    EXPECT_LE(result.height, height);
    EXPECT_LE(static_cast<double>(checked(problem, {.mode = Options::Mode::Quick}).height),
              1.35 * static_cast<double>(height));
  }
}

TEST(PlanSolve, TrainingStepsComeCloseToTheBound) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Problem problem = training_step(seed, 60, 4);
    EXPECT_LE(checked(problem, {.mode = Options::Mode::Quick}).ratio, 1.05);
    EXPECT_LE(checked(problem, {.step_budget = 200'000'000}).ratio, 1.01);
  }
}

TEST(PlanSolve, InPlaceChoicesAreMade) {
  // A chain of equal elementwise steps needs one buffer when every step works in place, two otherwise.
  Problem problem;
  for (int i = 0; i < 40; ++i)
    problem.buffers.push_back({.id = "v" + std::to_string(i),
                               .lower = i,
                               .upper = i + 2,
                               .size = 64,
                               .alignment = 0,
                               .preferred_size = 0,
                               .may_share_with = {},
                               .gaps = {}});
  EXPECT_EQ(checked(problem).height, 128);
  for (int i = 1; i < 40; ++i) problem.buffers[static_cast<size_t>(i)].may_share_with = {i - 1};
  EXPECT_EQ(checked(problem).height, 64);
  EXPECT_EQ(checked(problem, {.mode = Options::Mode::Quick}).height, 64);
}

TEST(PlanSolve, TakingOverCanBeWrong) {
  // In place of the small a, the large b would have to start where a ends up; the planner compares both ways.
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const Problem problem = small_problem(random, {.count = 7, .steps = 4, .most = 5, .in_place = true});
    Problem apart = problem;
    for (Buffer& buffer : apart.buffers) buffer.may_share_with.clear();
    EXPECT_LE(checked(problem).height, checked(apart).height);
  }
}

TEST(PlanSolve, WorkspacesGetWhatIsFree) {
  Problem problem;
  const auto add = [&](int64_t lower, int64_t upper, int64_t size, int64_t preferred) {
    problem.buffers.push_back({.id = std::to_string(problem.buffers.size()),
                               .lower = lower,
                               .upper = upper,
                               .size = size,
                               .alignment = 8,
                               .preferred_size = preferred,
                               .may_share_with = {},
                               .gaps = {}});
  };
  add(0, 4, 64, 0);
  add(0, 2, 96, 0);
  add(2, 3, 8, 80);    // 96 bytes are free at step 2
  add(3, 4, 0, 1000);  // a workspace that may be left out gets all that is free
  const Result result = checked(problem);
  EXPECT_EQ(result.height, 160);
  EXPECT_EQ(result.solution.sizes, (std::vector<int64_t>{64, 96, 80, 96}));
}

TEST(PlanSolve, SameInputSamePlan) {
  for (const Problem& problem : {tight_packing(3, 120, 1 << 20, 4096, 1024, 10), training_step(5, 40, 5)}) {
    const Options options{.step_budget = 30'000'000};
    const Result first = solve(problem, options), second = solve(problem, options);
    EXPECT_EQ(first.solution, second.solution);
    EXPECT_EQ(first.steps, second.steps);
  }
}

TEST(PlanSolve, BudgetAndTargetAreKept) {
  const Problem problem = tight_packing(11, 300, 1 << 20, 1 << 20, 1024, 10);
  const Result timeout = checked(problem, {.step_budget = 2'000'000});
  EXPECT_EQ(timeout.proof, Proof::Timeout);
  EXPECT_LT(timeout.steps, 10'000'000);
  const int64_t target = timeout.height + 1;
  const Result bound = checked(problem, {.target = target});
  EXPECT_EQ(bound.proof, Proof::Bound);
  EXPECT_LE(bound.height, target);
  Problem roomy = problem;
  roomy.capacity = target;
  EXPECT_LE(checked(roomy).height, target);
  EXPECT_EQ(checked(problem, {.mode = Options::Mode::Quick}).proof, Proof::Bound);
  EXPECT_THROW(solve(problem, {.step_budget = -1}), UserError);
}

TEST(PlanSolve, EdgeCases) {
  const Result empty = checked({});
  EXPECT_EQ(empty.height, 0);
  EXPECT_EQ(empty.ratio, 1);
  EXPECT_EQ(name_of(empty.proof), "optimal");

  Problem problem;
  problem.buffers = {{.id = "nothing",
                      .lower = 0,
                      .upper = 5,
                      .size = 0,
                      .alignment = 0,
                      .preferred_size = 0,
                      .may_share_with = {},
                      .gaps = {}}};
  EXPECT_EQ(checked(problem).height, 0);
  problem.buffers.push_back({.id = "large",
                             .lower = 2,
                             .upper = 3,
                             .size = int64_t{1} << 60,
                             .alignment = 0,
                             .preferred_size = 0,
                             .may_share_with = {},
                             .gaps = {}});
  EXPECT_EQ(checked(problem).height, int64_t{1} << 60);
  problem.buffers[0].id = "large";
  EXPECT_THROW(solve(problem), UserError);
}

TEST(PlanSolve, ManyBuffersInLittleTime) {
  // Quick mode is for compile time: a budget bounds it even for a program of thousands of buffers.
  const Problem problem = training_step(9, 800, 6);
  EXPECT_GT(problem.buffers.size(), 6'000u);
  EXPECT_LE(checked(problem, {.mode = Options::Mode::Quick}).ratio, 1.1);
}

}  // namespace
}  // namespace fuseloom::program::plan
