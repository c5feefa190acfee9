#include <gtest/gtest.h>

#include <limits>

#include "fuseloom/error.h"
#include "op/decomposition_testing.h"

namespace fuseloom::op {
namespace {

const std::vector<DType> kFloats = {DType::F16, DType::BF16, DType::F32, DType::F64};

TEST(Softmax, SpecialRows) {
  for (const char* how : {"whole", "decomposed"}) {
    const auto softmax = [&](const Tensor& x) {
      const Attrs attrs = {{"axis", int64_t{-1}}};
      return std::string(how) == "whole" ? run_all("softmax", {x}, attrs)[0]
                                         : run_decomposition("softmax", {x}, attrs)[0];
    };
    const Tensor all = softmax(floats({2}, {-kInf, -kInf}));
    EXPECT_TRUE(std::isnan(all.at(0)) && std::isnan(all.at(1)));
    const Tensor one = softmax(floats({3}, {1, kInf, -kInf}));
    EXPECT_EQ(one.at(0), 0);
    EXPECT_TRUE(std::isnan(one.at(1)));
    EXPECT_EQ(one.at(2), 0);
    EXPECT_EQ(softmax(Tensor(DType::F32, {3, 0})).dims(), (Dims{3, 0}));
    EXPECT_EQ(softmax(Tensor::scalar(DType::F32, 7)).at(0), 1);
    expect_close(softmax(floats({1, 3}, {-1, 0, 1})), floats({1, 3}, {0.09003058, 0.24472848, 0.66524094}), 1e-6);
    expect_close(softmax(floats({2, 2}, {0, 1, 10000, 10001})),
                 floats({2, 2}, {0.26894143, 0.7310586, 0.26894143, 0.7310586}), 1e-6);
  }
}

TEST(Softmax, DecompositionsAgree) {
  for (const DType dtype : kFloats) {
    const Tensor x = random_tensor(dtype, {3, 5, 7}, 1);
    for (const int64_t axis : {0, 1, -1}) {
      expect_decomposition("softmax", {x}, {{"axis", axis}});
      expect_decomposition("log_softmax", {x}, {{"axis", axis}});
    }
  }
}

TEST(LayerNorm, DecompositionsAgree) {
  for (const DType dtype : kFloats) {
    const Tensor x = random_tensor(dtype, {2, 3, 4, 5}, 2);
    const Attrs attrs = {{"axis", int64_t{-2}}, {"epsilon", 1e-5}};
    const Tensor scale = random_tensor(dtype, {4, 5}, 3), bias = random_tensor(dtype, {5}, 4);
    expect_decomposition("layer_norm", {x}, attrs);
    expect_decomposition("layer_norm", {x, scale, bias}, attrs, 3);
    expect_decomposition("layer_norm", {x, Tensor(), bias}, attrs, 2);
    expect_decomposition("rms_norm", {x, scale}, attrs);
    expect_decomposition("rms_norm", {x}, {{"axis", int64_t{0}}, {"epsilon", 0.1}});
  }
}

TEST(LayerNorm, StatisticsAreWide) {
  const std::vector<Tensor> result = run_all("layer_norm", {Tensor::of(DType::F16, {1, 4}, {1, 2, 3, 6})},
                                             {{"axis", int64_t{1}}, {"epsilon", 0.5}}, 3);
  EXPECT_EQ(result[1].type_string(), "f32[1,1]");
  EXPECT_EQ(result[1].at(0), 3);
  EXPECT_EQ(result[2].at(0), 0.5);  // variance 3.5
  EXPECT_EQ(values_of(result[0]), (std::vector<double>{-1, -0.5, 0, 1.5}));
}

TEST(LayerNorm, EmptyRows) {
  const std::vector<Tensor> result =
      run_all("layer_norm", {Tensor(DType::F32, {2, 0})}, {{"axis", int64_t{1}}, {"epsilon", 0.5}}, 3);
  EXPECT_EQ(result[0].dims(), (Dims{2, 0}));
  EXPECT_TRUE(std::isnan(result[1].at(1)));
  EXPECT_THROW(run_all("layer_norm", {Tensor(DType::F32, {2, 3}), Tensor(DType::F32, {2})},
                       {{"axis", int64_t{1}}, {"epsilon", 0.5}}),
               UserError);
}

TEST(ChannelNorms, DecompositionsAgree) {
  for (const DType dtype : kFloats) {
    const Tensor x = random_tensor(dtype, {2, 6, 3, 5}, 5);
    const Tensor scale = random_tensor(dtype, {6}, 6), bias = random_tensor(dtype, {6}, 7),
                 mean = random_tensor(DType::F32, {6}, 8);
    const Tensor variance = Tensor::of(DType::F32, {6}, {1, 0.5, 2, 3, 0.25, 1.5});
    expect_decomposition("batch_norm", {x, scale, bias, mean, variance}, {{"epsilon", 1e-5}});
    expect_decomposition("instance_norm", {x, scale, bias}, {{"epsilon", 1e-5}});
    expect_decomposition("instance_norm", {x}, {{"epsilon", 1e-5}});
    expect_decomposition("group_norm", {x, scale, bias}, {{"groups", int64_t{3}}, {"epsilon", 1e-5}});
    expect_decomposition("lrn", {x}, {{"size", int64_t{3}}, {"alpha", 2e-4}, {"beta", 0.5}, {"bias", 2.0}});
    expect_decomposition("lrn", {x}, {{"size", int64_t{4}}, {"alpha", 0.5}, {"beta", 0.75}, {"bias", 1.0}});
  }
  const Tensor flat = random_tensor(DType::F32, {4}, 9);
  const Tensor one = Tensor::of(DType::F32, {1}, {2});
  expect_decomposition("batch_norm", {flat, one, one, one, one}, {{"epsilon", 0.0}});
  expect_decomposition("instance_norm", {Tensor(DType::F32, {2, 0, 3})}, {{"epsilon", 1e-5}});
  expect_decomposition("instance_norm", {Tensor(DType::F32, {2, 3, 0})}, {{"epsilon", 1e-5}});
}

TEST(BatchNorm, ByHand) {
  const Tensor y = run_all("batch_norm",
                           {floats({1, 2, 2}, {1, 2, 3, 4}), floats({2}, {1, 2}), floats({2}, {0, 1}),
                            floats({2}, {1, 3}), floats({2}, {4, 1})},
                           {{"epsilon", 0.0}})[0];
  EXPECT_EQ(values_of(y), (std::vector<double>{0, 0.5, 1, 3}));
}

TEST(LpNorm, ZeroVectorsStayZero) {
  for (const int64_t p : {1, 2}) {
    for (const DType dtype : kFloats) {
      expect_decomposition("lp_norm", {random_tensor(dtype, {3, 4}, 10)}, {{"axis", int64_t{0}}, {"p", p}});
    }
    const Tensor zero = run_decomposition("lp_norm", {Tensor(DType::F32, {2, 2})}, {{"axis", int64_t{1}}, {"p", p}})[0];
    EXPECT_EQ(values_of(zero), (std::vector<double>{0, 0, 0, 0}));
  }
  EXPECT_EQ(values_of(run_all("lp_norm", {floats({2}, {3, -4})}, {{"axis", int64_t{0}}, {"p", int64_t{2}}})[0]),
            values_of(floats({2}, {0.6, -0.8})));
}

}  // namespace
}  // namespace fuseloom::op
