#include <gtest/gtest.h>

#include "program/plan/bound.h"
#include "program/plan/greedy.h"
#include "program/plan/skyline.h"
#include "program/plan/validate.h"
#include "program/plan_instances.h"

namespace fuseloom::program::plan {
namespace {

// The whole plan from placements of the components.
Solution assemble(const Problem& problem, const Decomposition& parts, const std::vector<Placement>& placements) {
  Solution solution{parts.offsets, parts.height, {}, {}};
  for (size_t c = 0; c < parts.components.size(); ++c) {
    const Component& component = parts.components[c];
    for (size_t i = 0; i < component.blocks.size(); ++i)
      for (const int32_t buffer : component.blocks[i].buffers)
        solution.offsets[static_cast<size_t>(buffer)] = component.base + placements[c].offsets[i];
    solution.height = std::max(solution.height, component.base + placements[c].height);
  }
  EXPECT_EQ(solution.offsets.size(), problem.buffers.size());
  return solution;
}

TEST(PlanGreedy, EveryOrderAndFitIsValid) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const Problem problem = small_problem(random, {.count = static_cast<int>(random.between(1, 30)),
                                                   .steps = 12,
                                                   .most = 40,
                                                   .alignments = random.chance(50),
                                                   .gaps = random.chance(50),
                                                   .empty = random.chance(50)});
    const Decomposition parts = decompose(problem, {}, random.chance(50));
    EXPECT_GE(parts.lower_bound, lower_bound(problem));
    for (const Key key : {Key::Size, Key::Lifetime, Key::Area, Key::Load, Key::Birth, Key::Death}) {
      for (const Fit fit : {Fit::First, Fit::Best}) {
        std::vector<Placement> placements(parts.components.size());
        for (size_t c = 0; c < parts.components.size(); ++c) {
          int64_t steps = 0;
          GreedyPlacer placer(parts.components[c]);
          ASSERT_EQ(-1,
                    placer.place(order_by(parts.components[c], std::array{key}), fit, INT64_MAX, placements[c], steps));
          EXPECT_EQ(placements[c].height, height_of(parts.components[c], placements[c].offsets));
        }
        const std::optional<Violation> violation = validate(problem, assemble(problem, parts, placements));
        EXPECT_FALSE(violation) << violation->message;
      }
      std::vector<Placement> placements(parts.components.size());
      for (size_t c = 0; c < parts.components.size(); ++c) {
        int64_t steps = 0;
        const std::vector<int32_t> order = order_by(parts.components[c], std::array{key});
        SkylinePlacer placer(parts.components[c]);
        ASSERT_EQ(-1, placer.place(order, INT64_MAX, placements[c], steps));
        EXPECT_EQ(placements[c].height, height_of(parts.components[c], placements[c].offsets));
        // Below its own height it fails, and says where.
        Placement lower;
        const int32_t squeaky = placer.place(order, placements[c].height - 1, lower, steps);
        ASSERT_GE(squeaky, 0);
        EXPECT_EQ(placements[c].offsets[static_cast<size_t>(squeaky)] +
                      parts.components[c].blocks[static_cast<size_t>(squeaky)].size,
                  placements[c].height);
      }
      const std::optional<Violation> violation = validate(problem, assemble(problem, parts, placements));
      EXPECT_FALSE(violation) << violation->message;
    }
  }
}

TEST(PlanGreedy, CommonBlocksLieAtTheBottom) {
  Problem problem;
  const auto add = [&](int64_t lower, int64_t upper, int64_t size) {
    problem.buffers.push_back({.id = std::to_string(problem.buffers.size()),
                               .lower = lower,
                               .upper = upper,
                               .size = size,
                               .alignment = 0,
                               .preferred_size = 0,
                               .may_share_with = {},
                               .gaps = {}});
  };
  add(0, 10, 7);
  add(0, 5, 2);
  add(5, 10, 3);
  const Decomposition parts = decompose(problem, {});
  EXPECT_TRUE(parts.components.empty());
  EXPECT_EQ(parts.offsets, (std::vector<int64_t>{0, 7, 7}));
  EXPECT_EQ(parts.height, 10);
  EXPECT_EQ(parts.lower_bound, 10);
  // Without the rule they stay one component.
  EXPECT_EQ(decompose(problem, {}, false).components.size(), 1u);
}

TEST(PlanGreedy, TakersAndDonorsAreOneBlock) {
  Problem problem;
  problem.buffers = {{.id = "a",
                      .lower = 0,
                      .upper = 4,
                      .size = 8,
                      .alignment = 4,
                      .preferred_size = 0,
                      .may_share_with = {},
                      .gaps = {}},
                     {.id = "b",
                      .lower = 3,
                      .upper = 9,
                      .size = 5,
                      .alignment = 6,
                      .preferred_size = 0,
                      .may_share_with = {0},
                      .gaps = {}},
                     {.id = "c",
                      .lower = 2,
                      .upper = 6,
                      .size = 5,
                      .alignment = 1,
                      .preferred_size = 0,
                      .may_share_with = {},
                      .gaps = {}}};
  const Decomposition parts = decompose(problem, std::vector<int32_t>{-1, 0, -1}, false);
  ASSERT_EQ(parts.components.size(), 1u);
  const Component& component = parts.components[0];
  ASSERT_EQ(component.blocks.size(), 2u);
  const Block& stairs = component.blocks[0];
  EXPECT_EQ(stairs.buffers, (std::vector<int32_t>{0, 1}));
  ASSERT_EQ(stairs.spans.size(), 2u);
  EXPECT_EQ(stairs.spans[0].height, 8);
  EXPECT_EQ(stairs.spans[1].height, 5);
  EXPECT_EQ(stairs.alignment, 12);
  EXPECT_EQ(clearance(stairs, component.blocks[1]), 8);
  EXPECT_EQ(clearance(component.blocks[1], stairs), 5);
}

TEST(PlanBound, MaxLiveAndCorrections) {
  Problem problem;
  problem.alignment = 8;
  problem.buffers = {{.id = "a",
                      .lower = 0,
                      .upper = 4,
                      .size = 9,
                      .alignment = 0,
                      .preferred_size = 0,
                      .may_share_with = {},
                      .gaps = {}},
                     {.id = "b",
                      .lower = 3,
                      .upper = 9,
                      .size = 10,
                      .alignment = 0,
                      .preferred_size = 0,
                      .may_share_with = {},
                      .gaps = {}}};
  EXPECT_EQ(max_live(problem), 19);
  EXPECT_EQ(lower_bound(problem), 25);  // 16 + 9
  problem.buffers[1].may_share_with = {0};
  EXPECT_EQ(lower_bound(problem), 10);
  EXPECT_EQ(max_live({}), 0);
  EXPECT_EQ(lower_bound({}), 0);
}

}  // namespace
}  // namespace fuseloom::program::plan
