// The instruction sets host code is compiled for, and what the running CPU has of them.
//
// Levels are nested: code for a lower level runs wherever a higher one does. On x86-64 they are the psABI levels:
//   Baseline  x86-64 (SSE2)                              16-byte vectors
//   Avx2      x86-64-v3: AVX2, FMA, F16C, BMI, ...       32-byte vectors
//   Avx512    x86-64-v4: AVX-512 F, BW, CD, DQ, VL       64-byte vectors
//   Native    whatever the compiler's -march=native picks on this machine; as wide as the level detected
// On every other architecture there is Baseline (16-byte vectors) and Native.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fuseloom::build {

enum class Isa : uint8_t { Baseline, Avx2, Avx512, Native };

// The architecture this program was compiled for: "x86-64", "aarch64". Machine code runs on the same one only.
std::string_view architecture_name();

// "baseline", "avx2", "avx512", "native".
std::string_view isa_name(Isa isa);
std::optional<Isa> parse_isa(std::string_view name);

// The raw answers of CPUID and XGETBV that decide the level: plain data, so that the rule can be tested for any CPU.
struct CpuidWords {
  uint32_t leaf1_ecx = 0;
  uint32_t leaf7_ebx = 0;
  uint32_t extended1_ecx = 0;  // leaf 0x80000001
  uint32_t xcr0 = 0;           // 0 when the operating system does not save extended state
};
CpuidWords read_cpuid();
// The highest level whose instructions the CPU has and whose registers the operating system saves.
Isa isa_of(const CpuidWords& words);

// The level of the running machine: Baseline, Avx2 or Avx512.
Isa detect_isa();
// Code compiled for `isa` runs on this machine. Native code is compiled for this machine, so the answer is yes.
bool runs_here(Isa isa);

// Bytes of the widest vector worth using.
int32_t vector_bytes(Isa isa);

// The compiler's flags, the same for GCC and Clang.
std::vector<std::string> isa_flags(Isa isa);
// Names what `isa` means on this machine in a cache key: the level's name, and for Native also the CPU model.
std::string isa_identity(Isa isa);

}  // namespace fuseloom::build
