#include "program/plan/component.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "base/check.h"

namespace fuseloom::program::plan {

int64_t common_alignment(int64_t a, int64_t b) {
  constexpr int64_t kMost = int64_t{1} << 40;
  if (a == 0 || b == 0) return 0;
  const int64_t factor = b / std::gcd(a, b);
  return a > kMost / factor ? 0 : a * factor;
}

namespace {

// A block before time is cut into sections.
struct TimedSpan {
  int64_t lower, upper, height;
};

struct TimedBlock {
  std::vector<TimedSpan> spans;
  int64_t alignment = 1;
  std::vector<int32_t> buffers;

  int64_t lower() const { return spans.front().lower; }
  int64_t upper() const { return spans.back().upper; }
  int64_t size() const {
    int64_t size = 0;
    for (const TimedSpan& span : spans) size = std::max(size, span.height);
    return size;
  }
  bool is_stairs() const {
    return std::any_of(spans.begin(), spans.end(),
                       [&](const TimedSpan& span) { return span.height != spans[0].height; });
  }
  bool meets(const TimedBlock& other) const {
    for (const TimedSpan& a : spans)
      for (const TimedSpan& b : other.spans)
        if (a.lower < b.upper && b.lower < a.upper) return true;
    return false;
  }
};

std::vector<TimedSpan> live_spans(const Buffer& buffer) {
  std::vector<TimedSpan> spans;
  int64_t lower = buffer.lower;
  for (const Interval& gap : buffer.gaps) {
    spans.push_back({lower, gap.lower, buffer.size});
    lower = gap.upper;
  }
  spans.push_back({lower, buffer.upper, buffer.size});
  return spans;
}

// Appends the spans of a buffer that takes over `block`'s storage. They share one step, the block's last.
void append_taker(TimedBlock& block, const Buffer& taker) {
  const std::vector<TimedSpan> spans = live_spans(taker);
  for (TimedSpan span : spans) {
    TimedSpan& last = block.spans.back();
    if (span.lower < last.upper) {
      if (span.height > last.height) {
        // The shared step is as tall as the taker.
        if (--last.upper == last.lower) block.spans.pop_back();
      } else if (++span.lower == span.upper) {
        continue;
      }
    }
    if (!block.spans.empty() && block.spans.back().upper == span.lower && block.spans.back().height == span.height)
      block.spans.back().upper = span.upper;
    else
      block.spans.push_back(span);
  }
}

std::vector<TimedBlock> make_blocks(const Problem& problem, std::span<const int32_t> in_place_of) {
  const size_t count = problem.buffers.size();
  // A donor is born before its taker.
  std::vector<int32_t> by_birth(count);
  std::iota(by_birth.begin(), by_birth.end(), 0);
  std::stable_sort(by_birth.begin(), by_birth.end(), [&](int32_t a, int32_t b) {
    return problem.buffers[static_cast<size_t>(a)].lower < problem.buffers[static_cast<size_t>(b)].lower;
  });
  std::vector<TimedBlock> blocks;
  std::vector<int32_t> block_of(count, -1);
  for (const int32_t i : by_birth) {
    const Buffer& buffer = problem.buffers[static_cast<size_t>(i)];
    if (buffer.size == 0) continue;
    const int64_t alignment = alignment_of(problem, buffer);
    const int32_t donor = in_place_of.empty() ? -1 : in_place_of[static_cast<size_t>(i)];
    if (donor < 0) {
      block_of[static_cast<size_t>(i)] = static_cast<int32_t>(blocks.size());
      blocks.push_back({live_spans(buffer), alignment, {i}});
      continue;
    }
    const int32_t at = block_of[static_cast<size_t>(donor)];
    FL_CHECK(at >= 0, "in-place choice of buffer '{}': its donor has no storage", buffer.id);
    TimedBlock& block = blocks[static_cast<size_t>(at)];
    append_taker(block, buffer);
    block.alignment = common_alignment(block.alignment, alignment);
    FL_CHECK(block.alignment > 0, "in-place choice of buffer '{}': alignments have no common multiple", buffer.id);
    block.buffers.push_back(i);
    block_of[static_cast<size_t>(i)] = at;
  }
  return blocks;
}

// Cuts the time of connected blocks into sections. A section ends where a span ends, if one began since the section
// before: then no other live set contains its live set.
Component make_component(std::vector<TimedBlock> timed, int64_t base) {
  Component component;
  component.base = base;
  std::map<int64_t, std::pair<bool, bool>> events;  // step → something begins, something ends
  for (const TimedBlock& block : timed) {
    for (const TimedSpan& span : block.spans) {
      events[span.lower].first = true;
      events[span.upper].second = true;
    }
  }
  std::vector<int64_t> ends;  // step at which each section ends
  bool grew = false;
  for (const auto& [step, event] : events) {
    if (event.second && grew) {
      ends.push_back(step);
      grew = false;
    }
    grew = grew || event.first;
  }
  component.sections = static_cast<int32_t>(ends.size());
  // A span covers the sections that end within (lower, upper].
  const auto sections_ended_by = [&](int64_t step) {
    return static_cast<int32_t>(std::upper_bound(ends.begin(), ends.end(), step) - ends.begin());
  };

  int64_t grain = 0, alignment_grain = 0;
  for (TimedBlock& block : timed) {
    Block result;
    result.alignment = block.alignment;
    result.lower = block.lower();
    result.upper = block.upper();
    for (const TimedSpan& span : block.spans) {
      result.area += static_cast<double>(span.upper - span.lower) * static_cast<double>(span.height);
      result.spans.push_back({sections_ended_by(span.lower), sections_ended_by(span.upper), span.height});
      grain = std::gcd(grain, span.height);
    }
    result.size = block.size();
    alignment_grain = std::gcd(alignment_grain, block.alignment);
    result.buffers = std::move(block.buffers);
    component.blocks.push_back(std::move(result));
  }
  // A height is a sum of sizes with some of the partial sums rounded up to an alignment. Rounding multiples of the
  // grain to an alignment that divides the grain changes nothing; any other alignment makes the grain finer.
  for (bool changed = true; changed;) {
    changed = false;
    for (const Block& block : component.blocks) {
      if (grain % block.alignment == 0) continue;
      const int64_t finer = std::gcd(grain, block.alignment);
      changed = changed || finer != grain;
      grain = finer;
    }
  }
  component.grain = grain;

  // Per section: the sum of sizes rounded to the alignment that all share, less the padding of one block, which may be
  // the topmost.
  const size_t sections = static_cast<size_t>(component.sections);
  std::vector<int64_t> load(sections, 0), padding(sections, 0);
  for (const Block& block : component.blocks) {
    for (const Span& span : block.spans) {
      const int64_t rounded = align_up(span.height, alignment_grain);
      for (size_t s = static_cast<size_t>(span.first); s < static_cast<size_t>(span.last); ++s) {
        load[s] += rounded;
        padding[s] = std::max(padding[s], rounded - span.height);
      }
    }
  }
  for (size_t s = 0; s < sections; ++s) component.lower_bound = std::max(component.lower_bound, load[s] - padding[s]);
  return component;
}

class Decomposer {
 public:
  Decomposer(Decomposition& result, int64_t alignment, bool stack_common)
      : result_(result), alignment_(alignment), stack_common_(stack_common) {}

