// What a call costs beside its kernels: kernels of 64 elements, so that little else is left.
#include <benchmark/benchmark.h>

#include "base/check.h"
#include "run/executable.h"

namespace fuseloom::run {
namespace {

void add_one(void* const* buffers, const int64_t*, char*, int64_t begin, int64_t end) {
  const float* const x = static_cast<const float*>(buffers[0]);
  float* const y = static_cast<float*>(buffers[1]);
  for (int64_t i = begin; i < end; ++i) y[i] = x[i] + 1;
}

// x -> t0 -> t1 -> ... -> y
Executable chain(int64_t launches, size_t max_entries = 64) {
  program::Program program;
  const op::TensorType type{DType::F32, {sym::Expr::symbol("n")}};
  program.input_names = {"x"};
  program.input_types = {type};
  program.kernels = {{"add_one"}};
  program::BufferId last = program.add_buffer({.name = "x", .kind = program::BufferKind::Input, .type = type, .index = 0});
  for (int64_t i = 0; i < launches; ++i) {
    const program::BufferId next = program.add_buffer({.type = type});
    program.lines.push_back({.what = program::Launch{.kernel = 0, .buffers = {last, next}, .sizes = type.shape, .extent = type.shape[0]}});
    last = next;
  }
  program.outputs.push_back({.name = "y", .buffer = last, .type = type});
  program::plan_memory(program, {});
  return Executable(std::move(program), [](const std::string&) { return add_one; }, nullptr, std::make_shared<ThreadPool>(1), {.max_entries = max_entries});
}

// The kernels alone.
void BM_Kernels(benchmark::State& state) {
  const Tensor x(DType::F32, {64});
  Tensor y(DType::F32, {64});
  void* buffers[] = {const_cast<void*>(x.data()), y.data()};
  KernelFunction kernel = add_one;
  benchmark::DoNotOptimize(kernel);
  const int64_t n = 64;
  for (auto _ : state) {
    for (int64_t i = 0; i < state.range(0); ++i) kernel(buffers, &n, nullptr, 0, n);
  }
}
BENCHMARK(BM_Kernels)->Arg(1)->Arg(20);

// A call with the sizes of the last one.
void BM_RunInto(benchmark::State& state) {
  const Executable executable = chain(state.range(0));
  const Tensor x(DType::F32, {64});
  Tensor y(DType::F32, {64});
  for (auto _ : state) executable.run_into({&x, 1}, {&y, 1});
}
BENCHMARK(BM_RunInto)->Arg(1)->Arg(20)->Arg(150);

// The same from several threads.
void BM_RunIntoFromThreads(benchmark::State& state) {
  static const Executable executable = chain(1);
  const Tensor x(DType::F32, {64});
  Tensor y(DType::F32, {64});
  for (auto _ : state) executable.run_into({&x, 1}, {&y, 1});
}
BENCHMARK(BM_RunIntoFromThreads)->Threads(1)->Threads(2)->UseRealTime();

// Fresh results.
void BM_Run(benchmark::State& state) {
  const Executable executable = chain(state.range(0));
  const Tensor x(DType::F32, {64});
  for (auto _ : state) benchmark::DoNotOptimize(executable.run({&x, 1}));
}
BENCHMARK(BM_Run)->Arg(1)->Arg(20);

// Two known sizes in turns.
void BM_KnownSizes(benchmark::State& state) {
  const Executable executable = chain(1);
  const Tensor x[] = {Tensor(DType::F32, {64}), Tensor(DType::F32, {65})};
  Tensor y[] = {Tensor(DType::F32, {64}), Tensor(DType::F32, {65})};
  size_t i = 0;
  for (auto _ : state) {
    i = 1 - i;
    executable.run_into({&x[i], 1}, {&y[i], 1});
  }
}
BENCHMARK(BM_KnownSizes);

// A size never seen: binding, evaluation and the arena's placement.
void BM_NewSizes(benchmark::State& state) {
  const Executable executable = chain(state.range(0), 0);
  const Dims dims[] = {{64}};
  for (auto _ : state) benchmark::DoNotOptimize(executable.arena_bytes(dims));
}
BENCHMARK(BM_NewSizes)->Arg(1)->Arg(20)->Arg(150);

}  // namespace
}  // namespace fuseloom::run

BENCHMARK_MAIN();
