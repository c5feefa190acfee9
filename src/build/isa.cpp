#include "build/isa.h"

#include <fmt/format.h>

#include "base/check.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace fuseloom::build {
namespace {

struct IsaName {
  Isa isa;
  std::string_view name;
};
constexpr IsaName kIsaNames[] = {
    {Isa::Baseline, "baseline"}, {Isa::Avx2, "avx2"}, {Isa::Avx512, "avx512"}, {Isa::Native, "native"}};

bool has_all(uint32_t word, uint32_t bits) { return (word & bits) == bits; }

// CPUID bits, by the names of the Intel manual.
constexpr uint32_t kFma = 1u << 12, kMovbe = 1u << 22, kOsxsave = 1u << 27, kAvx = 1u << 28, kF16c = 1u << 29;
constexpr uint32_t kSse3 = 1u << 0, kSsse3 = 1u << 9, kCmpxchg16b = 1u << 13, kSse41 = 1u << 19, kSse42 = 1u << 20,
                   kPopcnt = 1u << 23;
constexpr uint32_t kBmi1 = 1u << 3, kAvx2 = 1u << 5, kBmi2 = 1u << 8;
constexpr uint32_t kAvx512f = 1u << 16, kAvx512dq = 1u << 17, kAvx512cd = 1u << 28, kAvx512bw = 1u << 30,
                   kAvx512vl = 1u << 31;
constexpr uint32_t kLahf = 1u << 0, kLzcnt = 1u << 5;
// XCR0 bits: SSE and AVX registers; opmask, upper halves of zmm0-15, zmm16-31.
constexpr uint32_t kSaveAvx = 0x6, kSaveAvx512 = 0xe6;

}  // namespace

std::string_view architecture_name() {
#if defined(__x86_64__)
  return "x86-64";
#elif defined(__aarch64__)
  return "aarch64";
#elif defined(__riscv) && __riscv_xlen == 64
  return "riscv64";
#else
#error "name this architecture: archives say which one their machine code is for"
#endif
}

std::string_view isa_name(Isa isa) {
  for (const IsaName& entry : kIsaNames) {
    if (entry.isa == isa) return entry.name;
  }
  throw InternalError(fmt::format("no name for instruction set {}", static_cast<int>(isa)));
}

std::optional<Isa> parse_isa(std::string_view name) {
  for (const IsaName& entry : kIsaNames) {
    if (entry.name == name) return entry.isa;
  }
  return std::nullopt;
}

CpuidWords read_cpuid() {
  CpuidWords words;
#if defined(__x86_64__)
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) words.leaf1_ecx = ecx;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) words.leaf7_ebx = ebx;
  if (__get_cpuid(0x80000001, &eax, &ebx, &ecx, &edx)) words.extended1_ecx = ecx;
  if (words.leaf1_ecx & kOsxsave) {
    uint32_t low = 0, high = 0;
    // xgetbv by its encoding would do without -mxsave; the mnemonic needs no flag in inline assembly either.
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    words.xcr0 = low;
  }
#endif
  return words;
}

Isa isa_of(const CpuidWords& words) {
  const bool v2 = has_all(words.leaf1_ecx, kSse3 | kSsse3 | kCmpxchg16b | kSse41 | kSse42 | kPopcnt) &&
                  has_all(words.extended1_ecx, kLahf);
  const bool v3 = v2 && has_all(words.leaf1_ecx, kFma | kMovbe | kOsxsave | kAvx | kF16c) &&
                  has_all(words.leaf7_ebx, kBmi1 | kAvx2 | kBmi2) && has_all(words.extended1_ecx, kLzcnt) &&
                  has_all(words.xcr0, kSaveAvx);
  if (!v3) return Isa::Baseline;
  const bool v4 = has_all(words.leaf7_ebx, kAvx512f | kAvx512dq | kAvx512cd | kAvx512bw | kAvx512vl) &&
                  has_all(words.xcr0, kSaveAvx512);
  return v4 ? Isa::Avx512 : Isa::Avx2;
}

Isa detect_isa() { return isa_of(read_cpuid()); }

bool runs_here(Isa isa) { return isa == Isa::Native || isa <= detect_isa(); }

int32_t vector_bytes(Isa isa) {
  switch (isa) {
    case Isa::Baseline:
      return 16;
    case Isa::Avx2:
      return 32;
    case Isa::Avx512:
      return 64;
    case Isa::Native:
      return vector_bytes(detect_isa());
  }
  throw InternalError("vector_bytes: unknown instruction set");
}

std::vector<std::string> isa_flags(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::Baseline:
      return {"-march=x86-64"};
    case Isa::Avx2:
      return {"-march=x86-64-v3"};
    case Isa::Avx512:
      return {"-march=x86-64-v4", "-mprefer-vector-width=512"};
    case Isa::Native:
      if (detect_isa() == Isa::Avx512) return {"-march=native", "-mprefer-vector-width=512"};
      return {"-march=native"};
#else
    case Isa::Baseline:
      return {};
    case Isa::Avx2:
    case Isa::Avx512:
      throw Unsupported(fmt::format("instruction set '{}' exists on x86-64 only", isa_name(isa)));
    case Isa::Native:
      return {"-mcpu=native"};
#endif
  }
  throw InternalError("isa_flags: unknown instruction set");
}

std::string isa_identity(Isa isa) {
  std::string identity(isa_name(isa));
#if defined(__x86_64__)
  if (isa == Isa::Native) {
    // Family, model and stepping, and every feature word -march=native looks at.
    uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
    for (const uint32_t leaf : {0u, 1u, 0x80000001u}) {
      if (!__get_cpuid(leaf, &eax, &ebx, &ecx, &edx)) continue;
      if (leaf == 1) ebx = 0;  // holds the number of the core that answers
      identity += fmt::format(" {:x}:{:08x}{:08x}{:08x}{:08x}", leaf, eax, ebx, ecx, edx);
    }
    for (const uint32_t subleaf : {0u, 1u}) {
      if (!__get_cpuid_count(7, subleaf, &eax, &ebx, &ecx, &edx)) continue;
      identity += fmt::format(" 7.{}:{:08x}{:08x}{:08x}{:08x}", subleaf, eax, ebx, ecx, edx);
    }
    identity += fmt::format(" xcr0:{:x}", read_cpuid().xcr0);
  }
#endif
  return identity;
}

}  // namespace fuseloom::build
