// The sizes of a program's temporaries are expressions, so their offsets cannot be chosen when it is compiled; placing
// them again for every new shape must cost next to nothing. What is chosen here is the order: first fit over a good
// order is fast and nearly as low as the best plan, for the hinted sizes and mostly for others.
#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "program/plan/solve.h"
#include "program/program.h"
#include "sym/evaluator.h"

namespace fuseloom::program {
namespace {

constexpr int64_t kAlignment = 64;          // of every buffer in the arena: a cache line
constexpr int64_t kDefaultSize = 64;        // of a symbol without a hint
constexpr int64_t kMostBytes = int64_t{1} << 40;  // of one buffer: keeps absurd hints from overflowing

// A slot in time and memory.
struct Block {
  int32_t buffer = -1;          // the first one
  int32_t first = 0, last = 0;  // lines, both included
  int64_t bytes = 0;
  int64_t lifetime() const { return last - first + 1; }
};
using Order = std::vector<size_t>;  // of blocks

int64_t hinted(const std::string& symbol, const Program& program, const std::map<std::string, int64_t>& hint) {
  const auto given = hint.find(symbol);
  if (given != hint.end()) return given->second;
  const auto fact = program.facts.symbols.find(symbol);
  if (fact == program.facts.symbols.end()) return kDefaultSize;
  return std::clamp(kDefaultSize, fact->second.low, std::max(fact->second.low, fact->second.high));
}

std::vector<Block> blocks_of(const Program& program, const std::map<std::string, int64_t>& hint) {
  std::map<std::string, int64_t> values;
  std::vector<Block> blocks;
  for (const ArenaSlot& slot : arena_slots(program)) {
    const op::TensorType& type = program.buffer(slot.buffers[0]).type;
    std::set<std::string> symbols;
    for (const sym::Expr& size : type.shape) sym::collect_symbols(size, symbols);
    for (const std::string& symbol : symbols) {
      if (values.count(symbol) == 0) values[symbol] = hinted(symbol, program, hint);
    }
    int64_t count = 1;
    for (const sym::Expr& size : type.shape) {
      const int64_t extent = std::clamp<int64_t>(sym::evaluate(size, values), 0, kMostBytes);
      count = extent == 0 ? 0 : std::min(count, kMostBytes / extent) * extent;
    }
    const int64_t bytes = std::min(dtype_bytes(type.dtype, count), kMostBytes);
    blocks.push_back({slot.buffers[0].index, slot.range.first, slot.range.last, plan::align_up(bytes, kAlignment)});
  }
  return blocks;
}

// The height when every block in turn gets the lowest place in which it fits.
int64_t first_fit(const std::vector<Block>& blocks, const Order& order) {
  struct Placed {
    int64_t offset, top;
    int32_t first, last;
  };
  std::vector<Placed> placed;  // by offset
  placed.reserve(blocks.size());
  int64_t height = 0;
  for (const size_t index : order) {
    const Block& block = blocks[index];
    if (block.bytes == 0) continue;
    int64_t offset = 0;
    for (const Placed& other : placed) {
      if (other.offset >= offset + block.bytes) break;
      if (other.last >= block.first && other.first <= block.last) offset = std::max(offset, other.top);
    }
    const auto at = std::upper_bound(placed.begin(), placed.end(), offset, [](int64_t value, const Placed& other) { return value < other.offset; });
    placed.insert(at, {offset, offset + block.bytes, block.first, block.last});
    height = std::max(height, offset + block.bytes);
  }
  return height;
}

// The blocks, larger values first; among equals the one that was there first.
template <class Value>
Order descending(const std::vector<Block>& blocks, Value value) {
  Order order(blocks.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return value(blocks[a]) > value(blocks[b]); });
  return order;
}

// First fit in the order of a plan's offsets is at least as low as the plan: whatever lies under a block there has been
// placed before it, and no higher.
Order order_of_plan(const std::vector<Block>& blocks, const plan::Solution& solution) {
  Order order(blocks.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return solution.offsets[a] < solution.offsets[b]; });
  return order;
}

}  // namespace

void plan_memory(Program& program, const std::map<std::string, int64_t>& hint) {
  const std::vector<Block> blocks = blocks_of(program, hint);
  plan::Problem problem{.alignment = kAlignment};
  for (const Block& block : blocks) {
    problem.buffers.push_back({.id = std::to_string(block.buffer), .lower = block.first, .upper = block.last + 1, .size = block.bytes});
  }
  const plan::Result planned = plan::solve(problem, {.mode = plan::Options::Mode::Quick});

  // 1. The orders of single criteria, which hold up best when the sizes are others than hinted, and the planner's.
  const Order candidates[] = {
      descending(blocks, [](const Block& block) { return block.bytes; }),
      descending(blocks, [](const Block& block) { return static_cast<double>(block.bytes) * static_cast<double>(block.lifetime()); }),
      descending(blocks, [](const Block& block) { return block.lifetime(); }),
      descending(blocks, [](const Block& block) { return -block.first; }),
      descending(blocks, [](const Block& block) { return block.last; }),
      order_of_plan(blocks, planned.solution),
  };
  // 2. The lowest; the first of equals.
  const Order* best = nullptr;
  int64_t lowest = std::numeric_limits<int64_t>::max();
  for (const Order& order : candidates) {
    const int64_t height = first_fit(blocks, order);
    if (height >= lowest) continue;
    lowest = height;
    best = &order;
    if (lowest == planned.lower_bound) break;
  }
  program.placement_order.clear();
  for (const size_t index : *best) program.placement_order.push_back(blocks[index].buffer);
}

}  // namespace fuseloom::program
