// A call with known sizes allocates nothing, and memory does not grow with the number of calls.
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "run/run_testing.h"

namespace {
std::atomic<int64_t> allocations = 0;
}  // namespace

void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace fuseloom::run {
namespace {

TEST(Allocation, NoneForKnownSizes) {
  for (const std::string_view work : {"1", "100000"}) {  // on the calling thread, and on all
    const Executable e = load(fmt::format(R"(program p(%x: f32[n]) {{
      temporary %t: f32[n]
      temporary %c: f32[n]
      temporary %y: f32[n]
      launch add_one(%x, %t) sizes (n) extent n work {0}
      copy %t to %c
      launch through_scratch(%c, %y) sizes (n) extent n scratch n*4 work {0}
      return "y" = %y: f32[n]
    }})",
                                          work));
    const Tensor x = counting(100);
    Tensor y(DType::F32, {100});
    e.run_into({&x, 1}, {&y, 1});
    const int64_t before = allocations;
    for (int i = 0; i < 10; ++i) e.run_into({&x, 1}, {&y, 1});
    EXPECT_EQ(allocations - before, 0);
    EXPECT_EQ(y.at(7), 8);
  }
}

}  // namespace
}  // namespace fuseloom::run
