#include "program/plan/search.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace fuseloom::program::plan {
namespace {

constexpr int64_t kNowhere = std::numeric_limits<int64_t>::max();

}  // namespace

bool Search::can_take(const Component& component) {
  constexpr size_t kMostBlocks = 4096;
  constexpr int64_t kMostPairs = 2'000'000;
  const std::vector<Block>& blocks = component.blocks;
  if (blocks.size() > kMostBlocks) return false;
  // Blocks are sorted by birth: count, for each, those born during its life.
  int64_t pairs = 0;
  for (auto block = blocks.begin(); block != blocks.end(); ++block)
    pairs += std::partition_point(block, blocks.end(), [&](const Block& other) { return other.lower < block->upper; }) -
             block;
  return pairs <= kMostPairs;
}

Search::Search(const Component& component, const Techniques& techniques)
    : component_(component), techniques_(techniques) {
  const std::vector<Block>& blocks = component.blocks;
  for (const Block& block : blocks) alignment_grain_ = std::gcd(alignment_grain_, block.alignment);
  for (const Block& block : blocks) {
    size_.push_back(block.size);
    alignment_.push_back(block.alignment);
    first_.push_back(block.first());
    last_.push_back(block.last());
    spans_begin_.push_back(spans_.size());
    for (const Span& span : block.spans)
      spans_.push_back({span.first, span.last, align_up(span.height, alignment_grain_)});
    neighbors_begin_.push_back(neighbors_.size());
    for (size_t other = 0; other < blocks.size(); ++other) {
      if (&blocks[other] == &block || block.first() >= blocks[other].last() || blocks[other].first() >= block.last())
        continue;
      const int64_t rise = clearance(block, blocks[other]);
      if (rise > 0) neighbors_.push_back({static_cast<int32_t>(other), rise, clearance(blocks[other], block)});
    }
  }
  spans_begin_.push_back(spans_.size());
  neighbors_begin_.push_back(neighbors_.size());
  for (size_t key = 0; key < kKeys; ++key) key_values_[key] = values_of(component, static_cast<Key>(key));
}

int64_t Search::dive_steps() const {
  int64_t residents = 0;
  for (const Span& span : spans_) residents += span.last - span.first;
  return static_cast<int64_t>(size_.size()) * (residents + static_cast<int64_t>(size_.size())) / 2;
}

Verdict Search::run(int64_t capacity, std::span<const Key> keys, int64_t limit, Placement& placement, int64_t& steps) {
  const size_t count = size_.size(), sections = static_cast<size_t>(component_.sections);
  if (capacity < component_.lower_bound) return Verdict::Infeasible;
  keys_.assign(keys.begin(), keys.end());
  capacity_ = capacity;
  limit_ = limit;
  steps_ = 0;
  offset_.assign(count, -1);
  low_.assign(count, 0);
  obstacle_.assign(count, -1);
  cuts_.assign(sections, 0);
  top_.assign(sections, 0);
  load_.assign(sections, 0);
  trail_.clear();
  list_.clear();
  for (size_t i = 0; i < count; ++i) {
    list_.push_back({0, static_cast<int32_t>(i), static_cast<int32_t>(i)});
    for (int32_t s = first_[i]; s + 1 < last_[i]; ++s) ++cuts_[static_cast<size_t>(s)];
  }
  const Part all{0, count, 0, component_.sections};
  if (techniques_.preorder) prioritize(all);
  const Verdict verdict = search(all, {0, -1, -1});
  steps += steps_;
  if (verdict != Verdict::Fits) return verdict;
  placement.offsets = offset_;
  placement.height = height_of(component_, offset_);
  FL_CHECK(placement.height <= capacity, "search found height {} above the capacity {}", placement.height, capacity);
  return verdict;
}

