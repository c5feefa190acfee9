#include "program/plan/workspace.h"

#include <algorithm>
#include <vector>

namespace fuseloom::program::plan {
namespace {

std::vector<Interval> live_intervals(const Buffer& buffer) {
  std::vector<Interval> live;
  int64_t lower = buffer.lower;
  for (const Interval& gap : buffer.gaps) {
    live.push_back({lower, gap.lower});
    lower = gap.upper;
  }
  live.push_back({lower, buffer.upper});
  return live;
}

bool meet(const std::vector<Interval>& a, const Buffer& buffer) {
  if (buffer.upper <= a.front().lower || a.back().upper <= buffer.lower) return false;
  for (const Interval& b : live_intervals(buffer))
    for (const Interval& interval : a)
      if (interval.lower < b.upper && b.lower < interval.upper) return true;
  return false;
}

}  // namespace

void grant_workspaces(const Problem& problem, Solution& solution) {
  const std::vector<Buffer>& buffers = problem.buffers;
  const auto is_elastic = [](const Buffer& buffer) { return buffer.preferred_size > buffer.size; };
  if (std::none_of(buffers.begin(), buffers.end(), is_elastic)) return;
  solution.sizes.clear();
  for (const Buffer& buffer : buffers) solution.sizes.push_back(buffer.size);
  std::vector<bool> tied(buffers.size(), false);
  for (size_t i = 0; i < solution.in_place_of.size(); ++i) {
    if (solution.in_place_of[i] < 0) continue;
    tied[i] = true;
    tied[static_cast<size_t>(solution.in_place_of[i])] = true;
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (!is_elastic(buffers[i]) || tied[i]) continue;
    // The bytes in use while the workspace lives, by offset; after them the end of the arena.
    const std::vector<Interval> live = live_intervals(buffers[i]);
    std::vector<Interval> used;
    for (size_t j = 0; j < buffers.size(); ++j)
      if (j != i && solution.sizes[j] > 0 && meet(live, buffers[j]))
        used.push_back({solution.offsets[j], solution.offsets[j] + solution.sizes[j]});
    used.push_back({solution.height, solution.height});
    std::sort(used.begin(), used.end(), [](const Interval& a, const Interval& b) { return a.lower < b.lower; });
    int64_t bottom = 0, most = -1, offset = solution.offsets[i];
    for (const Interval& bytes : used) {
      const int64_t room = std::min(bytes.lower - bottom, buffers[i].preferred_size);
      if (room > most) {
        most = room;
        offset = bottom;
      }
      bottom = std::max(bottom, align_up(bytes.upper, alignment_of(problem, buffers[i])));
    }
    // A buffer of no bytes may lie anywhere, even where there is no room.
    if (most < std::max<int64_t>(buffers[i].size, 1)) continue;
    solution.offsets[i] = offset;
    solution.sizes[i] = most;
  }
}

}  // namespace fuseloom::program::plan
