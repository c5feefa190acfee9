#include "program/plan/solve.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "program/plan/bound.h"
#include "program/plan/greedy.h"
#include "program/plan/improve.h"
#include "program/plan/in_place.h"
#include "program/plan/validate.h"
#include "program/plan/workspace.h"

namespace fuseloom::program::plan {
namespace {

using enum Key;
using Keys = std::array<Key, 3>;

// Priorities for the search. Hard problems are hard for most of them and easy for one, which cannot be known before.
constexpr Keys kPriorities[] = {
    {Load, Lifetime, Area},  {Death, Load, Lifetime}, {Death, Lifetime, Size},
    {Load, Area, Lifetime},  {Load, Death, Size},     {Lifetime, Area, Load},
    {Birth, Load, Lifetime}, {Birth, Lifetime, Size}, {Load, Birth, Size},
};
constexpr int64_t kQuickBudget = 20'000'000, kThoroughBudget = 2'000'000'000;
// The first turn's budget of a search, and how much larger it is in each turn.
constexpr int64_t kFirstTurn = 1'000'000, kGrowth = 4;
// Most of a turn goes to the search at the lowest height: when it fits there, all is done.
constexpr int64_t kLowestShare = 4;
// In-place choices are enumerated up to this many, else improved one by one.
constexpr size_t kMostChoices = 256;

// Steps left to spend.
struct Budget {
  int64_t steps = 0;  // spent
  int64_t end = 0;
  int64_t left() const { return end - steps; }
  bool spent() const { return steps >= end; }
};

// One component on its way to its best placement.
class ComponentSolver {
 public:
  ComponentSolver(const Component& component, const Options& options, int64_t goal, Budget& budget)
      : component_(component), options_(options), bound_(component.lower_bound) {
    start_ =
        greedy(component, std::max(goal - component.base, bound_), std::max<int64_t>(budget.left(), 0), budget.steps);
    best_ = start_.placement;
  }

  const Component& component() const { return component_; }
  const Placement& best() const { return best_; }
  int64_t height() const { return component_.base + best_.height; }
  int64_t lower_bound() const { return component_.base + bound_; }

  // Lowers the height until it is `goal` or less, or proven optimal, or `limit` steps are spent.
  void run(int64_t goal, int64_t limit, Budget& budget) {
    goal_ = goal - component_.base;
    const Budget all = budget;
    budget.end = std::min(all.end, budget.steps + limit);
    std::optional<Search> search;
    if (options_.search && Search::can_take(component_)) {
      search.emplace(component_, options_.techniques);
      // A search that cannot even reach the bottom of its tree within the budget is no use.
      if (search->dive_steps() > budget.left() / 4) search.reset();
    }
    Improver improver(component_, start_);
    int64_t turn = kFirstTurn;
    if (search) turn = std::max(turn, 2 * search->dive_steps());
    while (!done() && !budget.spent() && (search || options_.improve)) {
      if (search) {
        search_lowest(*search, turn, budget);
        search_between(*search, std::max(turn / kLowestShare, search->dive_steps()), budget);
      }
      if (options_.improve && !done() && !budget.spent())
        improver.run(lowest(), std::min(search ? turn / kLowestShare : turn, budget.left()), best_, budget.steps);
      turn = turn > budget.left() / kGrowth ? std::max<int64_t>(budget.left(), 1) : turn * kGrowth;
    }
    budget.end = all.end;
  }

 private:
  bool done() const { return best_.height <= std::max(goal_, bound_); }

  // The lowest height worth asking for: the bound, or more when more is good enough.
  int64_t lowest() const { return std::max(goal_, bound_); }

  // Asks whether `capacity` is enough, and learns from the answer.
  Verdict ask(Search& search, int64_t capacity, const Keys& keys, int64_t turn, Budget& budget) {
    const Verdict verdict = search.run(capacity, keys, std::min(turn, budget.left()), best_, budget.steps);
    // Heights are multiples of the grain, as long as they are not rounded to an alignment.
    if (verdict == Verdict::Infeasible) bound_ = std::max(bound_, align_up(capacity + 1, component_.grain));
    return verdict;
  }

