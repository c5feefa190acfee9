// The form of a planning problem that greedy placement, improvement and search work on.
//
// 1. Buffers become blocks. A block is a staircase: one offset, and over each of its spans of time a height. A plain
//    buffer is one span, gaps leave holes between spans, and a buffer that takes over the storage of another one is
//    merged with it, so that the search never sees gaps nor in-place choices:
//
//        a in [0, 4), 8 bytes                        +---------+
//        b in [3, 9), 5 bytes, in place of a         |  a      +-----------+
//                                                    |         :     b     |   spans [0, 4) x 8, [4, 9) x 5
//                                                    +---------+-----------+
//
// 2. A block that meets every other block can lie at the very bottom: cut it out of any plan, move what lies below it
//    up by its size, and put it underneath. So it is placed there at once. (Not beside real staircases: what meets the
//    block is only a part of them.) What remains may fall apart in time into parts that never meet, and this repeats in
//    each of them:
//
//        |  c  |  | d |           c and d are components of their own with base = size(u)
//        +-----+--+---+
//        |     u      |
//        +------------+
//
// 3. Time becomes sections: runs of steps that no other run's live set contains. Two blocks meet exactly when they
//    share a section, and the bytes live in the sections bound the height.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "program/plan/problem.h"

namespace fuseloom::program::plan {

// A block occupies the bytes [offset, offset + height) in the sections first <= s < last. Height > 0.
struct Span {
  int32_t first = 0, last = 0;
  int64_t height = 0;
};

struct Block {
  std::vector<Span> spans;       // ascending, disjoint
  int64_t size = 0;              // the tallest span
  int64_t alignment = 1;         // of the offset
  int64_t lower = 0, upper = 0;  // first step of life, first step after it
  double area = 0;               // sum of bytes x steps
  std::vector<int32_t> buffers;  // the problem's buffers that live here, in order of birth

  int32_t first() const { return spans.front().first; }
  int32_t last() const { return spans.back().last; }
};

// Blocks that are connected in time.
struct Component {
  std::vector<Block> blocks;  // by birth
  int32_t sections = 0;
  int64_t base = 0;         // offset of the component's bottom in the arena
  int64_t lower_bound = 0;  // of the height above the base
  int64_t grain = 1;        // every height worth reaching is a multiple of it
};

// Offsets of a component's blocks, above its base.
struct Placement {
  std::vector<int64_t> offsets;
  int64_t height = 0;
};

struct Decomposition {
  std::vector<Component> components;
  std::vector<int64_t> offsets;  // by buffer: offset of buffers placed at once, 0 where a component will say
  int64_t height = 0;            // of the buffers placed at once
  int64_t lower_bound = 0;       // of the whole, for these in-place choices
};

// Most blocks are short-lived, so those that meet a given one are few. Window w is the sections
// [w * stride, (w + 2) * stride); blocks of up to `stride` sections lie within one window.
//
//    sections   0      stride      2 stride    3 stride
//    window 0   |----------------------|
//    window 1          |-----------------------|
class Windows {
 public:
  explicit Windows(int32_t sections);
  int32_t count() const { return count_; }
  // The windows that a block in the sections [first, last) lives in are first_of(first) to last_of(last).
  int32_t first_of(int32_t first) const { return first < stride_ ? 0 : first / stride_ - 1; }
  int32_t last_of(int32_t last) const { return (last - 1) / stride_; }
  // The window that contains the sections [first, last), or -1.
  int32_t around(int32_t first, int32_t last) const { return last - first <= stride_ ? first / stride_ : -1; }

 private:
  int32_t stride_ = 1, count_ = 1;
};

// `in_place_of` as in Solution; empty: nobody. `stack_common` switches step 2's placement at the bottom on.
Decomposition decompose(const Problem& problem, std::span<const int32_t> in_place_of, bool stack_common = true);

// The least common multiple, or 0 when it is beyond 2^40, which no sensible alignment is.
int64_t common_alignment(int64_t a, int64_t b);

// Bytes between the bottoms of two blocks when `above` stands directly on `below`; 0 when they never meet.
int64_t clearance(const Block& below, const Block& above);

// The height of a placement.
int64_t height_of(const Component& component, std::span<const int64_t> offsets);

}  // namespace fuseloom::program::plan
