#include "schedule/cuda_testing.h"

namespace fuseloom::test {
namespace {

bool any_contains(const std::set<std::string>& names, std::string_view part) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return name.find(part) != std::string::npos; });
}

TEST(CudaPointwise, FlatWithATailOfSingleElements) {
  for (const int64_t n : {0, 1, 7, 8, 9, 4099}) {
    const std::vector<Tensor> inputs{numbers(DType::BF16, {n}, 1), numbers(DType::F32, {n}, 2)};
    expect_cuda_agrees(R"(graph main(%x: bf16[n], %y: f32[n]) {
      %0: f32[n] = cast(%x) {to = :f32}
      %1: f32[n] = mul(%0, %y)
      %2: bf16[n] = cast(%1) {to = :bf16}
      return %2 })", inputs);
  }
}

TEST(CudaPointwise, BiasOfARow) {
  for (const int64_t n : {1, 3, 8, 24, 33, 264}) {
    const std::vector<Tensor> inputs{numbers(DType::BF16, {5, n}, 1), numbers(DType::BF16, {n}, 2)};
    expect_cuda_agrees(R"(graph main(%x: bf16[m, n], %b: bf16[n]) {
      %0: bf16[m, n] = add(%x, %b)
      %1: bf16[m, n] = gelu(%0)
      return %1 })", inputs);
  }
}

TEST(CudaPointwise, BroadcastsOfEveryAxis) {
  const std::vector<Tensor> inputs{numbers(DType::F32, {4, 1, 33}, 1), numbers(DType::F32, {5, 1}, 2), numbers(DType::F32, {}, 3)};
  expect_cuda_agrees(R"(graph main(%x: f32[a, 1, c], %y: f32[b, 1], %z: f32[]) {
    %0: f32[a, b, c] = add(%x, %y)
    %1: f32[a, b, c] = mul(%0, %z)
    %2: f32[a, b, c] = exp(%1)
    return %2 })", inputs);
}

TEST(CudaPointwise, AScalar) {
  const std::vector<Tensor> inputs{numbers(DType::F32, {}, 1)};
  expect_cuda_agrees("graph main(%x: f32[]) { %0: f32[] = exp(%x) return %0 }", inputs);
}

TEST(CudaPointwise, RotaryEmbedding) {
  const std::vector<Tensor> inputs{numbers(DType::BF16, {2, 3, 5, 16}, 1), numbers(DType::BF16, {5, 16}, 2), numbers(DType::BF16, {5, 16}, 3)};
  expect_cuda_agrees(R"(graph main(%x: bf16[b, h, s, 16], %c: bf16[s, 16], %d: bf16[s, 16]) {
    %0: bf16[b, h, s, 8] = slice(%x) {starts = <0, 0, 0, 0>, sizes = <b, h, s, 8>, steps = [1, 1, 1, 1]}
    %1: bf16[b, h, s, 8] = slice(%x) {starts = <0, 0, 0, 8>, sizes = <b, h, s, 8>, steps = [1, 1, 1, 1]}
    %2: bf16[b, h, s, 8] = neg(%1)
    %3: bf16[b, h, s, 16] = concat(%2, %0) {axis = 3}
    %4: bf16[b, h, s, 16] = mul(%x, %c)
    %5: bf16[b, h, s, 16] = mul(%3, %d)
    %6: bf16[b, h, s, 16] = add(%4, %5)
    return %6 })", inputs);
}

TEST(CudaPointwise, GatherConcatPad) {
  const std::vector<Tensor> inputs{numbers(DType::F32, {9, 20}, 1), Tensor::of(DType::I64, {4}, {0, -1, 8, 3})};
  expect_cuda_agrees(R"(graph main(%x: f32[a, b], %i: i64[n]) {
    %0: f32[n, b] = gather(%x, %i) {axis = 0}
    %1: f32[n, b] = exp(%0)
    %2: f32[n + n, b] = concat(%0, %1) {axis = 0}
    %3: f32[n + n, b + 3] = pad(%2) {low = <0, 1>, high = <0, 2>, mode = "constant"}
    return %3 })", inputs);
}

