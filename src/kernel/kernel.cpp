#include "kernel/kernel.h"

#include "base/check.h"
#include "base/hash.h"

namespace fuseloom::kernel {

BufferId Kernel::add_buffer(Buffer buffer) {
  buffers.push_back(std::move(buffer));
  return BufferId{static_cast<int32_t>(buffers.size()) - 1};
}

ScalarId Kernel::add_scalar(DType dtype, std::string name) {
  const int32_t index = static_cast<int32_t>(scalars.size());
  if (name.empty()) name = fmt::format("v{}", index);
  scalars.push_back({.name = std::move(name), .dtype = dtype});
  return ScalarId{index};
}

void name_kernel(Kernel& kernel, std::string_view kind) {
  // The name itself must not enter the hash: equal kernels get equal names.
  kernel.name = "k";
  kernel.name = fmt::format("k_{}_{}", kind, base::hash_text(to_string(kernel)).hex().substr(0, 12));
}

}  // namespace fuseloom::kernel
