// Kernel → header-free C++.
#pragma once
#include <span>
#include <string>

#include "kernel/kernel.h"

namespace fuseloom::emit {

struct CppTarget {
  int32_t vector_bytes = 64;     // 16 baseline, 32 AVX2, 64 AVX-512
  bool fma = true;               // inside Contract
  bool avx512 = true;            // masked loads and stores exist
  bool fast_math = false;
  bool internal = false;         // functions are static: the text becomes part of a larger one, in a namespace of its own
  int64_t streamed_bytes = int64_t{32} << 20;   // a result of at least so many bytes passes the caches by
  bool cuda = false;             // text for NVRTC as well: functions that a device has are taken from it there
};

// The function every CPU kernel has:
//   extern "C" void NAME(void* const* buffers, const int64_t* sizes, char* scratch, int64_t begin, int64_t end);
// buffers: the Global buffers in order; sizes: the kernel's symbols in order; scratch: scratch_bytes(kernel) bytes of the
// calling worker, 64-byte aligned; [begin, end): the range of the Core loop. A kernel without a Core loop ignores the range.
using CpuKernelFunction = void (*)(void* const* buffers, const int64_t* sizes, char* scratch, int64_t begin, int64_t end);

// One self-contained translation unit with all kernels: prelude (only what they use) and one function each.
std::string to_cpp(std::span<const kernel::Kernel* const> kernels, const CppTarget& target);

// Scratch the kernel needs per worker, as an expression over its symbols, in bytes.
sym::Expr scratch_bytes(const kernel::Kernel& kernel, const CppTarget& target);
// The extent of the Core loop (1 without one).
sym::Expr core_extent(const kernel::Kernel& kernel);

}  // namespace fuseloom::emit
