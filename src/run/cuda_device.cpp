#include "run/cuda_device.h"

#include <algorithm>

#include "base/check.h"
#include "op/stream.h"

namespace fuseloom::run {
namespace {

CudaAddress address_of(const void* pointer) { return reinterpret_cast<CudaAddress>(pointer); }

// Sizes in the cache: few enough classes that a size that grows a little finds its block again, at most an eighth wasted.
int64_t size_class(int64_t bytes) {
  int64_t step = 512;
  while (bytes > 16 * step) step *= 2;
  return (bytes + step - 1) / step * step;
}

// First and last byte (exclusive) that a strided tensor covers, from its data pointer. Strides may be negative.
std::pair<int64_t, int64_t> span_of(const Tensor& tensor) {
  int64_t low = 0, high = 1;
  for (size_t d = 0; d < tensor.dims().size(); ++d) {
    if (tensor.dims()[d] == 0) return {0, 0};
    const int64_t reach = (tensor.dims()[d] - 1) * tensor.strides()[d];
    (reach < 0 ? low : high) += reach;
  }
  const int64_t element = dtype_bytes(tensor.dtype());
  return {low * element, high * element};
}

}  // namespace

void CudaLaunch::add_cluster(const std::array<uint32_t, 3>& blocks) {
  CudaLaunchAttribute& attribute = attributes[attribute_count++];
  attribute.id = CudaLaunchAttribute::ClusterDimension;
  attribute.value.cluster = {blocks[0], blocks[1], blocks[2]};
}
void CudaLaunch::add_cooperative() {
  CudaLaunchAttribute& attribute = attributes[attribute_count++];
  attribute.id = CudaLaunchAttribute::Cooperative;
  attribute.value.flag = 1;
}
std::array<uint32_t, 3> CudaLaunch::cluster() const {
  for (uint32_t i = 0; i < attribute_count; ++i) {
    const auto& value = attributes[i].value;
    if (attributes[i].id == CudaLaunchAttribute::ClusterDimension) return {value.cluster.x, value.cluster.y, value.cluster.z};
  }
  return {1, 1, 1};
}

std::shared_ptr<CudaDevice> CudaDevice::open(std::shared_ptr<const CudaDriver> driver, int32_t index) {
  return std::shared_ptr<CudaDevice>(new CudaDevice(std::move(driver), index));
}

CudaDevice::CudaDevice(std::shared_ptr<const CudaDriver> driver, int32_t index) : driver_(std::move(driver)), index_(index) {
  int count = 0;
  require(driver_->device_count(&count), "count its devices");
  FL_REQUIRE(index >= 0 && index < count, "there is no device cuda:{}; the driver has {}", index, count);
  require(driver_->device_get(&device_, index), "be opened");
  require(driver_->retain_context(&context_, device_), "give a context");
  const auto attribute = [&](CudaDeviceAttribute which) {
    int value = 0;
    require(driver_->device_attribute(&value, which, device_), "tell its properties");
    return value;
  };
  char name[256] = {};
  require(driver_->device_name(name, sizeof(name) - 1, device_), "tell its name");
  size_t bytes = 0;
  require(driver_->device_memory(&bytes, device_), "tell the size of its memory");
  properties_ = {.name = name,
                 .major = attribute(CudaDeviceAttribute::CapabilityMajor),
                 .minor = attribute(CudaDeviceAttribute::CapabilityMinor),
                 .multiprocessors = attribute(CudaDeviceAttribute::Multiprocessors),
                 .threads_per_multiprocessor = attribute(CudaDeviceAttribute::MaxThreadsPerMultiprocessor),
                 .memory_bytes = static_cast<int64_t>(bytes),
                 .l2_bytes = attribute(CudaDeviceAttribute::L2Bytes),
                 .shared_bytes_per_block = attribute(CudaDeviceAttribute::MaxSharedBytesPerBlock),
                 .max_grid = {attribute(CudaDeviceAttribute::MaxGridX), attribute(CudaDeviceAttribute::MaxGridY), attribute(CudaDeviceAttribute::MaxGridZ)},
                 .clusters = attribute(CudaDeviceAttribute::Clusters) != 0,
                 // Two transfers a clock.
                 .peak_bytes_per_second = 2e3 * attribute(CudaDeviceAttribute::MemoryClockKilohertz) * attribute(CudaDeviceAttribute::MemoryBusBits) / 8};
  pools_ = attribute(CudaDeviceAttribute::MemoryPools) != 0;
}

CudaDevice::~CudaDevice() {
  driver_->set_current_context(context_);
  products_.reset();
  for (const auto& [key, blocks] : cached_) {
    for (void* const block : blocks) driver_->free(address_of(block));
  }
  driver_->release_context(device_);
}

void CudaDevice::fail(CudaResult result, std::string_view what) const {
  const char *name = nullptr, *text = nullptr;
  driver_->error_name(result, &name);
  driver_->error_string(result, &text);
  const std::string words = fmt::format("cuda:{} ({}) cannot {}: {}: {}", index_, properties_.name, what, name != nullptr ? name : "unknown error",
                                        text != nullptr ? text : std::to_string(result));
  if (result == kCudaOutOfMemory) throw UserError(words);
  throw InternalError(words);
}

void CudaDevice::fail_launch(const CudaLaunch& launch, CudaResult result) const {
  fail(result, fmt::format("launch {} with grid ({}), block ({}), cluster ({}), {} bytes of dynamic shared memory", launch.kernel->name,
                           fmt::join(launch.grid, ", "), fmt::join(launch.block, ", "), fmt::join(launch.cluster(), ", "), launch.shared_bytes));
}

// ---- memory ----------------------------------------------------------------------------------------------------------

std::shared_ptr<void> CudaDevice::allocate(int64_t bytes, CudaStream stream) {
  const int64_t size = size_class(std::max<int64_t>(bytes, 1));
  void* block = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto found = cached_.find({stream, size});
    if (found != cached_.end() && !found->second.empty()) {
      block = found->second.back();
      found->second.pop_back();
      cached_bytes_ -= size;
    }
    in_use_ += size;
    peak_ = std::max(peak_, in_use_);
  }
  if (block == nullptr) {
    CudaAddress address = 0;
    const auto take = [&] { return pools_ ? driver_->allocate_async(&address, static_cast<size_t>(size), stream) : driver_->allocate(&address, static_cast<size_t>(size)); };
    CudaResult result = take();
    if (result == kCudaOutOfMemory) {
      release_cached();
      result = take();
    }
    if (result != kCudaSuccess) {
      const int64_t held = bytes_in_use() - size;
      {
        const std::lock_guard lock(mutex_);
        in_use_ -= size;
      }
      fail(result, fmt::format("allocate {} bytes ({} of {} are in use by fuseloom)", bytes, held, properties_.memory_bytes));
    }
    block = reinterpret_cast<void*>(address);
  }
  // Memory outlives whoever opened the device.
  return {block, [device = shared_from_this(), size, stream](void* freed) { device->free(freed, size, stream); }};
}

