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
#endif
)";

// The threads of a block are fibers of one thread of the host, switched where threads meet: at barriers and shuffles.
// Each runs until it meets the others; when all that are left wait at the same kind of meeting, they go on. Threads that
// wait for others which never come are an error, as they are undefined on a device.
constexpr std::string_view kHostPrelude = R"(#include <ucontext.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define __global__
#define __device__
#define __shared__ static thread_local
#define __restrict__
#define __launch_bounds__(threads)
#define DYNAMIC_SHARED_MEMORY unsigned char* const shared_memory = host_block().shared;

namespace {

struct HostIndex {
  unsigned x = 0, y = 0, z = 0;
};

enum class Meeting { None, Block, Warp, Over };

struct HostFiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  HostIndex thread;
  unsigned number = 0;
  Meeting waits = Meeting::None;
  unsigned exchanges = 0;
};

struct HostBlock {
  std::vector<HostFiber> fibers;
  HostFiber* running = nullptr;
  ucontext_t scheduler;
  HostIndex block;
  unsigned char* shared = nullptr;
  std::vector<unsigned long long> slots[2];   // by thread: what a warp exchanges, for odd and even exchanges
  const std::function<void()>* body = nullptr;
};

thread_local HostBlock* current_host_block = nullptr;
HostBlock& host_block() { return *current_host_block; }

void host_meet(Meeting meeting) {
  HostBlock& block = host_block();
  HostFiber& fiber = *block.running;
  fiber.waits = meeting;
  swapcontext(&fiber.context, &block.scheduler);
}

void host_fiber_main() {
  HostBlock& block = host_block();
  (*block.body)();
  block.running->waits = Meeting::Over;
  // The context that follows is the scheduler's.
}

void host_run_block(HostBlock& block, unsigned threads, const uint32_t* dims) {
  constexpr size_t kStack = 256 << 10;
  if (block.fibers.size() != threads) {
    block.fibers = std::vector<HostFiber>(threads);
    for (HostFiber& fiber : block.fibers) fiber.stack.reset(new char[kStack]);
    for (auto& slots : block.slots) slots.assign(threads, 0);
  }
  for (unsigned t = 0; t < threads; ++t) {
    HostFiber& fiber = block.fibers[t];
    fiber.thread = {t % dims[0], t / dims[0] % dims[1], t / dims[0] / dims[1]};
    fiber.number = t;
    fiber.waits = Meeting::None;
    fiber.exchanges = 0;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStack;
    fiber.context.uc_link = &block.scheduler;
    makecontext(&fiber.context, host_fiber_main, 0);
  }
  for (;;) {
    bool ran = false, left = false;
    for (HostFiber& fiber : block.fibers) {
      if (fiber.waits != Meeting::None) continue;
      block.running = &fiber;
      swapcontext(&block.scheduler, &fiber.context);
      ran = true;
    }
    // Who waits at the same meeting as everybody else goes on.
    bool all = true;
    for (const HostFiber& fiber : block.fibers) {
      left = left || fiber.waits != Meeting::Over;
      all = all && (fiber.waits == Meeting::Block || fiber.waits == Meeting::Over);
    }
    if (!left) return;
    bool released = false;
    if (all) {
      for (HostFiber& fiber : block.fibers) {
        // A barrier counts every thread of the block.
        if (fiber.waits == Meeting::Over) {
          std::fprintf(stderr, "fuseloom: a thread of the block ended before a barrier that others wait at\n");
          std::abort();
        }
        fiber.waits = Meeting::None;
      }
      released = true;
    } else {
      for (unsigned first = 0; first < threads; first += 32) {
        const unsigned end = first + 32 < threads ? first + 32 : threads;
        bool warp = true;
        for (unsigned t = first; t < end; ++t) warp = warp && (block.fibers[t].waits == Meeting::Warp || block.fibers[t].waits == Meeting::Over);
        if (!warp) continue;
        for (unsigned t = first; t < end; ++t) {
          if (block.fibers[t].waits != Meeting::Warp) continue;
          block.fibers[t].waits = Meeting::None;
          released = true;
        }
      }
    }
    if (!ran && !released) {
      std::fprintf(stderr, "fuseloom: threads of a block wait at different barriers\n");
      std::abort();
    }
  }
}

template <class Body>
void host_grid(const uint32_t* grid, const uint32_t* block_dims, const uint32_t*, uint32_t shared_bytes, Body body) {
  static thread_local HostBlock block;
  HostBlock* const outer = current_host_block;
  current_host_block = &block;
  const std::function<void()> call = body;
  block.body = &call;
  std::vector<unsigned char> shared(shared_bytes + 16);
  block.shared = shared.data() + (16 - reinterpret_cast<uintptr_t>(shared.data()) % 16) % 16;
  for (uint32_t z = 0; z < grid[2]; ++z) {
    for (uint32_t y = 0; y < grid[1]; ++y) {
      for (uint32_t x = 0; x < grid[0]; ++x) {
        block.block = {x, y, z};
        std::memset(shared.data(), 0xFF, shared.size());   // nothing of the block before is left
        host_run_block(block, block_dims[0] * block_dims[1] * block_dims[2], block_dims);
      }
    }
  }
  current_host_block = outer;
}

void __syncthreads() { host_meet(Meeting::Block); }

template <class T>
T __shfl_xor_sync(unsigned, T value, int distance) {
  HostBlock& block = host_block();
  HostFiber& fiber = *block.running;
  auto& slots = block.slots[fiber.exchanges++ % 2];   // a fast thread is at most one exchange ahead
  unsigned long long bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  slots[fiber.number] = bits;
  host_meet(Meeting::Warp);
  const unsigned other = (fiber.number & ~31u) + ((fiber.number & 31u) ^ static_cast<unsigned>(distance));
  if (other < slots.size()) bits = slots[other];
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

template <class T>
T atomicCAS(T* address, T expected, T desired) {
  const T found = *address;
  if (found == expected) *address = desired;
  return found;
}

}  // namespace

#define threadIdx (host_block().running->thread)
#define blockIdx (host_block().block)
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

std::string cuda_host_prelude() { return std::string(kHostPrelude); }

std::string host_entry_name(const std::string& kernel) { return kernel + "_on_host"; }

}  // namespace fuseloom::emit
