// Improvement of greedy placements of components that are too large, or too loose, for the exact search.
//
// Squeaky wheel optimization (Joslin and Clements, 1999): the first block that ends up above what is wanted was placed
// too late, so move it forward in the order and build the placement again. An order that gives a lower placement
// becomes the one to return to when this leads nowhere.
#pragma once
#include <cstdint>
#include <random>
#include <vector>

#include "program/plan/component.h"
#include "program/plan/greedy.h"
#include "program/plan/skyline.h"

namespace fuseloom::program::plan {

class Improver {
 public:
  // Continues from the best orders of `start`.
  Improver(const Component& component, const GreedyResult& start);

  // Lowers `best` until its height is `target` or less, or `limit` steps are spent; adds these to `steps`. The same
  // calls always give the same placements.
  void run(int64_t target, int64_t limit, Placement& best, int64_t& steps);

 private:
  // One placer and its orders.
  struct Lane {
    std::vector<int32_t> best_order, order;
    int failures = 0;
  };

  void advance(Lane& lane, int32_t squeaky);
  size_t random_below(size_t end) { return static_cast<size_t>(random_() % end); }

  SkylinePlacer skyline_;
  GreedyPlacer fit_;
  Lane lanes_[2];
  size_t turn_ = 0;
  std::mt19937_64 random_;  // its sequence is fixed by the standard; fixed seed
  Placement trial_;
};

}  // namespace fuseloom::program::plan
