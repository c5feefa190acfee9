// Skyline placement: build the plan from the bottom up.
//
// Greedy placement in a fixed order leaves holes that no later block fits. Here the next block is always the one that
// can lie lowest, and an order only decides between those that can lie equally low:
//
//                   +----+
//         +----+    | x  |  <- x, y and z can all go here: the order decides
//     +---+    +----+----+---+
//     |   |    |    |        |
//     +---+----+----+--------+--> time
//
// Every block is given the lowest place above all the blocks placed so far that it meets, so holes are never filled
// later; they hardly arise.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "program/plan/component.h"

namespace fuseloom::program::plan {

class SkylinePlacer {
 public:
  explicit SkylinePlacer(const Component& component);

  // The placement with `order` (a permutation of the blocks) deciding between equals. Stops at the first block whose
  // top would be above `limit` and returns that block, or -1 when all have their place. Adds the pairs of blocks looked
  // at to `steps`.
  int32_t place(std::span<const int32_t> order, int64_t limit, Placement& placement, int64_t& steps);

 private:
  // A block in the queue; `low` is where it could lie when it was queued.
  struct Queued {
    int64_t low;
    int32_t rank, block;
    friend bool operator>(const Queued& a, const Queued& b) { return a.low != b.low ? a.low > b.low : a.rank > b.rank; }
  };

  const Component& component_;
  Windows windows_;
  std::vector<int32_t> first_, last_;            // sections, by block
  std::vector<int64_t> alignment_;               // by block
  std::vector<uint8_t> stairs_;                  // by block: has more than one span
  std::vector<std::vector<int32_t>> residents_;  // by window, and last all: the blocks that live in it
  std::vector<std::vector<int32_t>> waiting_;    // the residents that may still be unplaced
  std::vector<int64_t> low_;                     // by block; kPlaced once it has its place
  std::vector<Queued> queue_;
};

}  // namespace fuseloom::program::plan