  void search_lowest(Search& search, int64_t turn, Budget& budget) {
    for (const Keys& keys : kPriorities) {
      while (!done() && !budget.spent() && ask(search, lowest(), keys, turn, budget) == Verdict::Infeasible) continue;
      if (done() || budget.spent()) return;
    }
  }

  // Bisects the heights between the lowest and the best; what is not answered within the turn counts as a no, for now.
  void search_between(Search& search, int64_t turn, Budget& budget) {
    int64_t low = lowest();
    while (!done() && !budget.spent()) {
      low = std::max(low, lowest());
      const int64_t grains = (best_.height - low) / component_.grain;
      if (grains < 2) return;
      const int64_t capacity = low + grains / 2 * component_.grain;
      const Keys& keys = kPriorities[questions_++ % std::size(kPriorities)];
      if (ask(search, capacity, keys, turn, budget) != Verdict::Fits) low = capacity;
    }
  }

  const Component& component_;
  const Options& options_;
  int64_t bound_;         // proven, above the base
  int64_t goal_ = 0;      // good enough, above the base
  size_t questions_ = 0;  // asked between the lowest and the best
  GreedyResult start_;
  Placement best_;
};

// A plan for one way to choose in-place takeovers.
struct Plan {
  Solution solution;
  int64_t lower_bound = 0;  // for this way
};

// Lowers the height until it is `goal` or less, or proven optimal, or the budget is spent.
Plan plan_for(const Problem& problem, const std::vector<int32_t>& in_place_of, int64_t goal, Options::Mode mode,
              const Options& options, Budget& budget) {
  const Decomposition parts = decompose(problem, in_place_of, options.stack_common);
  Plan plan;
  plan.lower_bound = parts.lower_bound;
  goal = std::max(goal, parts.lower_bound);
  const int64_t first_goal = goal;
  std::vector<ComponentSolver> solvers;
  for (const Component& component : parts.components) solvers.emplace_back(component, options, goal, budget);

  if (mode == Options::Mode::Thorough) {
    // The highest component first. Once its height stands, the others need not be lower.
    std::vector<size_t> order(solvers.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return solvers[a].height() > solvers[b].height(); });
    for (size_t i = 0; i < order.size(); ++i) {
      ComponentSolver& solver = solvers[order[i]];
      const bool others = i + 1 < order.size() && solvers[order[i + 1]].height() > goal;
      solver.run(goal, others ? budget.left() / 2 : budget.left(), budget);
      goal = std::max(goal, solver.height());
    }
    // What they left over can only help the one that is still the highest.
    const auto highest = std::max_element(solvers.begin(), solvers.end(),
                                          [](const auto& a, const auto& b) { return a.height() < b.height(); });
    if (highest != solvers.end() && !budget.spent()) highest->run(first_goal, budget.left(), budget);
    for (const ComponentSolver& solver : solvers) plan.lower_bound = std::max(plan.lower_bound, solver.lower_bound());
  }

