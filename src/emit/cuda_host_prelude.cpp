// What stands in front of CUDA text when a C++ compiler reads it: a block of threads on one thread of the host.
#include "emit/cuda.h"

namespace fuseloom::emit {

namespace {

// Includes nothing, as the text it stands in front of.
//
// Fibers. Each thread of a block is a fiber. It runs until it has to meet others (a barrier, a shuffle); when all that meet
// are there, they go on. Threads that wait for others which never come stop the program with words, where a device would
// hang or compute nonsense: one ended early, or they wait at different places.
//
// Shared memory. Pointers into it are objects whose accesses are checked: they stay inside of it; what is read has been
// written by the block; and between two barriers no byte is written by one thread and read or written by another. For each
// byte there is a Shadow: who wrote and who read it last, and in which epoch. Epochs are counted by barriers and by blocks.
// An atomic operation counts as a write by one and the same thread, whoever does it.
constexpr std::string_view kHostPrelude = R"prelude(
#pragma GCC diagnostic ignored "-Wunused-parameter"
#if !defined(__x86_64__) || defined(FUSELOOM_UCONTEXT)
#include <ucontext.h>
#endif
extern "C" {
int dprintf(int, const char*, ...);
void abort();
void* malloc(__SIZE_TYPE__);
void free(void*);
}

#define __global__
#define __restrict__
#define __launch_bounds__(threads)
#define UNROLL
#define MAY_ALIAS __attribute__((may_alias))
#define SHARED(type) HostShared<type>
#define SHARED_ARRAY(type, name, size) static thread_local HostSharedArray<type, size> name
#define DYNAMIC_SHARED_MEMORY unsigned char* const shared_memory = host_block->shared;

namespace {

struct HostIndex {
  unsigned x, y, z;
};
enum class HostMeeting : unsigned char { None, Block, Warp, Over };

// ---- fibers
#if defined(__x86_64__) && !defined(FUSELOOM_UCONTEXT)
struct HostContext {
  void* stack;
};
extern "C" void fuseloom_switch(void** from, void* to);
asm(".text\n"
    "fuseloom_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n");
inline void host_switch(HostContext& from, HostContext& to) { fuseloom_switch(&from.stack, to.stack); }
inline void host_start(HostContext& context, char* stack, __SIZE_TYPE__ bytes, void (*entry)()) {
  void** const top = (void**)(((unsigned long long)stack + bytes) & ~15ull);
  for (int i = 1; i <= 8; ++i) top[-i] = nullptr;   // a return address that nobody uses, the entry, six registers
  top[-2] = (void*)entry;
  context.stack = top - 8;
}
#else
struct HostContext {
  ucontext_t context;
};
inline void host_switch(HostContext& from, HostContext& to) { swapcontext(&from.context, &to.context); }
inline void host_start(HostContext& context, char* stack, __SIZE_TYPE__ bytes, void (*entry)()) {
  getcontext(&context.context);
  context.context.uc_stack.ss_sp = stack;
  context.context.uc_stack.ss_size = bytes;
  context.context.uc_link = nullptr;
  makecontext(&context.context, entry, 0);
}
#endif

struct HostFiber {
  HostContext context;
  HostIndex thread;
  unsigned number;
  HostMeeting waits;
  int line;                          // where
  unsigned long long exchanged[2];   // what a warp reads of this thread, in odd and even exchanges
  unsigned exchanges;
};
struct HostShadow {
  unsigned writer, write_epoch, reader, read_epoch;
};

constexpr __SIZE_TYPE__ kHostStack = 128 << 10;
constexpr unsigned kHostMostThreads = 1024, kHostWarp = 32, kHostAtomic = ~0u, kHostMany = ~1u;

struct HostBlock {
  HostFiber fibers[kHostMostThreads];
  char* stacks = nullptr;
  unsigned threads = 0;
  HostFiber* running = nullptr;
  HostContext scheduler;
  HostIndex index, blocks, size;
  unsigned char* shared = nullptr;
  HostShadow* shadows = nullptr;
  unsigned shared_bytes = 0;
  unsigned epoch = 0, first_epoch = 0;
  void (*body)(const void*) = nullptr;
  const void* arguments = nullptr;
};
thread_local HostBlock* host_block = nullptr;

[[noreturn]] inline void host_fail(const char* what, int line) {
  const HostBlock& block = *host_block;
  dprintf(2, "fuseloom: %s (line %d), block (%u, %u, %u)", what, line, block.index.x, block.index.y, block.index.z);
  if (block.running != nullptr) dprintf(2, ", thread (%u, %u, %u)", block.running->thread.x, block.running->thread.y, block.running->thread.z);
  dprintf(2, "\n");
  abort();
}

inline void host_meet(HostMeeting meeting, int line) {
  HostBlock& block = *host_block;
  HostFiber& fiber = *block.running;
  fiber.waits = meeting;
  fiber.line = line;
  host_switch(fiber.context, block.scheduler);
}

inline void host_fiber() {
  host_block->body(host_block->arguments);
  host_meet(HostMeeting::Over, 0);
}

// Lets [first, end) go on if all of them wait at the same line of this meeting.
inline bool host_release(HostBlock& block, HostMeeting meeting, unsigned first, unsigned end) {
  for (unsigned t = first; t < end; ++t) {
    if (block.fibers[t].waits != meeting || block.fibers[t].line != block.fibers[first].line) return false;
  }
  for (unsigned t = first; t < end; ++t) block.fibers[t].waits = HostMeeting::None;
  return true;
}

inline void host_run_block(HostBlock& block) {
  block.first_epoch = ++block.epoch;
  for (unsigned t = 0; t < block.threads; ++t) {
    HostFiber& fiber = block.fibers[t];
    fiber.thread = {t % block.size.x, t / block.size.x % block.size.y, t / block.size.x / block.size.y};
    fiber.number = t;
    fiber.waits = HostMeeting::None;
    fiber.exchanges = 0;
    host_start(fiber.context, block.stacks + t * kHostStack, kHostStack, host_fiber);
  }
  for (;;) {
    bool over = true;
    for (unsigned t = 0; t < block.threads; ++t) {
      HostFiber& fiber = block.fibers[t];
      if (fiber.waits == HostMeeting::None) {
        block.running = &fiber;
        host_switch(block.scheduler, fiber.context);
        block.running = nullptr;
      }
      over = over && fiber.waits == HostMeeting::Over;
    }
    if (over) return;
    bool released = host_release(block, HostMeeting::Block, 0, block.threads);
    if (released) ++block.epoch;
    for (unsigned first = 0; first < block.threads; first += kHostWarp) {
      const unsigned end = first + kHostWarp < block.threads ? first + kHostWarp : block.threads;
      released = host_release(block, HostMeeting::Warp, first, end) || released;
    }
    if (released) continue;
    for (unsigned t = 0; t < block.threads; ++t) {
      const HostFiber& fiber = block.fibers[t];
      if (fiber.waits == HostMeeting::Over) continue;
      for (unsigned other = 0; other < block.threads; ++other) {
        if (fiber.waits == HostMeeting::Warp && other / kHostWarp != t / kHostWarp) continue;
        if (block.fibers[other].waits == fiber.waits && block.fibers[other].line == fiber.line) continue;
        block.running = &block.fibers[other];
        host_fail(block.fibers[other].waits == HostMeeting::Over ? "a thread ended before others that wait for it" : "threads wait for each other at different places", fiber.line);
      }
    }
  }
}

template <class Body>
void host_grid(const unsigned* grid, const unsigned* size, const unsigned*, unsigned shared_bytes, const Body& body) {
  HostBlock block;
  HostBlock* const outer = host_block;
  host_block = &block;
  block.blocks = {grid[0], grid[1], grid[2]};
  block.size = {size[0], size[1], size[2]};
  block.threads = size[0] * size[1] * size[2];
  if (block.threads == 0 || block.threads > kHostMostThreads) host_fail("a block has no threads, or more than 1024", 0);
  block.body = [](const void* arguments) { (*(const Body*)arguments)(); };
  block.arguments = &body;
  block.stacks = (char*)malloc(block.threads * kHostStack);
  block.shared_bytes = shared_bytes;
  unsigned char* const memory = (unsigned char*)malloc(shared_bytes + 128ull);
  block.shared = memory + (128 - (unsigned long long)memory % 128);
  block.shadows = (HostShadow*)malloc(shared_bytes * sizeof(HostShadow));
  for (unsigned i = 0; i < shared_bytes; ++i) block.shadows[i] = HostShadow{};
  // Static shared memory outlives a launch; epochs go on counting, so that nothing of an earlier one is taken for this one's.
  static thread_local unsigned epochs = 0;
  block.epoch = epochs;
  for (unsigned z = 0; z < grid[2]; ++z) {
    for (unsigned y = 0; y < grid[1]; ++y) {
      for (unsigned x = 0; x < grid[0]; ++x) {
        block.index = {x, y, z};
        __builtin_memset(block.shared, 0xff, shared_bytes);   // nothing of the block before is left
        host_run_block(block);
      }
    }
  }
  epochs = block.epoch;
  free(block.stacks);
  free(memory);
  free(block.shadows);
  host_block = outer;
}

// ---- shared memory
inline void host_check_read(HostShadow* shadows, unsigned bytes) {
  const HostBlock& block = *host_block;
  const unsigned thread = block.running->number;
  for (unsigned i = 0; i < bytes; ++i) {
    HostShadow& shadow = shadows[i];
    if (shadow.write_epoch < block.first_epoch) host_fail("shared memory is read before it is written", 0);
    if (shadow.write_epoch == block.epoch && shadow.writer != thread) host_fail("shared memory is read while another thread writes it", 0);
    shadow.reader = shadow.read_epoch == block.epoch && shadow.reader != thread ? kHostMany : thread;
    shadow.read_epoch = block.epoch;
  }
}
inline void host_check_write(HostShadow* shadows, unsigned bytes, unsigned thread) {
  const HostBlock& block = *host_block;
  for (unsigned i = 0; i < bytes; ++i) {
    HostShadow& shadow = shadows[i];
    if (shadow.write_epoch == block.epoch && shadow.writer != thread) host_fail("shared memory is written by two threads at once", 0);
    if (shadow.read_epoch == block.epoch && shadow.reader != thread) host_fail("shared memory is written while another thread reads it", 0);
    shadow.writer = thread;
    shadow.write_epoch = block.epoch;
  }
}

// An element of shared memory, with its shadows.
template <class T>
class HostElement {
 public:
  HostElement(T* place, HostShadow* shadows) : place_(place), shadows_(shadows) {}
  HostElement(const HostElement&) = default;
  HostElement& operator=(const HostElement&) = delete;
  operator T() const {
    host_check_read(shadows_, sizeof(T));
    return *place_;
  }
  void operator=(const T& value) const {
    host_check_write(shadows_, sizeof(T), host_block->running->number);
    *place_ = value;
  }
  T* operator&() const {   // for an atomic operation
    host_check_write(shadows_, sizeof(T), kHostAtomic);
    return place_;
  }

