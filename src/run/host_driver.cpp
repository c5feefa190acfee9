#include "run/host_driver.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

namespace fuseloom::run {
namespace {

constexpr CudaResult kInvalidValue = 1;
constexpr CudaResult kNotSupported = 801;
constexpr int kDevices = 2;
// Figures of a Hopper device, so that limits are checked as there.
constexpr int kSharedBytesPerBlock = 227 << 10;

// The only state: a count for tests.
std::atomic<int64_t> bytes_in_use = 0;

// A stream records what is done on it while it is captured.
struct Stream {
  bool captured = false;
  std::vector<std::function<void()>> work;
};
using Graph = std::vector<std::function<void()>>;

// Does the work now, or notes it for the graph.
template <class Work>
CudaResult on(CudaStream stream, Work work) {
  Stream* const held = reinterpret_cast<Stream*>(stream);
  if (held != nullptr && held->captured) {
    held->work.emplace_back(std::move(work));
  } else {
    work();
  }
  return kCudaSuccess;
}

struct Event {
  std::chrono::steady_clock::time_point time;
};

HostKernel& kernel_of(CudaFunction function) { return *reinterpret_cast<HostKernel*>(function); }
void* pointer_of(CudaAddress address) { return reinterpret_cast<void*>(address); }

// A block starts with its size; what follows is aligned like device memory.
constexpr size_t kHeader = 256;

CudaResult allocate(CudaAddress* address, size_t bytes) {
  if (bytes == 0) return kInvalidValue;
  const size_t rounded = (bytes + 2 * kHeader - 1) / kHeader * kHeader;
  char* const block = static_cast<char*>(std::aligned_alloc(kHeader, rounded));
  if (block == nullptr) return kCudaOutOfMemory;
  *reinterpret_cast<size_t*>(block) = bytes;
  bytes_in_use += static_cast<int64_t>(bytes);
  *address = reinterpret_cast<CudaAddress>(block + kHeader);
  return kCudaSuccess;
}

CudaResult release(CudaAddress address) {
  if (address == 0) return kInvalidValue;
  char* const block = static_cast<char*>(pointer_of(address)) - kHeader;
  bytes_in_use -= static_cast<int64_t>(*reinterpret_cast<size_t*>(block));
  std::free(block);
  return kCudaSuccess;
}

CudaResult move_bytes(void* to, const void* from, size_t bytes, CudaStream stream) {
  return on(stream, [=] { std::memmove(to, from, bytes); });
}

CudaResult device_attribute(int* value, CudaDeviceAttribute attribute, int) {
  switch (attribute) {
    case CudaDeviceAttribute::MaxThreadsPerBlock: *value = 1024; break;
    case CudaDeviceAttribute::MaxGridX: *value = 2147483647; break;
    case CudaDeviceAttribute::MaxGridY:
    case CudaDeviceAttribute::MaxGridZ: *value = 65535; break;
    case CudaDeviceAttribute::Multiprocessors: *value = 132; break;
    case CudaDeviceAttribute::MemoryClockKilohertz:
    case CudaDeviceAttribute::MemoryBusBits: *value = 0; break;
    case CudaDeviceAttribute::L2Bytes: *value = 50 << 20; break;
    case CudaDeviceAttribute::MaxThreadsPerMultiprocessor: *value = 2048; break;
    case CudaDeviceAttribute::CapabilityMajor: *value = 9; break;
    case CudaDeviceAttribute::CapabilityMinor: *value = 0; break;
    case CudaDeviceAttribute::MaxSharedBytesPerBlock: *value = kSharedBytesPerBlock; break;
    case CudaDeviceAttribute::MemoryPools:
    case CudaDeviceAttribute::Clusters: *value = 1; break;
  }
  return kCudaSuccess;
}

CudaResult function_attribute(int* value, CudaFunctionAttribute attribute, CudaFunction function) {
  const HostKernel& kernel = kernel_of(function);
  switch (attribute) {
    case CudaFunctionAttribute::MaxThreadsPerBlock: *value = 1024; break;
    case CudaFunctionAttribute::StaticSharedBytes: *value = kernel.static_shared_bytes; break;
    case CudaFunctionAttribute::LocalBytes:
    case CudaFunctionAttribute::Registers: *value = 0; break;
    case CudaFunctionAttribute::MaxDynamicSharedBytes: *value = kernel.max_dynamic_shared_bytes; break;
    case CudaFunctionAttribute::NonPortableClusterSize: *value = kernel.non_portable_cluster ? 1 : 0; break;
  }
  return kCudaSuccess;
}

CudaResult set_function_attribute(CudaFunction function, CudaFunctionAttribute attribute, int value) {
  HostKernel& kernel = kernel_of(function);
  if (attribute == CudaFunctionAttribute::MaxDynamicSharedBytes) {
    if (value + kernel.static_shared_bytes > kSharedBytesPerBlock) return kInvalidValue;
    kernel.max_dynamic_shared_bytes = value;
  } else if (attribute == CudaFunctionAttribute::NonPortableClusterSize) {
    kernel.non_portable_cluster = value != 0;
  } else {
    return kInvalidValue;
  }
  return kCudaSuccess;
}

// As strict as a device: what it would refuse is refused here.
CudaResult launch(const CudaLaunchConfig* config, CudaFunction function, void** parameters, void** extra) {
  const HostKernel& kernel = kernel_of(function);
  uint32_t grid[3], block[3], cluster[3] = {1, 1, 1};
  for (int d = 0; d < 3; ++d) {
    grid[d] = config->grid[d];
    block[d] = config->block[d];
    if (grid[d] == 0 || block[d] == 0 || (d > 0 && grid[d] > 65535)) return kInvalidValue;
  }
  for (unsigned i = 0; i < config->attribute_count; ++i) {
    const CudaLaunchAttribute& attribute = config->attributes[i];
    if (attribute.id != CudaLaunchAttribute::ClusterDimension) continue;
    cluster[0] = attribute.value.cluster.x;
    cluster[1] = attribute.value.cluster.y;
    cluster[2] = attribute.value.cluster.z;
  }
  const uint32_t cluster_blocks = cluster[0] * cluster[1] * cluster[2];
  for (int d = 0; d < 3; ++d) {
    if (cluster[d] == 0 || grid[d] % cluster[d] != 0) return kInvalidValue;
  }
  if (block[0] * block[1] * block[2] > 1024 || cluster_blocks > (kernel.non_portable_cluster ? 16u : 8u)) return kInvalidValue;
  if (config->shared_bytes > static_cast<unsigned>(kernel.max_dynamic_shared_bytes)) return kInvalidValue;
  if (parameters != nullptr || extra == nullptr || extra[0] != kLaunchBufferPointer) return kInvalidValue;
  const uint64_t* const words = static_cast<const uint64_t*>(extra[1]);
  const std::vector<uint64_t> arguments(words, words + *static_cast<const size_t*>(extra[3]) / sizeof(uint64_t));
  return on(config->stream, [=, entry = kernel.entry, shared_bytes = config->shared_bytes, grid = std::to_array(grid), block = std::to_array(block),
                             cluster = std::to_array(cluster)] { entry(arguments.data(), grid.data(), block.data(), cluster.data(), shared_bytes); });
}

}  // namespace

std::shared_ptr<const CudaDriver> host_driver() {
  auto driver = std::make_shared<CudaDriver>();
  driver->description = "the host in place of a CUDA device";
  driver->is_host = true;
  driver->init = [](unsigned) { return kCudaSuccess; };
  driver->driver_version = [](int* version) { return *version = 13000, kCudaSuccess; };
  driver->error_name = [](CudaResult result, const char** text) {
    *text = result == kCudaSuccess ? "CUDA_SUCCESS" : result == kCudaOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : result == kInvalidValue ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR_NOT_SUPPORTED";
    return kCudaSuccess;
  };
  driver->error_string = [](CudaResult result, const char** text) {
    *text = result == kCudaSuccess ? "no error" : result == kCudaOutOfMemory ? "out of memory" : result == kInvalidValue ? "invalid argument" : "operation not supported";
    return kCudaSuccess;
  };
  driver->device_count = [](int* count) { return *count = kDevices, kCudaSuccess; };
  driver->device_get = [](int* device, int index) { return *device = index, index >= 0 && index < kDevices ? kCudaSuccess : 101; };
  driver->device_name = [](char* name, int size, int) { return std::strncpy(name, "host", static_cast<size_t>(size)), kCudaSuccess; };
  driver->device_memory = [](size_t* bytes, int) { return *bytes = size_t{1} << 32, kCudaSuccess; };
  driver->device_attribute = device_attribute;
  driver->retain_context = [](CudaContext* context, int device) { return *context = reinterpret_cast<CudaContext>(static_cast<uintptr_t>(device) + 1), kCudaSuccess; };
  driver->release_context = [](int) { return kCudaSuccess; };
  driver->current_context = [](CudaContext* context) { return *context = nullptr, kCudaSuccess; };
  driver->set_current_context = [](CudaContext) { return kCudaSuccess; };
  driver->load_module = [](CudaModule*, const void*) { return kNotSupported; };
  driver->unload_module = [](CudaModule) { return kCudaSuccess; };
  driver->module_function = [](CudaFunction*, CudaModule, const char*) { return kNotSupported; };
  driver->function_attribute = function_attribute;
  driver->set_function_attribute = set_function_attribute;
  driver->blocks_per_multiprocessor = [](int* blocks, CudaFunction, int threads, size_t) { return *blocks = 2048 / threads, kCudaSuccess; };
  driver->resident_clusters = [](int* clusters, CudaFunction, const CudaLaunchConfig*) { return *clusters = 16, kCudaSuccess; };
  driver->launch = launch;
  driver->allocate = allocate;
  driver->free = release;
  driver->allocate_async = [](CudaAddress* address, size_t bytes, CudaStream) { return allocate(address, bytes); };
  driver->free_async = [](CudaAddress address, CudaStream) { return release(address); };
  driver->allocate_pinned = [](void** block, size_t bytes) {
    *block = std::malloc(bytes);
    return *block != nullptr ? kCudaSuccess : kCudaOutOfMemory;
  };
  driver->free_pinned = [](void* block) { return std::free(block), kCudaSuccess; };
  driver->copy_to_device = [](CudaAddress to, const void* from, size_t bytes, CudaStream stream) { return move_bytes(pointer_of(to), from, bytes, stream); };
  driver->copy_to_host = [](void* to, CudaAddress from, size_t bytes, CudaStream stream) { return move_bytes(to, pointer_of(from), bytes, stream); };
  driver->copy = [](CudaAddress to, CudaAddress from, size_t bytes, CudaStream stream) { return move_bytes(pointer_of(to), pointer_of(from), bytes, stream); };
  driver->fill_bytes = [](CudaAddress to, unsigned char value, size_t count, CudaStream stream) {
    return on(stream, [=] { std::memset(pointer_of(to), value, count); });
  };
  driver->create_stream = [](CudaStream* stream, unsigned) { return *stream = reinterpret_cast<CudaStream>(new Stream), kCudaSuccess; };
  driver->destroy_stream = [](CudaStream stream) { return delete reinterpret_cast<Stream*>(stream), kCudaSuccess; };
  driver->synchronize_stream = [](CudaStream) { return kCudaSuccess; };
  driver->create_event = [](CudaEvent* event, unsigned) { return *event = reinterpret_cast<CudaEvent>(new Event), kCudaSuccess; };
  driver->destroy_event = [](CudaEvent event) { return delete reinterpret_cast<Event*>(event), kCudaSuccess; };
  driver->record_event = [](CudaEvent event, CudaStream) { return reinterpret_cast<Event*>(event)->time = std::chrono::steady_clock::now(), kCudaSuccess; };
  driver->synchronize_event = [](CudaEvent) { return kCudaSuccess; };
  driver->elapsed_time = [](float* milliseconds, CudaEvent start, CudaEvent end) {
    const std::chrono::duration<float, std::milli> passed = reinterpret_cast<Event*>(end)->time - reinterpret_cast<Event*>(start)->time;
    return *milliseconds = passed.count(), kCudaSuccess;
  };
  driver->begin_capture = [](CudaStream stream, int) {
    if (stream == nullptr) return kNotSupported;
    reinterpret_cast<Stream*>(stream)->captured = true;
    return kCudaSuccess;
  };
  driver->end_capture = [](CudaStream stream, CudaGraph* graph) {
    Stream* const held = reinterpret_cast<Stream*>(stream);
    held->captured = false;
    *graph = reinterpret_cast<CudaGraph>(new Graph(std::move(held->work)));
    held->work.clear();
    return kCudaSuccess;
  };
  driver->instantiate_graph = [](CudaGraphExec* exec, CudaGraph graph, unsigned long long) {
    *exec = reinterpret_cast<CudaGraphExec>(new Graph(*reinterpret_cast<Graph*>(graph)));
    return kCudaSuccess;
  };
  driver->launch_graph = [](CudaGraphExec exec, CudaStream) {
    for (const std::function<void()>& work : *reinterpret_cast<Graph*>(exec)) work();
    return kCudaSuccess;
  };
  driver->destroy_graph = [](CudaGraph graph) { return delete reinterpret_cast<Graph*>(graph), kCudaSuccess; };
  driver->destroy_graph_exec = [](CudaGraphExec exec) { return delete reinterpret_cast<Graph*>(exec), kCudaSuccess; };
  return driver;
}

int64_t host_driver_bytes_in_use() { return bytes_in_use; }

}  // namespace fuseloom::run
