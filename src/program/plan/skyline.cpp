#include "program/plan/skyline.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace fuseloom::program::plan {
namespace {

// What taking one block from the queue costs, in steps.
constexpr int64_t kQueueSteps = 16;
// What looking at one block that may meet it costs: it reads several arrays.
constexpr int64_t kScanSteps = 2;
constexpr int64_t kPlaced = std::numeric_limits<int64_t>::max();

}  // namespace

SkylinePlacer::SkylinePlacer(const Component& component) : component_(component), windows_(component.sections) {
  residents_.resize(static_cast<size_t>(windows_.count()) + 1);
  for (size_t i = 0; i < component.blocks.size(); ++i) {
    const Block& block = component.blocks[i];
    first_.push_back(block.first());
    last_.push_back(block.last());
    alignment_.push_back(block.alignment);
    stairs_.push_back(block.spans.size() > 1);
    for (int32_t w = windows_.first_of(block.first()); w <= windows_.last_of(block.last()); ++w)
      residents_[static_cast<size_t>(w)].push_back(static_cast<int32_t>(i));
    residents_.back().push_back(static_cast<int32_t>(i));
  }
}

int32_t SkylinePlacer::place(std::span<const int32_t> order, int64_t limit, Placement& placement, int64_t& steps) {
  const size_t count = component_.blocks.size();
  low_.assign(count, 0);
  waiting_ = residents_;
  placement.offsets.resize(count);
  placement.height = 0;
  queue_.clear();
  for (size_t i = 0; i < count; ++i) queue_.push_back({0, static_cast<int32_t>(i), order[i]});  // a heap already
  while (!queue_.empty()) {
    steps += kQueueSteps;
    std::pop_heap(queue_.begin(), queue_.end(), std::greater<>());
    const Queued next = queue_.back();
    queue_.pop_back();
    const size_t at = static_cast<size_t>(next.block);
    if (low_[at] > next.low) {
      // It was lifted since.
      queue_.push_back({low_[at], next.rank, next.block});
      std::push_heap(queue_.begin(), queue_.end(), std::greater<>());
      continue;
    }
    const Block& block = component_.blocks[at];
    const int64_t top = next.low + block.size;
    if (top > limit) return next.block;
    low_[at] = kPlaced;
    placement.offsets[at] = next.low;
    placement.height = std::max(placement.height, top);

    // Lift what meets the block, and forget what is placed.
    const int32_t window = windows_.around(block.first(), block.last());
    std::vector<int32_t>& waiting = window < 0 ? waiting_.back() : waiting_[static_cast<size_t>(window)];
    steps += kScanSteps * static_cast<int64_t>(waiting.size());
    size_t kept = 0;
    const int32_t first = block.first(), last = block.last();
    const bool plain = stairs_[at] == 0;
    for (const int32_t other : waiting) {
      const size_t o = static_cast<size_t>(other);
      if (low_[o] == kPlaced) continue;
      waiting[kept++] = other;
      if (low_[o] >= top || first_[o] >= last || last_[o] <= first) continue;
      int64_t low = top;
      if (!plain || stairs_[o] != 0) {
        const int64_t height = clearance(block, component_.blocks[o]);
        if (height == 0) continue;
        low = next.low + height;
      }
      if (low > low_[o]) low_[o] = align_up(low, alignment_[o]);
    }
    waiting.resize(kept);
  }
  return -1;
}

}  // namespace fuseloom::program::plan
