// Exact search: do the blocks of a component fit below a capacity?
//
// Canonical plans. Take any plan and let every block fall as far as it can, again and again, until none moves: the plan
// is no higher, and every block stands on the floor or on another block. Among the plans that fit, one whose offsets
// have the least sum is of that form. List its blocks by (offset, priority), the priority being an arbitrary fixed
// number; the offset of each is then given by those before it. So the search places blocks bottom-up. A node of its
// tree is the list so far, a branch the choice of the next block, and
//
//     low(b)  = the highest top among the placed blocks that b meets: where b goes if it is the next one
//     bar     = (offset, priority) of the block placed last: no later block has a smaller pair
//     skipped = unplaced with (low, priority) < bar: something still to come must lie below it and lift it
//
//       capacity ------------------------------
//
//                      +-----+
//                      |  c  |
//                +-----+-----+
//        bar ->  |  b  |            <- the hole left of b is lost, unless a block fits that begins at the
//           +----+--+--+---+           bar or above
//           |   a   |  |   |
//           +-------+--+---+--> time
//
// Everything else is about not visiting nodes that cannot lead to that one plan, and about trying first what is likely
// to. Every technique can be switched off without losing exactness; which of them a node uses, in this order:
//
//   1. hatless           forced placements
//   2. section bound     with unallocated and monotonic floor, and skipped blocks lifted
//   3. decomposition     parts that no longer meet; dynamic preorder in each of them
//   4. branching         in dynamic order, canonical, not dominated
//
// The techniques are those of Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine
// Learning" (ASPLOS 2023); the lifting of skipped blocks, the section bound by release times and hatless placement of
// blocks that still have neighbors are ours.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "program/plan/component.h"
#include "program/plan/greedy.h"

namespace fuseloom::program::plan {

struct Techniques {
  // Branch on blocks in ascending (low, priority); otherwise by priority alone.
  bool dynamic_order = true;
  // Priorities follow the keys given to the search; otherwise the order of birth.
  bool preorder = true;
  // A part that fell apart gets new priorities: what is left of the load of its sections is not what it was.
  bool dynamic_preorder = true;
  // Only blocks with (low, priority) >= bar may come next.
  bool canonical_order = true;
  // In every section, the unplaced blocks must still fit.
  bool section_bound = true;
  // The section bound knows that block b cannot begin below low(b).
  bool unallocated_floor = true;
  // The section bound knows that no block begins below the bar.
  bool monotonic_floor = true;
  // The section bound knows that a skipped block begins no lower than the lowest top that may come to lie below it.
  bool lift_skipped = true;
  // A block does not come next where another one fits entirely below it: that one would have fallen down.
  bool dominance = true;
  // A block in whose place no unplaced block can come to lie is placed at once, without alternative. (The simplest case
  // is a block that meets no unplaced block at all: it has no hat.)
  bool hatless = true;
  // Where no unplaced block spans two neighboring sections, left and right are searched on their own.
  bool decomposition = true;
};

enum class Verdict : uint8_t { Fits, Infeasible, OutOfSteps };

class Search {
 public:
  // Whether the component is small enough: the search keeps all pairs of blocks that meet, and recurses by block.
  static bool can_take(const Component& component);

  Search(const Component& component, const Techniques& techniques);

  // Looks for a placement of height <= capacity. `keys` give the priorities: what compares larger is tried first where
  // offsets are equal. Spends about `limit` steps at most (a step: one look at a block) and adds those spent to
  // `steps`. `placement` is written only when the verdict is Fits.
  Verdict run(int64_t capacity, std::span<const Key> keys, int64_t limit, Placement& placement, int64_t& steps);

  // Steps that it takes to place all blocks without ever going back, roughly.
  int64_t dive_steps() const;

 private:
  // A block that another one meets, and the distance of their bottoms when they touch.
  struct Neighbor {
    int32_t block;
    int64_t rise;  // when the neighbor stands on the block
    int64_t drop;  // when the block stands on the neighbor
  };
  // An unplaced block in a node's list, which is sorted by (low, priority).
  struct Entry {
    int64_t low;
    int32_t priority;
    int32_t block;
    friend bool operator<(const Entry& a, const Entry& b) {
      return a.low != b.low ? a.low < b.low : a.priority < b.priority;
    }
  };
  // Blocks searched together: list_[begin, end), all of them within the sections [first, last).
  struct Part {
    size_t begin, end;
    int32_t first, last;
  };
  // How to undo: low_[block] was `low`; for block < 0, ~block was unplaced.
  struct Change {
    int32_t block;
    int64_t low;
  };

  Verdict search(const Part& given, Entry bar);
  Verdict search_apart(const Part& part, Entry bar);
  Verdict branch(const Part& part, Entry bar);
  bool settle(Part& part, Entry bar);
  bool in_the_way(int32_t block, Entry bar);
  bool sections_fit(const Part& part, Entry bar);
  int64_t lifted(int32_t block, Entry bar);
  bool falls_apart(const Part& part) const;
  bool place(int32_t block, int64_t offset);
  void undo(size_t mark);
  Part remaining(const Part& part);
  void prioritize(const Part& part);

  std::span<const Neighbor> neighbors(int32_t block) const {
    const size_t i = static_cast<size_t>(block);
    return {neighbors_.data() + neighbors_begin_[i], neighbors_.data() + neighbors_begin_[i + 1]};
  }
  bool is_placed(int32_t block) const { return offset_[static_cast<size_t>(block)] >= 0; }
  // The lowest offset that an unplaced block can have: nothing begins below the bar any more.
  int64_t earliest(int32_t block, Entry bar) const { return std::max(low_[static_cast<size_t>(block)], bar.low); }

  const Component& component_;
  const Techniques techniques_;

  // By block, and what belongs to it.
  std::vector<int64_t> size_, alignment_;
  std::vector<int32_t> first_, last_;
  std::vector<size_t> neighbors_begin_, spans_begin_;  // one more entry than blocks
  std::vector<Neighbor> neighbors_;
  std::vector<Span> spans_;  // heights rounded up to the alignment that all blocks share
  int64_t alignment_grain_ = 0;
  std::array<std::vector<double>, kKeys> key_values_;  // by key and block

  // The state of the search.
  std::vector<Key> keys_;
  int64_t capacity_ = 0, steps_ = 0, limit_ = 0;
  std::vector<int64_t> offset_;    // by block; -1: unplaced
  std::vector<int64_t> low_;       // by block
  std::vector<int32_t> obstacle_;  // by block: the neighbor that was in its way when last looked at, or -1
  std::vector<int32_t> cuts_;      // by section s: unplaced blocks that span s and s + 1
  std::vector<Change> trail_;
  std::vector<Entry> list_;  // the lists of all nodes on the current path, one after the other

  // Scratch.
  std::vector<Entry> entries_;
  std::vector<int64_t> top_;  // by section
  std::vector<double> load_;  // by section
};

}  // namespace fuseloom::program::plan
