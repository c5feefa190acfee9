// A CUDA driver without a GPU: device memory is host memory, streams run at once, and a kernel is a C function that runs
// all of its blocks. With it everything above the driver's table is tested on any machine.
#pragma once
#include <memory>
#include <string>

#include "run/cuda_driver.h"

namespace fuseloom::run {

// A kernel compiled for the host. `arguments`: as many 8-byte words as the kernel takes.
using HostKernelEntry = void (*)(const uint64_t* arguments, const uint32_t* grid, const uint32_t* block, const uint32_t* cluster, uint32_t shared_bytes);

// What a CudaFunction of this driver points to. Outlives its launches.
struct HostKernel {
  HostKernelEntry entry = nullptr;
  int static_shared_bytes = 0;
  int max_dynamic_shared_bytes = 48 << 10;  // as asked for by set_function_attribute
  bool non_portable_cluster = false;
};
inline CudaFunction host_function(HostKernel& kernel) { return reinterpret_cast<CudaFunction>(&kernel); }

// Shows two devices.
std::shared_ptr<const CudaDriver> host_driver();

// Device memory that is in use at the moment, in bytes, over the whole process.
int64_t host_driver_bytes_in_use();

}  // namespace fuseloom::run
