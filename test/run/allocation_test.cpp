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
// Not inlined: the compiler would see free() on what came from new and call it a mismatch.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

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

TEST(Allocation, SixtyRandomSizesLeaveMemoryFlat) {
  // mallinfo2 counts blocks in malloc's thread cache as in use, and blocks of random sizes fill it for a long time.
  const char* const tunables = std::getenv("GLIBC_TUNABLES");
  if (tunables == nullptr || std::string_view(tunables).find("glibc.malloc.tcache_count=0") == std::string_view::npos) {
    GTEST_SKIP() << "needs GLIBC_TUNABLES=glibc.malloc.tcache_count=0, which ctest sets";
  }
  const Executable e = load(R"(program p(%x: f32[n], %k: i64[1]) symbols {m in 0 .. inf} {
    temporary %a: f32[n]
    temporary %b: f32[n]
    temporary %c: f32[m]
    temporary %d: f32[m]
    temporary %y: f32[1]
    read %k defines {m}
    launch add_one(%x, %a) sizes (n) extent n
    launch twice(%a, %b) sizes (n) extent n
    launch count(%c) extent m
    launch twice(%c, %d) sizes (m) extent m
    launch sum(%d, %y) sizes (m)
    return "y" = %y: f32[1]
  })",
                            {.max_entries = 4});
  uint64_t state = 20261201;
  const auto run_some = [&] {
    for (int i = 0; i < 60; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const int64_t n = static_cast<int64_t>(state >> 33) % 3000;
      run(e, {counting(n), i64({1}, {n / 2})});
    }
    run(e, {counting(3000), i64({1}, {1500})});
  };
  run_some();
  const size_t before = mallinfo2().uordblks;
  for (int round = 0; round < 5; ++round) run_some();
  EXPECT_LE(mallinfo2().uordblks, before + 4096);
}

}  // namespace
}  // namespace fuseloom::run
