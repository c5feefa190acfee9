#include "run/cuda_driver.h"

#include <dlfcn.h>

#include "base/check.h"

namespace fuseloom::run {

std::shared_ptr<const CudaDriver> load_cuda_driver() {
  void* library = nullptr;
  // The second name is what containers without ldconfig have.
  for (const char* name : {"libcuda.so.1", "libcuda.so"}) {
    if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  }
  FL_SUPPORTED(library != nullptr, "the CUDA driver is not installed: neither libcuda.so.1 nor libcuda.so can be loaded; install NVIDIA's driver, "
               "or run on the cpu");
  auto driver = std::make_shared<CudaDriver>();
  const auto bind = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    FL_SUPPORTED(function != nullptr, "the CUDA driver is too old: libcuda has no {}; CUDA 12 or later is needed", name);
  };
  bind(driver->init, "cuInit");
  bind(driver->driver_version, "cuDriverGetVersion");
  bind(driver->error_name, "cuGetErrorName");
  bind(driver->error_string, "cuGetErrorString");
  bind(driver->device_count, "cuDeviceGetCount");
  bind(driver->device_get, "cuDeviceGet");
  bind(driver->device_name, "cuDeviceGetName");
  bind(driver->device_memory, "cuDeviceTotalMem_v2");
  bind(driver->device_attribute, "cuDeviceGetAttribute");
  bind(driver->retain_context, "cuDevicePrimaryCtxRetain");
  bind(driver->release_context, "cuDevicePrimaryCtxRelease_v2");
  bind(driver->current_context, "cuCtxGetCurrent");
  bind(driver->set_current_context, "cuCtxSetCurrent");
  bind(driver->load_module, "cuModuleLoadData");
  bind(driver->unload_module, "cuModuleUnload");
  bind(driver->module_function, "cuModuleGetFunction");
  bind(driver->function_attribute, "cuFuncGetAttribute");
  bind(driver->set_function_attribute, "cuFuncSetAttribute");
  bind(driver->blocks_per_multiprocessor, "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  bind(driver->resident_clusters, "cuOccupancyMaxActiveClusters");
  bind(driver->launch, "cuLaunchKernelEx");
  bind(driver->allocate, "cuMemAlloc_v2");
  bind(driver->free, "cuMemFree_v2");
  bind(driver->allocate_async, "cuMemAllocAsync");
  bind(driver->free_async, "cuMemFreeAsync");
  bind(driver->allocate_pinned, "cuMemAllocHost_v2");
  bind(driver->free_pinned, "cuMemFreeHost");
  bind(driver->copy_to_device, "cuMemcpyHtoDAsync_v2");
  bind(driver->copy_to_host, "cuMemcpyDtoHAsync_v2");
  bind(driver->copy, "cuMemcpyDtoDAsync_v2");
  bind(driver->fill_bytes, "cuMemsetD8Async");
  bind(driver->create_stream, "cuStreamCreate");
  bind(driver->destroy_stream, "cuStreamDestroy_v2");
  bind(driver->synchronize_stream, "cuStreamSynchronize");
  bind(driver->create_event, "cuEventCreate");
  bind(driver->destroy_event, "cuEventDestroy_v2");
  bind(driver->record_event, "cuEventRecord");
  bind(driver->synchronize_event, "cuEventSynchronize");
  bind(driver->elapsed_time, "cuEventElapsedTime");
  bind(driver->begin_capture, "cuStreamBeginCapture_v2");
  bind(driver->end_capture, "cuStreamEndCapture");
  bind(driver->instantiate_graph, "cuGraphInstantiateWithFlags");
  bind(driver->launch_graph, "cuGraphLaunch");
  bind(driver->destroy_graph, "cuGraphDestroy");
  bind(driver->destroy_graph_exec, "cuGraphExecDestroy");

  const auto words = [&](CudaResult result) {
    const char* text = nullptr;
    driver->error_string(result, &text);
    return std::string(text != nullptr ? text : "unknown error");
  };
  const CudaResult started = driver->init(0);
  FL_SUPPORTED(started == kCudaSuccess, "the CUDA driver does not start: {}", words(started));
  int version = 0, devices = 0;
  driver->driver_version(&version);
  const CudaResult counted = driver->device_count(&devices);
  FL_SUPPORTED(counted == kCudaSuccess && devices > 0, "the CUDA driver finds no device{}", counted == kCudaSuccess ? "" : ": " + words(counted));
  driver->description = fmt::format("libcuda, CUDA {}.{}", version / 1000, version % 1000 / 10);
  return driver;
}

}  // namespace fuseloom::run
