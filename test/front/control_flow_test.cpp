#include <gtest/gtest.h>

#include "front/onnx/importer.h"
#include "fuseloom/error.h"
#include "graph/evaluate.h"
#include "graph/verify.h"
#include "support/onnx_writer.h"

namespace fuseloom::front::onnx {
namespace {

using namespace test;
constexpr int kF = onnx_type::kFloat, kI = onnx_type::kInt64, kB = onnx_type::kBool;

ImportedModel import_graph(const OnnxGraph& graph, int64_t opset = 17, const ImportOptions& options = {}) {
  ImportedModel model = import_onnx_bytes(onnx_model(graph, opset), options, "m.onnx");
  graph::verify(model.graph);
  return model;
}
Tensor scalar(DType dtype, double value) { return Tensor::scalar(dtype, value); }
void expect_values(const Tensor& tensor, const Dims& dims, const std::vector<double>& values) {
  ASSERT_EQ(tensor.dims(), dims);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_FLOAT_EQ(tensor.at(static_cast<int64_t>(i)), values[i]) << i;
}
int count_of(const graph::Graph& graph, std::string_view op) {
  int count = 0;
  for (const graph::NodeId id : graph.nodes()) count += graph.node(id).op->name == op;
  return count;
}

OnnxGraph branch(std::vector<Message> nodes, const std::string& result) {
  return {.nodes = std::move(nodes), .outputs = {onnx_untyped(result)}};
}

// Branches capture x and a weight, and give different sizes.
OnnxGraph if_graph() {
  return {.nodes = {onnx_node(
              "If", {"c"}, {"y"},
              {attr_graph("then_branch", branch({onnx_node("Add", {"x", "w"}, {"a"})}, "a").write()),
               attr_graph("else_branch",
                          branch({onnx_node("Concat", {"x", "x"}, {"b"}, {attr_int("axis", 0)})}, "b").write())},
              "choose")},
          .inputs = {onnx_value("c", kB, {}), onnx_value("x", kF, {"n"})},
          .outputs = {onnx_untyped("y")},
          .initializers = {onnx_floats("w", {1}, {10})}};
}

TEST(If, TakesOneBranchAtRunTime) {
  const ImportedModel model = import_graph(if_graph());
  EXPECT_EQ(count_of(model.graph, "if"), 1);
  const Tensor x = Tensor::of(DType::F32, {2}, {1, 2});
  expect_values(graph::evaluate(model.graph, std::vector<Tensor>{scalar(DType::Bool, 1), x})[0], {2}, {11, 12});
  expect_values(graph::evaluate(model.graph, std::vector<Tensor>{scalar(DType::Bool, 0), x})[0], {4}, {1, 2, 1, 2});
}

TEST(If, KnownConditionIsResolvedAtImport) {
  OnnxGraph graph = if_graph();
  graph.inputs = {onnx_value("x", kF, {"n"})};
  graph.nodes.insert(graph.nodes.begin(), {onnx_node("Shape", {"x"}, {"s"}), onnx_node("Size", {"s"}, {"r"}),
                                           onnx_node("Equal", {"r", "one"}, {"c"})});
  graph.initializers.push_back(onnx_ints("one", {}, {1}));
  const ImportedModel model = import_graph(graph);
  EXPECT_EQ(count_of(model.graph, "if"), 0);
  expect_values(graph::evaluate(model.graph, std::vector<Tensor>{Tensor::of(DType::F32, {1}, {1})})[0], {1}, {11});
}

// squeeze(x, 1) of a scripted model: the rank would depend on a size.
TEST(If, BranchesOfDifferentRankPinTheSize) {
  const OnnxGraph graph{
      .nodes = {onnx_node("Shape", {"x"}, {"s"}), onnx_node("Gather", {"s", "one"}, {"d"}),
                onnx_node("Equal", {"d", "one"}, {"c"}),
                onnx_node("If", {"c"}, {"y"},
                          {attr_graph("then_branch", branch({onnx_node("Squeeze", {"x", "axes"}, {"a"})}, "a").write()),
                           attr_graph("else_branch", branch({onnx_node("Identity", {"x"}, {"b"})}, "b").write())},
                          "squeeze")},
      .inputs = {onnx_value("x", kF, {"n", "m"})},
      .outputs = {onnx_untyped("y")},
      .initializers = {onnx_ints("one", {}, {1}), onnx_ints("axes", {1}, {1})}};
  const ImportedModel model = import_graph(graph);
  expect_values(graph::evaluate(model.graph, std::vector<Tensor>{Tensor::of(DType::F32, {2, 1}, {1, 2})})[0], {2},
                {1, 2});
  try {
    graph::evaluate(model.graph, std::vector<Tensor>{Tensor(DType::F32, {2, 3})});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("squeeze"), std::string::npos) << error.what();
  }
}

// v grows by one element each trip; the sum of i * v[0] is scanned.
OnnxGraph loop_graph() {
  const OnnxGraph body{.nodes = {onnx_node("Concat", {"v", "one"}, {"v2"}, {attr_int("axis", 0)}),
                                 onnx_node("Cast", {"i"}, {"f"}, {attr_int("to", kF)}),
                                 onnx_node("Mul", {"f", "w"}, {"s"}), onnx_node("Less", {"f", "limit"}, {"c2"})},
                       .inputs = {onnx_value("i", kI, {}), onnx_value("c", kB, {}), onnx_value("v", kF, {""})},
                       .outputs = {onnx_untyped("c2"), onnx_untyped("v2"), onnx_untyped("s")}};
  return {.nodes = {onnx_node("Loop", {"trips", "", "x"}, {"y", "scan"}, {attr_graph("body", body.write())})},
          .inputs = {onnx_value("trips", kI, {}), onnx_value("x", kF, {"n"}), onnx_value("limit", kF, {})},
          .outputs = {onnx_untyped("y"), onnx_untyped("scan")},
          .initializers = {onnx_floats("one", {1}, {1}), onnx_floats("w", {}, {2})}};
}

TEST(Loop, CarriedSizeMayGrow) {
  const ImportedModel model = import_graph(loop_graph());
  const Tensor x = Tensor::of(DType::F32, {1}, {5});
  const auto run = [&](int64_t trips, double limit) {
    return graph::evaluate(
        model.graph, std::vector<Tensor>{scalar(DType::I64, static_cast<double>(trips)), x, scalar(DType::F32, limit)});
  };
  expect_values(run(3, 100)[0], {4}, {5, 1, 1, 1});
  expect_values(run(3, 100)[1], {3}, {0, 2, 4});
  expect_values(run(0, 100)[0], {1}, {5});
  EXPECT_EQ(run(0, 100)[1].dims(), (Dims{0}));
  expect_values(run(10, 1)[1], {2}, {0, 2});  // ends when the condition is false
}

TEST(Scan, SumsRowsInReverse) {
  const OnnxGraph body{.nodes = {onnx_node("Add", {"acc", "row"}, {"acc2"}), onnx_node("Identity", {"acc2"}, {"out"})},
                       .inputs = {onnx_value("acc", kF, {""}), onnx_value("row", kF, {""})},
                       .outputs = {onnx_untyped("acc2"), onnx_untyped("out")}};
  const ImportedModel model =
      import_graph({.nodes = {onnx_node("Scan", {"init", "x"}, {"last", "all"},
                                        {attr_graph("body", body.write()), attr_int("num_scan_inputs", 1),
                                         attr_ints("scan_input_directions", {1}), attr_ints("scan_output_axes", {1})})},
                    .inputs = {onnx_value("init", kF, {"m"}), onnx_value("x", kF, {"t", "m"})},
                    .outputs = {onnx_untyped("last"), onnx_untyped("all")}});
  const std::vector<Tensor> results = graph::evaluate(
      model.graph,
      std::vector<Tensor>{Tensor::of(DType::F32, {2}, {0, 0}), Tensor::of(DType::F32, {3, 2}, {1, 2, 3, 4, 5, 6})});
  expect_values(results[0], {2}, {9, 12});
  expect_values(results[1], {2, 3}, {5, 8, 9, 6, 10, 12});
}

TEST(Sequence, IsAListAtImport) {
  const ImportedModel model = import_graph(
      {.nodes = {onnx_node("SplitToSequence", {"x", "sizes"}, {"s"}, {attr_int("axis", 0)}),
                 onnx_node("SequenceAt", {"s", "last"}, {"a"}), onnx_node("SequenceInsert", {"s", "a", "zero"}, {"t"}),
                 onnx_node("ConcatFromSequence", {"t"}, {"y"}, {attr_int("axis", 0)}),
                 onnx_node("SequenceLength", {"t"}, {"n"})},
       .inputs = {onnx_value("x", kF, {int64_t{3}})},
       .outputs = {onnx_untyped("y"), onnx_untyped("n")},
       .initializers = {onnx_ints("sizes", {2}, {2, 1}), onnx_ints("last", {}, {-1}), onnx_ints("zero", {}, {0})}});
  const std::vector<Tensor> results =
      graph::evaluate(model.graph, std::vector<Tensor>{Tensor::of(DType::F32, {3}, {1, 2, 3})});
  expect_values(results[0], {4}, {3, 1, 2, 3});
  EXPECT_EQ(results[1].int_at(0), 3);
}

TEST(Sequence, OutputIsSeveralGraphOutputs) {
  const ImportedModel model = import_graph({.nodes = {onnx_node("SequenceConstruct", {"x", "x"}, {"s"})},
                                            .inputs = {onnx_value("x", kF, {"n"})},
                                            .outputs = {onnx_untyped("s")}});
  ASSERT_EQ(model.outputs.size(), 1u);
  EXPECT_TRUE(model.outputs[0].sequence);
  EXPECT_EQ(model.outputs[0].count, 2u);
  EXPECT_EQ(model.graph.outputs().size(), 2u);
}

TEST(Sequence, RunTimeLengthIsUnsupported) {
  const OnnxGraph body{.nodes = {onnx_node("SequenceInsert", {"s", "x"}, {"s2"}), onnx_node("Identity", {"c"}, {"c2"})},
                       .inputs = {onnx_value("i", kI, {}), onnx_value("c", kB, {}), onnx_untyped("s")},
                       .outputs = {onnx_untyped("c2"), onnx_untyped("s2")}};
  const OnnxGraph graph{.nodes = {onnx_node("SequenceEmpty", {}, {"e"}),
                                  onnx_node("Loop", {"trips", "", "e"}, {"r"}, {attr_graph("body", body.write())}),
                                  onnx_node("ConcatFromSequence", {"r"}, {"y"}, {attr_int("axis", 0)})},
                        .inputs = {onnx_value("trips", kI, {}), onnx_value("x", kF, {int64_t{1}})},
                        .outputs = {onnx_untyped("y")}};
  EXPECT_THROW(import_graph(graph), Unsupported);
  // With the trips known, the loop is unrolled.
  OnnxGraph known = graph;
  known.inputs = {onnx_value("x", kF, {int64_t{1}})};
  known.initializers = {onnx_ints("trips", {}, {3})};
  expect_values(graph::evaluate(import_graph(known).graph, std::vector<Tensor>{Tensor::of(DType::F32, {1}, {7})})[0],
                {3}, {7, 7, 7});
}

}  // namespace
}  // namespace fuseloom::front::onnx