  // `blocks` by birth, on top of `base`.
  void split(std::vector<TimedBlock> blocks, int64_t base) {
    std::vector<TimedBlock> part;
    int64_t end = std::numeric_limits<int64_t>::min();
    for (TimedBlock& block : blocks) {
      if (block.lower() >= end && !part.empty()) {
        stack(std::move(part), base);
        part.clear();
      }
      end = std::max(end, block.upper());
      part.push_back(std::move(block));
    }
    if (!part.empty()) stack(std::move(part), base);
  }

 private:
  // Takes one connected part and places the blocks that meet all others at its bottom.
  void stack(std::vector<TimedBlock> part, int64_t base) {
    std::vector<TimedBlock> rest;
    // Moving a staircase up because its lower stairs are in the way could take its tallest one above the height.
    const bool stairs =
        std::any_of(part.begin(), part.end(), [](const TimedBlock& block) { return block.is_stairs(); });
    if (stack_common_ && (!stairs || part.size() == 1)) {
      // A block of one span meets all others when it does so with the first to die and the last to be born; holes in
      // the others make it necessary to look.
      int64_t first_death = std::numeric_limits<int64_t>::max();
      bool holes = false;
      for (const TimedBlock& block : part) {
        first_death = std::min(first_death, block.upper());
        holes = holes || block.spans.size() > 1;
      }
      const int64_t last_birth = part.back().lower();
      std::vector<bool> common(part.size());
      const auto meets_all = [&](const TimedBlock& block) {
        if (block.lower() >= first_death || block.upper() <= last_birth) return false;
        return !holes || std::all_of(part.begin(), part.end(),
                                     [&](const TimedBlock& other) { return &other == &block || block.meets(other); });
      };
      // Moving others up by its size must keep them aligned.
      for (size_t i = 0; i < part.size(); ++i)
        common[i] =
            part[i].spans.size() == 1 && alignment_ > 0 && part[i].size() % alignment_ == 0 && meets_all(part[i]);
      // The last of a stack may have any size.
      if (part.size() == 1) common[0] = true;
      for (size_t i = 0; i < part.size(); ++i) {
        if (!common[i]) {
          rest.push_back(std::move(part[i]));
          continue;
        }
        for (const int32_t buffer : part[i].buffers) result_.offsets[static_cast<size_t>(buffer)] = base;
        base += part[i].size();
        result_.height = std::max(result_.height, base);
        result_.lower_bound = std::max(result_.lower_bound, base);
      }
      if (rest.empty()) return;
      if (rest.size() < common.size()) return split(std::move(rest), base);
    } else {
      rest = std::move(part);
    }
    result_.components.push_back(make_component(std::move(rest), base));
    result_.lower_bound = std::max(result_.lower_bound, base + result_.components.back().lower_bound);
  }

