#include "program/plan/in_place.h"

#include <algorithm>
#include <numeric>

#include "program/plan/component.h"

namespace fuseloom::program::plan {

InPlaceChoices::InPlaceChoices(const Problem& problem) : problem_(problem), by_birth_(problem.buffers.size()) {
  const std::vector<Buffer>& buffers = problem.buffers;
  std::iota(by_birth_.begin(), by_birth_.end(), 0);
  std::stable_sort(by_birth_.begin(), by_birth_.end(), [&](int32_t a, int32_t b) {
    return buffers[static_cast<size_t>(a)].lower < buffers[static_cast<size_t>(b)].lower;
  });
  for (size_t i = 0; i < buffers.size(); ++i) {
    Taker taker{static_cast<int32_t>(i), {}};
    if (buffers[i].size == 0) continue;
    for (const int32_t donor : buffers[i].may_share_with) {
      const bool known = std::find(taker.donors.begin(), taker.donors.end(), donor) != taker.donors.end();
      if (!known && buffers[static_cast<size_t>(donor)].size > 0) taker.donors.push_back(donor);
    }
    if (taker.donors.empty()) continue;
    for (const int32_t donor : taker.donors) moves_.emplace_back(taker.buffer, donor);
    moves_.emplace_back(taker.buffer, -1);
    takers_.push_back(std::move(taker));
  }
}

bool InPlaceChoices::legal(const std::vector<int32_t>& choice) const {
  // Alignment of the storage that each buffer lives in; a donor is born before its taker.
  std::vector<int64_t> alignment(choice.size(), 1);
  std::vector<bool> taken(choice.size(), false);
  for (const int32_t buffer : by_birth_) {
    const size_t i = static_cast<size_t>(buffer);
    alignment[i] = alignment_of(problem_, problem_.buffers[i]);
    if (choice[i] < 0) continue;
    const size_t donor = static_cast<size_t>(choice[i]);
    if (taken[donor]) return false;
    taken[donor] = true;
    alignment[i] = common_alignment(alignment[i], alignment[donor]);
    if (alignment[i] == 0) return false;
  }
  return true;
}

std::vector<int32_t> InPlaceChoices::greedy() const {
  struct Pair {
    int64_t saving;
    int32_t taker, donor;
  };
  std::vector<Pair> pairs;
  for (const Taker& taker : takers_)
    for (const int32_t donor : taker.donors)
      pairs.push_back({std::min(problem_.buffers[static_cast<size_t>(taker.buffer)].size,
                                problem_.buffers[static_cast<size_t>(donor)].size),
                       taker.buffer, donor});
  std::stable_sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) { return a.saving > b.saving; });
  std::vector<int32_t> choice = none();
  std::vector<bool> taken(choice.size(), false);
  for (const Pair& pair : pairs) {
    int32_t& chosen = choice[static_cast<size_t>(pair.taker)];
    if (chosen >= 0 || taken[static_cast<size_t>(pair.donor)]) continue;
    chosen = pair.donor;
    // Alignments that differ are rare; only then is there more to look at.
    const bool alike = alignment_of(problem_, problem_.buffers[static_cast<size_t>(pair.taker)]) ==
                       alignment_of(problem_, problem_.buffers[static_cast<size_t>(pair.donor)]);
    if (!alike && !legal(choice)) {
      chosen = -1;
      continue;
    }
    taken[static_cast<size_t>(pair.donor)] = true;
  }
  return choice;
}

std::vector<std::vector<int32_t>> InPlaceChoices::all(size_t most) const {
  std::vector<std::vector<int32_t>> found;
  std::vector<int32_t> choice = none();
  enumerate(0, choice, most, found);
  if (found.size() > most) found.clear();
  return found;
}

void InPlaceChoices::enumerate(size_t at, std::vector<int32_t>& choice, size_t most,
                               std::vector<std::vector<int32_t>>& found) const {
  if (found.size() > most || !legal(choice)) return;
  if (at == takers_.size()) {
    found.push_back(choice);
    return;
  }
  int32_t& chosen = choice[static_cast<size_t>(takers_[at].buffer)];
  for (const int32_t donor : takers_[at].donors) {
    chosen = donor;
    enumerate(at + 1, choice, most, found);
  }
  chosen = -1;
  enumerate(at + 1, choice, most, found);
}

bool InPlaceChoices::apply(size_t number, std::vector<int32_t>& choice) const {
  const auto [taker, donor] = moves_[number];
  if (choice[static_cast<size_t>(taker)] == donor) return false;
  if (donor >= 0) std::replace(choice.begin(), choice.end(), donor, -1);
  choice[static_cast<size_t>(taker)] = donor;
  return legal(choice);
}

}  // namespace fuseloom::program::plan