void CudaDevice::free(void* block, int64_t size, CudaStream stream) {
  const std::lock_guard lock(mutex_);
  in_use_ -= size;
  cached_bytes_ += size;
  cached_[{stream, size}].push_back(block);
}

void CudaDevice::release_cached() {
  std::map<std::pair<CudaStream, int64_t>, std::vector<void*>> freed;
  {
    const std::lock_guard lock(mutex_);
    freed.swap(cached_);
    cached_bytes_ = 0;
  }
  // Synchronises: whatever still uses a block is over then.
  for (const auto& [key, blocks] : freed) {
    for (void* const block : blocks) require(driver_->free(address_of(block)), "free memory");
  }
}

std::shared_ptr<void> CudaDevice::allocate_pinned(int64_t bytes) {
  void* block = nullptr;
  require(driver_->allocate_pinned(&block, static_cast<size_t>(std::max<int64_t>(bytes, 1))), fmt::format("pin {} bytes of the host", bytes));
  return {block, [device = shared_from_this()](void* held) { device->driver_->free_pinned(held); }};
}

std::shared_ptr<void> CudaDevice::create_event() {
  CudaEvent event = nullptr;
  require(driver_->create_event(&event, 0), "create an event");
  return {event, [device = shared_from_this()](void* held) { device->driver_->destroy_event(static_cast<CudaEvent>(held)); }};
}

