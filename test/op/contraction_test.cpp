#include <gtest/gtest.h>

#include "fuseloom/error.h"
#include "op/decomposition_testing.h"
#include "sym/evaluator.h"

namespace fuseloom::op {
namespace {

using sym::Expr;

Attrs conv_attrs(std::vector<int64_t> strides, std::vector<int64_t> dilations, std::vector<int64_t> low,
                 std::vector<int64_t> high, int64_t groups = 1) {
  return {{"strides", strides}, {"dilations", dilations}, {"pads_low", low}, {"pads_high", high}, {"groups", groups}};
}

// c[i, j] = sum a[i, k] b[k, j], written out.
double product_at(const Tensor& a, const Tensor& b, int64_t i, int64_t j) {
  double sum = 0;
  for (int64_t k = 0; k < a.dim(1); ++k) sum += a.at(i * a.dim(1) + k) * b.at(k * b.dim(1) + j);
  return sum;
}

TEST(Matmul, OddSizesAgreeWithTheDefinition) {
  for (const auto& [m, n, k] :
       {std::tuple{1, 1, 1}, {3, 17, 5}, {8, 8, 8}, {7, 9, 0}, {0, 3, 2}, {2, 0, 2}, {5, 23, 31}}) {
    const Tensor a = random_tensor(DType::F64, {m, k}, 1), b = random_tensor(DType::F64, {k, n}, 2);
    const Tensor c = run_all("matmul", {a, b})[0];
    ASSERT_EQ(c.dims(), (Dims{m, n}));
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) EXPECT_NEAR(c.at(i * n + j), product_at(a, b, i, j), 1e-12);
    }
  }
}

