#include "program/plan/improve.h"

#include <algorithm>

namespace fuseloom::program::plan {

Improver::Improver(const Component& component, const GreedyResult& start) : skyline_(component), fit_(component) {
  const Key keys[] = {Key::Size, Key::Lifetime};
  for (size_t i = 0; i < 2; ++i) {
    lanes_[i].best_order = i == 0 ? start.skyline_order : start.fit_order;
    // greedy() may have reached its limit before it came to this placer.
    if (lanes_[i].best_order.empty()) lanes_[i].best_order = order_by(component, keys);
    lanes_[i].order = lanes_[i].best_order;
  }
}

void Improver::run(int64_t target, int64_t limit, Placement& best, int64_t& steps) {
  const int64_t end = steps + limit;
  for (; best.height > target && steps < end; turn_ = 1 - turn_) {
    Lane& lane = lanes_[turn_];
    const int64_t wanted = best.height - 1;
    const int32_t squeaky = turn_ == 0 ? skyline_.place(lane.order, wanted, trial_, steps)
                                       : fit_.place(lane.order, Fit::First, wanted, trial_, steps);
    if (squeaky < 0) {
      std::swap(best, trial_);
      lane.best_order = lane.order;
      lane.failures = 0;
    } else {
      advance(lane, squeaky);
    }
  }
}

// The next order of a lane after block `squeaky` did not fit.
void Improver::advance(Lane& lane, int32_t squeaky) {
  constexpr int kPatience = 200, kKicks = 8;
  const size_t count = lane.order.size();
  if (++lane.failures > kPatience) {
    lane.failures = 0;
    lane.order = lane.best_order;
    for (int i = 0; i < kKicks; ++i) std::swap(lane.order[random_below(count)], lane.order[random_below(count)]);
    return;
  }
  const auto at = std::find(lane.order.begin(), lane.order.end(), squeaky);
  const size_t position = static_cast<size_t>(at - lane.order.begin());
  // Mostly to the very front; a random place in between breaks cycles.
  const size_t to = random_below(3) > 0 ? 0 : random_below(position + 1);
  std::rotate(lane.order.begin() + static_cast<std::ptrdiff_t>(to), at, at + 1);
}

}  // namespace fuseloom::program::plan