// Visits a node whose unplaced blocks are `given`. Whatever the verdict, list_ is left as long as it was; what was
// placed stays placed only for Fits.
Verdict Search::search(const Part& given, Entry bar) {
  const size_t mark = trail_.size(), list_mark = list_.size();
  Part part = given;
  Verdict verdict = Verdict::Infeasible;
  if (!techniques_.hatless || settle(part, bar)) {
    steps_ += static_cast<int64_t>(part.end - part.begin) + 1;
    if (part.begin == part.end) {
      verdict = Verdict::Fits;
    } else if (steps_ > limit_) {
      verdict = Verdict::OutOfSteps;
    } else if (sections_fit(part, bar)) {
      verdict = techniques_.decomposition && falls_apart(part) ? search_apart(part, bar) : branch(part, bar);
    }
  }
  if (verdict != Verdict::Fits) undo(mark);
  list_.resize(list_mark);
  return verdict;
}

// The parts have no block in common, so one that does not fit settles the matter, and small ones are the cheapest to
// ask.
Verdict Search::search_apart(const Part& part, Entry bar) {
  const size_t list_mark = list_.size();
  std::vector<Part> parts;
  for (int32_t first = part.first; first < part.last;) {
    int32_t last = first + 1;
    while (last < part.last && cuts_[static_cast<size_t>(last - 1)] > 0) ++last;
    Part piece{list_.size(), list_.size(), first, last};
    for (size_t i = part.begin; i < part.end; ++i) {
      const Entry entry = list_[i];
      const size_t block = static_cast<size_t>(entry.block);
      if (first_[block] >= first && last_[block] <= last) list_.push_back(entry);
    }
    piece.end = list_.size();
    if (piece.begin < piece.end) parts.push_back(piece);
    first = last;
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Part& a, const Part& b) { return a.end - a.begin < b.end - b.begin; });
  Verdict verdict = Verdict::Fits;
  for (size_t i = 0; i < parts.size() && verdict == Verdict::Fits; ++i) {
    if (techniques_.preorder && techniques_.dynamic_preorder) {
      prioritize(parts[i]);
      // The bar's priority was one among the old ones: blocks at its offset may come in any order again.
      verdict = branch(parts[i], {bar.low, -1, -1});
    } else {
      verdict = branch(parts[i], bar);
    }
  }
  list_.resize(list_mark);
  return verdict;
}

Verdict Search::branch(const Part& part, Entry bar) {
  const size_t mark = trail_.size(), list_mark = list_.size();
  // No block begins where another one could lie entirely below.
  int64_t ceiling = kNowhere;
  if (techniques_.dominance)
    for (size_t i = part.begin; i < part.end; ++i)
      ceiling = std::min(ceiling, list_[i].low + size_[static_cast<size_t>(list_[i].block)]);
  // The candidates in the order to try them.
  size_t begin = part.begin, end = part.end;
  if (!techniques_.dynamic_order) {
    begin = list_.size();
    for (size_t i = part.begin; i < part.end; ++i) {
      const Entry entry = list_[i];
      list_.push_back(entry);
    }
    end = list_.size();
    std::sort(list_.begin() + static_cast<std::ptrdiff_t>(begin), list_.end(),
              [](const Entry& a, const Entry& b) { return a.priority < b.priority; });
  }
  Verdict verdict = Verdict::Infeasible;
  for (size_t i = begin; i < end && verdict == Verdict::Infeasible; ++i) {
    const Entry next = list_[i];
    if (next.low >= ceiling) {
      if (techniques_.dynamic_order) break;
      continue;
    }
    if (techniques_.canonical_order && next < bar) continue;
    const size_t child_mark = list_.size();
    if (place(next.block, next.low)) verdict = search(remaining(part), techniques_.canonical_order ? next : bar);
    if (verdict != Verdict::Fits) undo(mark);
    list_.resize(child_mark);
  }
  list_.resize(list_mark);
  return verdict;
}

// Places every block that no other one can get in the way of. In the canonical plan such a block is at its low; if it
// was skipped, no canonical plan is left, and the answer is false.
bool Search::settle(Part& part, Entry bar) {
  for (bool again = true; again;) {
    again = false;
    for (size_t i = part.begin; i < part.end; ++i) {
      const Entry entry = list_[i];
      if (is_placed(entry.block) || in_the_way(entry.block, bar)) continue;
      const int64_t low = low_[static_cast<size_t>(entry.block)];
      if (techniques_.canonical_order && Entry{low, entry.priority, entry.block} < bar) return false;
      if (!place(entry.block, low)) return false;
      again = true;
    }
    if (again) part = remaining(part);
  }
  return true;
}