 private:
  T* place_;
  HostShadow* shadows_;
};

template <class T>
class HostShared {
 public:
  explicit HostShared(unsigned char* bytes) : bytes_(bytes) {}
  template <class Other>
  explicit HostShared(const HostShared<Other>& other) : bytes_(other.bytes()) {}
  unsigned char* bytes() const { return bytes_; }
  HostShared operator+(long long elements) const { return HostShared(bytes_ + elements * (long long)sizeof(T)); }
  HostElement<T> operator*() const {
    const HostBlock& block = *host_block;
    const long long offset = bytes_ - block.shared;
    if (offset < 0 || offset + (long long)sizeof(T) > block.shared_bytes) host_fail("an access beyond the shared memory of the block", 0);
    if (offset % (long long)alignof(T) != 0) host_fail("a misaligned access to shared memory", 0);
    return {(T*)bytes_, block.shadows + offset};
  }
  HostElement<T> operator[](long long index) const { return *(*this + index); }

 private:
  unsigned char* bytes_;
};

template <class T, unsigned kSize>
class HostSharedArray {
 public:
  HostElement<T> operator[](long long index) {
    if (index < 0 || index >= (long long)kSize) host_fail("an access beyond an array in shared memory", 0);
    return {elements_ + index, shadows_ + index * (long long)sizeof(T)};
  }

