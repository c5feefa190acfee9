#include "path/path_testing.h"

namespace fuseloom::test {
namespace {

TEST(Loops, Softmax) {
  for (const int64_t n : {0, 1, 3, 15, 16, 17, 100, 257}) {
    const std::vector<Tensor> inputs{numbers(DType::F32, {5, n}, 1)};
    expect_paths_agree("graph main(%x: f32[b, n]) { %y: f32[b, n] = softmax(%x) {axis = 1} return %y }", inputs);
  }
}

TEST(Loops, SoftmaxOverTheOuterAxis) {
  for (const int64_t n : {1, 3, 33, 200}) {
    const std::vector<Tensor> inputs{numbers(DType::F32, {n, 37}, 1)};
    expect_paths_agree("graph main(%x: f32[b, n]) { %y: f32[b, n] = softmax(%x) {axis = 0} return %y }", inputs);
  }
}

TEST(Loops, LayerNormInEveryFloatType) {
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16, DType::F64}) {
    const std::string t(dtype_name(dtype));
    const std::vector<Tensor> inputs{numbers(dtype, {7, 133}, 1), numbers(dtype, {133}, 2), numbers(dtype, {133}, 3)};
    expect_paths_agree("graph main(%x: " + t + "[b, n], %s: " + t + "[n], %c: " + t + "[n]) { %y: " + t + "[b, n] = layer_norm(%x, %s, %c) {axis = -1, epsilon = 1.0e-5} return %y }", inputs);
  }
}

TEST(Loops, PointwiseChainWithBroadcasts) {
  const std::vector<Tensor> inputs{numbers(DType::F32, {4, 1, 33}, 1), numbers(DType::F32, {5, 1}, 2), numbers(DType::F32, {}, 3)};
  expect_paths_agree(R"(graph main(%x: f32[a, 1, c], %y: f32[b, 1], %z: f32[]) {
    %0: f32[a, b, c] = add(%x, %y)
    %1: f32[a, b, c] = mul(%0, %z)
    %2: f32[a, b, c] = gelu(%1)
    return %2 })", inputs);
}

TEST(Loops, TransposeAdd) {
  for (const int64_t n : {1, 5, 64, 67, 130}) {
    const std::vector<Tensor> inputs{numbers(DType::F32, {n, 71}, 1), numbers(DType::F32, {71, n}, 2)};
    expect_paths_agree(R"(graph main(%x: f32[a, b], %y: f32[b, a]) {
      %0: f32[b, a] = transpose(%x) {perm = [1, 0]}
      %1: f32[b, a] = add(%0, %y)
      return %1 })", inputs);
  }
}

TEST(Loops, TransposesOfEveryWidth) {
  for (const DType dtype : {DType::U8, DType::Bool, DType::BF16, DType::F16, DType::I32, DType::F64, DType::C64}) {
    const std::string t(dtype_name(dtype));
    for (const int64_t n : {16, 33, 600}) {
      const std::vector<Tensor> inputs{numbers(dtype, {3, n, 45}, 1)};
      expect_paths_agree("graph main(%x: " + t + "[a, b, c]) { %y: " + t + "[a, c, b] = transpose(%x) {perm = [0, 2, 1]} return %y }", inputs, {.fuse = {true}});
    }
  }
}

TEST(Loops, StraightAndTransposedResults) {
  for (const int64_t n : {9, 64, 130}) {
    const std::vector<Tensor> inputs{numbers(DType::F32, {n, 71}, 1), numbers(DType::F32, {71, n}, 2)};
    expect_paths_agree(R"(graph main(%x: f32[a, b], %y: f32[b, a]) {
      %0: f32[b, a] = transpose(%x) {perm = [1, 0]}
      %1: f32[b, a] = add(%0, %y)
      %2: f32[a, b] = transpose(%1) {perm = [1, 0]}
      %3: f32[a, b] = add(%2, %x)
      return %1, %3 })", inputs);
  }
}

TEST(Loops, MatrixPlusItsTranspose) {
  const std::vector<Tensor> inputs{numbers(DType::F32, {100, 100}, 1)};
  expect_paths_agree(R"(graph main(%x: f32[a, a]) {
    %0: f32[a, a] = transpose(%x) {perm = [1, 0]}
    %1: f32[a, a] = add(%0, %x)
    return %1 })", inputs);
}

