// Memory planning: which bytes of one arena does every buffer get?
//
// A buffer is a rectangle whose place on the time axis is given and whose place on the memory axis is to be found:
//
//   memory
//     ^      +-----------+
//     |      |     c     |          No two rectangles may overlap; the height of the whole picture, which is the size
//     |  +---+---+----+--+--+       of the arena, shall be small.
//     |  |   a   |    |  b  |
//     +--+-------+----+-----+--> time (steps of the host program)
//
// Three things bend the rectangles:
//   - Gaps. A buffer may not be needed for a while; in a gap its bytes are free for others and lose their content.
//   - In-place alternatives. The step that gives birth to b may be the last one that reads a. When that step's access
//     pattern allows it, b lists a in `may_share_with`, and the planner may decide that b takes over a's storage: both
//     then have the same offset and are allowed to overlap. That is a decision of the planner, not of the caller.
//   - Workspaces. A buffer with preferred_size > size accepts every size in between (a library call that is faster with
//     more scratch memory). The planner minimises the height with `size` and then grants what is free anyway.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fuseloom::program::plan {

// The steps lower <= t < upper.
struct Interval {
  int64_t lower = 0, upper = 0;
  friend bool operator==(const Interval&, const Interval&) = default;
};

struct Buffer {
  std::string id;              // unique, not empty
  int64_t lower = 0;           // first step at which the buffer is live
  int64_t upper = 0;           // first step at which it no longer is
  int64_t size = 0;            // bytes; a buffer of no bytes conflicts with nothing
  int64_t alignment = 0;       // the offset is a multiple of it; 0: the problem's alignment
  int64_t preferred_size = 0;  // bytes; more than `size` makes the buffer an elastic workspace
  // Indices of buffers whose storage this one may take over: each of them dies at the step of this one's birth, that
  // is, its upper is this one's lower + 1.
  std::vector<int32_t> may_share_with;
  // Ascending, disjoint, not touching each other, strictly inside [lower, upper).
  std::vector<Interval> gaps;
  friend bool operator==(const Buffer&, const Buffer&) = default;
};

struct Problem {
  std::optional<int64_t> capacity;  // bytes the arena may have
  int64_t alignment = 1;            // of buffers that do not give their own
  std::vector<Buffer> buffers;
  friend bool operator==(const Problem&, const Problem&) = default;
};

struct Solution {
  std::vector<int64_t> offsets;      // bytes from the start of the arena, by buffer
  int64_t height = 0;                // max over buffers of offset + size: bytes of the arena
  std::vector<int32_t> in_place_of;  // by buffer: the buffer whose storage it took over, or -1; empty: nobody did
  std::vector<int64_t> sizes;        // by buffer: the granted size; empty: every buffer has its `size`
  friend bool operator==(const Solution&, const Solution&) = default;
};

// The alignment that holds for `buffer`.
inline int64_t alignment_of(const Problem& problem, const Buffer& buffer) {
  return buffer.alignment > 0 ? buffer.alignment : problem.alignment;
}

// `value` up to the next multiple of `alignment`; value >= 0.
inline int64_t align_up(int64_t value, int64_t alignment) {
  const int64_t rest = alignment == 1 ? 0 : value % alignment;
  return rest == 0 ? value : value + (alignment - rest);
}

}  // namespace fuseloom::program::plan
