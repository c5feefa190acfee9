// Planning problems for tests and benchmarks, all from a seed, and a solver that is too simple to be wrong.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "program/plan/problem.h"

namespace fuseloom::program::plan {

// A seeded source of integers that gives the same numbers with every standard library.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  // Evenly out of [low, high].
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  bool chance(int percent) { return between(1, 100) <= percent; }

 private:
  std::mt19937_64 engine_;
};

// Small enough for brute_force_height: `count` buffers over `steps` steps, sizes from 1 (or 0) to `most`.
struct SmallProblemOptions {
  int count = 6;
  int64_t steps = 6;
  int64_t most = 4;
  bool alignments = false, gaps = false, in_place = false, empty = false, workspaces = false;
};

inline Problem small_problem(Random& random, const SmallProblemOptions& options) {
  Problem problem;
  for (int i = 0; i < options.count; ++i) {
    Buffer buffer;
    buffer.id = "b" + std::to_string(i);
    buffer.lower = random.between(0, options.steps - 1);
    buffer.upper = random.between(buffer.lower + 1, options.steps);
    buffer.size = random.between(options.empty ? 0 : 1, options.most);
    if (options.alignments && random.chance(40)) buffer.alignment = random.between(1, 3);
    if (options.workspaces && random.chance(30)) buffer.preferred_size = random.between(1, 2 * options.most);
    if (options.gaps && buffer.upper - buffer.lower >= 3 && random.chance(60)) {
      const int64_t lower = random.between(buffer.lower + 1, buffer.upper - 2);
      buffer.gaps.push_back({lower, random.between(lower + 1, buffer.upper - 1)});
    }
    problem.buffers.push_back(buffer);
  }
  if (options.in_place) {
    for (Buffer& taker : problem.buffers)
      for (size_t donor = 0; donor < problem.buffers.size(); ++donor)
        if (problem.buffers[donor].upper == taker.lower + 1 && problem.buffers[donor].lower < taker.lower &&
            random.chance(70))
          taker.may_share_with.push_back(static_cast<int32_t>(donor));
  }
  return problem;
}

// A rectangle of `height` bytes x `steps` steps, cut recursively into `count` buffers without a hole: the optimal
// height is `height`, and almost every wrong decision leaves a hole that costs it. `loosen` percent of the buffers are
// then shrunk by a granule or dropped, which hides where the holes may be. All sizes are multiples of `granule`.
inline Problem tight_packing(uint64_t seed, int count, int64_t height, int64_t steps, int64_t granule, int loosen) {
  struct Rectangle {
    int64_t lower, upper, bottom, top;  // bytes in granules
    int64_t area() const { return (upper - lower) * (top - bottom); }
  };
  Random random(seed);
  std::vector<Rectangle> pieces = {{0, steps, 0, height / granule}};
  while (static_cast<int>(pieces.size()) < count) {
    // Cut one of the larger pieces.
    size_t pick = static_cast<size_t>(random.between(0, static_cast<int64_t>(pieces.size()) - 1));
    for (int tries = 0; tries < 3; ++tries) {
      const size_t other = static_cast<size_t>(random.between(0, static_cast<int64_t>(pieces.size()) - 1));
      if (pieces[other].area() > pieces[pick].area()) pick = other;
    }
    const Rectangle piece = pieces[pick];
    const int64_t width = piece.upper - piece.lower, size = piece.top - piece.bottom;
    if (width >= 3 && size >= 3 && random.chance(30)) {
      // A pinwheel, which no straight cut takes apart:   +--+-----+
      //                                                  |  |  b  |
      //                                                  |a +--+--+
      //                                                  |  |e |  |
      //                                                  +--+--+c |
      //                                                  |  d  |  |
      //                                                  +-----+--+
      const int64_t x1 = random.between(piece.lower + 1, piece.upper - 2), x2 = random.between(x1 + 1, piece.upper - 1);
      const int64_t y1 = random.between(piece.bottom + 1, piece.top - 2), y2 = random.between(y1 + 1, piece.top - 1);
      pieces[pick] = {piece.lower, x1, y1, piece.top};
      pieces.push_back({x1, piece.upper, y2, piece.top});
      pieces.push_back({x2, piece.upper, piece.bottom, y2});
      pieces.push_back({piece.lower, x2, piece.bottom, y1});
      pieces.push_back({x1, x2, y1, y2});
    } else if (width >= 2 && (size < 2 || random.chance(55))) {
      const int64_t cut = random.between(piece.lower + 1, piece.upper - 1);
      pieces[pick].upper = cut;
      pieces.push_back({cut, piece.upper, piece.bottom, piece.top});
    } else if (size >= 2) {
      const int64_t cut = random.between(piece.bottom + 1, piece.top - 1);
      pieces[pick].top = cut;
      pieces.push_back({piece.lower, piece.upper, cut, piece.top});
    }
  }
  std::vector<Buffer> buffers;
  for (const Rectangle& piece : pieces) {
    Buffer buffer;
    buffer.lower = piece.lower;
    buffer.upper = piece.upper;
    buffer.size = (piece.top - piece.bottom) * granule;
    if (random.chance(loosen)) {
      if (buffer.size <= granule || random.chance(30)) continue;
      buffer.size -= granule;
    }
    buffers.push_back(buffer);
  }
  Problem problem;
  while (!buffers.empty()) {
    std::swap(buffers[static_cast<size_t>(random.between(0, static_cast<int64_t>(buffers.size()) - 1))],
              buffers.back());
    problem.buffers.push_back(buffers.back());
    problem.buffers.back().id = std::to_string(problem.buffers.size() - 1);
    buffers.pop_back();
  }
  return problem;
}

