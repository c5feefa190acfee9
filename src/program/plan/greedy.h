// Greedy placement: take the blocks in some order and put each where it fits.
//
// How good that is depends on the order, and no order is best for all programs: long-lived blocks first is good for
// training steps, large blocks first for inference. Placing is cheap, so several orders are tried and the lowest
// placement wins. It is never worse than a few per cent on real programs, and it is what compile time can afford.
#pragma once
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "program/plan/component.h"

namespace fuseloom::program::plan {

// What an order compares; the larger value comes first.
enum class Key : uint8_t {
  Size,      // bytes
  Lifetime,  // steps
  Area,      // bytes x steps
  Load,      // the most bytes live at any time of the block's life
  Birth,     // later births first
  Death,     // later deaths first
};

// The blocks of `component`, compared by the keys from first to last, then by index.
std::vector<int32_t> order_by(const Component& component, std::span<const Key> keys);

// Where a block goes among those placed before it.
enum class Fit : uint8_t {
  First,  // the lowest place in which it fits
  Best,   // the lowest of the smallest gaps in which it fits; above everything when none does
};

// Places blocks one after the other. Reused for many orders over the same component, it allocates only once.
class GreedyPlacer {
 public:
  explicit GreedyPlacer(const Component& component);

  // The placement that `order` (a permutation of the blocks) gives. Stops as soon as the height is known to be `limit`
  // or more, and then returns false. Adds the pairs of blocks it looked at to `steps`.
  bool place(std::span<const int32_t> order, Fit fit, int64_t limit, Placement& placement, int64_t& steps);

 private:
  // A block that has its place; `placed_` is sorted by offset.
  struct Placed {
    int64_t offset, top;
    int32_t first, last, block;
  };

  int64_t place_plain(int32_t block, Fit fit, int64_t& steps) const;
  int64_t place_stairs(int32_t block, Fit fit, int64_t& steps);

  const Component& component_;
  std::vector<Placed> placed_;
  std::vector<std::pair<int64_t, int64_t>> forbidden_;  // open intervals of offsets
};

// The lowest placement over a fixed list of orders and fits; stops early at `target`.
Placement greedy(const Component& component, int64_t target, int64_t& steps);

}  // namespace fuseloom::program::plan