TEST(CudaTranspose, TransposeAdd) {
  for (const int64_t n : {1, 5, 64, 72}) {
    const std::vector<Tensor> inputs{numbers(DType::F32, {n, 68}, 1), numbers(DType::F32, {68, n}, 2)};
    const auto ran = expect_cuda_agrees(R"(graph main(%x: f32[a, b], %y: f32[b, a]) {
      %0: f32[b, a] = transpose(%x) {perm = [1, 0]}
      %1: f32[b, a] = add(%0, %y)
      return %1 })", inputs);
    EXPECT_TRUE(any_contains(ran, "transpose"));
  }
}

TEST(CudaTranspose, Batched) {
  const std::vector<Tensor> inputs{numbers(DType::F16, {3, 9, 2, 17}, 1)};
  expect_cuda_agrees(R"(graph main(%x: f16[a, b, c, d]) {
    %0: f16[a, d, c, b] = transpose(%x) {perm = [0, 3, 2, 1]}
    %1: f16[a, d, c, b] = exp(%0)
    return %1 })", inputs);
}

TEST(CudaRows, SoftmaxOfEveryRowClass) {
  for (const int64_t n : {0, 1, 3, 8, 96, 257, 520, 1032}) {
    const std::vector<Tensor> inputs{numbers(DType::BF16, {5, n}, 1)};
    expect_cuda_agrees("graph main(%x: bf16[b, n]) { %y: bf16[b, n] = softmax(%x) {axis = 1} return %y }", inputs);
  }
}

TEST(CudaRows, LayerNorm) {
  for (const int64_t n : {7, 64, 133}) {
    const std::vector<Tensor> inputs{numbers(DType::BF16, {6, n}, 1), numbers(DType::BF16, {n}, 2), numbers(DType::BF16, {n}, 3)};
    expect_cuda_agrees("graph main(%x: bf16[b, n], %s: bf16[n], %c: bf16[n]) { %y: bf16[b, n] = layer_norm(%x, %s, %c) {axis = -1, epsilon = 1.0e-5} return %y }", inputs);
  }
}

TEST(CudaRows, AddAndNormWithTheSumStored) {
  const std::vector<Tensor> inputs{numbers(DType::BF16, {6, 40}, 1), numbers(DType::BF16, {6, 40}, 2), numbers(DType::BF16, {40}, 3)};
  expect_cuda_agrees(R"(graph main(%x: bf16[b, n], %r: bf16[b, n], %w: bf16[n]) {
    %h: bf16[b, n] = add(%x, %r)
    %y: bf16[b, n] = rms_norm(%h, %w) {axis = -1, epsilon = 1.0e-6}
    return %h, %y })", inputs);
}

schedule::CudaTarget small_target() {
  schedule::CudaTarget target;
  target.shared_per_block = 1024;
  target.registers_per_multiprocessor = 8192;
  target.part_elements = 128;
  return target;
}

// Rows with what breaks a running maximum: nothing but -inf, -inf first, one +inf, a NaN.
Tensor rows_of_every_kind(DType dtype, int64_t n) {
  const double infinity = std::numeric_limits<double>::infinity();
  Tensor x = numbers(dtype, {5, n}, 1);
  for (int64_t i = 0; i < n; ++i) x.set(i, -infinity);
  for (int64_t i = 0; i + 1 < n; ++i) x.set(n + i, -infinity);
  x.set(2 * n + n / 2, infinity);
  x.set(3 * n + n / 3, std::numeric_limits<double>::quiet_NaN());
  return x;
}

TEST(CudaRows, SoftmaxInOnePass) {
  for (const int64_t n : {1500, 264}) {
    const std::vector<Tensor> inputs{rows_of_every_kind(DType::F32, n)};
    schedule::CudaTarget target = small_target();
    target.part_elements = 1 << 20;   // whole rows
    expect_cuda_agrees("graph main(%x: f32[b, n]) { %y: f32[b, n] = softmax(%x) {axis = 1} return %y }", inputs, target);
  }
}