int64_t CudaDevice::bytes_in_use() const {
  const std::lock_guard lock(mutex_);
  return in_use_;
}
int64_t CudaDevice::peak_bytes() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}
void CudaDevice::reset_peak() {
  const std::lock_guard lock(mutex_);
  peak_ = in_use_;
}

void CudaDevice::upload(void* to, const void* from, int64_t bytes, CudaStream stream) const {
  if (bytes > 0) require(driver_->copy_to_device(address_of(to), from, static_cast<size_t>(bytes), stream), fmt::format("take {} bytes from the host", bytes));
}
void CudaDevice::download(void* to, const void* from, int64_t bytes, CudaStream stream) const {
  if (bytes > 0) require(driver_->copy_to_host(to, address_of(from), static_cast<size_t>(bytes), stream), fmt::format("give {} bytes to the host", bytes));
  synchronize(stream);
}
void CudaDevice::copy(void* to, const void* from, int64_t bytes, CudaStream stream) const {
  if (bytes > 0) require(driver_->copy(address_of(to), address_of(from), static_cast<size_t>(bytes), stream), fmt::format("copy {} bytes", bytes));
}
void CudaDevice::fill(void* to, int value, int64_t bytes, CudaStream stream) const {
  if (bytes > 0) require(driver_->fill_bytes(address_of(to), static_cast<unsigned char>(value), static_cast<size_t>(bytes), stream), "fill memory");
}

Tensor CudaDevice::empty(DType dtype, Dims dims, CudaStream stream) {
  Dims strides = contiguous_strides(dims);
  std::shared_ptr<void> memory = allocate(dtype_bytes(dtype, element_count(dims)), stream);
  void* const data = memory.get();
  return Tensor::on_device(tag(), dtype, std::move(dims), std::move(strides), data, std::move(memory));
}

Tensor CudaDevice::to_device(const Tensor& host, CudaStream stream) {
  Tensor result = empty(host.dtype(), host.dims(), stream);
  copy_elements(host, result, stream);
  return result;
}

Tensor CudaDevice::to_host(const Tensor& tensor, CudaStream stream) const {
  if (tensor.on_host()) return tensor;
  FL_CHECK(tensor.device() == tag(), "{} lies on cuda:{}, not on cuda:{}", tensor.type_string(), tensor.device().index, index_);
  if (tensor.contiguous()) {
    Tensor host(tensor.dtype(), tensor.dims());
    download(host.data(), tensor.data(), tensor.bytes(), stream);
    return host;
  }
  // Everything it covers, with its strides.
  const auto [low, high] = span_of(tensor);
  auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(high - low));
  download(bytes->data(), static_cast<const std::byte*>(tensor.data()) + low, high - low, stream);
  void* const data = bytes->data() - low;
  return Tensor::share(tensor.dtype(), tensor.dims(), tensor.strides(), data, std::move(bytes));
}

