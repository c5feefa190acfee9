#include "program/plan/greedy.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/check.h"

namespace fuseloom::program::plan {
namespace {

// Offsets found so far while gaps are looked at from the bottom up.
struct Candidate {
  int64_t offset = -1;
  int64_t slack = std::numeric_limits<int64_t>::max();

  // The gap [bottom, ceiling) holds `size` bytes from the aligned bottom on. Returns true when the search may stop.
  bool offer(int64_t bottom, int64_t ceiling, int64_t size, Fit fit) {
    const int64_t rest = ceiling - bottom - size;
    if (rest < 0 || rest >= slack) return false;
    offset = bottom;
    slack = rest;
    return fit == Fit::First || rest == 0;
  }
};

}  // namespace

std::vector<int32_t> order_by(const Component& component, std::span<const Key> keys) {
  const size_t count = component.blocks.size();
  std::vector<double> load;
  if (std::find(keys.begin(), keys.end(), Key::Load) != keys.end()) {
    std::vector<double> live(static_cast<size_t>(component.sections), 0);
    for (const Block& block : component.blocks)
      for (const Span& span : block.spans)
        for (int32_t s = span.first; s < span.last; ++s)
          live[static_cast<size_t>(s)] += static_cast<double>(span.height);
    for (const Block& block : component.blocks) {
      double most = 0;
      for (const Span& span : block.spans)
        most = std::max(most, *std::max_element(live.begin() + span.first, live.begin() + span.last));
      load.push_back(most);
    }
  }
  const auto value = [&](Key key, size_t i) -> double {
    const Block& block = component.blocks[i];
    switch (key) {
      case Key::Size: return static_cast<double>(block.size);
      case Key::Lifetime: return static_cast<double>(block.upper - block.lower);
      case Key::Area: return block.area;
      case Key::Load: return load[i];
      case Key::Birth: return static_cast<double>(block.lower);
      case Key::Death: return static_cast<double>(block.upper);
    }
    FL_CHECK(false, "unknown key {}", static_cast<int>(key));
  };
  std::vector<std::vector<double>> values(keys.size());
  for (size_t k = 0; k < keys.size(); ++k)
    for (size_t i = 0; i < count; ++i) values[k].push_back(value(keys[k], i));
  std::vector<int32_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    for (const std::vector<double>& by : values) {
      const double left = by[static_cast<size_t>(a)], right = by[static_cast<size_t>(b)];
      if (left != right) return left > right;
    }
    return a < b;
  });
  return order;
}

GreedyPlacer::GreedyPlacer(const Component& component) : component_(component) {
  placed_.reserve(component.blocks.size());
}

// A block of one span: its height over every placed block is the same, so the gaps between placed blocks, in order of
// offset, are the places to try.
int64_t GreedyPlacer::place_plain(int32_t index, Fit fit, int64_t& steps) const {
  const Block& block = component_.blocks[static_cast<size_t>(index)];
  const int32_t first = block.first(), last = block.last();
  int64_t bottom = 0;
  Candidate best;
  size_t at = 0;
  for (; at < placed_.size(); ++at) {
    const Placed& placed = placed_[at];
    if (placed.last <= first || placed.first >= last) continue;
    const Block& other = component_.blocks[static_cast<size_t>(placed.block)];
    int64_t top = placed.top;
    if (other.spans.size() > 1) {
      const int64_t height = clearance(other, block);
      if (height == 0) continue;
      top = placed.offset + height;
    }
    if (best.offer(bottom, placed.offset, block.size, fit)) break;
    if (top > bottom) bottom = align_up(top, block.alignment);
  }
  steps += static_cast<int64_t>(at) + 1;
  return best.offset >= 0 ? best.offset : bottom;
}

// A staircase: how far below a placed block it must stay depends on that block, so every placed block forbids an open
// interval of offsets of its own.
int64_t GreedyPlacer::place_stairs(int32_t index, Fit fit, int64_t& steps) {
  const Block& block = component_.blocks[static_cast<size_t>(index)];
  forbidden_.clear();
  for (const Placed& placed : placed_) {
    if (placed.last <= block.first() || placed.first >= block.last()) continue;
    const Block& other = component_.blocks[static_cast<size_t>(placed.block)];
    const int64_t above = clearance(other, block);
    if (above > 0) forbidden_.emplace_back(placed.offset - clearance(block, other), placed.offset + above);
  }
  std::sort(forbidden_.begin(), forbidden_.end());
  steps += static_cast<int64_t>(placed_.size() + 2 * forbidden_.size()) + 1;
  int64_t bottom = 0;
  Candidate best;
  for (const auto& [low, high] : forbidden_) {
    // Offsets up to and including `low` are allowed.
    if (best.offer(bottom, low, 0, fit)) break;
    if (high > bottom) bottom = align_up(high, block.alignment);
  }
  return best.offset >= 0 ? best.offset : bottom;
}

bool GreedyPlacer::place(std::span<const int32_t> order, Fit fit, int64_t limit, Placement& placement, int64_t& steps) {
  placed_.clear();
  placement.offsets.resize(component_.blocks.size());
  placement.height = 0;
  for (const int32_t index : order) {
    const Block& block = component_.blocks[static_cast<size_t>(index)];
    const int64_t offset =
        block.spans.size() == 1 ? place_plain(index, fit, steps) : place_stairs(index, fit, steps);
    placement.offsets[static_cast<size_t>(index)] = offset;
    placement.height = std::max(placement.height, offset + block.size);
    if (placement.height >= limit) return false;
    const Placed placed{offset, offset + block.size, block.first(), block.last(), index};
    const auto at = std::upper_bound(placed_.begin(), placed_.end(), offset,
                                     [](int64_t value, const Placed& other) { return value < other.offset; });
    placed_.insert(at, placed);
  }
  return true;
}

Placement greedy(const Component& component, int64_t target, int64_t& steps) {
  using enum Key;
  static constexpr std::array<std::array<Key, 3>, 8> kOrders = {{
      {Size, Lifetime, Area},
      {Lifetime, Size, Area},
      {Area, Size, Lifetime},
      {Load, Area, Lifetime},
      {Lifetime, Area, Load},
      {Load, Lifetime, Area},
      {Load, Size, Area},
      {Death, Size, Area},
  }};
  GreedyPlacer placer(component);
  Placement best, trial;
  best.height = std::numeric_limits<int64_t>::max();
  for (const std::array<Key, 3>& keys : kOrders) {
    const std::vector<int32_t> order = order_by(component, keys);
    for (const Fit fit : {Fit::First, Fit::Best}) {
      if (placer.place(order, fit, best.height, trial, steps)) std::swap(best, trial);
      if (best.height <= target) return best;
    }
  }
  return best;
}

}  // namespace fuseloom::program::plan
