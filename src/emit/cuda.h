// Kernel → CUDA C++ that includes nothing: one text for NVRTC, and, behind cuda_host_prelude(), for a C++ compiler, so that
// what runs on the device is tested without one. docs/emit-cuda.md.
#pragma once
#include <span>
#include <string>

#include "kernel/kernel.h"

namespace fuseloom::emit {

// One translation unit with all kernels: prelude (only what they use) and one function each,
//   extern "C" __global__ void NAME(T0* b0, T1* b1, ..., long long s0, long long s1, ...);
// the Global buffers and the symbols in order. The addresses are multiples of 16.
std::string to_cuda(std::span<const kernel::Kernel* const> kernels);

// What a C++20 compiler needs in front of the text: the threads of a block as fibers, barriers, shuffles, atomics. The
// kernel NAME is then also
//   extern "C" void NAME_on_host(const uint64_t* words, const uint32_t* grid, const uint32_t* block, const uint32_t* cluster,
//                                uint32_t shared_bytes);
std::string cuda_host_prelude();
std::string host_entry_name(const std::string& kernel);

using kernel::block_of;
// Dynamic shared memory of a block in bytes, over the kernel's symbols.
sym::Expr shared_bytes(const kernel::Kernel& kernel);

}  // namespace fuseloom::emit
