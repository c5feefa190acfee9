#include "build/isa.h"

#include <gtest/gtest.h>

#include "base/check.h"

namespace fuseloom::build {
namespace {

// What an AVX-512 server answers, reduced to the bits that matter.
CpuidWords server() {
  return {.leaf1_ecx = 0x7ffafbffu, .leaf7_ebx = 0xf1bf07abu, .extended1_ecx = 0x121u, .xcr0 = 0xe7u};
}

TEST(Isa, NamesReadBack) {
  for (const Isa isa : {Isa::Baseline, Isa::Avx2, Isa::Avx512, Isa::Native}) EXPECT_EQ(parse_isa(isa_name(isa)), isa);
  EXPECT_EQ(parse_isa("sse9"), std::nullopt);
}

TEST(Isa, LevelNeedsEveryInstructionOfIt) {
  EXPECT_EQ(isa_of(server()), Isa::Avx512);
  EXPECT_EQ(isa_of(CpuidWords{}), Isa::Baseline);

  for (const uint32_t bit : {16u, 17u, 28u, 30u, 31u}) {  // F, DQ, CD, BW, VL
    CpuidWords words = server();
    words.leaf7_ebx &= ~(1u << bit);
    EXPECT_EQ(isa_of(words), Isa::Avx2) << "bit " << bit;
  }
  for (const uint32_t bit : {12u, 22u, 27u, 28u, 29u}) {  // FMA, MOVBE, OSXSAVE, AVX, F16C
    CpuidWords words = server();
    words.leaf1_ecx &= ~(1u << bit);
    EXPECT_EQ(isa_of(words), Isa::Baseline) << "bit " << bit;
  }
}

TEST(Isa, RegistersMustBeSavedByTheSystem) {
  CpuidWords words = server();
  words.xcr0 = 0x07;  // the CPU has AVX-512, the kernel saves ymm only
  EXPECT_EQ(isa_of(words), Isa::Avx2);
  words.xcr0 = 0x03;
  EXPECT_EQ(isa_of(words), Isa::Baseline);
}

TEST(Isa, ThisMachine) {
  const Isa detected = detect_isa();
  EXPECT_TRUE(runs_here(Isa::Baseline));
  EXPECT_TRUE(runs_here(Isa::Native));
  EXPECT_TRUE(runs_here(detected));
  EXPECT_EQ(vector_bytes(Isa::Native), vector_bytes(detected));
  EXPECT_EQ(isa_identity(Isa::Native), isa_identity(Isa::Native));
  EXPECT_NE(isa_identity(Isa::Native), isa_identity(detected));
#if defined(__x86_64__)
  // The compiler's own idea of this CPU.
  EXPECT_EQ(detected >= Isa::Avx2,
            __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"));
  EXPECT_EQ(detected >= Isa::Avx512, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"));
#endif
}

}  // namespace
}  // namespace fuseloom::build
