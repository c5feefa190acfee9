#include "emit/cuda.h"

#include "emit/cuda_kernel.h"

namespace fuseloom::emit {

namespace {

// What the prelude's text expects of a compiler and NVRTC does not have under these names.
constexpr std::string_view kDeviceHead = R"(#ifdef __CUDACC_RTC__
#define __builtin_inff() __int_as_float(0x7f800000)
#define __builtin_inf() __longlong_as_double(0x7ff0000000000000ll)
#define __builtin_nanf(text) __int_as_float(0x7fc00000)
#define __builtin_nan(text) __longlong_as_double(0x7ff8000000000000ll)
#define __builtin_fmaf fmaf
#define __builtin_fma fma
#define __builtin_sqrtf sqrtf
#define __builtin_sqrt sqrt
#define __builtin_floorf floorf
#define __builtin_floor floor
#define __builtin_ceilf ceilf
#define __builtin_ceil ceil
#define __builtin_truncf truncf
#define __builtin_trunc trunc
#define __builtin_rintf rintf
#define __builtin_rint rint
#define __builtin_fabsf fabsf
#define __builtin_fabs fabs
#define __builtin_memcpy memcpy
#define DYNAMIC_SHARED_MEMORY extern __shared__ __align__(16) unsigned char shared_memory[];
#define MAY_ALIAS
#define UNROLL _Pragma("unroll")
#define SHARED(type) type*
#define SHARED_ARRAY(type, name, size) __shared__ type name[size]
#endif
)";

}  // namespace

std::string to_cuda(std::span<const kernel::Kernel* const> kernels) {
  CppPrelude prelude({.vector_bytes = 16, .fma = true, .avx512 = false, .cuda = true});
  prelude.type(DType::U32, 0);
  prelude.type(DType::U64, 0);
  std::string functions;
  for (const kernel::Kernel* kernel : kernels) functions += "\n" + CudaKernelWriter(*kernel, prelude).write();
  return std::string(kDeviceHead) + prelude.text() + functions;
}

std::string host_entry_name(const std::string& kernel) { return kernel + "_on_host"; }

}  // namespace fuseloom::emit
