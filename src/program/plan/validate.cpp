#include "program/plan/validate.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "base/check.h"

namespace fuseloom::program::plan {
namespace {

using Kind = Violation::Kind;

// A maximal run of steps in which a buffer is live.
struct LiveRun {
  int64_t lower, upper;
  int32_t buffer;
};

std::vector<LiveRun> live_runs(const Problem& problem) {
  std::vector<LiveRun> runs;
  for (size_t i = 0; i < problem.buffers.size(); ++i) {
    const Buffer& buffer = problem.buffers[i];
    int64_t lower = buffer.lower;
    for (const Interval& gap : buffer.gaps) {
      runs.push_back({lower, gap.lower, static_cast<int32_t>(i)});
      lower = gap.upper;
    }
    runs.push_back({lower, buffer.upper, static_cast<int32_t>(i)});
  }
  std::stable_sort(runs.begin(), runs.end(), [](const LiveRun& a, const LiveRun& b) { return a.lower < b.lower; });
  return runs;
}

std::string describe(const Buffer& buffer, int64_t offset, int64_t size) {
  return fmt::format("'{}' (steps [{}, {}), bytes [{}, {}))", buffer.id, buffer.lower, buffer.upper, offset,
                     offset + size);
}

}  // namespace

std::optional<Violation> validate(const Problem& problem, const Solution& solution) {
  const std::vector<Buffer>& buffers = problem.buffers;
  const size_t count = buffers.size();

  // 1. One entry per buffer.
  const auto counted = [&](size_t found, std::string_view what, bool may_be_empty) -> std::optional<Violation> {
    if (found == count || (may_be_empty && found == 0)) return std::nullopt;
    return Violation{Kind::WrongCount, -1, -1,
                     fmt::format("the solution has {} {}, expected one for each of {} buffers", found, what, count)};
  };
  if (auto violation = counted(solution.offsets.size(), "offsets", false)) return violation;
  if (auto violation = counted(solution.in_place_of.size(), "in-place choices", true)) return violation;
  if (auto violation = counted(solution.sizes.size(), "sizes", true)) return violation;

  const auto size_of = [&](size_t i) { return solution.sizes.empty() ? buffers[i].size : solution.sizes[i]; };
  const auto donor_of = [&](size_t i) { return solution.in_place_of.empty() ? -1 : solution.in_place_of[i]; };

  // 2. Every buffer by itself.
  int64_t highest = 0;
  for (size_t i = 0; i < count; ++i) {
    const Buffer& buffer = buffers[i];
    const int32_t index = static_cast<int32_t>(i);
    const int64_t offset = solution.offsets[i];
    const int64_t alignment = buffer.alignment > 0 ? buffer.alignment : problem.alignment;
    if (offset < 0)
      return Violation{Kind::NegativeOffset, index, -1,
                       fmt::format("buffer '{}' has offset {}, expected at least 0", buffer.id, offset)};
    if (offset % alignment != 0)
      return Violation{
          Kind::Misaligned, index, -1,
          fmt::format("buffer '{}' has offset {}, expected a multiple of {}", buffer.id, offset, alignment)};
    const int64_t most = std::max(buffer.size, buffer.preferred_size);
    if (size_of(i) < buffer.size || size_of(i) > most)
      return Violation{Kind::WrongSize, index, -1,
                       fmt::format("buffer '{}' was granted {} bytes, expected between {} and {}", buffer.id,
                                   size_of(i), buffer.size, most)};
    if (offset > std::numeric_limits<int64_t>::max() - size_of(i))
      return Violation{Kind::AboveCapacity, index, -1,
                       fmt::format("buffer '{}' ends beyond the largest address: offset {}, size {}", buffer.id, offset,
                                   size_of(i))};
    if (size_of(i) > 0) highest = std::max(highest, offset + size_of(i));
  }

  // 3. Every takeover has permission and keeps the offset.
  for (size_t i = 0; i < count; ++i) {
    const int32_t donor = donor_of(i);
    if (donor == -1) continue;
    const Buffer& buffer = buffers[i];
    const int32_t index = static_cast<int32_t>(i);
    if (std::find(buffer.may_share_with.begin(), buffer.may_share_with.end(), donor) == buffer.may_share_with.end())
      return Violation{Kind::IllegalInPlace, index, donor,
                       fmt::format("buffer '{}' took the storage of buffer number {}, which is not among its in-place "
                                   "alternatives",
                                   buffer.id, donor)};
    const Buffer& other = buffers[static_cast<size_t>(donor)];
    if (other.upper != buffer.lower + 1)
      return Violation{Kind::IllegalInPlace, index, donor,
                       fmt::format("buffer '{}' is born at step {} in place of '{}', which is dead from step {} on, "
                                   "expected {}",
                                   buffer.id, buffer.lower, other.id, other.upper, buffer.lower + 1)};
    if (solution.offsets[i] != solution.offsets[static_cast<size_t>(donor)])
      return Violation{Kind::IllegalInPlace, index, donor,
                       fmt::format("buffer '{}' at offset {} is in place of '{}', which is at offset {}", buffer.id,
                                   solution.offsets[i], other.id, solution.offsets[static_cast<size_t>(donor)])};
  }

  // 4. No two live buffers share bytes, but for a buffer and the one it took over. Sweep over time; `live` holds the
  //    runs that have begun and not ended.
  std::vector<LiveRun> live;
  for (const LiveRun& run : live_runs(problem)) {
    std::erase_if(live, [&](const LiveRun& other) { return other.upper <= run.lower; });
    const size_t i = static_cast<size_t>(run.buffer);
    for (const LiveRun& other : live) {
      const size_t j = static_cast<size_t>(other.buffer);
      const bool apart = solution.offsets[i] + size_of(i) <= solution.offsets[j] ||
                         solution.offsets[j] + size_of(j) <= solution.offsets[i];
      if (apart || size_of(i) == 0 || size_of(j) == 0) continue;
      if (donor_of(i) == other.buffer || donor_of(j) == run.buffer) continue;
      return Violation{Kind::Overlap, run.buffer, other.buffer,
                       fmt::format("buffers {} and {} overlap from step {} on",
                                   describe(buffers[i], solution.offsets[i], size_of(i)),
                                   describe(buffers[j], solution.offsets[j], size_of(j)), run.lower)};
    }
    live.push_back(run);
  }

  // 5. The height is what it says, and fits.
  if (solution.height != highest)
    return Violation{
        Kind::WrongHeight, -1, -1,
        fmt::format("the solution says height {}, the highest buffer ends at {}", solution.height, highest)};
  if (problem.capacity && solution.height > *problem.capacity)
    return Violation{Kind::AboveCapacity, -1, -1,
                     fmt::format("height {} exceeds the capacity of {}", solution.height, *problem.capacity)};
  return std::nullopt;
}

void require_well_formed(const Problem& problem) {
  FL_REQUIRE(problem.alignment >= 1, "memory plan: the problem has alignment {}, expected at least 1",
             problem.alignment);
  FL_REQUIRE(!problem.capacity || *problem.capacity >= 0, "memory plan: capacity {}, expected at least 0",
             problem.capacity.value_or(0));
  // Offsets stay below the sum of all sizes and alignments; keeping that sum small keeps every sum the planner forms
  // inside int64_t.
  constexpr int64_t kMostBytes = std::numeric_limits<int64_t>::max() / 4;
  const int64_t count = static_cast<int64_t>(problem.buffers.size());
  FL_REQUIRE(count <= std::numeric_limits<int32_t>::max(), "memory plan: {} buffers, expected fewer than 2^31", count);
  std::unordered_map<std::string_view, size_t> seen;
  int64_t bytes = 0;
  for (size_t i = 0; i < problem.buffers.size(); ++i) {
    const Buffer& buffer = problem.buffers[i];
    FL_REQUIRE(!buffer.id.empty(), "memory plan: buffer number {} has no id", i);
    const auto [at, fresh] = seen.emplace(buffer.id, i);
    FL_REQUIRE(fresh, "memory plan: buffers number {} and {} both have the id '{}'", at->second, i, buffer.id);
    FL_REQUIRE(buffer.lower < buffer.upper, "memory plan: buffer '{}' is live in [{}, {}), expected lower < upper",
               buffer.id, buffer.lower, buffer.upper);
    // A lifetime is a difference of two steps, so the steps themselves must leave room for it.
    FL_REQUIRE(buffer.lower >= -kMostBytes && buffer.upper <= kMostBytes,
               "memory plan: buffer '{}' is live in [{}, {}), expected steps between -2^61 and 2^61", buffer.id,
               buffer.lower, buffer.upper);
    FL_REQUIRE(buffer.size >= 0, "memory plan: buffer '{}' has size {}, expected at least 0", buffer.id, buffer.size);
    FL_REQUIRE(buffer.alignment >= 0,
               "memory plan: buffer '{}' has alignment {}, expected at least 1, or 0 for the "
               "alignment of the problem",
               buffer.id, buffer.alignment);
    FL_REQUIRE(buffer.preferred_size >= 0, "memory plan: buffer '{}' prefers size {}, expected at least 0", buffer.id,
               buffer.preferred_size);
    for (const int64_t part : {buffer.size, buffer.preferred_size, alignment_of(problem, buffer)}) {
      FL_REQUIRE(part <= kMostBytes - bytes,
                 "memory plan: sizes and alignments up to buffer '{}' add up to more than {} bytes", buffer.id,
                 kMostBytes);
      bytes += part;
    }
    int64_t after = buffer.lower;
    for (const Interval& gap : buffer.gaps) {
      FL_REQUIRE(after < gap.lower && gap.lower < gap.upper && gap.upper < buffer.upper,
                 "memory plan: buffer '{}' has the gap [{}, {}), expected ascending gaps that do not touch, strictly "
                 "inside [{}, {})",
                 buffer.id, gap.lower, gap.upper, buffer.lower, buffer.upper);
      after = gap.upper;
    }
    for (const int32_t donor : buffer.may_share_with) {
      FL_REQUIRE(donor >= 0 && donor < count && donor != static_cast<int32_t>(i),
                 "memory plan: buffer '{}' may share with buffer number {}, expected another one below {}", buffer.id,
                 donor, count);
      const Buffer& other = problem.buffers[static_cast<size_t>(donor)];
      FL_REQUIRE(other.upper == buffer.lower + 1 && other.lower < buffer.lower,
                 "memory plan: buffer '{}' may share with '{}', which is live in [{}, {}), expected it to be born "
                 "before step {} and dead from step {} on",
                 buffer.id, other.id, other.lower, other.upper, buffer.lower, buffer.lower + 1);
    }
  }
}

}  // namespace fuseloom::program::plan