TEST(Matmul, VectorsBatchesAndTransposes) {
  const Tensor v = floats({3}, {1, 2, 3}), m = floats({3, 2}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(values_of(run_all("matmul", {v, m})[0]), (std::vector<double>{22, 28}));
  EXPECT_EQ(values_of(run_all("matmul", {m, v}, {{"trans_a", int64_t{1}}})[0]), (std::vector<double>{22, 28}));
  const Tensor dot = run_all("matmul", {v, v})[0];
  EXPECT_EQ(dot.rank(), 0);
  EXPECT_EQ(dot.at(0), 14);
  const Tensor a = random_tensor(DType::F32, {2, 1, 3, 4}, 3), b = random_tensor(DType::F32, {5, 4, 6}, 4);
  const Tensor c = run_all("matmul", {a, b})[0];
  EXPECT_EQ(c.dims(), (Dims{2, 5, 3, 6}));
  const Tensor bt = run_all("transpose", {b}, {{"perm", std::vector<int64_t>{0, 2, 1}}})[0];
  const Tensor at = run_all("transpose", {a}, {{"perm", std::vector<int64_t>{0, 1, 3, 2}}})[0];
  expect_close(run_all("matmul", {at, bt}, {{"trans_a", int64_t{1}}, {"trans_b", int64_t{1}}})[0], c, 0);
}

TEST(Matmul, IntegersWrapAndComplexMultiplies) {
  const Tensor a = Tensor::of(DType::I8, {1, 2}, {100, 100}), b = Tensor::of(DType::I8, {2, 1}, {2, 1});
  EXPECT_EQ(run_all("matmul", {a, b})[0].int_at(0), 44);  // 300 - 256
  Tensor z(DType::C64, {1, 1});
  z.set_complex(0, 1, 2);
  const Tensor square = run_all("matmul", {z, z})[0];
  EXPECT_EQ(square.at(0), -3);
  EXPECT_EQ(square.imag_at(0), 4);
}

TEST(Matmul, InfersSymbolsAndRefuses) {
  const Expr s = Expr::symbol("s"), b = Expr::symbol("b");
  EXPECT_EQ(to_string(infer("matmul", {{DType::F32, {b, s, 4}}, {DType::F32, {4, s * 2}}}, {})[0]), "f32[b, s, s*2]");
  EXPECT_THROW(infer("matmul", {{DType::F32, {2, 3}}, {DType::F32, {4, 2}}}, {}), UserError);
  EXPECT_THROW(infer("matmul", {{DType::F32, {2, 3}}, {DType::F16, {3, 2}}}, {}), UserError);
  EXPECT_THROW(infer("matmul", {{DType::F32, {}}, {DType::F32, {3, 2}}}, {}), UserError);
}

// Direct definition for two spatial dimensions.
double conv_at(const Tensor& x, const Tensor& w, const Attrs& attrs, int64_t n, int64_t o, int64_t i, int64_t j) {
  const int64_t per_group = w.dim(1), group = o / (w.dim(0) / attrs.integer("groups"));
  const auto at = [&](const char* name, size_t d) { return attrs.integers(name)[d]; };
  double sum = 0;
  for (int64_t c = 0; c < per_group; ++c) {
    for (int64_t p = 0; p < w.dim(2); ++p) {
      for (int64_t q = 0; q < w.dim(3); ++q) {
        const int64_t y = i * at("strides", 0) - at("pads_low", 0) + p * at("dilations", 0);
        const int64_t z = j * at("strides", 1) - at("pads_low", 1) + q * at("dilations", 1);
        if (y < 0 || y >= x.dim(2) || z < 0 || z >= x.dim(3)) continue;
        sum += x.at(((n * x.dim(1) + group * per_group + c) * x.dim(2) + y) * x.dim(3) + z) *
               w.at(((o * per_group + c) * w.dim(2) + p) * w.dim(3) + q);
      }
    }
  }
  return sum;
}

TEST(Conv, AgreesWithTheDefinition) {
  const Attrs cases[] = {conv_attrs({1, 1}, {1, 1}, {0, 0}, {0, 0}), conv_attrs({2, 1}, {1, 2}, {1, 2}, {0, 1}),
                         conv_attrs({1, 2}, {2, 1}, {2, 0}, {2, 1}, 2), conv_attrs({3, 3}, {1, 1}, {-1, 0}, {0, 0}, 4)};
  for (const Attrs& attrs : cases) {
    const int64_t groups = attrs.integer("groups");
    const Tensor x = random_tensor(DType::F64, {2, 4, 7, 9}, 5),
                 w = random_tensor(DType::F64, {8, 4 / groups, 3, 2}, 6);
    const Tensor bias = random_tensor(DType::F64, {8}, 7);
    const Tensor y = run_all("conv", {x, w, bias}, attrs)[0];
    int64_t e = 0;
    for (int64_t n = 0; n < 2; ++n) {
      for (int64_t o = 0; o < 8; ++o) {
        for (int64_t i = 0; i < y.dim(2); ++i) {
          for (int64_t j = 0; j < y.dim(3); ++j, ++e) {
            ASSERT_NEAR(y.at(e), conv_at(x, w, attrs, n, o, i, j) + bias.at(o), 1e-12) << e;
          }
        }
      }
    }
  }
}

TEST(Conv, InfersSymbolicSizes) {
  const Expr h = Expr::symbol("h"), n = Expr::symbol("n");
  const TensorType y = infer("conv", {{DType::F32, {n, 3, h, 32}}, {DType::F32, {8, 3, 3, 3}}},
                             {{"strides", std::vector<int64_t>{2, 2}},
                              {"dilations", std::vector<int64_t>{1, 1}},
                              {"pads_low", Shape{1, 1}},
                              {"pads_high", Shape{1, 1}},
                              {"groups", int64_t{1}}})[0];
  EXPECT_EQ(y.shape[0], n);
  EXPECT_EQ(sym::evaluate(y.shape[2], {{"h", 33}}), 17);
  EXPECT_TRUE(y.shape[3].is_const(16));
  EXPECT_THROW(infer("conv", {{DType::F32, {1, 4, 8}}, {DType::F32, {8, 3, 3}}}, conv_attrs({1}, {1}, {0}, {0})),
               UserError);
  EXPECT_THROW(infer("conv", {{DType::F32, {1, 3, 2}}, {DType::F32, {8, 3, 4}}}, conv_attrs({1}, {1}, {0}, {0})),
               UserError);
}

// The adjoint identity: <conv(x), y> = <x, conv_transpose(y)> with the same weights.
TEST(ConvTranspose, IsTheAdjointOfConv) {
  for (const int64_t groups : {1, 2}) {
    Attrs attrs = conv_attrs({2, 3}, {1, 2}, {1, 0}, {0, 2}, groups);
    const Tensor x = random_tensor(DType::F64, {2, 4, 8, 10}, 8),
                 w = random_tensor(DType::F64, {6, 4 / groups, 3, 2}, 9);
    const Tensor cx = run_all("conv", {x, w}, attrs)[0];
    const Tensor y = random_tensor(DType::F64, cx.dims(), 10);
    // The input rows and columns that no window reaches come back through output_padding.
    attrs.set("output_padding", std::vector<int64_t>{(8 + 1 - 3) % 2, (10 + 2 - 3) % 3});
    const Tensor ty = run_all("conv_transpose", {y, w}, attrs)[0];
    ASSERT_EQ(ty.dims(), x.dims());
    double left = 0, right = 0;
    for (int64_t i = 0; i < cx.count(); ++i) left += cx.at(i) * y.at(i);
    for (int64_t i = 0; i < x.count(); ++i) right += x.at(i) * ty.at(i);
    EXPECT_NEAR(left, right, 1e-10);
  }
}

// ONNX test_convtranspose_output_shape's geometry: a total padding of -1 extends the result by a row of zeros.
TEST(ConvTranspose, NegativePadsExtend) {
  Attrs attrs = conv_attrs({3, 2}, {1, 1}, {0, 0}, {-1, -1});
  attrs.set("output_padding", std::vector<int64_t>{0, 0});
  const Tensor x = floats({1, 1, 3, 3}, {0, 1, 2, 3, 4, 5, 6, 7, 8}),
               w = Tensor::of(DType::F32, {1, 1, 3, 3}, std::vector<double>(9, 1));
  const Tensor y = run_all("conv_transpose", {x, w}, attrs)[0];
  ASSERT_EQ(y.dims(), (Dims{1, 1, 10, 8}));
  EXPECT_EQ((std::vector<double>{y.at(0), y.at(2), y.at(4), y.at(6), y.at(7)}), (std::vector<double>{0, 1, 3, 2, 0}));
  for (int64_t j = 0; j < 8; ++j) EXPECT_EQ(y.at(72 + j), 0);
}

TEST(IntegerProducts, TakeZeroPointsOff) {
  // ONNX test_matmulinteger.
  const Tensor a = Tensor::of(DType::U8, {4, 3}, {11, 7, 3, 10, 6, 2, 9, 5, 1, 8, 4, 0});
  const Tensor b = Tensor::of(DType::U8, {3, 2}, {1, 4, 2, 5, 3, 6});
  const std::vector<Tensor> inputs = {a, b, Tensor::of(DType::U8, {1}, {12}), Tensor::of(DType::U8, {1}, {0})};
  EXPECT_EQ(values_of(run_all("matmul_integer", inputs)[0]),
            (std::vector<double>{-38, -83, -44, -98, -50, -113, -56, -128}));
  expect_decomposition("matmul_integer", inputs);
  expect_decomposition("matmul_integer", {a, b});
  expect_decomposition("matmul_integer",
                       {a, b, Tensor::of(DType::U8, {4}, {1, 2, 3, 4}), Tensor::of(DType::U8, {2}, {5, 6})});
  const Tensor x = random_tensor(DType::U8, {1, 2, 5, 5}, 11), w = random_tensor(DType::I8, {4, 2, 3, 3}, 12);
  expect_decomposition("conv_integer",
                       {x, w, Tensor::scalar(DType::U8, 128), Tensor::of(DType::I8, {4}, {1, -2, 3, -4})},
                       conv_attrs({1, 1}, {1, 1}, {1, 1}, {1, 1}));
}

}  // namespace
}  // namespace fuseloom::op
