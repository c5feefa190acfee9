// The CUDA driver as a table of functions: libcuda, found with dlopen, or the host itself (host_driver.h), so that
// everything above is the same code with and without a GPU.
//
// The declarations are those of cuda.h that are used, with its layouts and numbers, which NVIDIA keeps stable; nothing of
// CUDA is needed to build.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace fuseloom::run {

using CudaResult = int;
using CudaContext = struct CUctx_st*;
using CudaModule = struct CUmod_st*;
using CudaFunction = struct CUfunc_st*;
using CudaStream = struct CUstream_st*;  // null: the default stream
using CudaEvent = struct CUevent_st*;
using CudaGraph = struct CUgraph_st*;
using CudaGraphExec = struct CUgraphExec_st*;
using CudaAddress = unsigned long long;

inline constexpr CudaResult kCudaSuccess = 0;
inline constexpr CudaResult kCudaOutOfMemory = 2;

enum class CudaDeviceAttribute : int {
  MaxThreadsPerBlock = 1,
  MaxGridX = 5,
  MaxGridY = 6,
  MaxGridZ = 7,
  Multiprocessors = 16,
  MemoryClockKilohertz = 36,
  MemoryBusBits = 37,
  L2Bytes = 38,
  MaxThreadsPerMultiprocessor = 39,
  CapabilityMajor = 75,
  CapabilityMinor = 76,
  MaxSharedBytesPerBlock = 97,  // when the function asks for it
  MemoryPools = 115,
  Clusters = 120,
};

enum class CudaFunctionAttribute : int {
  MaxThreadsPerBlock = 0,
  StaticSharedBytes = 1,
  LocalBytes = 3,  // per thread: what did not fit the registers, and arrays
  Registers = 4,
  MaxDynamicSharedBytes = 8,
  NonPortableClusterSize = 14,
};

struct CudaLaunchAttribute {
  enum Id : int { Cooperative = 2, ClusterDimension = 4, ProgrammaticStreamSerialization = 6 };
  int id = 0;
  char pad[4] = {};
  union {
    char bytes[64];
    int flag;
    struct {
      unsigned x, y, z;
    } cluster;
  } value = {};
};

struct CudaLaunchConfig {
  unsigned grid[3] = {1, 1, 1};
  unsigned block[3] = {1, 1, 1};
  unsigned shared_bytes = 0;
  CudaStream stream = nullptr;
  CudaLaunchAttribute* attributes = nullptr;
  unsigned attribute_count = 0;
};

// `extra` of a launch: these three in pairs with their values, then a null pointer. The arguments of a kernel are one block
// of 8-byte words: the addresses of its buffers, then its sizes.
inline void* const kLaunchBufferPointer = reinterpret_cast<void*>(uintptr_t{1});
inline void* const kLaunchBufferSize = reinterpret_cast<void*>(uintptr_t{2});

struct CudaDriver {
  std::string description;  // "libcuda.so.1, CUDA 13.0"
  bool is_host = false;

  CudaResult (*init)(unsigned flags);
  CudaResult (*driver_version)(int* version);
  CudaResult (*error_name)(CudaResult, const char** text);
  CudaResult (*error_string)(CudaResult, const char** text);

  CudaResult (*device_count)(int* count);
  CudaResult (*device_get)(int* device, int index);
  CudaResult (*device_name)(char* name, int size, int device);
  CudaResult (*device_memory)(size_t* bytes, int device);
  CudaResult (*device_attribute)(int* value, CudaDeviceAttribute, int device);
  CudaResult (*retain_context)(CudaContext*, int device);
  CudaResult (*release_context)(int device);
  CudaResult (*current_context)(CudaContext*);
  CudaResult (*set_current_context)(CudaContext);

  CudaResult (*load_module)(CudaModule*, const void* image);
  CudaResult (*unload_module)(CudaModule);
  CudaResult (*module_function)(CudaFunction*, CudaModule, const char* name);
  CudaResult (*function_attribute)(int* value, CudaFunctionAttribute, CudaFunction);
  CudaResult (*set_function_attribute)(CudaFunction, CudaFunctionAttribute, int value);
  CudaResult (*blocks_per_multiprocessor)(int* blocks, CudaFunction, int block_threads, size_t shared_bytes);
  CudaResult (*resident_clusters)(int* clusters, CudaFunction, const CudaLaunchConfig*);
  CudaResult (*launch)(const CudaLaunchConfig*, CudaFunction, void** parameters, void** extra);

  CudaResult (*allocate)(CudaAddress*, size_t bytes);
  CudaResult (*free)(CudaAddress);
  CudaResult (*allocate_async)(CudaAddress*, size_t bytes, CudaStream);
  CudaResult (*free_async)(CudaAddress, CudaStream);
  CudaResult (*allocate_pinned)(void**, size_t bytes);
  CudaResult (*free_pinned)(void*);
  CudaResult (*copy_to_device)(CudaAddress to, const void* from, size_t bytes, CudaStream);
  CudaResult (*copy_to_host)(void* to, CudaAddress from, size_t bytes, CudaStream);
  CudaResult (*copy)(CudaAddress to, CudaAddress from, size_t bytes, CudaStream);
  CudaResult (*fill_bytes)(CudaAddress, unsigned char value, size_t count, CudaStream);

  CudaResult (*create_stream)(CudaStream*, unsigned flags);
  CudaResult (*destroy_stream)(CudaStream);
  CudaResult (*synchronize_stream)(CudaStream);
  CudaResult (*create_event)(CudaEvent*, unsigned flags);
  CudaResult (*destroy_event)(CudaEvent);
  CudaResult (*record_event)(CudaEvent, CudaStream);
  CudaResult (*synchronize_event)(CudaEvent);
  CudaResult (*elapsed_time)(float* milliseconds, CudaEvent start, CudaEvent end);

  CudaResult (*begin_capture)(CudaStream, int mode);
  CudaResult (*end_capture)(CudaStream, CudaGraph*);
  CudaResult (*instantiate_graph)(CudaGraphExec*, CudaGraph, unsigned long long flags);
  CudaResult (*launch_graph)(CudaGraphExec, CudaStream);
  CudaResult (*destroy_graph)(CudaGraph);
  CudaResult (*destroy_graph_exec)(CudaGraphExec);
};

// libcuda, initialised. Throws Unsupported: it is not installed, too old, or finds no device. Stays loaded for the life of
// the process: it does not survive being unloaded.
std::shared_ptr<const CudaDriver> load_cuda_driver();

}  // namespace fuseloom::run
