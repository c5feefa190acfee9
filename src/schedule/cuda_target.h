// What the choices of CUDA schedules depend on. The defaults are an H200's.
#pragma once
#include <cstdint>

namespace fuseloom::schedule {

struct CudaTarget {
  int32_t multiprocessors = 132;
  int32_t threads_per_multiprocessor = 2048;
  int32_t blocks_per_multiprocessor = 32;
  int32_t registers_per_multiprocessor = 65536;
  int32_t shared_per_multiprocessor = 228 * 1024;   // bytes
  int32_t shared_per_block = 227 * 1024;            // bytes, with dynamic shared memory
  int64_t l2_bytes = int64_t{50} << 20;
  int64_t part_elements = 8192;                     // a row that is cut is cut into parts no shorter than this
  double bytes_per_nanosecond = 4260;               // device memory, read plus written
  double latency_nanoseconds = 800;                 // of a load from device memory under load
  double clock_gigahertz = 1.75;
};

}  // namespace fuseloom::schedule
