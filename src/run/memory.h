// Memory of runs, of the host or of a device: 64-byte aligned, uninitialised, kept between runs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace fuseloom::run {

inline constexpr int64_t kAlignment = 64;  // a cache line, and the widest vector
inline constexpr int kPoison = 0xFF;       // NaN in every float type, -1 or the maximum in every integer type

inline int64_t align_up(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// At least one aligned unit, so that the pointer of an empty tensor is valid too. Throws UserError when the system has
// no memory left.
std::shared_ptr<void> allocate_shared(int64_t bytes);
// Where memory comes from.
using Allocate = std::function<std::shared_ptr<void>(int64_t bytes)>;

// One block that only grows; its content is lost when it does.
class GrowingBlock {
 public:
  explicit GrowingBlock(Allocate allocate = allocate_shared) : allocate_(std::move(allocate)) {}
  // Makes sure of `bytes`; the first address.
  std::byte* reserve(int64_t bytes) {
    if (bytes > capacity_) [[unlikely]] grow(bytes);
    return static_cast<std::byte*>(block_.get());
  }
  int64_t capacity() const { return capacity_; }

 private:
  void grow(int64_t bytes);
  Allocate allocate_;
  std::shared_ptr<void> block_;
  int64_t capacity_ = 0;
};

// Blocks for buffers whose sizes become known while a program runs. A block that is given back serves again in the
// same run and in the next one; what a whole run did not need goes back to the system at its end.
class BlockCache {
 public:
  explicit BlockCache(Allocate allocate = allocate_shared) : allocate_(std::move(allocate)) {}
  void* take(int64_t bytes);
  void give_back(void* block);
  // Gives back whatever is out and forgets the blocks that this run did not use.
  void end_run();
  int64_t bytes() const;

 private:
  struct Block {
    std::shared_ptr<void> memory;
    int64_t capacity = 0;
    bool taken = false, used = false;
  };
  Allocate allocate_;
  std::vector<Block> blocks_;
};

}  // namespace fuseloom::run