  Decomposition& result_;
  int64_t alignment_;  // a multiple of every alignment; 0: there is no sensible one
  bool stack_common_;
};

}  // namespace

Windows::Windows(int32_t sections) {
  constexpr int32_t kLeastStride = 64, kMostWindows = 64;
  stride_ = std::max(kLeastStride, (sections + kMostWindows - 1) / kMostWindows);
  // Few sections: one window of all.
  if (sections <= 2 * stride_) stride_ = std::max(sections, 1);
  count_ = (sections + stride_ - 1) / stride_;
}

Decomposition decompose(const Problem& problem, std::span<const int32_t> in_place_of, bool stack_common) {
  Decomposition result;
  result.offsets.assign(problem.buffers.size(), 0);
  std::vector<TimedBlock> blocks = make_blocks(problem, in_place_of);
  int64_t alignment = 1;
  for (const TimedBlock& block : blocks) alignment = common_alignment(alignment, block.alignment);
  if (!blocks.empty()) Decomposer(result, alignment, stack_common).split(std::move(blocks), 0);
  return result;
}

int64_t clearance(const Block& below, const Block& above) {
  int64_t most = 0;
  for (const Span& a : below.spans) {
    if (a.last <= above.first()) continue;
    if (a.first >= above.last()) break;
    for (const Span& b : above.spans)
      if (a.first < b.last && b.first < a.last) most = std::max(most, a.height);
  }
  return most;
}

int64_t height_of(const Component& component, std::span<const int64_t> offsets) {
  int64_t height = 0;
  for (size_t i = 0; i < component.blocks.size(); ++i) height = std::max(height, offsets[i] + component.blocks[i].size);
  return height;
}

}  // namespace fuseloom::program::plan
