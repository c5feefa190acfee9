// Every composite op on symbolic shapes: the graph decomposed into primitives verifies, keeps its types, and computes
// what the op's own reference computes, for small, empty and odd sizes.
#include <cmath>
#include <random>

#include "graph/evaluate.h"
#include "graph/graph_testing.h"
#include "graph/pass/pass.h"

namespace fuseloom::graph {
namespace {

Tensor random_input(const op::TensorType& type, const SymbolValues& sizes, std::mt19937_64& random) {
  Dims dims;
  for (const sym::Expr& size : type.shape) dims.push_back(sym::evaluate(size, sizes));
  Tensor tensor(type.dtype, dims);
  std::normal_distribution<double> normal;
  for (int64_t i = 0; i < tensor.count(); ++i) {
    if (is_float(type.dtype)) {
      tensor.set(i, normal(random));
    } else {
      tensor.set_int(i, static_cast<int64_t>(random() % 2));  // in range as an index, a length and a mask
    }
  }
  return tensor;
}

void check(std::string_view text, const std::vector<SymbolValues>& cases) {
  SCOPED_TRACE(std::string(text));
  const Graph whole = parse(text);
  verify(whole);
  Graph parts = whole.clone();
  while (decompose(parts)) verify(parts);
  remove_dead_nodes(parts);
  for (const NodeId id : parts.nodes()) {
    ASSERT_TRUE(parts.node(id).op->family != op::Family::Composite) << parts.node(id).op->name << " is left";
  }
  for (size_t i = 0; i < whole.outputs().size(); ++i) {
    ASSERT_EQ(op::to_string(parts.type(parts.outputs()[i])), op::to_string(whole.type(whole.outputs()[i])));
  }
  const uint64_t seed = 20;
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (const SymbolValues& sizes : cases) {
    std::vector<Tensor> inputs;
    for (const ValueId input : whole.inputs()) inputs.push_back(random_input(whole.type(input), sizes, random));
    const std::vector<Tensor> expected = evaluate(whole, inputs), found = evaluate(parts, inputs);
    for (size_t o = 0; o < expected.size(); ++o) {
      ASSERT_EQ(found[o].type_string(), expected[o].type_string());
      const double tolerance = expected[o].dtype() == DType::F16 ? 2e-3 : 1e-5;
      for (int64_t i = 0; i < expected[o].count(); ++i) {
        const double a = found[o].at(i), b = expected[o].at(i);
        if (std::isnan(b)) {
          ASSERT_TRUE(std::isnan(a)) << found[o].type_string() << " element " << i;
        } else {
          ASSERT_NEAR(a, b, tolerance * (1 + std::abs(b))) << found[o].type_string() << " element " << i;
        }
      }
    }
  }
}

const std::vector<SymbolValues> kSizes = {{{"n", 3}, {"c", 6}, {"h", 5}},
                                          {{"n", 1}, {"c", 4}, {"h", 1}},
                                          {{"n", 0}, {"c", 2}, {"h", 3}},
                                          {{"n", 2}, {"c", 2}, {"h", 0}}};

TEST(CompositeOps, Normalizations) {
  for (const char* dtype : {"f32", "f16"}) {
    const auto with_dtype = [&](std::string text) {
      for (size_t at = text.find('@'); at != std::string::npos; at = text.find('@')) text.replace(at, 1, dtype);
      check(text, kSizes);
    };
    with_dtype(
        "graph g(%x: @[n, c, h]) { %y = softmax(%x) {axis = 1} %z = log_softmax(%x) {axis = -1} return %y, %z }");
    with_dtype(
        "graph g(%x: @[n, c, h], %s: @[c, h], %b: @[h]) { %y, %m, %i = layer_norm(%x, %s, %b) {axis = 1, epsilon = "
        "0.1} return %y, %m, %i }");
    with_dtype("graph g(%x: @[n, c, h], %s: @[h]) { %y = rms_norm(%x, %s) {axis = 2, epsilon = 0.1} return %y }");
    with_dtype(
        "graph g(%x: @[n, c, h], %s: @[c]) { %v = mul(%s, %s) %y = batch_norm(%x, %s, %s, %s, %v) {epsilon = 0.1} "
        "return %y }");
    with_dtype(
        "graph g(%x: @[n, c, h, h], %s: @[c]) { %y = instance_norm(%x, %s) {epsilon = 0.1} %z = group_norm(%x, %s, %s) "
        "{groups = 2, epsilon = 0.1} return %y, %z }");
    with_dtype(
        "graph g(%x: @[n, c, h, h]) { %y = lrn(%x) {size = 3, alpha = 0.1, beta = 0.75, bias = 1.0} %z = lp_norm(%x) "
        "{axis = 1, p = 2} return %y, %z }");
  }
}

TEST(CompositeOps, Attention) {
  check(
      "graph g(%q: f32[n, 4, h, 8], %k: f32[n, 2, c, 8], %v: f32[n, 2, c, 3], %m: f32[h, c]) {"
      " %y, %s = attention(%q, %k, %v, %m) {causal = 1, past = <c>, softcap = 2.0, scores = 2} return %y, %s }",
      kSizes);
  check(
      "graph g(%q: f16[n, c, h, 8], %k: f16[n, c, h, 8], %m: bool[n, 1, 1, h]) { %y = attention(%q, %k, %k, %m) {} "
      "return %y }",
      kSizes);
  check(
      "graph g(%x: f32[n, c, h, 8], %cos: f32[9, 3], %p: i64[n, h]) {"
      " %y = rotary_embedding(%x, %cos, %cos, %p) {interleaved = 1, rotary_dim = 6} return %y }",
      kSizes);
  check("graph g(%x: f32[n, c, h, 2*h], %cos: f32[1, h, h]) { %y = rotary_embedding(%x, %cos, %cos) {} return %y }",
        kSizes);
}

TEST(CompositeOps, QuantizationAndIntegerProducts) {
  check(
      "graph g(%x: f32[n, c], %s: f32[c], %z: i8[c]) { %q = quantize_linear(%x, %s, %z) {to = :i8, axis = 1}"
      " %y = dequantize_linear(%q, %s, %z) {axis = -1} return %q, %y }",
      kSizes);
  check(
      "graph g(%q: i8[n, 2*c], %s: f16[n, c]) { %y = dequantize_linear(%q, %s) {axis = 1, block_size = 2} return %y }",
      kSizes);
  check("graph g(%x: f32[n, h]) { %q, %s, %z = dynamic_quantize_linear(%x) return %q, %s, %z }", kSizes);
  check(
      "graph g(%a: u8[n, c], %b: i8[c, h], %za: u8[n], %zb: i8[h]) { %y = matmul_integer(%a, %b, %za, %zb) return %y }",
      kSizes);
  check(
      "graph g(%x: u8[n, 2, h + 2], %w: i8[c, 2, 3], %zw: i8[c]) { %y = conv_integer(%x, %w, _, %zw)"
      " {strides = [1], dilations = [1], pads_low = <0>, pads_high = <0>, groups = 1} return %y }",
      kSizes);
}

TEST(CompositeOps, IndexArithmetic) {
  check(
      "graph g(%x: f32[n, c, h], %l: i64[n]) { %y = reverse_sequence(%x, %l) {batch_axis = 0, time_axis = 1} return %y "
      "}",
      kSizes);
  check("graph g(%x: f32[n, c, 1, 1], %i: i64[n, c, 1, 1]) { %y = max_unpool(%x, %i) {sizes = <2, 2>} return %y }",
        {{{"n", 1}, {"c", 1}}, {{"n", 1}, {"c", 2}}, {{"n", 0}, {"c", 2}}});
}

}  // namespace
}  // namespace fuseloom::graph
