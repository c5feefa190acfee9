#include <gtest/gtest.h>

#include <limits>

#include "op/decomposition_testing.h"

namespace fuseloom::op {
namespace {

Attrs pool_attrs(std::vector<int64_t> kernel, std::vector<int64_t> strides, std::vector<int64_t> low,
                 std::vector<int64_t> high, std::vector<int64_t> sizes) {
  return {{"kernel", kernel}, {"strides", strides}, {"dilations", std::vector<int64_t>(kernel.size(), 1)},
          {"pads_low", low},  {"pads_high", high},  {"sizes", sizes}};
}

Tensor counting(Dims dims) {
  Tensor tensor(DType::F32, std::move(dims));
  for (int64_t i = 0; i < tensor.count(); ++i) tensor.set(i, static_cast<double>(i + 1));
  return tensor;
}

TEST(MaxPool, ValuesAndIndices) {
  // ONNX test_maxpool_with_argmax_2d_precomputed_pads.
  const Attrs attrs = pool_attrs({5, 5}, {1, 1}, {2, 2}, {2, 2}, {5, 5});
  const std::vector<Tensor> result = run_all("max_pool", {counting({1, 1, 5, 5})}, attrs, 2);
  EXPECT_EQ(values_of(result[0]), (std::vector<double>{13, 14, 15, 15, 15, 18, 19, 20, 20, 20, 23, 24, 25,
                                                       25, 25, 23, 24, 25, 25, 25, 23, 24, 25, 25, 25}));
  EXPECT_EQ(values_of(result[1]), (std::vector<double>{12, 13, 14, 14, 14, 17, 18, 19, 19, 19, 22, 23, 24,
                                                       24, 24, 22, 23, 24, 24, 24, 22, 23, 24, 24, 24}));
}

TEST(MaxPool, ColumnMajorIndices) {
  // ONNX test_maxpool_with_argmax_2d_precomputed_strides.
  Attrs attrs = pool_attrs({2, 2}, {2, 2}, {0, 0}, {0, 0}, {2, 2});
  attrs.set("storage_order", int64_t{1});
  const std::vector<Tensor> result = run_all("max_pool", {counting({1, 1, 5, 5})}, attrs, 2);
  EXPECT_EQ(values_of(result[0]), (std::vector<double>{7, 9, 17, 19}));
  EXPECT_EQ(values_of(result[1]), (std::vector<double>{6, 16, 8, 18}));
}

TEST(MaxPool, NanPropagatesAndIntegersStayExact) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<Tensor> result =
      run_all("max_pool", {floats({1, 1, 4}, {1, nan, 3, nan})}, pool_attrs({4}, {1}, {0}, {0}, {1}), 2);
  EXPECT_TRUE(std::isnan(result[0].at(0)));
  EXPECT_EQ(result[1].int_at(0), 1);
  const Tensor small = Tensor::of(DType::I8, {1, 1, 2}, {-100, -101});
  EXPECT_EQ(run_all("max_pool", {small}, pool_attrs({2}, {1}, {1}, {0}, {2}))[0].int_at(0), -100);
}

TEST(AveragePool, CountsWhatItIsTold) {
  Attrs attrs = pool_attrs({3, 3}, {1, 1}, {1, 1}, {1, 1}, {2, 2});
  const Tensor x = counting({1, 1, 2, 2});
  EXPECT_EQ(values_of(run_all("average_pool", {x}, attrs)[0]), (std::vector<double>{2.5, 2.5, 2.5, 2.5}));
  attrs.set("count_include_pad", int64_t{1});
  EXPECT_NEAR(run_all("average_pool", {x}, attrs)[0].at(0), 10.0 / 9.0, 1e-7);
}

// ONNX test_averagepool_2d_ceil_last_window_starts_on_pad: what lies beyond the padding never counts.
TEST(AveragePool, WindowsThatStickOut) {
  Attrs attrs = pool_attrs({3}, {3}, {1}, {1}, {2});
  attrs.set("count_include_pad", int64_t{1});
  const Tensor y = run_all("average_pool", {floats({1, 1, 3}, {3, 6, 12})}, attrs)[0];
  EXPECT_EQ(values_of(y), (std::vector<double>{3, 6}));  // (0 + 3 + 6) / 3, (12 + 0) / 2
}

TEST(LpPool, TakesTheRoot) {
  Attrs attrs = pool_attrs({2}, {1}, {0}, {0}, {1});
  attrs.set("p", 2.0);
  EXPECT_EQ(run_all("lp_pool", {floats({1, 1, 2}, {3, -4})}, attrs)[0].at(0), 5);
}

TEST(Pool, DilationsAndEmptyBatches) {
  Attrs attrs = pool_attrs({2, 2}, {1, 1}, {0, 0}, {0, 0}, {2, 2});
  attrs.set("dilations", std::vector<int64_t>{2, 2});
  EXPECT_EQ(values_of(run_all("max_pool", {counting({1, 1, 4, 4})}, attrs)[0]), (std::vector<double>{11, 12, 15, 16}));
  EXPECT_EQ(run_all("max_pool", {Tensor(DType::F32, {0, 3, 4, 4})}, attrs)[0].dims(), (Dims{0, 3, 2, 2}));
}

}  // namespace
}  // namespace fuseloom::op
