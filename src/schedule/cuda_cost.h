// The choices a CUDA schedule makes, as values, and the model that ranks them (docs/schedules-cuda.md).
//
// A choice says how a kernel is cut into blocks, threads and vectors. Choices are enumerated and ranked best first by
// estimated time; equal estimates keep the order of enumeration. The model sees a few numbers about the group and the
// device, never the sizes of one run: a class of sizes is represented by its largest member.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "schedule/cuda_target.h"

namespace fuseloom::schedule {

// What one block of a kernel does.
struct BlockWork {
  double blocks = 1;                   // of the launch
  int32_t threads = 256;
  int32_t registers = 32;              // of a thread
  int64_t shared_bytes = 0;
  double bytes = 0;                    // a block moves from and to device memory
  double bytes_in_flight = 0;          // loads a thread has outstanding before it uses the first
  double instructions = 0;             // of all threads of a block
  double latency = 0;                  // nanoseconds a block lives when nothing slows it
};
struct Estimate {
  double nanoseconds = 0;
  int32_t resident = 0;                // blocks of a multiprocessor at a time; 0: the block does not fit
  double in_flight = 0;                // bytes in flight of a multiprocessor
  double waves = 0;
  std::string text() const;
};
Estimate estimate(const BlockWork& work, const CudaTarget& target);

template <class Choice>
struct Ranked {
  Choice choice;
  Estimate estimate;
};

// ---- pointwise: a thread computes `unroll` vectors of `vector` elements
struct PointwiseChoice {
  bool flat = true;                    // one axis; else rows x columns: vectors along the columns, unrolled along the rows
  int32_t vector = 1, unroll = 1;
  int32_t threads_x = 256, threads_y = 1;
  std::string text() const;
  friend bool operator==(const PointwiseChoice&, const PointwiseChoice&) = default;
};
struct PointwiseWork {
  bool flat = true;
  int64_t rows = 1, columns = 1;       // columns: the class's largest, in elements
  int32_t vector = 1;
  int32_t staged_bytes = 0;            // per element: read once, loaded ahead
  int32_t moved_bytes = 0;             // per element, read and written
  int32_t instructions = 4;            // per element
};
std::vector<Ranked<PointwiseChoice>> rank(const PointwiseWork& work, const CudaTarget& target);

// ---- rows: reductions and normalizations along the contiguous axis
enum class Keep : uint8_t {
  Registers,   // the row is loaded once and stays in registers
  Shared,      // ... in shared memory
  Reload,      // every loop over the row reads it again, from L2 where the rows in work fit
};
struct RowChoice {
  Keep keep = Keep::Registers;
  int32_t vector = 1, unroll = 1;      // vectors of a thread; with Reload: in flight
  int32_t threads = 32, rows = 1;      // of a block: threads along a row, rows side by side
  bool peeled = false;                 // rows start anywhere: vectors at multiples of their size in memory, what is left over one by one
  std::string text() const;
  friend bool operator==(const RowChoice&, const RowChoice&) = default;
};
struct RowWork {
  int64_t rows = 1, length = 1;        // length: the class's largest, in elements
  bool bounded = true;                 // no row is longer than `length`
  int32_t vector = 1;
  int32_t most_held = 64;              // elements of a row in a thread's registers
  int32_t loops = 1;                   // over a row that is kept
  int32_t passes = 1;                  // over a row that is loaded again each time
  int32_t staged_bytes = 0;            // per element: read once, loaded ahead
  int32_t kept_bytes = 0;              // per element: values kept between loops when they stay in registers
  int32_t stored_bytes = 0;            // per element: outputs along the row
  int32_t instructions = 4;            // per element
};
std::vector<Ranked<RowChoice>> rank(const RowWork& work, const CudaTarget& target);

// ---- columns: reductions along an outer axis
struct ColumnChoice {
  int32_t vector = 1, unroll = 1;      // unroll: rows in flight
  int32_t threads_x = 32, threads_y = 8;   // along the columns, along the folded rows
  std::string text() const;
  friend bool operator==(const ColumnChoice&, const ColumnChoice&) = default;
};
struct ColumnWork {
  int64_t columns = 1, length = 1;     // the class's largest
  int32_t vector = 1;
  int32_t staged_bytes = 0, instructions = 4;
  int32_t accumulators = 1;
};
std::vector<Ranked<ColumnChoice>> rank(const ColumnWork& work, const CudaTarget& target);

}  // namespace fuseloom::schedule
