// Kernels that differ in sizes and constants only are compiled once, and still compute what each launch asks for.
#include "path/path_testing.h"

#include "graph/graph.h"

namespace fuseloom::test {
namespace {

// relu(x · w + c) * scale, a few times with other widths.
graph::Graph layers(const std::vector<int64_t>& widths, const std::vector<double>& scales) {
  graph::Graph graph(op::standard_ops());
  graph::ValueId x = graph.add_input("x", {DType::F32, {sym::Expr::symbol("n"), widths[0]}});
  for (size_t i = 1; i < widths.size(); ++i) {
    const graph::ValueId w = graph.add_constant(numbers(DType::F32, {widths[i - 1], widths[i]}, i));
    const graph::ValueId bias = graph.add_constant(numbers(DType::F32, {widths[i]}, i + 100));
    const graph::ValueId sum = graph.add("add", {graph.add("matmul", {x, w}), bias});
    x = graph.add("mul", {graph.add("relu", {sum}), graph.add_constant(Tensor::scalar(DType::F32, scales[i - 1]))});
  }
  graph.set_outputs({x});
  return graph;
}

TEST(SharedKernels, LayersOfOtherWidthsAreOneKernel) {
  const graph::Graph graph = layers({20, 70, 33, 81, 50}, {0.5, 0.25, -1.0, 0.125});
  expect_paths_agree(graph, std::vector<Tensor>{numbers(DType::F32, {9, 20}, 7)});
  const compile::Compiled compiled = compile::compile(graph.clone());
  EXPECT_EQ(compiled.report.kernels, 4u);
  EXPECT_EQ(compiled.report.distinct_kernels, 2u) << compiled.report.kernels_text;     // the layers, and the packing of weights
}

TEST(SharedKernels, OneLayerKeepsItsConstants) {
  const compile::Compiled compiled = compile::compile(layers({20, 70}, {0.5}));
  EXPECT_NE(compiled.report.kernels_text.find("constant 0.5"), std::string::npos) << compiled.report.kernels_text;
  EXPECT_NE(compiled.report.kernels_text.find("70"), std::string::npos) << compiled.report.kernels_text;
}

// Positions in a pyramid of symbolic sizes: each level's extents are other expressions over the same symbols.
TEST(SharedKernels, LevelsOfSymbolicSizes) {
  graph::Graph graph(op::standard_ops());
  graph::ValueId x = graph.add_input("x", {DType::F32, {1, 3, sym::Expr::symbol("h"), sym::Expr::symbol("w")}});
  for (int level = 0; level < 3; ++level) {
    const graph::ValueId w = graph.add_constant(numbers(DType::F32, {3, 3, 3, 3}, static_cast<uint64_t>(level + 1)));
    x = graph.add("conv", {x, w}, {{"strides", std::vector<int64_t>{2, 2}}, {"dilations", std::vector<int64_t>{1, 1}},
                                   {"pads_low", op::Shape{1, 1}}, {"pads_high", op::Shape{1, 1}}, {"groups", int64_t{1}}});
    x = graph.add("relu", {x});
  }
  graph.set_outputs({x});
  for (const Dims& dims : {Dims{1, 3, 40, 52}, Dims{1, 3, 9, 1}}) expect_paths_agree(graph, std::vector<Tensor>{numbers(DType::F32, dims, 3)});
  const compile::Compiled compiled = compile::compile(graph.clone());
  EXPECT_EQ(compiled.report.distinct_kernels, 2u) << compiled.report.kernels_text;
}

}  // namespace
}  // namespace fuseloom::test