 private:
  T elements_[kSize];
  HostShadow shadows_[kSize * sizeof(T)];
};

// ---- what a thread calls
template <class T>
T host_shuffle_xor(T value, unsigned distance, int line) {
  HostBlock& block = *host_block;
  HostFiber& fiber = *block.running;
  const unsigned turn = fiber.exchanges++ % 2;   // a fast thread is at most one exchange ahead
  __builtin_memcpy(&fiber.exchanged[turn], &value, sizeof(value));
  host_meet(HostMeeting::Warp, line);
  const unsigned other = (fiber.number & ~31u) + ((fiber.number & 31u) ^ distance);
  if (other < block.threads) __builtin_memcpy(&value, &block.fibers[other].exchanged[turn], sizeof(value));
  return value;
}

template <class T>
T atomicCAS(T* address, T expected, T desired) {
  const T found = *address;
  if (found == expected) *address = desired;
  return found;
}

}  // namespace

#define __syncthreads() host_meet(HostMeeting::Block, __LINE__)
#define __shfl_xor_sync(mask, value, distance) host_shuffle_xor(value, (unsigned)(distance), __LINE__)
#define threadIdx (host_block->running->thread)
#define blockIdx (host_block->index)
#define gridDim (host_block->blocks)
)prelude";

}  // namespace

std::string cuda_host_prelude() { return std::string(kHostPrelude); }

}  // namespace fuseloom::emit