// A training step of `layers` layers: weights live throughout, activations from their layer's forward step to its
// backward step, gradients and workspaces briefly.
inline Problem training_step(uint64_t seed, int layers, int temporaries) {
  Random random(seed);
  Problem problem;
  const int64_t steps = 2 * static_cast<int64_t>(layers) * 4;
  const auto add = [&](int64_t lower, int64_t upper, int64_t size) {
    Buffer buffer;
    buffer.id = "t" + std::to_string(problem.buffers.size());
    buffer.lower = lower;
    buffer.upper = std::min(upper, steps);
    buffer.size = size;
    problem.buffers.push_back(buffer);
  };
  for (int layer = 0; layer < layers; ++layer) {
    const int64_t forward = 4 * layer, backward = steps - 4 * (layer + 1);
    add(0, steps, 256 * random.between(16, 4096));
    for (int64_t k = random.between(1, 3); k > 0; --k)
      add(forward + random.between(0, 3), backward + random.between(1, 3), 512 * random.between(64, 2048));
    for (int k = 0; k < temporaries; ++k) {
      const int64_t at = (random.chance(50) ? forward : backward) + random.between(0, 3);
      add(at, at + random.between(1, 6), 128 * random.between(1, 4096));
    }
  }
  return problem;
}

// The optimal height of a problem of a few buffers: tries every offset of every buffer. Knows problem.h only.
class BruteForce {
 public:
  explicit BruteForce(const Problem& problem) : problem_(problem) {}

  int64_t height() {
    for (int64_t height = 0;; ++height) {
      offsets_.clear();
      if (fits(height)) return height;
    }
  }

 private:
  static bool live_at(const Buffer& buffer, int64_t step) {
    if (step < buffer.lower || step >= buffer.upper) return false;
    return std::none_of(buffer.gaps.begin(), buffer.gaps.end(),
                        [&](const Interval& gap) { return gap.lower <= step && step < gap.upper; });
  }

  bool compatible(size_t i, size_t j) const {
    const Buffer &a = problem_.buffers[i], &b = problem_.buffers[j];
    if (a.size == 0 || b.size == 0) return true;
    if (offsets_[i] + a.size <= offsets_[j] || offsets_[j] + b.size <= offsets_[i]) return true;
    const auto may_take = [](const Buffer& taker, size_t donor) {
      return std::find(taker.may_share_with.begin(), taker.may_share_with.end(), static_cast<int32_t>(donor)) !=
             taker.may_share_with.end();
    };
    if (offsets_[i] == offsets_[j] && (may_take(a, j) || may_take(b, i))) return true;
    for (int64_t step = std::max(a.lower, b.lower); step < std::min(a.upper, b.upper); ++step)
      if (live_at(a, step) && live_at(b, step)) return false;
    return true;
  }

  bool fits(int64_t height) {
    const size_t i = offsets_.size();
    if (i == problem_.buffers.size()) return true;
    const Buffer& buffer = problem_.buffers[i];
    const int64_t step = alignment_of(problem_, buffer);
    for (int64_t offset = 0; offset + buffer.size <= height; offset += step) {
      offsets_.push_back(offset);
      bool good = true;
      for (size_t j = 0; good && j < i; ++j) good = compatible(i, j);
      if (good && fits(height)) return true;
      offsets_.pop_back();
      if (buffer.size == 0) break;
    }
    return false;
  }

  const Problem& problem_;
  std::vector<int64_t> offsets_;
};

}  // namespace fuseloom::program::plan