void CudaDevice::copy_elements(const Tensor& from, Tensor& to, CudaStream stream) {
  if (from.count() == 0) return;
  if (!from.on_host() && from.contiguous() && to.contiguous()) {
    if (to.on_host()) {
      download(to.data(), from.data(), from.bytes(), stream);
    } else {
      copy(to.data(), from.data(), from.bytes(), stream);
    }
    return;
  }
  // What is strided takes the way over the host.
  const Tensor host = to_host(from, stream);
  if (to.on_host()) {
    op::copy_strided(to.dtype(), to.data(), to.strides(), host.data(), host.strides(), host.dims());
    return;
  }
  if (to.contiguous()) {
    const Tensor packed = host.to_contiguous();
    upload(to.data(), packed.data(), packed.bytes(), stream);
    return;
  }
  // The gaps of the target keep what they hold.
  Tensor held = to_host(to, stream);
  op::copy_strided(to.dtype(), held.data(), held.strides(), host.data(), host.strides(), host.dims());
  const auto [low, high] = span_of(to);
  upload(static_cast<std::byte*>(to.data()) + low, static_cast<const std::byte*>(held.data()) + low, high - low, stream);
}

// ---- kernels ---------------------------------------------------------------------------------------------------------

std::shared_ptr<void> CudaDevice::load_module(const void* image) {
  make_current();
  CudaModule module = nullptr;
  require(driver_->load_module(&module, image), "load the kernels");
  return {module, [device = shared_from_this()](CudaModule loaded) {
            device->driver_->set_current_context(device->context_);
            device->driver_->unload_module(loaded);
          }};
}

CudaFunction CudaDevice::function(const std::shared_ptr<void>& module, const std::string& name) const {
  CudaFunction function = nullptr;
  require(driver_->module_function(&function, static_cast<CudaModule>(module.get()), name.c_str()), fmt::format("find the kernel {}", name));
  return function;
}

CudaKernel CudaDevice::describe(CudaFunction function, std::string name) const {
  const auto attribute = [&](CudaFunctionAttribute which) {
    int value = 0;
    require(driver_->function_attribute(&value, which, function), fmt::format("describe the kernel {}", name));
    return value;
  };
  CudaKernel kernel{.function = function};
  kernel.registers = attribute(CudaFunctionAttribute::Registers);
  kernel.local_bytes = attribute(CudaFunctionAttribute::LocalBytes);
  kernel.static_shared_bytes = attribute(CudaFunctionAttribute::StaticSharedBytes);
  kernel.max_threads = attribute(CudaFunctionAttribute::MaxThreadsPerBlock);
  kernel.name = std::move(name);
  return kernel;
}

