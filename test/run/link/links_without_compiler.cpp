// Links fuseloom_run and what it needs, nothing of the compiler: a program that was compiled elsewhere runs (as text and
// a kernel here). Exit code 0 when the result is right.
#include <cstdio>

#include "run/executable.h"

namespace {

void negate(void* const* buffers, const int64_t*, char*, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) static_cast<float*>(buffers[1])[i] = -static_cast<const float*>(buffers[0])[i];
}

}  // namespace

int main() {
  using namespace fuseloom;
  constexpr const char* kText = R"(program p(%x: f32[n]) {
    temporary %y: f32[n]
    launch negate(%x, %y) sizes (n) extent n
    return "y" = %y: f32[n]
  })";
  const run::Executable executable(
      program::parse_program(kText, op::standard_ops()), [](const std::string&) { return negate; }, nullptr, std::make_shared<run::ThreadPool>(1));
  const Tensor x = Tensor::of(DType::F32, {2}, {1, -2});
  const Tensor y = executable.run({&x, 1})[0];
  std::printf("%g %g\n", y.at(0), y.at(1));
  return y.at(0) == -1 && y.at(1) == 2 ? 0 : 1;
}
