// The contraction micro-kernel against oneDNN's sgemm (dlopened, when it is installed), one thread, square f32 matrices.
// gflops is the number to read. Arguments: size, and whether rhs is transposed.
#include <benchmark/benchmark.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <random>
#include <vector>

#include "build/host_compiler.h"
#include "build/shared_object.h"
#include "emit/cpp.h"
#include "sym/evaluator.h"

namespace fuseloom {
namespace {

struct Gemm {
  build::SharedObject library;
  emit::CpuKernelFunction function = nullptr;
  sym::Expr scratch;
};

// c = a · b, or a · bᵀ; tiles for the widest vectors of this machine.
Gemm compile_gemm(bool transposed) {
  const int32_t bytes = build::vector_bytes(build::detect_isa());
  const emit::CppTarget target{.vector_bytes = bytes, .fma = bytes > 16, .avx512 = bytes == 64};
  const char* tile = bytes == 64 ? "14 x 32 block 512, 112, 512" : bytes == 32 ? "6 x 16 block 384, 96, 512" : "6 x 8 block 384, 96, 512";
  const kernel::Kernel kernel = kernel::parse_kernel(
      fmt::format("kernel k_gemm(read @a: f32[m*k], read @b: f32[k*n], write @c: f32[m*n]) sizes (m, n, k)\n"
                  "facts (m in 0 to inf, n in 0 to inf, k in 0 to inf) {{\n"
                  "  contract f32 im = 0 to m, in = 0 to n, ik = 0 to k tile {} {{\n"
                  "    lhs %av {{ %av: f32 = load @a[im*k + ik] }}\n"
                  "    rhs %bv {{ %bv: f32 = load @b[{}] }}\n"
                  "    epilogue %sum: f32 {{ store @c[im*n + in] = %sum }}\n  }}\n}}\n",
                  tile, transposed ? "in*k + ik" : "ik*n + in"),
      op::standard_ops());
  const kernel::Kernel* const kernels[] = {&kernel};
  const build::HostCompiler compiler = build::find_host_compiler(build::compiler_candidates(), build::DiskCache(""));
  Gemm gemm;
  gemm.library = build::SharedObject::load(build::compile_host_library(compiler, {emit::to_cpp(kernels, target)}, {}), "gemm");
  gemm.function = gemm.library.function<emit::CpuKernelFunction>("k_gemm");
  gemm.scratch = emit::scratch_bytes(kernel, target);
  return gemm;
}

struct Matrices {
  explicit Matrices(int64_t n) : a(static_cast<size_t>(n * n)), b(a.size()), c(a.size()) {
    std::mt19937 random(1);
    for (std::vector<float>* matrix : {&a, &b})
      for (float& x : *matrix) x = static_cast<float>(random() % 1000) * 0.001f;
  }
  std::vector<float> a, b, c;
};

void set_counters(benchmark::State& state) {
  const double n = static_cast<double>(state.range(0));
  state.counters["gflops"] = benchmark::Counter(2e-9 * n * n * n, benchmark::Counter::kIsIterationInvariantRate);
}

void bm_fuseloom(benchmark::State& state) {
  const Gemm gemm = compile_gemm(state.range(1) != 0);
  const int64_t n = state.range(0), sizes[] = {n, n, n};
  Matrices matrices(n);
  const int64_t bytes = sym::evaluate(sym::round_up(gemm.scratch, 64), {{"m", n}, {"n", n}, {"k", n}});
  char* const scratch = static_cast<char*>(std::aligned_alloc(64, static_cast<size_t>(bytes)));
  void* const buffers[] = {matrices.a.data(), matrices.b.data(), matrices.c.data()};
  for (auto _ : state) gemm.function(buffers, sizes, scratch, 0, 1);
  std::free(scratch);
  set_counters(state);
}
BENCHMARK(bm_fuseloom)->ArgsProduct({{256, 512, 1024}, {0, 1}})->Unit(benchmark::kMillisecond);

void bm_onednn(benchmark::State& state) {
  using Sgemm = int (*)(char, char, int64_t, int64_t, int64_t, float, const float*, int64_t, const float*, int64_t, float, float*, int64_t);
  setenv("OMP_NUM_THREADS", "1", 1);
  void* library = nullptr;
  for (const char* name : {"libdnnl.so.3", "libdnnl.so.2", "libdnnl.so"})
    if (library == nullptr) library = dlopen(name, RTLD_NOW);
  const Sgemm sgemm = library == nullptr ? nullptr : reinterpret_cast<Sgemm>(dlsym(library, "dnnl_sgemm"));
  if (sgemm == nullptr) {
    state.SkipWithError("oneDNN is not installed");
    return;
  }
  const int64_t n = state.range(0);
  Matrices matrices(n);
  for (auto _ : state)
    sgemm('N', state.range(1) != 0 ? 'T' : 'N', n, n, n, 1, matrices.a.data(), n, matrices.b.data(), n, 0, matrices.c.data(), n);
  set_counters(state);
}
BENCHMARK(bm_onednn)->ArgsProduct({{256, 512, 1024}, {0, 1}})->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace fuseloom

BENCHMARK_MAIN();