TEST(CudaRows, NormalizationsCutIntoParts) {
  const std::vector<Tensor> inputs{rows_of_every_kind(DType::F32, 600)};
  const auto softmax = expect_cuda_agrees("graph main(%x: f32[b, n]) { %y: f32[b, n] = softmax(%x) {axis = 1} return %y }", inputs, small_target());
  EXPECT_EQ(softmax.size(), 3U);
  const std::vector<Tensor> images{numbers(DType::BF16, {4, 2, 10, 8}, 1), numbers(DType::F32, {2}, 2)};
  const auto batch_norm = expect_cuda_agrees(R"(graph main(%x: bf16[n, c, h, w], %s: f32[c]) {
    %f = cast(%x) {to = :f32}
    %m = reduce_mean(%f) {axes = [0, 2, 3], keepdims = 1}
    %d = sub(%f, %m)
    %q = mul(%d, %d)
    %v = reduce_mean(%q) {axes = [0, 2, 3], keepdims = 1}
    %i = rsqrt(%v)
    %k = mul(%d, %i)
    %r = reshape(%s) {shape = <1, c, 1, 1>}
    %t = mul(%k, %r)
    %y = cast(%t) {to = :bf16}
    return %y, %m, %v })", images, small_target());
  EXPECT_EQ(batch_norm.size(), 3U);
}

TEST(CudaRows, GroupNormIsOneKernel) {
  const std::vector<Tensor> inputs{numbers(DType::BF16, {2, 8, 3, 8}, 1), numbers(DType::BF16, {8}, 2), numbers(DType::BF16, {8}, 3)};
  const auto ran = expect_cuda_agrees("graph main(%x: bf16[n, c, h, w], %s: bf16[c], %b: bf16[c]) { %y: bf16[n, c, h, w] = group_norm(%x, %s, %b) {groups = 4, epsilon = 1.0e-5} return %y }", inputs);
  EXPECT_EQ(ran.size(), 1U);
}

TEST(CudaRows, CrossEntropyReadsTheLabelBesideTheRow) {
  const std::vector<Tensor> inputs{numbers(DType::BF16, {3, 50}, 1), Tensor::of(DType::I64, {3}, {0, -1, 17})};
  const auto ran = expect_cuda_agrees(R"(graph main(%x: bf16[r, c], %i: i64[r]) {
    %f = cast(%x) {to = :f32}
    %m = reduce_max(%f) {axes = [1], keepdims = 1}
    %d = sub(%f, %m)
    %e = exp(%d)
    %s = reduce_sum(%e) {axes = [1], keepdims = 1}
    %l = log(%s)
    %n = add(%l, %m)
    %j = reshape(%i) {shape = <r, 1>}
    %p = gather_elements(%f, %j) {axis = 1}
    %y = sub(%n, %p)
    return %y })", inputs);
  EXPECT_EQ(ran.size(), 1U);
}

TEST(CudaRows, CutIntoParts) {
  for (const char* op : {"reduce_sum", "argmax"}) {
    const std::string axes = std::string(op) == "argmax" ? "axis = 1, select_last = 0" : "axes = [1]", type = std::string(op) == "argmax" ? "i64" : "f32";
    const std::vector<Tensor> inputs{numbers(DType::F32, {2, 600}, 1)};
    const auto ran = expect_cuda_agrees("graph main(%x: f32[b, n]) { %y: " + type + "[b] = " + op + "(%x) {" + axes + ", keepdims = 0} return %y }", inputs, small_target());
    EXPECT_EQ(ran.size(), 2U);
  }
}

constexpr const char* kBackwardOfLayerNorm = R"(graph main(%g: bf16[r, c], %x: bf16[r, c], %w: bf16[c], %mean: f32[r, 1], %rstd: f32[r, 1]) {
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
    return %dx, %dw, %db })";

TEST(CudaGroups, BackwardOfLayerNorm) {
  const auto inputs = [](int64_t rows, int64_t columns) {
    return std::vector<Tensor>{numbers(DType::BF16, {rows, columns}, 1), numbers(DType::BF16, {rows, columns}, 2), numbers(DType::BF16, {columns}, 3),
                               numbers(DType::F32, {rows, 1}, 4), numbers(DType::F32, {rows, 1}, 5)};
  };
  // Few rows: two kernels over the data. Many: one, and one that combines the sums of its blocks.
  EXPECT_EQ(expect_cuda_agrees(kBackwardOfLayerNorm, inputs(9, 24)).size(), 2U);
  schedule::CudaTarget target;
  target.multiprocessors = 1;
  for (const int64_t columns : {24, 13}) EXPECT_EQ(expect_cuda_agrees(kBackwardOfLayerNorm, inputs(33, columns), target).size(), 2U);
}

