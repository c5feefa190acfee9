// Greedy placement: take the blocks in some order and put each where it fits.
//
// How good that is depends on the order, and no order is best for all programs. Placing is cheap, so many orders are
// tried, with the blocks' own place among those placed before (GreedyPlacer) and from the bottom up (SkylinePlacer),
// and the lowest placement wins. That is what compile time can afford.
#pragma once
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "program/plan/component.h"

namespace fuseloom::program::plan {

// What an order compares; the larger value comes first. Birth and Death are mirror images of each other in time.
enum class Key : uint8_t {
  Size,      // bytes
  Lifetime,  // steps
  Area,      // bytes x steps
  Load,      // the most bytes live at any time of the block's life
  Birth,     // earlier births first
  Death,     // later deaths first
};
inline constexpr size_t kKeys = 6;

// The value of a key, by block.
std::vector<double> values_of(const Component& component, Key key);

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

  // The placement that `order` (a permutation of the blocks) gives. Stops at the first block whose top would be above
  // `limit` and returns that block, or -1 when all have their place. Adds the pairs of blocks looked at to `steps`.
  int32_t place(std::span<const int32_t> order, Fit fit, int64_t limit, Placement& placement, int64_t& steps);

 private:
  // A block that has its place.
  struct Placed {
    int64_t offset, top;
    int32_t first, last, block;
  };

  int64_t place_plain(int32_t block, std::span<const Placed> placed, Fit fit, int64_t& steps) const;
  int64_t place_stairs(int32_t block, std::span<const Placed> placed, Fit fit, int64_t& steps);
  std::span<const Placed> placed_near(int32_t block, int64_t& steps);
  void insert(const Placed& placed);

  const Component& component_;
  Windows windows_;
  std::vector<std::vector<Placed>> by_offset_;          // by window: its placed blocks, by offset
  std::vector<Placed> all_;                             // in order of placement
  std::vector<Placed> near_;                            // scratch
  std::vector<std::pair<int64_t, int64_t>> forbidden_;  // scratch: open intervals of offsets
};

// The lowest placement that a fixed list of orders gives, and the orders that were best for either placer.
struct GreedyResult {
  Placement placement;
  std::vector<int32_t> skyline_order, fit_order;
};

// Tries orders until one gives `target` or less, or `limit` steps are spent; at least one in any case.
GreedyResult greedy(const Component& component, int64_t target, int64_t limit, int64_t& steps);

}  // namespace fuseloom::program::plan
