// Element types narrower than fuseloom's, quantized operators, and operators of com.microsoft.
#include <gtest/gtest.h>

#include <cmath>

#include "front/onnx/importer.h"
#include "front/onnx/tensor_proto.h"
#include "graph/evaluate.h"
#include "graph/verify.h"
#include "support/onnx_writer.h"

namespace fuseloom::front::onnx {
namespace {

using namespace test;
constexpr int kF = onnx_type::kFloat, kU8 = onnx_type::kUInt8;

std::vector<Tensor> run(const OnnxGraph& graph, const std::vector<Tensor>& inputs, int64_t opset = 21) {
  const ImportedModel model = import_onnx_bytes(onnx_model(graph, opset, {}, {{"com.microsoft", 1}}), {}, "m.onnx");
  graph::verify(model.graph);
  return graph::evaluate(model.graph, inputs);
}

// Every f32 between two neighbours of a format goes to the nearer one, and every value of the format stays.
TEST(Narrow, CastsRoundToTheNearestValue) {
  for (const ElementType type : {ElementType::Float8E4M3FN, ElementType::Float8E4M3FNUZ, ElementType::Float8E5M2,
                                 ElementType::Float8E5M2FNUZ, ElementType::Float4E2M1}) {
    SCOPED_TRACE(element_type_name(type));
    std::vector<float> grid;
    const int64_t bits = element_bits(type);
    for (int code = 0; code < 1 << (bits - 1); ++code) {
      const float value = narrow_float_value(type, static_cast<uint8_t>(code));
      if (std::isfinite(value)) grid.push_back(value);
    }
    std::vector<double> inputs, expected;
    for (size_t i = 0; i + 1 < grid.size(); ++i) {
      const double low = grid[i], high = grid[i + 1], middle = (low + high) / 2;
      for (const auto& [x, y] : std::vector<std::pair<double, double>>{{low, low},
                                                                       {low + (high - low) * 0.25, low},
                                                                       {low + (high - low) * 0.75, high},
                                                                       {middle, i % 2 == 0 ? low : high}}) {
        inputs.insert(inputs.end(), {x, -x});
        expected.insert(expected.end(), {y, -y});
      }
    }
    inputs.push_back(1e30);
    expected.push_back(narrow_float(type).max);
    const auto n = static_cast<int64_t>(inputs.size());
    const Tensor y = run({.nodes = {onnx_node("Cast", {"x"}, {"y"}, {attr_int("to", static_cast<int>(type))})},
                          .inputs = {onnx_value("x", kF, {"n"})},
                          .outputs = {onnx_untyped("y")}},
                         {Tensor::of(DType::F32, {n}, inputs)})[0];
    for (int64_t i = 0; i < n; ++i)
      EXPECT_EQ(y.at(i), expected[static_cast<size_t>(i)]) << inputs[static_cast<size_t>(i)];
  }
}

TEST(Quantize, RoundsHalfToEvenAndSaturates) {
  const OnnxGraph graph{.nodes = {onnx_node("QuantizeLinear", {"x", "s", "z"}, {"q"}),
                                  onnx_node("DequantizeLinear", {"q", "s", "z"}, {"y"})},
                        .inputs = {onnx_value("x", kF, {int64_t{5}})},
                        .outputs = {onnx_untyped("q"), onnx_untyped("y")},
                        .initializers = {onnx_floats("s", {}, {2}), onnx_tensor("z", kU8, {}, "\x80")}};
  const std::vector<Tensor> results = run(graph, {Tensor::of(DType::F32, {5}, {1, 3, -5, 1000, -1000})});
  const std::vector<int64_t> expected = {128, 130, 126, 255, 0};  // 0.5 → 0, 1.5 → 2, -2.5 → -2
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(results[0].int_at(i), expected[static_cast<size_t>(i)]);
  EXPECT_EQ(results[1].at(1), 4);
}

TEST(Quantize, BlockedFourBitWeights) {
  // Two blocks of two along axis 0; the values 1, -1, 7, -8 low nibble first.
  const OnnxGraph graph{
      .nodes = {onnx_node("DequantizeLinear", {"w", "s"}, {"y"}, {attr_int("axis", 0), attr_int("block_size", 2)})},
      .outputs = {onnx_untyped("y")},
      .initializers = {onnx_tensor("w", onnx_type::kInt4, {4}, std::string("\xf1\x87", 2)),
                       onnx_floats("s", {2}, {1, 0.5})}};
  const Tensor y = run(graph, {})[0];
  const std::vector<double> expected = {1, -1, 3.5, -4};
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(y.at(i), expected[static_cast<size_t>(i)]);
}

// y = x · dequantized(B)ᵀ, B [1, 1 block, 1 byte]: the nibbles 9 and 7 around the default zero point 8.
TEST(Microsoft, MatMulNBits) {
  const OnnxGraph graph{
      .nodes = {onnx_node("MatMulNBits", {"x", "b", "s"}, {"y"},
                          {attr_int("K", 2), attr_int("N", 1), attr_int("bits", 4), attr_int("block_size", 2)}, "",
                          "com.microsoft")},
      .inputs = {onnx_value("x", kF, {"n", int64_t{2}})},
      .outputs = {onnx_untyped("y")},
      .initializers = {onnx_tensor("b", kU8, {1, 1, 1}, "\x79"), onnx_floats("s", {1}, {0.5})}};
  const Tensor y = run(graph, {Tensor::of(DType::F32, {1, 2}, {3, 10})})[0];
  EXPECT_FLOAT_EQ(static_cast<float>(y.at(0)), 3 * 0.5f - 10 * 0.5f);
}

TEST(Microsoft, GroupQueryAttentionIsCausalOverThePast) {
  // One head of size 1; all scores are equal, so that each query gets the mean of the values that it sees.
  const OnnxGraph graph{
      .nodes = {onnx_node("GroupQueryAttention", {"q", "k", "v", "pk", "pv", "len", "total"}, {"y", "k2", "v2"},
                          {attr_int("num_heads", 1), attr_int("kv_num_heads", 1)}, "", "com.microsoft")},
      .inputs = {onnx_value("q", kF, {int64_t{1}, "s", int64_t{1}}), onnx_value("k", kF, {int64_t{1}, "s", int64_t{1}}),
                 onnx_value("v", kF, {int64_t{1}, "s", int64_t{1}}),
                 onnx_value("pk", kF, {int64_t{1}, int64_t{1}, "p", int64_t{1}}),
                 onnx_value("pv", kF, {int64_t{1}, int64_t{1}, "p", int64_t{1}}),
                 onnx_value("len", onnx_type::kInt32, {int64_t{1}}), onnx_value("total", onnx_type::kInt32, {})},
      .outputs = {onnx_untyped("y"), onnx_untyped("k2"), onnx_untyped("v2")}};
  const Tensor zero = Tensor(DType::F32, {1, 2, 1}), past = Tensor::of(DType::F32, {1, 1, 1, 1}, {3});
  const std::vector<Tensor> results =
      run(graph, {zero, zero, Tensor::of(DType::F32, {1, 2, 1}, {5, 10}), Tensor(DType::F32, {1, 1, 1, 1}), past,
                  Tensor::of(DType::I32, {1}, {2}), Tensor::scalar(DType::I32, 3)});
  EXPECT_FLOAT_EQ(static_cast<float>(results[0].at(0)), 4);
  EXPECT_FLOAT_EQ(static_cast<float>(results[0].at(1)), 6);
  EXPECT_EQ(results[2].dims(), (Dims{1, 1, 3, 1}));
}

// Repeated labels, an ellipsis, a label that only one operand has.
TEST(Einsum, DiagonalEllipsisAndSum) {
  const OnnxGraph graph{
      .nodes = {onnx_node("Einsum", {"a", "b"}, {"y"}, {attr_text("equation", "...ii,...j->...j")})},
      .inputs = {onnx_value("a", kF, {"n", int64_t{2}, int64_t{2}}), onnx_value("b", kF, {"n", int64_t{2}})},
      .outputs = {onnx_untyped("y")}};
  const Tensor y =
      run(graph, {Tensor::of(DType::F32, {1, 2, 2}, {1, 2, 3, 4}), Tensor::of(DType::F32, {1, 2}, {10, 100})})[0];
  EXPECT_EQ(y.dims(), (Dims{1, 2}));
  EXPECT_EQ(y.at(0), 50);
  EXPECT_EQ(y.at(1), 500);
}

TEST(Resize, FloorsTheScaledSizeOfASymbol) {
  const OnnxGraph graph{.nodes = {onnx_node("Resize", {"x", "", "s"}, {"y"}, {attr_text("mode", "nearest")})},
                        .inputs = {onnx_value("x", kF, {int64_t{1}, int64_t{1}, "h", "w"})},
                        .outputs = {onnx_untyped("y")},
                        .initializers = {onnx_floats("s", {4}, {1, 1, 0.7f, 2.5f})}};
  EXPECT_EQ(run(graph, {Tensor(DType::F32, {1, 1, 10, 5})})[0].dims(), (Dims{1, 1, 7, 12}));
}

}  // namespace
}  // namespace fuseloom::front::onnx