void CudaDevice::check(const CudaLaunch& launch) const {
  const CudaKernel& kernel = *launch.kernel;
  constexpr const char* kAxes[] = {"x", "y", "z"};
  for (size_t d = 0; d < 3; ++d) {
    FL_SUPPORTED(launch.grid[d] <= properties_.max_grid[d], "kernel {}: a grid of {} blocks in {}, the device takes at most {}", kernel.name, launch.grid[d],
                 kAxes[d], properties_.max_grid[d]);
  }
  const int64_t threads = int64_t{launch.block[0]} * launch.block[1] * launch.block[2];
  FL_SUPPORTED(threads <= kernel.max_threads, "kernel {}: a block of {} threads, its {} registers allow at most {}", kernel.name, threads, kernel.registers,
               kernel.max_threads);
  FL_SUPPORTED(int64_t{launch.shared_bytes} + kernel.static_shared_bytes <= properties_.shared_bytes_per_block,
               "kernel {}: {} + {} bytes of shared memory (static + dynamic), the device has {} for a block", kernel.name, kernel.static_shared_bytes,
               launch.shared_bytes, properties_.shared_bytes_per_block);
  if (launch.shared_bytes > 0) {
    int allowed = 0;
    require(driver_->function_attribute(&allowed, CudaFunctionAttribute::MaxDynamicSharedBytes, kernel.function), "tell the limit of shared memory");
    if (static_cast<uint32_t>(allowed) < launch.shared_bytes) {
      require(driver_->set_function_attribute(kernel.function, CudaFunctionAttribute::MaxDynamicSharedBytes,
                                              properties_.shared_bytes_per_block - kernel.static_shared_bytes),
              fmt::format("raise the shared memory of {}", kernel.name));
    }
  }
  const std::array<uint32_t, 3> cluster = launch.cluster();
  const uint32_t cluster_blocks = cluster[0] * cluster[1] * cluster[2];
  if (cluster_blocks > 1) {
    FL_SUPPORTED(properties_.clusters, "kernel {}: it needs clusters of blocks, which {} (compute capability {}.{}) does not have", kernel.name,
                 properties_.name, properties_.major, properties_.minor);
    for (size_t d = 0; d < 3; ++d) {
      FL_SUPPORTED(launch.grid[d] % cluster[d] == 0, "kernel {}: a grid of {} blocks in {} does not divide into clusters of {}", kernel.name, launch.grid[d],
                   kAxes[d], cluster[d]);
    }
    if (cluster_blocks > 8)
      require(driver_->set_function_attribute(kernel.function, CudaFunctionAttribute::NonPortableClusterSize, 1), fmt::format("allow clusters of {}", cluster_blocks));
    CudaLaunchConfig config;
    std::copy(launch.grid.begin(), launch.grid.end(), config.grid);
    std::copy(launch.block.begin(), launch.block.end(), config.block);
    config.shared_bytes = launch.shared_bytes;
    config.attributes = const_cast<CudaLaunchAttribute*>(launch.attributes.data());
    config.attribute_count = launch.attribute_count;
    int resident = 0;
    require(driver_->resident_clusters(&resident, kernel.function, &config), "count resident clusters");
    FL_SUPPORTED(resident > 0, "kernel {}: no cluster of {} blocks of {} threads with {} bytes of shared memory fits the device", kernel.name, cluster_blocks,
                 threads, launch.shared_bytes + static_cast<uint32_t>(kernel.static_shared_bytes));
  }
  const auto is_cooperative = [](const CudaLaunchAttribute& each) { return each.id == CudaLaunchAttribute::Cooperative; };
  if (std::any_of(launch.attributes.begin(), launch.attributes.begin() + launch.attribute_count, is_cooperative)) {
    int blocks = 0;
    require(driver_->blocks_per_multiprocessor(&blocks, kernel.function, static_cast<int>(threads), launch.shared_bytes), "count resident blocks");
    const int64_t grid = int64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2], resident = int64_t{blocks} * properties_.multiprocessors;
    FL_SUPPORTED(grid <= resident, "kernel {}: its {} blocks wait for each other, but at most {} are resident at once ({} on each of {} multiprocessors)",
                 kernel.name, grid, resident, blocks, properties_.multiprocessors);
  }
}

std::shared_ptr<const ProductLibrary> CudaDevice::products() const {
  const std::lock_guard lock(library_mutex_);
  if (!products_known_) {
    products_known_ = true;
    if (driver_->is_host) {
      products_missing_ = "the host in place of a CUDA device has no library of matrix products";
    } else {
      try {
        make_current();
        products_ = ProductLibrary::load();
      } catch (const Unsupported& missing) {
        products_missing_ = missing.what();
      }
    }
  }
  return products_;
}
std::string CudaDevice::products_missing() const {
  products();
  const std::lock_guard lock(library_mutex_);
  return products_missing_;
}
void CudaDevice::set_products(std::shared_ptr<const ProductLibrary> library, std::string missing) {
  const std::lock_guard lock(library_mutex_);
  products_known_ = true;
  products_ = std::move(library);
  products_missing_ = products_ == nullptr ? std::move(missing) : "";
}

double CudaDevice::occupancy(const CudaLaunch& launch) const {
  const int threads = static_cast<int>(launch.block[0] * launch.block[1] * launch.block[2]);
  int blocks = 0;
  require(driver_->blocks_per_multiprocessor(&blocks, launch.kernel->function, threads, launch.shared_bytes), "tell the occupancy");
  return properties_.threads_per_multiprocessor > 0 ? static_cast<double>(blocks) * threads / properties_.threads_per_multiprocessor : 0;
}

}  // namespace fuseloom::run