TEST(CudaReductions, OverEveryAxis) {
  for (const char* axes : {"[0]", "[1]", "[2]", "[0, 1]", "[1, 2]", "[0, 2]", "[0, 1, 2]"}) {
    for (const char* op : {"reduce_sum", "reduce_max", "reduce_mean"}) {
      graph::Graph graph(op::standard_ops());
      const graph::ValueId x = graph.add_input("x", {DType::F32, {sym::Expr::symbol("a"), sym::Expr::symbol("b"), sym::Expr::symbol("c")}});
      std::vector<int64_t> list;
      for (const char* p = axes; *p != 0; ++p) {
        if (*p >= '0' && *p <= '9') list.push_back(*p - '0');
      }
      graph.set_outputs({graph.add(op, {x}, {{"axes", list}, {"keepdims", int64_t{0}}})});
      const std::vector<Tensor> inputs{numbers(DType::F32, {3, 20, 9}, 1)};
      expect_cuda_agrees(graph, inputs);
    }
  }
}

TEST(CudaColumns, SumsInPartsAndWhole) {
  for (const int64_t m : {1, 40, 130}) {
    for (const int64_t n : {8, 13}) {
      const std::vector<Tensor> inputs{numbers(DType::BF16, {m, n}, 1)};
      expect_cuda_agrees(R"(graph main(%x: bf16[m, n]) {
        %0: f32[m, n] = cast(%x) {to = :f32}
        %1: f32[n] = reduce_sum(%0) {axes = [0], keepdims = 0}
        %2: f32[n] = mul(%1, %1)
        return %2 })", inputs);
    }
  }
}

TEST(CudaColumns, SoftmaxOverTheOuterAxis) {
  for (const int64_t n : {1, 3, 33}) {
    const std::vector<Tensor> inputs{numbers(DType::F32, {n, 13}, 1)};
    expect_cuda_agrees("graph main(%x: f32[b, n]) { %y: f32[b, n] = softmax(%x) {axis = 0} return %y }", inputs);
  }
}

TEST(CudaColumns, ArgMaxOverTheOuterAxis) {
  const std::vector<Tensor> inputs{numbers(DType::F32, {33, 37}, 1)};
  expect_cuda_agrees("graph main(%x: f32[m, n]) { %y: i64[n] = argmax(%x) {axis = 0, keepdims = 0, select_last = 0} return %y }", inputs);
}

TEST(CudaContraction, Matmul) {
  const std::vector<Tensor> inputs{numbers(DType::F32, {2, 13, 30}, 1), numbers(DType::F32, {30, 21}, 2), numbers(DType::F32, {21}, 3)};
  expect_cuda_agrees(R"(graph main(%x: f32[b, m, k], %w: f32[k, n], %c: f32[n]) {
    %0: f32[b, m, n] = matmul(%x, %w)
    %1: f32[b, m, n] = add(%0, %c)
    %2: f32[b, m, n] = relu(%1)
    return %2 })", inputs);
}

TEST(CudaContraction, Convolution) {
  const std::vector<Tensor> inputs{numbers(DType::F32, {1, 4, 5, 6}, 1), numbers(DType::F32, {4, 2, 3, 3}, 2), numbers(DType::F32, {4}, 3)};
  expect_cuda_agrees(R"(graph main(%x: f32[b, 4, h, w], %k: f32[4, 2, 3, 3], %c: f32[4]) {
    %0: f32[b, 4, floor_div(h - 1, 2) + 1, floor_div(w - 1, 2) + 1] = conv(%x, %k, %c) {strides = [2, 2], dilations = [1, 1], pads_low = <1, 1>, pads_high = <1, 1>, groups = 2}
    %1: f32[b, 4, floor_div(h - 1, 2) + 1, floor_div(w - 1, 2) + 1] = relu(%0)
    return %1 })", inputs);
}

TEST(CudaScan, EveryDirection) {
  for (const char* flags : {"exclusive = 0, reverse = 0", "exclusive = 1, reverse = 0", "exclusive = 0, reverse = 1", "exclusive = 1, reverse = 1"}) {
    for (const char* axis : {"0", "1"}) {
      const std::vector<Tensor> inputs{numbers(DType::F32, {9, 20}, 1)};
      expect_cuda_agrees(std::string("graph main(%x: f32[a, b]) { %y: f32[a, b] = cumsum(%x) {axis = ") + axis + ", " + flags + "} return %y }", inputs);
    }
  }
}

}  // namespace
}  // namespace fuseloom::test
