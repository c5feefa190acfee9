#include <gtest/gtest.h>

#include <limits>

#include "fuseloom/error.h"
#include "op/decomposition_testing.h"

namespace fuseloom::op {
namespace {

TEST(QuantizeLinear, OnnxVectors) {
  // ONNX test_quantizelinear.
  const std::vector<Tensor> whole = {floats({6}, {0, 2, 3, 1000, -254, -1000}), floats({}, {2}),
                                     Tensor::of(DType::U8, {}, {128})};
  const Attrs attrs = {{"to", DType::U8}};
  EXPECT_EQ(values_of(run_all("quantize_linear", whole, attrs)[0]), (std::vector<double>{128, 129, 130, 255, 1, 0}));
  // ONNX test_quantizelinear_axis (one row per channel).
  const Tensor x =
      floats({1, 3, 3, 2}, {-162, 10, -100, 232, -20, -50, -76, 0, 0, 252, 32, -44, 245, -485, -960, -270, -375, -470});
  const std::vector<Tensor> axis = {x, floats({3}, {2, 4, 5}), Tensor::of(DType::U8, {3}, {84, 24, 196})};
  EXPECT_EQ(values_of(run_all("quantize_linear", axis, {{"to", DType::U8}, {"axis", int64_t{1}}})[0]),
            (std::vector<double>{3, 89, 34, 200, 74, 59, 5, 24, 24, 87, 32, 13, 245, 99, 4, 142, 121, 102}));
  expect_decomposition("quantize_linear", axis, {{"to", DType::U8}, {"axis", int64_t{1}}});
}

TEST(QuantizeLinear, DecompositionsGiveTheSameBits) {
  const Tensor x = random_tensor(DType::F32, {4, 6}, 1);
  for (const DType to : {DType::I8, DType::U8, DType::I16, DType::U16}) {
    expect_decomposition("quantize_linear", {x, floats({1}, {0.03})}, {{"to", to}});
    expect_decomposition("quantize_linear", {x, floats({6}, {0.03, 0.1, 0.5, 0.01, 0.02, 1})},
                         {{"to", to}, {"axis", int64_t{-1}}});
    // Blocks of 4 along an axis of 6: the last block is short.
    const Tensor scale = floats({4, 2}, {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8});
    expect_decomposition("quantize_linear", {x, scale}, {{"to", to}, {"axis", int64_t{1}}, {"block_size", int64_t{4}}});
  }
  const Attrs nibble = {{"to", DType::I8}, {"low", int64_t{-8}}, {"high", int64_t{7}}};
  expect_decomposition("quantize_linear", {x, floats({}, {0.1})}, nibble);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(values_of(run_all("quantize_linear", {floats({3}, {nan, -5, 5}), floats({}, {0.5})}, nibble)[0]),
            (std::vector<double>{0, -8, 7}));
  expect_decomposition("quantize_linear", {Tensor::of(DType::I32, {2}, {7, -300}), floats({}, {2})},
                       {{"to", DType::I8}});
  EXPECT_THROW(run_all("quantize_linear", {x, floats({3}, {1, 1, 1})}, {{"to", DType::I8}}), UserError);
}

TEST(DequantizeLinear, PerTensorAxisAndBlock) {
  // ONNX test_dequantizelinear.
  const std::vector<Tensor> inputs = {Tensor::of(DType::U8, {4}, {0, 3, 128, 255}), floats({}, {2}),
                                      Tensor::of(DType::U8, {}, {128})};
  EXPECT_EQ(values_of(run_all("dequantize_linear", inputs)[0]), (std::vector<double>{-256, -250, 0, 254}));
  expect_decomposition("dequantize_linear", inputs);
  const Tensor x = random_tensor(DType::I8, {2, 5, 3}, 2);
  for (const DType dtype : {DType::F16, DType::F32, DType::BF16}) {
    expect_decomposition("dequantize_linear", {x, random_tensor(dtype, {5}, 3), random_tensor(DType::I8, {5}, 4)},
                         {{"axis", int64_t{1}}});
    expect_decomposition("dequantize_linear",
                         {x, random_tensor(dtype, {2, 3, 3}, 5), random_tensor(DType::I8, {2, 3, 3}, 6)},
                         {{"axis", int64_t{-2}}, {"block_size", int64_t{2}}, {"to", DType::F32}});
  }
}

TEST(DynamicQuantizeLinear, OnnxVectors) {
  // ONNX test_dynamicquantizelinear.
  const std::vector<Tensor> inputs = {floats({6}, {0, 2, -3, -2.5, 1.34, 0.5})};
  const std::vector<Tensor> result = run_all("dynamic_quantize_linear", inputs, {}, 3);
  EXPECT_EQ(values_of(result[0]), (std::vector<double>{153, 255, 0, 26, 221, 179}));
  EXPECT_NEAR(result[1].at(0), 0.01960784, 1e-8);
  EXPECT_EQ(result[2].int_at(0), 153);
  expect_decomposition("dynamic_quantize_linear", inputs, {}, 3);
  expect_decomposition("dynamic_quantize_linear", {random_tensor(DType::F32, {3, 4}, 7)}, {}, 3);
  expect_decomposition("dynamic_quantize_linear", {Tensor(DType::F32, {3})}, {}, 3);
  expect_decomposition("dynamic_quantize_linear", {Tensor(DType::F32, {0})}, {}, 3);
}

}  // namespace
}  // namespace fuseloom::op