TEST(Loops, ReductionsOverEveryAxis) {
  for (const char* axes : {"[0]", "[1]", "[2]", "[0, 1]", "[1, 2]", "[0, 2]", "[0, 1, 2]"}) {
    for (const char* op : {"reduce_sum", "reduce_max", "reduce_min", "reduce_mean"}) {
      graph::Graph graph(op::standard_ops());
      const graph::ValueId x = graph.add_input("x", {DType::F32, {sym::Expr::symbol("a"), sym::Expr::symbol("b"), sym::Expr::symbol("c")}});
      std::vector<int64_t> list;
      for (const char* p = axes; *p != 0; ++p) {
        if (*p >= '0' && *p <= '9') list.push_back(*p - '0');
      }
      graph.set_outputs({graph.add(op, {x}, {{"axes", list}, {"keepdims", int64_t{0}}})});
      const std::vector<Tensor> inputs{numbers(DType::F32, {3, 50, 21}, 1)};
      expect_paths_agree(graph, inputs);
    }
  }
}

TEST(Loops, Matmul) {
  for (const int64_t m : {1, 3, 13, 100}) {
    const std::vector<Tensor> inputs{numbers(DType::F32, {2, m, 70}, 1), numbers(DType::F32, {70, 45}, 2), numbers(DType::F32, {45}, 3)};
    expect_paths_agree(R"(graph main(%x: f32[b, m, k], %w: f32[k, n], %c: f32[n]) {
      %0: f32[b, m, n] = matmul(%x, %w)
      %1: f32[b, m, n] = add(%0, %c)
      %2: f32[b, m, n] = relu(%1)
      return %2 })", inputs);
  }
}

TEST(Loops, ConvolutionBiasRelu) {
  const std::vector<Tensor> inputs{numbers(DType::F32, {2, 6, 11, 13}, 1), numbers(DType::F32, {8, 3, 3, 3}, 2), numbers(DType::F32, {8}, 3)};
  expect_paths_agree(R"(graph main(%x: f32[b, 6, h, w], %k: f32[8, 3, 3, 3], %c: f32[8]) {
    %0: f32[b, 8, floor_div(h - 1, 2) + 1, floor_div(w - 1, 2) + 1] = conv(%x, %k, %c) {strides = [2, 2], dilations = [1, 1], pads_low = <1, 1>, pads_high = <1, 1>, groups = 2}
    %1: f32[b, 8, floor_div(h - 1, 2) + 1, floor_div(w - 1, 2) + 1] = relu(%0)
    return %1 })", inputs);
}

TEST(Loops, DepthwiseConvolution) {
  const std::vector<Tensor> inputs{numbers(DType::F32, {2, 6, 11, 40}, 1), numbers(DType::F32, {6, 1, 3, 3}, 2)};
  expect_paths_agree(R"(graph main(%x: f32[b, 6, h, w], %k: f32[6, 1, 3, 3]) {
    %0: f32[b, 6, h, w] = conv(%x, %k) {strides = [1, 1], dilations = [1, 1], pads_low = <1, 1>, pads_high = <1, 1>, groups = 6}
    %1: f32[b, 6, h, w] = hard_swish(%0)
    return %1 })", inputs);
}

TEST(Loops, GatherConcatSlicePad) {
  const std::vector<Tensor> inputs{numbers(DType::F32, {9, 20}, 1), Tensor::of(DType::I64, {4}, {0, -1, 8, 3})};
  expect_paths_agree(R"(graph main(%x: f32[a, b], %i: i64[n]) {
    %0: f32[n, b] = gather(%x, %i) {axis = 0}
    %1: f32[n, b] = exp(%0)
    %2: f32[n + n, b] = concat(%0, %1) {axis = 0}
    %3: f32[n + n, b + 3] = pad(%2) {low = <0, 1>, high = <0, 2>, mode = "constant"}
    return %3 })", inputs);
}

TEST(Loops, Scan) {
  for (const char* flags : {"exclusive = 0, reverse = 0", "exclusive = 1, reverse = 0", "exclusive = 0, reverse = 1", "exclusive = 1, reverse = 1"}) {
    for (const char* axis : {"0", "1"}) {
      const std::vector<Tensor> inputs{numbers(DType::F32, {9, 20}, 1)};
      expect_paths_agree(std::string("graph main(%x: f32[a, b]) { %y: f32[a, b] = cumsum(%x) {axis = ") + axis + ", " + flags + "} return %y }", inputs);
    }
  }
}

}  // namespace
}  // namespace fuseloom::test
