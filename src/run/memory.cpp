#include "run/memory.h"

#include <algorithm>
#include <cstdlib>

#include "base/check.h"

namespace fuseloom::run {

std::shared_ptr<void> allocate_shared(int64_t bytes) {
  const size_t rounded = static_cast<size_t>(align_up(std::max<int64_t>(bytes, 1)));
  void* const block = std::aligned_alloc(static_cast<size_t>(kAlignment), rounded);
  FL_REQUIRE(block != nullptr, "cannot allocate {} bytes", bytes);
  return {block, std::free};
}

void GrowingBlock::grow(int64_t bytes) {
  block_.reset();  // first, so that the old and the new block never exist together
  capacity_ = 0;
  block_ = allocate_(bytes);
  capacity_ = align_up(bytes);
}

void* BlockCache::take(int64_t bytes) {
  // The smallest free block that fits and is not wasteful.
  const int64_t most = 2 * bytes + 4096;
  Block* best = nullptr;
  for (Block& block : blocks_) {
    if (block.taken || block.capacity < bytes || block.capacity > most) continue;
    if (best == nullptr || block.capacity < best->capacity) best = &block;
  }
  if (best == nullptr) {
    blocks_.push_back({.memory = allocate_(bytes), .capacity = align_up(std::max<int64_t>(bytes, 1))});
    best = &blocks_.back();
  }
  best->taken = best->used = true;
  return best->memory.get();
}

void BlockCache::give_back(void* memory) {
  const auto block = std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& each) { return each.memory.get() == memory; });
  FL_CHECK(block != blocks_.end() && block->taken, "a block is given back that was not taken");
  block->taken = false;
}

void BlockCache::end_run() {
  std::erase_if(blocks_, [](const Block& block) { return !block.used; });
  for (Block& block : blocks_) block.taken = block.used = false;
}

int64_t BlockCache::bytes() const {
  int64_t sum = 0;
  for (const Block& block : blocks_) sum += block.capacity;
  return sum;
}

}  // namespace fuseloom::run
