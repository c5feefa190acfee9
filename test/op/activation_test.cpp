#include <functional>

#include "op/op_testing.h"

namespace fuseloom::op {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softplus(double x) { return x > 30 ? x : std::log1p(std::exp(x)); }

struct Row {
  const char* op;
  Attrs attrs;
  std::function<double(double)> formula;
};

// The formulas of ONNX and PyTorch, written apart from the rules.
std::vector<Row> rows() {
  return {
      {"relu", {}, [](double x) { return x > 0 ? x : 0; }},
      {"square", {}, [](double x) { return x * x; }},
      {"leaky_relu", {{"alpha", 0.25}}, [](double x) { return x < 0 ? 0.25 * x : x; }},
      {"thresholded_relu", {{"alpha", 0.5}}, [](double x) { return x > 0.5 ? x : 0; }},
      {"elu", {{"alpha", 2.0}}, [](double x) { return x > 0 ? x : 2 * (std::exp(x) - 1); }},
      {"selu",
       {{"alpha", 1.5}, {"gamma", 3.0}},
       [](double x) { return x > 0 ? 3 * x : 3 * (1.5 * std::exp(x) - 1.5); }},
      {"celu", {{"alpha", 2.0}}, [](double x) { return std::max(0.0, x) + std::min(0.0, 2 * (std::exp(x / 2) - 1)); }},
      {"sigmoid", {}, sigmoid},
      {"silu", {}, [](double x) { return x * sigmoid(x); }},
      {"swish", {{"alpha", 1.5}}, [](double x) { return x * sigmoid(1.5 * x); }},
      {"gelu", {}, [](double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); }},
      {"gelu_tanh",
       {},
       [](double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }},
      {"hard_sigmoid",
       {{"alpha", 0.25}, {"beta", 0.5}},
       [](double x) { return std::max(0.0, std::min(1.0, 0.25 * x + 0.5)); }},
      {"hard_swish", {}, [](double x) { return x * std::max(0.0, std::min(1.0, x / 6 + 0.5)); }},
      {"hard_tanh", {{"low", -2.0}, {"high", 1.0}}, [](double x) { return std::max(-2.0, std::min(1.0, x)); }},
      {"softplus", {}, softplus},
      {"softsign", {}, [](double x) { return x / (1 + std::fabs(x)); }},
      {"mish", {}, [](double x) { return x * std::tanh(softplus(x)); }},
      {"shrink",
       {{"bias", 0.25}, {"lambd", 0.5}},
       [](double x) { return x < -0.5 ? x + 0.25 : (x > 0.5 ? x - 0.25 : 0); }},
  };
}

TEST(Activation, MatchesTheFormulas) {
  for (const Row& row : rows()) {
    for (const DType dtype : {DType::F16, DType::BF16, DType::F32, DType::F64}) {
      SCOPED_TRACE(row.op);
      const Tensor x = Tensor::of(dtype, {13}, {-40, -6, -3, -1, -0.5, -0.25, 0, 0.25, 0.5, 1, 3, 6, 40});
      Tensor expected(dtype, {13});
      for (int64_t i = 0; i < 13; ++i) expected.set(i, row.formula(x.at(i)));
      const double unit =
          dtype == DType::BF16 ? 0x1p-8 : (dtype == DType::F16 ? 0x1p-11 : (dtype == DType::F32 ? 1e-6 : 1e-14));
      expect_close(run(row.op, {x}, row.attrs), expected, unit);
    }
  }
}

TEST(Activation, NanPropagates) {
  for (const Row& row : rows()) {
    if (std::string_view(row.op) == "thresholded_relu" || std::string_view(row.op) == "shrink")
      continue;  // a choice of 0
    EXPECT_TRUE(std::isnan(run(row.op, {floats({kNan})}, row.attrs).at(0))) << row.op;
  }
}

TEST(Activation, SeveralInputs) {
  expect_values(run("prelu", {Tensor::of(DType::F32, {2, 2}, {-1, 2, -3, 4}), floats({0.5, 10})}), {-0.5, 2, -1.5, 4});
  expect_ints(run("clamp", {ints(DType::I8, {-100, 5, 100}), ints(DType::I8, {-10}), ints(DType::I8, {10})}),
              {-10, 5, 10});
  expect_ints(run("relu", {ints(DType::I32, {-5, 5})}), {0, 5});
}

TEST(Activation, LargeArgumentsStayFinite) {
  expect_values(run("softplus", {floats({1000, -1000})}), {1000, 0});
  expect_values(run("sigmoid", {floats({1000, -1000})}), {1, 0});
  expect_values(run("gelu", {floats({1000, kInf})}), {1000, kInf});
}

TEST(Activation, CostsComeFromTheRule) {
  EXPECT_GE(standard_ops().at("gelu").cost, standard_ops().at("erf").cost);
  EXPECT_EQ(standard_ops().at("relu").cost, 1);
}

}  // namespace
}  // namespace fuseloom::op
