// Recurrent layers against the reference: a few steps written out, and loops over many, or an unknown number.
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
  bool unknown_steps = false, lengths = false, peepholes = false;
  const char* activations = "";
  double clip = 0;
  int64_t input_forget = 0, hidden = 10, batch = 3;
};

// Small enough that an error does not grow from step to step.
Tensor weights(DType dtype, Dims dims, uint64_t seed) {
  const Tensor plain = numbers(dtype, std::move(dims), seed);
  Tensor small(dtype, Dims(plain.dims()));
  for (int64_t i = 0; i < plain.count(); ++i) small.set(i, plain.at(i) / 8);
  return small;
}

class RecurrentTest : public testing::TestWithParam<Layer> {};

TEST_P(RecurrentTest, AgreesWithTheReference) {
  const Layer& layer = GetParam();
  const int64_t gates = std::string(layer.op) == "lstm" ? 4 : std::string(layer.op) == "gru" ? 3 : 1, hidden = layer.hidden, in = 7;
  const int64_t directions = std::string(layer.direction) == "bidirectional" ? 2 : 1;
  graph::Graph graph(op::standard_ops());
  const sym::Expr n = sym::Expr::symbol("n");
  const auto order = [&](const sym::Expr& steps, const sym::Expr& batch) { return layer.layout != 0 ? op::Shape{batch, steps} : op::Shape{steps, batch}; };
  op::Shape x_shape = order(layer.unknown_steps ? sym::Expr::symbol("steps") : sym::Expr(layer.steps), n), state_shape = order(directions, n);
  x_shape.push_back(in);
  state_shape.push_back(hidden);
  const auto dims_of = [&](const op::Shape& shape) {
    Dims dims;
    for (const sym::Expr& size : shape) dims.push_back(size.is_const() ? *size.as_const() : size == n ? layer.batch : layer.steps);
    return dims;
  };
  std::vector<Tensor> inputs{numbers(layer.dtype, dims_of(x_shape), 1)};
  std::vector<graph::ValueId> operands{graph.add_input("x", {layer.dtype, x_shape}), graph.add_constant(weights(layer.dtype, {directions, gates * hidden, in}, 2)),
                                       graph.add_constant(weights(layer.dtype, {directions, gates * hidden, hidden}, 3))};
  operands.push_back(layer.bias ? graph.add_constant(numbers(layer.dtype, {directions, 2 * gates * hidden}, 4)) : graph::ValueId{});
  operands.push_back({});
  if (layer.lengths) {
    operands.back() = graph.add_input("lengths", {DType::I32, {n}});
    Tensor lengths(DType::I32, {layer.batch});
    for (int64_t i = 0; i < layer.batch; ++i) lengths.as<int32_t>()[i] = static_cast<int32_t>((i * 7 + layer.steps) % (layer.steps + 1));
    inputs.push_back(std::move(lengths));
  }
  if (layer.state) {
    for (int i = 0; i < (gates == 4 ? 2 : 1); ++i) {
      operands.push_back(graph.add_input("state" + std::to_string(i), {layer.dtype, state_shape}));
      inputs.push_back(numbers(layer.dtype, dims_of(state_shape), static_cast<uint64_t>(5 + i)));
    }
  }
  if (layer.peepholes) {
    operands.resize(7);
    operands.push_back(graph.add_constant(numbers(layer.dtype, {directions, 3 * hidden}, 9)));
  }
  while (!operands.back().valid()) operands.pop_back();
  op::Attrs attrs{{"direction", std::string(layer.direction)}, {"layout", layer.layout}};
  if (layer.activations[0] != 0) attrs.set("activations", std::string(layer.activations));
  if (layer.clip != 0) attrs.set("clip", layer.clip);
  if (layer.input_forget != 0) attrs.set("input_forget", layer.input_forget);
  if (gates == 3) attrs.set("linear_before_reset", layer.linear_before_reset);
  const graph::NodeId node = graph.add_node(layer.op, operands, attrs, gates == 4 ? 3 : 2);
  graph.set_outputs(std::vector<graph::ValueId>(graph.node(node).outputs));
  expect_paths_agree(graph, inputs);
  EXPECT_EQ(compile::compile(graph.clone()).report.program_text.find("call "), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(All, RecurrentTest,
                         testing::Values(Layer{"lstm", "forward", 1, 0, true, true}, Layer{"lstm", "bidirectional", 3, 0, true, true},
                                         Layer{"lstm", "reverse", 2, 1, false, false}, Layer{"gru", "forward", 2, 0, true, true, 0},
                                         Layer{"gru", "bidirectional", 3, 1, true, true, 1}, Layer{"gru", "reverse", 1, 0, false, false, 1},
                                         Layer{"rnn", "bidirectional", 4, 0, true, true}, Layer{"lstm", "forward", 2, 0, true, true, 0, DType::F16},
                                         Layer{"lstm", "forward", 20, 0, true, true}, Layer{"lstm", "bidirectional", 9, 1, true, true, 0, DType::F32, true, true, true},
                                         Layer{"lstm", "reverse", 11, 0, false, false, 0, DType::F64, true, false, true, "hard_sigmoid,softsign,scaled_tanh", 0.7, 1, 33, 5},
                                         Layer{"lstm", "forward", 12, 0, true, true, 0, DType::BF16, true}, Layer{"lstm", "forward", 1, 1, true, true, 0, DType::F32, true, true},
                                         Layer{"gru", "forward", 12, 0, true, true, 0}, Layer{"gru", "bidirectional", 10, 1, true, true, 1, DType::F32, true, true},
                                         Layer{"gru", "reverse", 13, 0, true, false, 0, DType::F32, true, true, false, "hard_sigmoid,elu", 0, 0, 16, 9},
                                         Layer{"gru", "bidirectional", 10, 0, false, true, 1, DType::F32, false, false, false, "", 0, 0, 40, 8},
                                         Layer{"rnn", "forward", 30, 0, true, true, 0, DType::F32, false, true}, Layer{"rnn", "bidirectional", 9, 0, true, true, 0, DType::F64, true, false, false, "relu,relu"},
                                         Layer{"rnn", "forward", 0, 0, true, true, 0, DType::F32, true}, Layer{"lstm", "forward", 10, 0, true, true, 0, DType::F32, true, true, false, "", 0, 0, 10, 0}),
                         [](const testing::TestParamInfo<Layer>& info) {
                           return fmt::format("{}_{}_{}_{}", info.param.op, info.param.direction, info.param.steps, info.index);
                         });

// A length that no sequence of this input can have is the caller's mistake, on every path.
TEST(RecurrentLengths, OutsideOfTheStepsIsAnError) {
  graph::Graph graph(op::standard_ops());
  const sym::Expr steps = sym::Expr::symbol("steps");
  const graph::ValueId x = graph.add_input("x", {DType::F32, {steps, 2, 3}}), lengths = graph.add_input("lengths", {DType::I64, {2}});
  const graph::NodeId node = graph.add_node("rnn", {x, graph.add_constant(numbers(DType::F32, {1, 4, 3}, 1)), graph.add_constant(numbers(DType::F32, {1, 4, 4}, 2)), {}, lengths},
                                            {{"direction", std::string("forward")}}, 1);
  graph.set_outputs({graph.node(node).outputs[0]});
  const compile::Compiled compiled = compile::compile(graph.clone());
  for (const int64_t length : {int64_t{-1}, int64_t{6}}) {
    const std::vector<Tensor> inputs{numbers(DType::F32, {5, 2, 3}, 3), Tensor::of_ints(DType::I64, {2}, std::vector<int64_t>{2, length})};
    EXPECT_THROW(graph::evaluate(graph, inputs), UserError);
    EXPECT_THROW(compiled.executable->run(inputs), UserError);
  }
  EXPECT_NO_THROW(compiled.executable->run({{numbers(DType::F32, {5, 2, 3}, 3), Tensor::of_ints(DType::I64, {2}, std::vector<int64_t>{0, 5})}}));
}

}  // namespace
}  // namespace fuseloom::test
