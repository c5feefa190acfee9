// Convolutions of every kind against the oracle: ranks, strides, dilations, pads, groups, and sizes that are multiples of
// nothing; blocks of many rows, of one row, and of a part of a row.
#include "path/path_testing.h"

namespace fuseloom::test {
namespace {

struct Convolution {
  const char* name;
  Dims x, w;
  std::vector<int64_t> strides, dilations, low, high;
  int64_t groups = 1;
  std::vector<int64_t> output_padding = {};          // not empty: transposed
  DType dtype = DType::F32;
  bool prologue = false;                             // the input is computed in the same kernel
  bool constant_weights = true;
};

// Batch and spatial sizes are symbols, so that one kernel must hold for all of them.
graph::Graph graph_of(const Convolution& c, std::vector<Tensor>& inputs) {
  graph::Graph graph(op::standard_ops());
  op::Shape shape{sym::Expr::symbol("n"), sym::Expr(c.x[1])};
  for (size_t d = 2; d < c.x.size(); ++d) shape.push_back(sym::Expr::symbol(fmt::format("s{}", d)));
  graph::ValueId x = graph.add_input("x", {c.dtype, shape});
  inputs.push_back(numbers(c.dtype, c.x, 1));
  graph::ValueId w;
  if (c.constant_weights) {
    w = graph.add_constant(numbers(c.dtype, c.w, 2), "w");
  } else {
    w = graph.add_input("w", {c.dtype, op::Shape(c.w.begin(), c.w.end())});
    inputs.push_back(numbers(c.dtype, c.w, 2));
  }
  const int64_t channels = c.output_padding.empty() ? c.w[0] : c.w[1] * c.groups;
  const graph::ValueId bias = graph.add_constant(numbers(c.dtype, {channels}, 3), "bias");
  if (c.prologue) x = graph.add("sigmoid", {x});
  op::Attrs attrs{{"strides", c.strides}, {"dilations", c.dilations}, {"pads_low", op::Shape(c.low.begin(), c.low.end())},
                  {"pads_high", op::Shape(c.high.begin(), c.high.end())}, {"groups", c.groups}};
  if (!c.output_padding.empty()) attrs.set("output_padding", c.output_padding);
  const graph::ValueId y = graph.add(c.output_padding.empty() ? "conv" : "conv_transpose", {x, w, bias}, attrs);
  graph.set_outputs({graph.add("hard_swish", {y})});
  return graph;
}

class ConvolutionTest : public testing::TestWithParam<Convolution> {};

TEST_P(ConvolutionTest, AgreesWithTheOracle) {
  std::vector<Tensor> inputs;
  const graph::Graph graph = graph_of(GetParam(), inputs);
  PathOptions options;
  options.fuse = {true};
  expect_paths_agree(graph, inputs, options);
}

INSTANTIATE_TEST_SUITE_P(
    All, ConvolutionTest,
    testing::Values(
        Convolution{"pointwise", {2, 5, 7, 9}, {20, 5, 1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}},
        Convolution{"pointwise_strided", {2, 5, 7, 9}, {6, 5, 1, 1}, {2, 3}, {1, 1}, {0, 0}, {0, 0}},
        Convolution{"pointwise_padded", {1, 5, 7, 9}, {6, 5, 1, 1}, {1, 1}, {1, 1}, {2, 0}, {0, 1}},
        Convolution{"three", {2, 3, 33, 21}, {17, 3, 3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
        Convolution{"three_strided", {1, 4, 31, 45}, {8, 4, 3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}},
        Convolution{"uneven", {1, 2, 14, 15}, {5, 2, 2, 5}, {3, 1}, {2, 1}, {0, 3}, {2, 1}},
        Convolution{"dilated_strided", {1, 2, 30, 40}, {5, 2, 3, 3}, {2, 2}, {2, 3}, {2, 3}, {2, 3}},
        Convolution{"not_padded", {1, 3, 12, 19}, {4, 3, 5, 5}, {1, 1}, {1, 1}, {0, 0}, {0, 0}},
        Convolution{"long_row", {1, 2, 3, 1300}, {3, 2, 3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
        Convolution{"one_row", {2, 3, 1100}, {5, 3, 7}, {1}, {1}, {3}, {3}},
        Convolution{"one_row_strided", {1, 3, 1601}, {5, 3, 4}, {2}, {1}, {1}, {2}},
        Convolution{"three_axes", {1, 2, 5, 6, 7}, {3, 2, 3, 2, 3}, {1, 2, 1}, {1, 1, 2}, {1, 0, 2}, {1, 1, 1}},
        Convolution{"one_element", {1, 1, 1, 1}, {1, 1, 3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
        Convolution{"empty_batch", {0, 2, 6, 6}, {3, 2, 3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
        Convolution{"many_channels", {1, 300, 6, 7}, {30, 300, 3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
        Convolution{"grouped", {2, 12, 9, 11}, {8, 3, 3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 4},
        Convolution{"depthwise", {2, 6, 11, 40}, {6, 1, 3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 6},
        Convolution{"depthwise_strided", {1, 6, 23, 37}, {6, 1, 5, 5}, {2, 2}, {1, 1}, {2, 2}, {2, 2}, 6},
        Convolution{"depthwise_twice", {1, 5, 9, 18}, {10, 1, 3, 3}, {1, 2}, {2, 1}, {1, 0}, {3, 2}, 5},
        Convolution{"depthwise_one_row", {1, 4, 9001}, {4, 1, 3}, {1}, {1}, {1}, {1}, 4},
        Convolution{"depthwise_three_axes", {1, 3, 4, 5, 18}, {3, 1, 2, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}, 3},
        Convolution{"prologue", {1, 3, 12, 14}, {4, 3, 3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 1, {}, DType::F32, true},
        Convolution{"depthwise_prologue", {1, 4, 12, 14}, {4, 1, 3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}, 4, {}, DType::F32, true},
        Convolution{"half", {1, 3, 12, 14}, {4, 3, 3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 1, {}, DType::F16},
        Convolution{"double", {1, 3, 12, 14}, {4, 3, 3, 3}, {2, 1}, {1, 1}, {1, 1}, {1, 1}, 1, {}, DType::F64},
        Convolution{"run_time_weights", {2, 3, 12, 14}, {4, 3, 3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 1, {}, DType::F32, false, false},
        Convolution{"transposed", {2, 3, 7, 9}, {3, 4, 2, 2}, {2, 2}, {1, 1}, {0, 0}, {0, 0}, 1, {0, 0}},
        Convolution{"transposed_overlapping", {1, 4, 7, 9}, {4, 3, 3, 4}, {2, 3}, {1, 1}, {1, 0}, {1, 1}, 1, {1, 0}},
        Convolution{"transposed_dilated_grouped", {1, 4, 6, 5}, {4, 2, 3, 2}, {2, 1}, {2, 3}, {1, 0}, {0, 2}, 2, {1, 0}},
        Convolution{"transposed_one_row", {1, 2, 9}, {2, 3, 5}, {3}, {1}, {-1}, {0}, 1, {2}}),
    [](const testing::TestParamInfo<Convolution>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace fuseloom::test
