#include <gtest/gtest.h>

#include "fuseloom/error.h"
#include "program/plan/validate.h"
#include "program/plan_instances.h"

namespace fuseloom::program::plan {
namespace {

using Kind = Violation::Kind;

// a [0,4) 8 bytes | b [3,9) 5 bytes, may take a | c [0,9) 4 bytes | w [5,6) 2 to 6 bytes
Problem example() {
  Problem problem;
  problem.capacity = 20;
  problem.buffers = {{.id = "a",
                      .lower = 0,
                      .upper = 4,
                      .size = 8,
                      .alignment = 0,
                      .preferred_size = 0,
                      .may_share_with = {},
                      .gaps = {}},
                     {.id = "b",
                      .lower = 3,
                      .upper = 9,
                      .size = 5,
                      .alignment = 0,
                      .preferred_size = 0,
                      .may_share_with = {0},
                      .gaps = {}},
                     {.id = "c",
                      .lower = 0,
                      .upper = 9,
                      .size = 4,
                      .alignment = 4,
                      .preferred_size = 0,
                      .may_share_with = {},
                      .gaps = {}},
                     {.id = "w",
                      .lower = 5,
                      .upper = 6,
                      .size = 2,
                      .alignment = 0,
                      .preferred_size = 6,
                      .may_share_with = {},
                      .gaps = {}}};
  return problem;
}

Solution plan() { return {{0, 0, 8, 5}, 12, {-1, 0, -1, -1}, {8, 5, 4, 3}}; }

std::optional<Kind> verdict(const Problem& problem, const Solution& solution) {
  const std::optional<Violation> violation = validate(problem, solution);
  if (!violation) return std::nullopt;
  EXPECT_FALSE(violation->message.empty());
  return violation->kind;
}

TEST(PlanValidate, AcceptsACorrectPlan) {
  EXPECT_EQ(verdict(example(), plan()), std::nullopt);
  EXPECT_EQ(verdict({}, {}), std::nullopt);
}

TEST(PlanValidate, CatchesPlantedFaults) {
  const auto planted = [](auto&& plant) {
    Problem problem = example();
    Solution solution = plan();
    plant(problem, solution);
    return verdict(problem, solution);
  };
  EXPECT_EQ(planted([](auto&, auto& s) { s.offsets.pop_back(); }), Kind::WrongCount);
  EXPECT_EQ(planted([](auto&, auto& s) { s.sizes.pop_back(); }), Kind::WrongCount);
  EXPECT_EQ(planted([](auto&, auto& s) { s.in_place_of.push_back(-1); }), Kind::WrongCount);
  EXPECT_EQ(planted([](auto&, auto& s) { s.offsets[3] = -1; }), Kind::NegativeOffset);
  EXPECT_EQ(planted([](auto&, auto& s) { s.offsets[2] = 9; }), Kind::Misaligned);
  EXPECT_EQ(planted([](auto& p, auto&) { p.alignment = 3; }), Kind::Misaligned);
  EXPECT_EQ(planted([](auto&, auto& s) { s.sizes[3] = 7; }), Kind::WrongSize);
  EXPECT_EQ(planted([](auto&, auto& s) { s.sizes[0] = 7; }), Kind::WrongSize);
  EXPECT_EQ(planted([](auto&, auto& s) { s.sizes[3] = 4; }), Kind::Overlap);
  EXPECT_EQ(planted([](auto&, auto& s) { s.in_place_of = {}; }), Kind::Overlap);
  EXPECT_EQ(planted([](auto&, auto& s) { s.in_place_of[1] = 2; }), Kind::IllegalInPlace);
  EXPECT_EQ(planted([](auto&, auto& s) { s.offsets[1] = 1; }), Kind::IllegalInPlace);
  EXPECT_EQ(planted([](auto& p, auto&) { p.buffers[0].upper = 5; }), Kind::IllegalInPlace);
  EXPECT_EQ(planted([](auto&, auto& s) { s.offsets[2] = 4; }), Kind::Overlap);
  EXPECT_EQ(planted([](auto&, auto& s) { s.height = 13; }), Kind::WrongHeight);
  EXPECT_EQ(planted([](auto& p, auto&) { p.capacity = 11; }), Kind::AboveCapacity);
  EXPECT_EQ(planted([](auto&, auto& s) { s.offsets[2] = INT64_MAX - 3; }), Kind::AboveCapacity);
}

TEST(PlanValidate, TakersAreHeldApartFromThirdBuffers) {
  // d is born together with b and must not use the rest of a's bytes before a is dead.
  Problem problem = example();
  problem.buffers.push_back({.id = "d",
                             .lower = 3,
                             .upper = 5,
                             .size = 3,
                             .alignment = 0,
                             .preferred_size = 0,
                             .may_share_with = {},
                             .gaps = {}});
  Solution solution{{0, 0, 8, 5, 5}, 12, {-1, 0, -1, -1, -1}, {}};
  EXPECT_EQ(verdict(problem, solution), Kind::Overlap);
  problem.buffers[4].lower = 4;
  EXPECT_EQ(verdict(problem, solution), std::nullopt);
}

TEST(PlanValidate, GapsFreeTheBytes) {
  Problem problem;
  problem.buffers = {{.id = "a",
                      .lower = 0,
                      .upper = 9,
                      .size = 8,
                      .alignment = 0,
                      .preferred_size = 0,
                      .may_share_with = {},
                      .gaps = {{3, 6}}},
                     {.id = "b",
                      .lower = 3,
                      .upper = 6,
                      .size = 8,
                      .alignment = 0,
                      .preferred_size = 0,
                      .may_share_with = {},
                      .gaps = {}}};
  EXPECT_EQ(verdict(problem, {{0, 0}, 8, {}, {}}), std::nullopt);
  problem.buffers[1].upper = 7;
  EXPECT_EQ(verdict(problem, {{0, 0}, 8, {}, {}}), Kind::Overlap);
}

TEST(PlanValidate, EveryFaultOfRandomPlansIsFound) {
  // Against the definition: two live buffers of one step share a byte.
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const Problem problem = small_problem(random, {.count = 4, .gaps = true});
    Solution solution;
    bool overlap = false;
    for (const Buffer& buffer : problem.buffers) {
      solution.offsets.push_back(random.between(0, 8));
      solution.height = std::max(solution.height, solution.offsets.back() + buffer.size);
    }
    for (int64_t step = 0; step < 6; ++step) {
      std::vector<int> users(32, 0);
      for (size_t i = 0; i < problem.buffers.size(); ++i) {
        const Buffer& buffer = problem.buffers[i];
        bool live = buffer.lower <= step && step < buffer.upper;
        for (const Interval& gap : buffer.gaps) live = live && !(gap.lower <= step && step < gap.upper);
        if (!live) continue;
        for (int64_t byte = solution.offsets[i]; byte < solution.offsets[i] + buffer.size; ++byte)
          overlap = overlap || ++users[static_cast<size_t>(byte)] > 1;
      }
    }
    EXPECT_EQ(verdict(problem, solution), overlap ? std::optional(Kind::Overlap) : std::nullopt);
  }
}

TEST(PlanValidate, MalformedProblemsAreTheUsersFault) {
  const auto malformed = [](auto&& plant) {
    Problem problem = example();
    plant(problem);
    EXPECT_THROW(require_well_formed(problem), UserError);
  };
  EXPECT_NO_THROW(require_well_formed(example()));
  malformed([](Problem& p) { p.alignment = 0; });
  malformed([](Problem& p) { p.capacity = -1; });
  malformed([](Problem& p) { p.buffers[0].id = ""; });
  malformed([](Problem& p) { p.buffers[0].id = "b"; });
  malformed([](Problem& p) { p.buffers[2].upper = 0; });
  malformed([](Problem& p) { p.buffers[2].upper = INT64_MAX; });
  malformed([](Problem& p) { p.buffers[0].size = -1; });
  malformed([](Problem& p) { p.buffers[0].size = INT64_MAX; });
  malformed([](Problem& p) { p.buffers[0].alignment = -4; });
  malformed([](Problem& p) { p.buffers[0].preferred_size = -4; });
  malformed([](Problem& p) { p.buffers[1].may_share_with = {1}; });
  malformed([](Problem& p) { p.buffers[1].may_share_with = {2}; });
  malformed([](Problem& p) { p.buffers[1].may_share_with = {17}; });
  malformed([](Problem& p) { p.buffers[2].gaps = {{0, 3}}; });
  malformed([](Problem& p) { p.buffers[2].gaps = {{3, 9}}; });
  malformed([](Problem& p) { p.buffers[2].gaps = {{2, 4}, {4, 6}}; });
}

}  // namespace
}  // namespace fuseloom::program::plan