// Could an unplaced block come to lie in the place that this block has at its low? The obstacle found last time is
// looked at first; mostly it is still there.
bool Search::in_the_way(int32_t block, Entry bar) {
  const int64_t low = low_[static_cast<size_t>(block)];
  const auto reaches_down = [&](const Neighbor& neighbor) {
    return !is_placed(neighbor.block) && earliest(neighbor.block, bar) < low + neighbor.rise;
  };
  const std::span<const Neighbor> all = neighbors(block);
  int32_t& obstacle = obstacle_[static_cast<size_t>(block)];
  if (obstacle >= 0 && reaches_down(all[static_cast<size_t>(obstacle)])) return true;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!reaches_down(all[i])) continue;
    steps_ += static_cast<int64_t>(i);
    obstacle = static_cast<int32_t>(i);
    return true;
  }
  steps_ += static_cast<int64_t>(all.size());
  return false;
}

// The section bound. In every section, stack the unplaced blocks by ascending earliest offset, each one at its earliest
// or on top of the one before: no plan has them end lower. (It is the least makespan of jobs with release times.)
bool Search::sections_fit(const Part& part, Entry bar) {
  // 1. Skipped blocks come first in the list; lifted, they make a list of their own.
  size_t at = part.begin;
  entries_.clear();
  if (techniques_.lift_skipped) {
    for (; at < part.end && list_[at] < bar; ++at) {
      const Entry entry = list_[at];
      const int64_t low = lifted(entry.block, bar);
      if (low == kNowhere || low + size_[static_cast<size_t>(entry.block)] > capacity_) return false;
      entries_.push_back({low, entry.priority, entry.block});
    }
    std::sort(entries_.begin(), entries_.end());
  }
  if (!techniques_.section_bound) return true;

  // 2. Merge both lists, and stack.
  const int64_t capacity = align_up(capacity_, alignment_grain_);
  std::fill(top_.begin() + part.first, top_.begin() + part.last, techniques_.monotonic_floor ? bar.low : 0);
  const auto stack = [&](const Entry& entry) {
    const int64_t low = techniques_.unallocated_floor ? entry.low : 0;
    const size_t block = static_cast<size_t>(entry.block);
    int64_t highest = 0;
    for (size_t i = spans_begin_[block]; i < spans_begin_[block + 1]; ++i) {
      const Span span = spans_[i];
      for (int32_t s = span.first; s < span.last; ++s) {
        int64_t& top = top_[static_cast<size_t>(s)];
        top = std::max(top, low) + span.height;
        highest = std::max(highest, top);
      }
      steps_ += span.last - span.first;
    }
    return highest <= capacity;
  };
  for (size_t lifted_at = 0; at < part.end || lifted_at < entries_.size();) {
    const bool take_lifted = at == part.end || (lifted_at < entries_.size() && entries_[lifted_at].low < list_[at].low);
    if (!stack(take_lifted ? entries_[lifted_at++] : list_[at++])) return false;
  }
  return true;
}

// The lowest offset that a skipped block may still get: the lowest top that an unplaced neighbor may come to have below
// it. Without such a neighbor there is none.
int64_t Search::lifted(int32_t block, Entry bar) {
  int64_t lowest = kNowhere;
  for (const Neighbor& neighbor : neighbors(block))
    if (!is_placed(neighbor.block)) lowest = std::min(lowest, earliest(neighbor.block, bar) + neighbor.drop);
  steps_ += static_cast<int64_t>(neighbors(block).size());
  return lowest == kNowhere ? kNowhere : align_up(lowest, alignment_[static_cast<size_t>(block)]);
}

bool Search::falls_apart(const Part& part) const {
  return std::find(cuts_.begin() + part.first, cuts_.begin() + part.last - 1, 0) != cuts_.begin() + part.last - 1;
}

