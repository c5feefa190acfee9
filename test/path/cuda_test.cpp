// Programs for CUDA on the host: the text that NVRTC would get, compiled as C++, its threads as fibers, run by the runtime's
// host driver and compared with the oracle. Sizes are known here, so that a group has one kernel, not one for each class.
#include "path/path_testing.h"

namespace fuseloom::test {
namespace {

void expect_cuda_agrees(std::string_view text, std::span<const Tensor> inputs, double rounding = 0) {
  expect_cuda_host_agrees(graph::parse_graph(text, op::standard_ops()), inputs, rounding);
}

TEST(CudaPath, Pointwise) {
  const std::vector<Tensor> inputs{numbers(DType::BF16, {5, 264}, 1), numbers(DType::BF16, {264}, 2)};
  expect_cuda_agrees(R"(graph main(%x: bf16[5, 264], %b: bf16[264]) {
    %0 = add(%x, %b)
    %1 = gelu(%0)
    return %1 })", inputs);
  const std::vector<Tensor> flat{numbers(DType::F32, {4099}, 1), numbers(DType::F16, {4099}, 2)};
  expect_cuda_agrees(R"(graph main(%x: f32[4099], %y: f16[4099]) {
    %0 = cast(%y) {to = :f32}
    %1 = mul(%x, %0)
    return %1 })", flat);
}

TEST(CudaPath, GatherConcatPad) {
  const std::vector<Tensor> inputs{numbers(DType::F32, {9, 20}, 1), Tensor::of(DType::I64, {4}, {0, -1, 8, 3})};
  expect_cuda_agrees(R"(graph main(%x: f32[9, 20], %i: i64[4]) {
    %0 = gather(%x, %i) {axis = 0}
    %1 = exp(%0)
    %2 = concat(%0, %1) {axis = 0}
    %3 = pad(%2) {low = <0, 1>, high = <0, 2>, mode = "constant"}
    return %3 })", inputs);
}

TEST(CudaPath, RotaryEmbedding) {
  const std::vector<Tensor> inputs{numbers(DType::BF16, {2, 3, 5, 16}, 1), numbers(DType::BF16, {5, 16}, 2), numbers(DType::BF16, {5, 16}, 3)};
  expect_cuda_agrees(R"(graph main(%x: bf16[2, 3, 5, 16], %c: bf16[5, 16], %d: bf16[5, 16]) {
    %0 = slice(%x) {starts = <0, 0, 0, 0>, sizes = <2, 3, 5, 8>, steps = [1, 1, 1, 1]}
    %1 = slice(%x) {starts = <0, 0, 0, 8>, sizes = <2, 3, 5, 8>, steps = [1, 1, 1, 1]}
    %2 = neg(%1)
    %3 = concat(%2, %0) {axis = 3}
    %4 = mul(%x, %c)
    %5 = mul(%3, %d)
    %6 = add(%4, %5)
    return %6 })", inputs);
}

TEST(CudaPath, Transpose) {
  for (const int64_t n : {72, 67}) {
    const std::string size = std::to_string(n);
    const std::vector<Tensor> inputs{numbers(DType::BF16, {n, 136}, 1), numbers(DType::BF16, {136, n}, 2)};
    expect_cuda_agrees("graph main(%x: bf16[" + size + ", 136], %y: bf16[136, " + size + "]) {\n  %0 = transpose(%x) {perm = [1, 0]}\n  %1 = add(%0, %y)\n  return %1 }", inputs);
  }
}

TEST(CudaPath, SoftmaxInRegistersSharedMemoryAndOnePass) {
  // Rows of 300 or more are not cut into parts.
  for (const auto& [rows, n] : std::vector<std::pair<int64_t, int64_t>>{{3, 8}, {3, 257}, {3, 4096}, {9, 1031}, {300, 20000}, {300, 20001}, {2, 131080}, {2, 30001}, {270, 131075}}) {
    const std::vector<Tensor> inputs{numbers(DType::BF16, {rows, n}, 1)};
    expect_cuda_agrees(fmt::format("graph main(%x: bf16[{}, {}]) {{ %y = softmax(%x) {{axis = 1}} return %y }}", rows, n), inputs);
  }
}