  plan.solution.offsets = parts.offsets;
  plan.solution.height = parts.height;
  const bool takeovers = std::any_of(in_place_of.begin(), in_place_of.end(), [](int32_t donor) { return donor >= 0; });
  if (takeovers) plan.solution.in_place_of = in_place_of;
  for (const ComponentSolver& solver : solvers) {
    const std::vector<Block>& blocks = solver.component().blocks;
    for (size_t i = 0; i < blocks.size(); ++i)
      for (const int32_t buffer : blocks[i].buffers)
        plan.solution.offsets[static_cast<size_t>(buffer)] = solver.component().base + solver.best().offsets[i];
    plan.solution.height = std::max(plan.solution.height, solver.height());
  }
  return plan;
}

// The best plan over in-place choices. Its lower bound holds for all of them.
Plan plan_in_place(const Problem& problem, const InPlaceChoices& choices, int64_t bound, int64_t goal,
                   const Options& options, Budget& budget) {
  using enum Options::Mode;
  Plan best;
  best.solution.height = std::numeric_limits<int64_t>::max();
  const auto keep = [&](Plan plan) {
    if (plan.solution.height >= best.solution.height) return false;
    best = std::move(plan);
    return true;
  };
  const auto good_enough = [&] { return best.solution.height <= std::max(goal, bound); };

  // 1. The two obvious ones.
  std::vector<int32_t> choice = choices.greedy();
  keep(plan_for(problem, choice, goal, Quick, options, budget));
  if (!good_enough() && keep(plan_for(problem, choices.none(), goal, Quick, options, budget))) choice = choices.none();

  if (!good_enough() && options.mode == Thorough) {
    // 2. All of them, if they are few: then their bounds together are a bound.
    const std::vector<std::vector<int32_t>> all = choices.all(kMostChoices);
    if (!all.empty()) {
      int64_t least = std::numeric_limits<int64_t>::max();
      for (size_t i = 0; i < all.size() && !good_enough(); ++i) {
        Budget share{budget.steps,
                     budget.steps + std::max<int64_t>(budget.left(), 0) / static_cast<int64_t>(all.size() - i)};
        Plan plan = plan_for(problem, all[i], goal, Thorough, options, share);
        budget.steps = share.steps;
        least = std::min(least, plan.lower_bound);
        keep(std::move(plan));
      }
      best.lower_bound = good_enough() ? bound : std::max(bound, least);
      return best;
    }
    // 3. Too many: change one at a time while greedy placement gets lower, then be thorough with the last.
    const int64_t end = budget.steps + budget.left() / 4;
    for (bool lower = true; lower && !good_enough() && budget.steps < end;) {
      lower = false;
      for (size_t move = 0; move < choices.moves() && !good_enough() && budget.steps < end; ++move) {
        std::vector<int32_t> next = choice;
        if (!choices.apply(move, next) || !keep(plan_for(problem, next, goal, Quick, options, budget))) continue;
        choice = std::move(next);
        lower = true;
      }
    }
    if (!good_enough()) keep(plan_for(problem, choice, goal, Thorough, options, budget));
  }
  best.lower_bound = bound;
  return best;
}

}  // namespace

std::string_view name_of(Proof proof) {
  switch (proof) {
    case Proof::Optimal:
      return "optimal";
    case Proof::Bound:
      return "bound";
    case Proof::Timeout:
      return "timeout";
  }
  FL_CHECK(false, "unknown proof {}", static_cast<int>(proof));
}

Result solve(const Problem& problem, const Options& options) {
  require_well_formed(problem);
  FL_REQUIRE(options.step_budget >= 0, "memory plan: step budget {}, expected at least 0", options.step_budget);
  const bool quick = options.mode == Options::Mode::Quick;
  Budget budget;
  budget.end = options.step_budget > 0 ? options.step_budget : quick ? kQuickBudget : kThoroughBudget;
  const int64_t target = options.target.value_or(problem.capacity.value_or(0));

  Result result;
  result.max_live = max_live(problem);
  result.lower_bound = lower_bound(problem);
  const InPlaceChoices choices(problem);
  Plan plan = choices.empty() ? plan_for(problem, {}, target, options.mode, options, budget)
                              : plan_in_place(problem, choices, result.lower_bound, target, options, budget);
  result.solution = std::move(plan.solution);
  grant_workspaces(problem, result.solution);
  result.lower_bound = std::max(result.lower_bound, plan.lower_bound);
  result.height = result.solution.height;
  result.ratio =
      result.lower_bound > 0 ? static_cast<double>(result.height) / static_cast<double>(result.lower_bound) : 1;
  result.steps = budget.steps;
  FL_CHECK(result.height >= result.lower_bound, "a plan of height {} is below the lower bound {}", result.height,
           result.lower_bound);
  if (result.height == result.lower_bound)
    result.proof = Proof::Optimal;
  else if (quick || result.height <= target)
    result.proof = Proof::Bound;
  else
    result.proof = Proof::Timeout;
  return result;
}

}  // namespace fuseloom::program::plan
