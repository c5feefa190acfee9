// In-place choices as variables of the planner: which buffers take over which storage?
//
// A choice is a vector as in Solution::in_place_of. Every storage has at most one taker, both buffers have bytes, and
// the alignments along a chain of takers have a common multiple.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "program/plan/problem.h"

namespace fuseloom::program::plan {

class InPlaceChoices {
 public:
  explicit InPlaceChoices(const Problem& problem);

  // Whether there is anything to choose.
  bool empty() const { return takers_.empty(); }
  // Nobody takes over anything.
  std::vector<int32_t> none() const { return std::vector<int32_t>(problem_.buffers.size(), -1); }
  // As many bytes as possible are taken over, largest pairs first.
  std::vector<int32_t> greedy() const;
  // All choices, if they are no more than `most`; otherwise none of them.
  std::vector<std::vector<int32_t>> all(size_t most) const;
  // A move changes what one buffer does; moves are numbered from 0. apply() makes move `number`, taking the storage
  // away from whoever had it; false when that changes nothing or is not legal (`choice` is then unspecified).
  size_t moves() const { return moves_.size(); }
  bool apply(size_t number, std::vector<int32_t>& choice) const;

 private:
  struct Taker {
    int32_t buffer;
    std::vector<int32_t> donors;
  };

  bool legal(const std::vector<int32_t>& choice) const;
  void enumerate(size_t at, std::vector<int32_t>& choice, size_t most, std::vector<std::vector<int32_t>>& found) const;

  const Problem& problem_;
  std::vector<Taker> takers_;
  std::vector<std::pair<int32_t, int32_t>> moves_;  // buffer, and the one whose storage it takes over or -1
  std::vector<int32_t> by_birth_;
};

}  // namespace fuseloom::program::plan