// Gives a block its place and lifts those above it. False when it or one of them no longer fits below the capacity.
bool Search::place(int32_t block, int64_t offset) {
  const size_t i = static_cast<size_t>(block);
  offset_[i] = offset;
  trail_.push_back({~block, 0});
  for (int32_t s = first_[i]; s + 1 < last_[i]; ++s) --cuts_[static_cast<size_t>(s)];
  if (offset + size_[i] > capacity_) return false;
  steps_ += static_cast<int64_t>(neighbors(block).size());
  for (const Neighbor& neighbor : neighbors(block)) {
    const size_t other = static_cast<size_t>(neighbor.block);
    if (is_placed(neighbor.block) || low_[other] >= offset + neighbor.rise) continue;
    trail_.push_back({neighbor.block, low_[other]});
    low_[other] = align_up(offset + neighbor.rise, alignment_[other]);
    if (low_[other] + size_[other] > capacity_) return false;
  }
  return true;
}

void Search::undo(size_t mark) {
  for (; trail_.size() > mark; trail_.pop_back()) {
    const Change& change = trail_.back();
    if (change.block >= 0) {
      low_[static_cast<size_t>(change.block)] = change.low;
      continue;
    }
    const size_t i = static_cast<size_t>(~change.block);
    offset_[i] = -1;
    for (int32_t s = first_[i]; s + 1 < last_[i]; ++s) ++cuts_[static_cast<size_t>(s)];
  }
}

// Appends a list of those blocks of `part` that are still unplaced. Blocks that were not lifted since are in order
// already; sort the others and merge.
Search::Part Search::remaining(const Part& part) {
  Part result{list_.size(), list_.size(), part.first, part.last};
  entries_.clear();
  for (size_t i = part.begin; i < part.end; ++i) {
    Entry entry = list_[i];
    if (is_placed(entry.block)) continue;
    const int64_t low = low_[static_cast<size_t>(entry.block)];
    if (low == entry.low) {
      list_.push_back(entry);
    } else {
      entry.low = low;
      entries_.push_back(entry);
    }
  }
  std::sort(entries_.begin(), entries_.end());
  // Merge from the back: entries_ into the room behind the unchanged ones.
  size_t left = list_.size(), right = entries_.size();
  list_.resize(left + right);
  for (size_t to = list_.size(); right > 0;) {
    const bool take_left = left > result.begin && entries_[right - 1] < list_[left - 1];
    list_[--to] = take_left ? list_[--left] : entries_[--right];
  }
  result.end = list_.size();
  return result;
}

// Numbers the blocks of a part by the keys; the load is that of the part's unplaced blocks.
void Search::prioritize(const Part& part) {
  const auto begin = list_.begin() + static_cast<std::ptrdiff_t>(part.begin);
  const auto end = list_.begin() + static_cast<std::ptrdiff_t>(part.end);
  if (std::find(keys_.begin(), keys_.end(), Key::Load) != keys_.end()) {
    std::vector<double>& loads = key_values_[static_cast<size_t>(Key::Load)];
    std::fill(load_.begin() + part.first, load_.begin() + part.last, 0.0);
    for (auto entry = begin; entry != end; ++entry) {
      const size_t block = static_cast<size_t>(entry->block);
      for (size_t i = spans_begin_[block]; i < spans_begin_[block + 1]; ++i)
        for (int32_t s = spans_[i].first; s < spans_[i].last; ++s)
          load_[static_cast<size_t>(s)] += static_cast<double>(spans_[i].height);
    }
    for (auto entry = begin; entry != end; ++entry) {
      const size_t block = static_cast<size_t>(entry->block);
      loads[block] = *std::max_element(load_.begin() + first_[block], load_.begin() + last_[block]);
      steps_ += 2 * (last_[block] - first_[block]);
    }
  }
  std::sort(begin, end, [&](const Entry& a, const Entry& b) {
    for (const Key key : keys_) {
      const std::vector<double>& by = key_values_[static_cast<size_t>(key)];
      const double left = by[static_cast<size_t>(a.block)], right = by[static_cast<size_t>(b.block)];
      if (left != right) return left > right;
    }
    return a.block < b.block;
  });
  int32_t priority = 0;
  for (auto entry = begin; entry != end; ++entry) entry->priority = priority++;
  std::sort(begin, end);
}

}  // namespace fuseloom::program::plan
