#include "program/plan/bound.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <unordered_map>

namespace fuseloom::program::plan {
namespace {

// The buffers that begin and end being live at one step.
struct Event {
  std::vector<int32_t> begins, ends;
};

std::map<int64_t, Event> events_of(const Problem& problem) {
  std::map<int64_t, Event> events;
  for (size_t i = 0; i < problem.buffers.size(); ++i) {
    const Buffer& buffer = problem.buffers[i];
    const int32_t index = static_cast<int32_t>(i);
    events[buffer.lower].begins.push_back(index);
    for (const Interval& gap : buffer.gaps) {
      events[gap.lower].ends.push_back(index);
      events[gap.upper].begins.push_back(index);
    }
    events[buffer.upper].ends.push_back(index);
  }
  return events;
}

}  // namespace

int64_t max_live(const Problem& problem) {
  int64_t live = 0, most = 0;
  for (const auto& [step, event] : events_of(problem)) {
    for (const int32_t i : event.ends) live -= problem.buffers[static_cast<size_t>(i)].size;
    for (const int32_t i : event.begins) live += problem.buffers[static_cast<size_t>(i)].size;
    most = std::max(most, live);
  }
  return most;
}

int64_t lower_bound(const Problem& problem) {
  int64_t grain = 0;
  for (const Buffer& buffer : problem.buffers)
    if (buffer.size > 0) grain = std::gcd(grain, alignment_of(problem, buffer));
  if (grain == 0) return 0;
  const auto rounded = [&](int32_t i) { return align_up(problem.buffers[static_cast<size_t>(i)].size, grain); };
  const auto padding = [&](int32_t i) { return rounded(i) - problem.buffers[static_cast<size_t>(i)].size; };

  int64_t live = 0, most = 0;
  std::map<int64_t, int64_t> paddings;  // of the live buffers, with their counts
  for (const auto& [step, event] : events_of(problem)) {
    for (const int32_t i : event.ends) {
      live -= rounded(i);
      const auto at = paddings.find(padding(i));
      if (--at->second == 0) paddings.erase(at);
    }
    // Every newborn saves at most its best alternative, every dying buffer at most its best taker.
    int64_t newborn_saving = 0, dying_saving = 0;
    std::unordered_map<int32_t, int64_t> best_taker;
    for (const int32_t i : event.begins) {
      live += rounded(i);
      ++paddings[padding(i)];
      const Buffer& buffer = problem.buffers[static_cast<size_t>(i)];
      if (buffer.lower != step) continue;  // comes back from a gap
      int64_t best = 0;
      for (const int32_t donor : buffer.may_share_with) {
        const int64_t saving = std::min(rounded(donor), rounded(i));
        best = std::max(best, saving);
        best_taker[donor] = std::max(best_taker[donor], saving);
      }
      newborn_saving += best;
    }
    for (const auto& [donor, saving] : best_taker) dying_saving += saving;
    if (!paddings.empty())
      most = std::max(most, live - std::min(newborn_saving, dying_saving) - paddings.rbegin()->first);
  }
  return most;
}

}  // namespace fuseloom::program::plan
