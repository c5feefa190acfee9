#include "program/plan/greedy.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/check.h"
#include "program/plan/skyline.h"

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

std::vector<double> values_of(const Component& component, Key key) {
  std::vector<double> live(key == Key::Load ? static_cast<size_t>(component.sections) : 0, 0.0);
  if (key == Key::Load)
    for (const Block& block : component.blocks)
      for (const Span& span : block.spans)
        for (int32_t s = span.first; s < span.last; ++s)
          live[static_cast<size_t>(s)] += static_cast<double>(span.height);
  const auto value = [&](const Block& block) -> double {
    switch (key) {
      case Key::Size:
        return static_cast<double>(block.size);
      case Key::Lifetime:
        return static_cast<double>(block.upper - block.lower);
      case Key::Area:
        return block.area;
      case Key::Load:
        return *std::max_element(live.begin() + block.first(), live.begin() + block.last());
      case Key::Birth:
        return -static_cast<double>(block.lower);
      case Key::Death:
        return static_cast<double>(block.upper);
    }
    FL_CHECK(false, "unknown key {}", static_cast<int>(key));
  };
  std::vector<double> values;
  for (const Block& block : component.blocks) values.push_back(value(block));
  return values;
}

std::vector<int32_t> order_by(const Component& component, std::span<const Key> keys) {
  std::vector<std::vector<double>> values;
  for (const Key key : keys) values.push_back(values_of(component, key));
  std::vector<int32_t> order(component.blocks.size());
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

GreedyPlacer::GreedyPlacer(const Component& component)
    : component_(component), windows_(component.sections), by_offset_(static_cast<size_t>(windows_.count())) {
  all_.reserve(component.blocks.size());
}

// The placed blocks that may meet `block`, by offset.
std::span<const GreedyPlacer::Placed> GreedyPlacer::placed_near(int32_t index, int64_t& steps) {
  const Block& block = component_.blocks[static_cast<size_t>(index)];
  const int32_t around = windows_.around(block.first(), block.last());
  if (around >= 0) return by_offset_[static_cast<size_t>(around)];
  // Long-lived, and so one of few: sort what it meets.
  near_.clear();
  for (const Placed& placed : all_)
    if (placed.first < block.last() && block.first() < placed.last) near_.push_back(placed);
  std::stable_sort(near_.begin(), near_.end(), [](const Placed& a, const Placed& b) { return a.offset < b.offset; });
  steps += static_cast<int64_t>(all_.size() + 8 * near_.size());
  return near_;
}

void GreedyPlacer::insert(const Placed& placed) {
  all_.push_back(placed);
  for (int32_t w = windows_.first_of(placed.first); w <= windows_.last_of(placed.last); ++w) {
    std::vector<Placed>& window = by_offset_[static_cast<size_t>(w)];
    const auto at = std::upper_bound(window.begin(), window.end(), placed.offset,
                                     [](int64_t value, const Placed& other) { return value < other.offset; });
    window.insert(at, placed);
  }
}

// A block of one span: its height over every placed block is the same, so the gaps between placed blocks, in order of
// offset, are the places to try.
int64_t GreedyPlacer::place_plain(int32_t index, std::span<const Placed> near, Fit fit, int64_t& steps) const {
  const Block& block = component_.blocks[static_cast<size_t>(index)];
  const int32_t first = block.first(), last = block.last();
  int64_t bottom = 0;
  Candidate best;
  size_t at = 0;
  for (; at < near.size(); ++at) {
    const Placed& placed = near[at];
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
int64_t GreedyPlacer::place_stairs(int32_t index, std::span<const Placed> near, Fit fit, int64_t& steps) {
  const Block& block = component_.blocks[static_cast<size_t>(index)];
  forbidden_.clear();
  for (const Placed& placed : near) {
    if (placed.last <= block.first() || placed.first >= block.last()) continue;
    const Block& other = component_.blocks[static_cast<size_t>(placed.block)];
    const int64_t above = clearance(other, block);
    if (above > 0) forbidden_.emplace_back(placed.offset - clearance(block, other), placed.offset + above);
  }
  std::sort(forbidden_.begin(), forbidden_.end());
  steps += static_cast<int64_t>(near.size() + 8 * forbidden_.size()) + 1;
  int64_t bottom = 0;
  Candidate best;
  for (const auto& [low, high] : forbidden_) {
    // Offsets up to and including `low` are allowed.
    if (best.offer(bottom, low, 0, fit)) break;
    if (high > bottom) bottom = align_up(high, block.alignment);
  }
  return best.offset >= 0 ? best.offset : bottom;
}

int32_t GreedyPlacer::place(std::span<const int32_t> order, Fit fit, int64_t limit, Placement& placement,
                            int64_t& steps) {
  for (std::vector<Placed>& window : by_offset_) window.clear();
  all_.clear();
  placement.offsets.resize(component_.blocks.size());
  placement.height = 0;
  for (const int32_t index : order) {
    const Block& block = component_.blocks[static_cast<size_t>(index)];
    const std::span<const Placed> near = placed_near(index, steps);
    const int64_t offset =
        block.spans.size() == 1 ? place_plain(index, near, fit, steps) : place_stairs(index, near, fit, steps);
    if (offset + block.size > limit) return index;
    placement.offsets[static_cast<size_t>(index)] = offset;
    placement.height = std::max(placement.height, offset + block.size);
    insert({offset, offset + block.size, block.first(), block.last(), index});
  }
  return -1;
}

GreedyResult greedy(const Component& component, int64_t target, int64_t limit, int64_t& steps) {
  using enum Key;
  using Keys = std::array<Key, 3>;
  // The first ones are those that did best on real programs.
  static constexpr Keys kSkyline[] = {
      {Area, Size, Lifetime},  {Load, Lifetime, Area},  {Death, Lifetime, Area}, {Death, Area, Lifetime},
      {Load, Death, Size},     {Size, Death, Area},     {Lifetime, Area, Load},  {Size, Area, Lifetime},
      {Birth, Lifetime, Area}, {Birth, Area, Lifetime},
  };
  static constexpr Keys kFit[] = {
      {Size, Lifetime, Area}, {Lifetime, Size, Area}, {Area, Size, Lifetime}, {Load, Size, Area}, {Death, Size, Area},
  };
  const int64_t end = steps + limit;
  GreedyResult best;
  best.placement.height = std::numeric_limits<int64_t>::max();
  const auto done = [&] { return best.placement.height <= target || steps >= end; };
  Placement trial;

  SkylinePlacer skyline(component);
  int64_t lowest = std::numeric_limits<int64_t>::max();
  for (const Keys& keys : kSkyline) {
    std::vector<int32_t> order = order_by(component, keys);
    if (skyline.place(order, lowest - 1, trial, steps) < 0) {
      lowest = trial.height;
      best.skyline_order = std::move(order);
      if (lowest < best.placement.height) std::swap(best.placement, trial);
    }
    if (done()) return best;
  }
  GreedyPlacer placer(component);
  lowest = std::numeric_limits<int64_t>::max();
  for (const Keys& keys : kFit) {
    std::vector<int32_t> order = order_by(component, keys);
    for (const Fit fit : {Fit::First, Fit::Best}) {
      if (placer.place(order, fit, lowest - 1, trial, steps) >= 0) continue;
      lowest = trial.height;
      best.fit_order = order;
      if (lowest < best.placement.height) std::swap(best.placement, trial);
    }
    if (done()) return best;
  }
  return best;
}

}  // namespace fuseloom::program::plan
