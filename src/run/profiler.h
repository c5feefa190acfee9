// Times of lines (A17).
#pragma once
#include <mutex>
#include <span>
#include <vector>

#include "run/cuda_device.h"
#include "run/entry.h"
#include "run/executable.h"

namespace fuseloom::run {

double seconds_now();

// The statistics of one program's lines; runs on several threads add to the same.
class LineProfiler {
 public:
  explicit LineProfiler(size_t lines) : lines_(lines) {}
  void add(size_t line, double start, double end, int64_t bytes, double host_seconds = 0);
  // What is known of a launch on a device.
  void describe(size_t line, const PackedCudaLaunch& packed, const CudaDevice& device);
  // Appends the lines that do work, and what happened when.
  void collect(const program::Program& program, Profile& profile) const;

 private:
  struct LineTimes {
    int64_t calls = 0, bytes = 0;
    double seconds = 0, host_seconds = 0;
    int32_t registers = 0, local_bytes = 0;
    int64_t shared_bytes = 0;
    double occupancy = 0;
    bool library = false;
    std::string note;
  };
  struct Event {
    size_t line = 0;
    double start = 0, seconds = 0;
    uint64_t thread = 0;
  };
  static constexpr size_t kMostEvents = 1 << 16;  // a long profile keeps its beginning
  mutable std::mutex mutex_;
  std::vector<LineTimes> lines_;
  std::vector<Event> events_;
};

}  // namespace fuseloom::run