TEST(CudaPath, LayerNormAndItsBackward) {
  const std::vector<Tensor> inputs{numbers(DType::BF16, {6, 264}, 1), numbers(DType::BF16, {264}, 2), numbers(DType::BF16, {264}, 3)};
  expect_cuda_agrees("graph main(%x: bf16[6, 264], %s: bf16[264], %c: bf16[264]) { %y = layer_norm(%x, %s, %c) {axis = -1, epsilon = 1.0e-5} return %y }", inputs);
  const std::vector<Tensor> backward{numbers(DType::BF16, {2200, 24}, 1), numbers(DType::BF16, {2200, 24}, 2), numbers(DType::BF16, {24}, 3), numbers(DType::F32, {2200, 1}, 4),
                                     numbers(DType::F32, {2200, 1}, 5)};
  expect_cuda_agrees(R"(graph main(%g: bf16[2200, 24], %x: bf16[2200, 24], %w: bf16[24], %mean: f32[2200, 1], %rstd: f32[2200, 1]) {
    %gf = cast(%g) {to = :f32}
    %xf = cast(%x) {to = :f32}
    %wf = cast(%w) {to = :f32}
    %x0 = sub(%xf, %mean)
    %xh = mul(%x0, %rstd)
    %gw = mul(%gf, %wf)
    %p = mul(%xh, %gw)
    %c1 = reduce_mean(%p) {axes = [1], keepdims = 1}
    %c2 = reduce_mean(%gw) {axes = [1], keepdims = 1}
    %a = mul(%xh, %c1)
    %b = add(%a, %c2)
    %d = sub(%gw, %b)
    %e = mul(%d, %rstd)
    %dx = cast(%e) {to = :bf16}
    %gx = mul(%gf, %xh)
    %sw = reduce_sum(%gx) {axes = [0], keepdims = 0}
    %dw = cast(%sw) {to = :bf16}
    %sb = reduce_sum(%gf) {axes = [0], keepdims = 0}
    %db = cast(%sb) {to = :bf16}
    return %dx, %dw, %db })", backward);
}

TEST(CudaPath, StatisticsOverBatchAndPlane) {
  const std::vector<Tensor> inputs{numbers(DType::BF16, {40, 2, 24, 24}, 1)};
  expect_cuda_agrees(R"(graph main(%x: bf16[40, 2, 24, 24]) {
    %f = cast(%x) {to = :f32}
    %m = reduce_mean(%f) {axes = [0, 2, 3], keepdims = 1}
    %d = sub(%f, %m)
    %q = mul(%d, %d)
    %v = reduce_mean(%q) {axes = [0, 2, 3], keepdims = 1}
    %i = rsqrt(%v)
    %k = mul(%d, %i)
    %y = cast(%k) {to = :bf16}
    return %y, %m, %v })", inputs);
}

TEST(CudaPath, ReductionsOverEveryAxis) {
  for (const char* axes : {"0", "1", "0, 1"}) {
    for (const char* op : {"reduce_sum", "reduce_max"}) {
      const std::vector<Tensor> inputs{numbers(DType::F32, {700, 37}, 1)};
      expect_cuda_agrees(std::string("graph main(%x: f32[700, 37]) { %y = ") + op + "(%x) {axes = [" + axes + "], keepdims = 0} return %y }", inputs, 1e-5);
    }
  }
  for (const char* axis : {"0", "1"}) {
    const std::vector<Tensor> inputs{numbers(DType::F32, {70, 33}, 1)};
    expect_cuda_agrees(std::string("graph main(%x: f32[70, 33]) { %y = argmax(%x) {axis = ") + axis + ", keepdims = 0, select_last = 0} return %y }", inputs);
  }
}

TEST(CudaPath, MatmulConvolutionScan) {
  const std::vector<Tensor> matrices{numbers(DType::F32, {2, 13, 30}, 1), numbers(DType::F32, {30, 21}, 2)};
  expect_cuda_agrees("graph main(%x: f32[2, 13, 30], %w: f32[30, 21]) { %0 = matmul(%x, %w) %1 = relu(%0) return %1 }", matrices);
  const std::vector<Tensor> images{numbers(DType::F32, {2, 4, 9, 8}, 1), numbers(DType::F32, {4, 2, 3, 3}, 2), numbers(DType::F32, {4}, 3)};
  expect_cuda_agrees("graph main(%x: f32[2, 4, 9, 8], %k: f32[4, 2, 3, 3], %c: f32[4]) {"
                     " %0 = conv(%x, %k, %c) {strides = [2, 2], dilations = [1, 1], pads_low = <1, 1>, pads_high = <1, 1>, groups = 2} return %0 }", images);
  const std::vector<Tensor> lines{numbers(DType::F32, {9, 20}, 1)};
  expect_cuda_agrees("graph main(%x: f32[9, 20]) { %y = cumsum(%x) {axis = 1, exclusive = 0, reverse = 1} return %y }", lines);
}

}  // namespace
}  // namespace fuseloom::test
