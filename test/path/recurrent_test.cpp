// Recurrent layers of a few steps, written out, against the reference.
#include "path/path_testing.h"

namespace fuseloom::test {
namespace {

struct Layer {
  const char* op;
  const char* direction;
  int64_t steps, layout;
  bool bias, state;
  int64_t linear_before_reset = 0;
  DType dtype = DType::F32;
};

class RecurrentTest : public testing::TestWithParam<Layer> {};

TEST_P(RecurrentTest, AgreesWithTheReference) {
  const Layer& layer = GetParam();
  const int64_t gates = std::string(layer.op) == "lstm" ? 4 : std::string(layer.op) == "gru" ? 3 : 1, hidden = 10, in = 7;
  const int64_t directions = std::string(layer.direction) == "bidirectional" ? 2 : 1;
  graph::Graph graph(op::standard_ops());
  const sym::Expr n = sym::Expr::symbol("n");
  const auto order = [&](const sym::Expr& steps, const sym::Expr& batch) { return layer.layout != 0 ? op::Shape{batch, steps} : op::Shape{steps, batch}; };
  op::Shape x_shape = order(layer.steps, n), state_shape = order(directions, n);
  x_shape.push_back(in);
  state_shape.push_back(hidden);
  const auto dims_of = [](const op::Shape& shape) {
    Dims dims;
    for (const sym::Expr& size : shape) dims.push_back(size.is_const() ? *size.as_const() : 3);
    return dims;
  };
  std::vector<Tensor> inputs{numbers(layer.dtype, dims_of(x_shape), 1)};
  std::vector<graph::ValueId> operands{graph.add_input("x", {layer.dtype, x_shape}), graph.add_constant(numbers(layer.dtype, {directions, gates * hidden, in}, 2)),
                                       graph.add_constant(numbers(layer.dtype, {directions, gates * hidden, hidden}, 3))};
  operands.push_back(layer.bias ? graph.add_constant(numbers(layer.dtype, {directions, 2 * gates * hidden}, 4)) : graph::ValueId{});
  if (layer.state) {
    operands.push_back({});
    for (int i = 0; i < (gates == 4 ? 2 : 1); ++i) {
      operands.push_back(graph.add_input("state" + std::to_string(i), {layer.dtype, state_shape}));
      inputs.push_back(numbers(layer.dtype, dims_of(state_shape), static_cast<uint64_t>(5 + i)));
    }
  }
  while (!operands.back().valid()) operands.pop_back();
  op::Attrs attrs{{"direction", std::string(layer.direction)}, {"layout", layer.layout}};
  if (gates == 3) attrs.set("linear_before_reset", layer.linear_before_reset);
  const graph::NodeId node = graph.add_node(layer.op, operands, attrs, gates == 4 ? 3 : 2);
  graph.set_outputs(std::vector<graph::ValueId>(graph.node(node).outputs));
  expect_paths_agree(graph, inputs);
  EXPECT_EQ(compile::compile(graph.clone()).report.program_text.find(std::string("call ") + layer.op), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(All, RecurrentTest,
                         testing::Values(Layer{"lstm", "forward", 1, 0, true, true}, Layer{"lstm", "bidirectional", 3, 0, true, true},
                                         Layer{"lstm", "reverse", 2, 1, false, false}, Layer{"gru", "forward", 2, 0, true, true, 0},
                                         Layer{"gru", "bidirectional", 3, 1, true, true, 1}, Layer{"gru", "reverse", 1, 0, false, false, 1},
                                         Layer{"rnn", "bidirectional", 4, 0, true, true}, Layer{"lstm", "forward", 2, 0, true, true, 0, DType::F16}),
                         [](const testing::TestParamInfo<Layer>& info) {
                           return fmt::format("{}_{}_{}_{}", info.param.op, info.param.direction, info.param.steps, info.index);
                         });

}  // namespace
}  // namespace fuseloom::test
