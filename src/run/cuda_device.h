// A CUDA device as programs use it: its properties, memory, copies and launches, with errors in words.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fuseloom/tensor.h"
#include "run/cuda_driver.h"
#include "run/product_library.h"

namespace fuseloom::run {

inline constexpr int64_t kDeviceAlignment = 16;  // of every buffer that a kernel gets: the widest access of a thread

struct CudaProperties {
  std::string name;
  int32_t major = 0, minor = 0;            // compute capability
  int32_t multiprocessors = 0;
  int32_t threads_per_multiprocessor = 0;
  int64_t memory_bytes = 0, l2_bytes = 0;
  int32_t shared_bytes_per_block = 0;      // static and dynamic, when the function asks for it
  std::array<int64_t, 3> max_grid = {};
  bool clusters = false;
  double peak_bytes_per_second = 0;        // of its memory, by clock and bus width; 0: the driver does not say

  std::string architecture() const { return std::to_string(10 * major + minor); }  // "90"
};

// A function of a loaded module and what the compiler made of it.
struct CudaKernel {
  CudaFunction function = nullptr;
  std::string name;
  int32_t registers = 0;                   // per thread
  int32_t local_bytes = 0;                 // per thread: spilled registers and arrays
  int32_t static_shared_bytes = 0;
  int32_t max_threads = 0;                 // per block
};

// How a kernel is started, checked against the limits of the device.
struct CudaLaunch {
  const CudaKernel* kernel = nullptr;
  std::array<uint32_t, 3> grid = {1, 1, 1}, block = {1, 1, 1};
  uint32_t shared_bytes = 0;               // dynamic
  std::array<CudaLaunchAttribute, 3> attributes = {};
  uint32_t attribute_count = 0;

  void add_cluster(const std::array<uint32_t, 3>& blocks);
  void add_cooperative();
  std::array<uint32_t, 3> cluster() const;
};

class CudaDevice : public std::enable_shared_from_this<CudaDevice> {
 public:
  // Device `index` of the driver. Throws UserError when there is none.
  static std::shared_ptr<CudaDevice> open(std::shared_ptr<const CudaDriver> driver, int32_t index = 0);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  const CudaProperties& properties() const { return properties_; }
  const CudaDriver& driver() const { return *driver_; }
  int32_t index() const { return index_; }
  Device tag() const { return {DeviceKind::Cuda, index_}; }

  // Every other function needs it to have been called on this thread, by it or by a caller above.
  void make_current() const {
    CudaContext current = nullptr;
    if (driver_->current_context(&current) != kCudaSuccess || current != context_) require(driver_->set_current_context(context_), "use the device");
  }
  // Throws UserError when memory has run out, else InternalError: "cuda:0 cannot <what>: CUDA_ERROR_...: words".
  void require(CudaResult result, std::string_view what) const {
    if (result != kCudaSuccess) [[unlikely]] fail(result, what);
  }

  // ---- memory: aligned to 256 bytes, uninitialised, cached. A block that is freed serves the same stream again without a
  // call of the driver; work that was queued on the stream before it was freed may still use it.
  std::shared_ptr<void> allocate(int64_t bytes, CudaStream stream);
  std::shared_ptr<void> allocate_pinned(int64_t bytes);   // of the host, for fast transfers
  // What is cached and not in use goes back to the driver.
  void release_cached();
  int64_t bytes_in_use() const;
  int64_t peak_bytes() const;              // since reset_peak
  void reset_peak();

  void upload(void* to, const void* from, int64_t bytes, CudaStream stream) const;     // `from` may be reused on return
  void download(void* to, const void* from, int64_t bytes, CudaStream stream) const;   // waits for the stream
  void copy(void* to, const void* from, int64_t bytes, CudaStream stream) const;
  void fill(void* to, int value, int64_t bytes, CudaStream stream) const;
  void synchronize(CudaStream stream) const { require(driver_->synchronize_stream(stream), "finish the work of the stream"); }

  std::shared_ptr<void> create_event();                   // a CudaEvent

  Tensor empty(DType dtype, Dims dims, CudaStream stream);
  Tensor to_device(const Tensor& host, CudaStream stream);          // contiguous
  Tensor to_host(const Tensor& tensor, CudaStream stream) const;    // of any strides; a host tensor as it is
  // Between tensors of equal dims, of the host or of this device. Waits for the stream when `to` is on the host.
  void copy_elements(const Tensor& from, Tensor& to, CudaStream stream);

  // ---- kernels
  // A cubin or PTX. The module is unloaded with the last owner.
  std::shared_ptr<void> load_module(const void* image);
  CudaFunction function(const std::shared_ptr<void>& module, const std::string& name) const;
  CudaKernel describe(CudaFunction function, std::string name) const;
  // Checks block, grid, cluster and shared memory, and raises the function's limits where they must be. Throws
  // Unsupported with the numbers.
  void check(const CudaLaunch& launch) const;
  // `words`: the kernel's arguments. Asynchronous.
  void launch(const CudaLaunch& launch, const uint64_t* words, size_t word_count, CudaStream stream) const {
    CudaLaunchConfig config;
    for (size_t d = 0; d < 3; ++d) {
      config.grid[d] = launch.grid[d];
      config.block[d] = launch.block[d];
    }
    config.shared_bytes = launch.shared_bytes;
    config.stream = stream;
    config.attributes = const_cast<CudaLaunchAttribute*>(launch.attributes.data());  // the driver only reads them
    config.attribute_count = launch.attribute_count;
    size_t bytes = word_count * sizeof(uint64_t);
    void* extra[] = {kLaunchBufferPointer, const_cast<uint64_t*>(words), kLaunchBufferSize, &bytes, nullptr};
    const CudaResult result = driver_->launch(&config, launch.kernel->function, nullptr, extra);
    if (result != kCudaSuccess) [[unlikely]] fail_launch(launch, result);
  }
  // ---- libraries
  // That of matrix products, looked for when first asked for; null, and why: there is none. The host in place of a device has
  // one only if it is given one.
  std::shared_ptr<const ProductLibrary> products() const;
  std::string products_missing() const;
  void set_products(std::shared_ptr<const ProductLibrary> library, std::string missing = "it is switched off");

  // Share of a multiprocessor's threads that can be resident.
  double occupancy(const CudaLaunch& launch) const;

 private:
  CudaDevice(std::shared_ptr<const CudaDriver> driver, int32_t index);
  [[noreturn]] void fail(CudaResult result, std::string_view what) const;
  [[noreturn]] void fail_launch(const CudaLaunch& launch, CudaResult result) const;
  void free(void* block, int64_t bytes, CudaStream stream);

  const std::shared_ptr<const CudaDriver> driver_;
  const int32_t index_;
  int device_ = 0;
  CudaContext context_ = nullptr;
  CudaProperties properties_;
  bool pools_ = false;

  mutable std::mutex library_mutex_;        // guards what follows
  mutable bool products_known_ = false;
  mutable std::shared_ptr<const ProductLibrary> products_;
  mutable std::string products_missing_;

  mutable std::mutex mutex_;                // guards what follows
  std::map<std::pair<CudaStream, int64_t>, std::vector<void*>> cached_;   // by stream and size
  int64_t cached_bytes_ = 0, in_use_ = 0, peak_ = 0;
};

}  // namespace fuseloom::run
