#include "front/onnx/importer.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "fuseloom/error.h"
#include "graph/evaluate.h"
#include "graph/text.h"
#include "graph/verify.h"
#include "support/onnx_writer.h"

namespace fuseloom::front::onnx {
namespace {

using namespace test;  // the writer's words
constexpr int kF = onnx_type::kFloat, kI = onnx_type::kInt64;

ImportedModel import_graph(const OnnxGraph& graph, int64_t opset = 17, const std::vector<OnnxFunction>& functions = {},
                           const ImportOptions& options = {}) {
  std::vector<std::pair<std::string, int64_t>> domains;
  for (const OnnxFunction& function : functions) domains.emplace_back(function.domain, 1);
  ImportedModel model = import_onnx_bytes(onnx_model(graph, opset, functions, domains), options, "m.onnx");
  graph::verify(model.graph);
  return model;
}

std::vector<Tensor> run(const ImportedModel& model, const std::vector<Tensor>& inputs) {
  return graph::evaluate(model.graph, inputs);
}

template <class E = UserError>
std::string error_of(const OnnxGraph& graph, int64_t opset = 17, const std::vector<OnnxFunction>& functions = {}) {
  try {
    import_graph(graph, opset, functions);
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

void expect_values(const Tensor& tensor, const Dims& dims, const std::vector<double>& values) {
  ASSERT_EQ(tensor.dims(), dims);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_FLOAT_EQ(tensor.at(static_cast<int64_t>(i)), values[i]) << i;
}

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST(Importer, ElementwiseModelWithNamedDimension) {
  const ImportedModel model =
      import_graph({.nodes = {onnx_node("Add", {"x", "w"}, {"t"}), onnx_node("Relu", {"t"}, {"y"})},
                    .inputs = {onnx_value("x", kF, {"batch", int64_t{2}})},
                    .outputs = {onnx_value("y", kF, {"batch", int64_t{2}})},
                    .initializers = {onnx_floats("w", {2}, {-2, 1})}});
  EXPECT_EQ(op::to_string(model.graph.type(model.graph.outputs()[0])), "f32[batch, 2]");
  ASSERT_EQ(model.inputs.size(), 1u);
  EXPECT_EQ(model.inputs[0].name, "x");
  expect_values(run(model, {Tensor::of(DType::F32, {2, 2}, {1, 2, 3, 4})})[0], {2, 2}, {0, 3, 1, 5});
  expect_values(run(model, {Tensor::of(DType::F32, {0, 2}, {})})[0], {0, 2}, {});
}

// ---- names and order
// -------------------------------------------------------------------------------------------------

TEST(Importer, NodesOutOfOrderAreSorted) {
  const ImportedModel model = import_graph({.nodes = {onnx_node("Neg", {"t"}, {"y"}), onnx_node("Exp", {"x"}, {"t"})},
                                            .inputs = {onnx_value("x", kF, {int64_t{1}})},
                                            .outputs = {onnx_value("y", kF, {int64_t{1}})}});
  expect_values(run(model, {Tensor::of(DType::F32, {1}, {0})})[0], {1}, {-1});
}

TEST(Importer, CycleIsNamed) {
  const std::string error = error_of(
      {.nodes = {onnx_node("Add", {"x", "b"}, {"a"}, {}, "first"), onnx_node("Neg", {"a"}, {"b"}, {}, "second")},
       .inputs = {onnx_value("x", kF, {int64_t{1}})},
       .outputs = {onnx_value("b", kF, {int64_t{1}})}});
  EXPECT_HAS(error, "cycle");
  EXPECT_HAS(error, "first");
  EXPECT_HAS(error, "second");
}

TEST(Importer, DuplicateAndMissingNames) {
  const auto graph = [](std::vector<Message> nodes) {
    return OnnxGraph{.nodes = std::move(nodes),
                     .inputs = {onnx_value("x", kF, {int64_t{1}})},
                     .outputs = {onnx_value("y", kF, {int64_t{1}})}};
  };
  EXPECT_HAS(error_of(graph({onnx_node("Neg", {"x"}, {"y"}), onnx_node("Exp", {"x"}, {"y"})})), "computed twice");
  EXPECT_HAS(error_of(graph({onnx_node("Neg", {"x"}, {"x"})})), "already");
  EXPECT_HAS(error_of(graph({onnx_node("Neg", {"nowhere"}, {"y"})})), "nothing computes");
  EXPECT_HAS(error_of(graph({onnx_node("Neg", {"x"}, {"z"})})), "nothing computes the output 'y'");
}

TEST(Importer, UnknownOperatorsAreListedTogether) {
  const std::string error =
      error_of<Unsupported>({.nodes = {onnx_node("Frobnicate", {"x"}, {"a"}, {}, "n1"), onnx_node("Relu", {"a"}, {"b"}),
                                       onnx_node("Grumble", {"b"}, {"y"}, {}, "n2", "my.domain"),
                                       onnx_node("Frobnicate", {"x"}, {"c"}, {}, "n3")},
                             .inputs = {onnx_value("x", kF, {int64_t{1}})},
                             .outputs = {onnx_value("y", kF, {int64_t{1}})}});
  for (const char* part : {"Frobnicate", "my.domain.Grumble", "n1", "n2", "n3"}) EXPECT_HAS(error, part);
  EXPECT_EQ(error.find("Relu"), std::string::npos);
}

TEST(Importer, OpsetTooNew) {
  const OnnxGraph graph{.nodes = {onnx_node("Neg", {"x"}, {"y"})},
                        .inputs = {onnx_value("x", kF, {int64_t{1}})},
                        .outputs = {onnx_value("y", kF, {int64_t{1}})}};
  EXPECT_HAS(error_of<Unsupported>(graph, 99), "opset 99");
  EXPECT_HAS(error_of(graph, -3), "-3");
}

TEST(Importer, DeclaredOutputTypeIsChecked) {
  EXPECT_HAS(error_of({.nodes = {onnx_node("Neg", {"x"}, {"y"})},
                       .inputs = {onnx_value("x", kF, {int64_t{1}})},
                       .outputs = {onnx_value("y", kI, {int64_t{1}})}}),
             "declared as int64");
}

// ---- versions
// --------------------------------------------------------------------------------------------------------

TEST(Importer, SoftmaxByVersion) {
  const OnnxGraph graph{.nodes = {onnx_node("Softmax", {"x"}, {"y"})},
                        .inputs = {onnx_value("x", kF, {int64_t{1}, int64_t{2}, int64_t{2}})},
                        .outputs = {onnx_untyped("y")}};
  const Tensor x = Tensor::of(DType::F32, {1, 2, 2}, {0, 0, 0, 0});
  expect_values(run(import_graph(graph, 11), {x})[0], {1, 2, 2}, {0.25, 0.25, 0.25, 0.25});
  expect_values(run(import_graph(graph, 13), {x})[0], {1, 2, 2}, {0.5, 0.5, 0.5, 0.5});
}

TEST(Importer, OldBroadcastAligns) {
  const ImportedModel model =
      import_graph({.nodes = {onnx_node("Add", {"x", "w"}, {"y"}, {attr_int("broadcast", 1), attr_int("axis", 0)})},
                    .inputs = {onnx_value("x", kF, {int64_t{2}, int64_t{2}})},
                    .outputs = {onnx_untyped("y")},
                    .initializers = {onnx_floats("w", {2}, {10, 20})}},
                   6);
  expect_values(run(model, {Tensor::of(DType::F32, {2, 2}, {1, 2, 3, 4})})[0], {2, 2}, {11, 12, 23, 24});
}

// ---- shapes
// ----------------------------------------------------------------------------------------------------------

// Shape → Gather → Unsqueeze → Concat → Reshape: what exporters write for x.view(b, -1).
TEST(Importer, ShapeArithmeticBecomesExpressions) {
  const ImportedModel model = import_graph(
      {.nodes = {onnx_node("Shape", {"x"}, {"s"}), onnx_node("Gather", {"s", "zero"}, {"b"}),
                 onnx_node("Unsqueeze", {"b", "axis"}, {"b1"}),
                 onnx_node("Concat", {"b1", "rest"}, {"target"}, {attr_int("axis", 0)}),
                 onnx_node("Reshape", {"x", "target"}, {"y"})},
       .inputs = {onnx_value("x", kF, {"batch", "seq", int64_t{4}})},
       .outputs = {onnx_untyped("y")},
       .initializers = {onnx_ints("zero", {}, {0}), onnx_ints("axis", {1}, {0}), onnx_ints("rest", {1}, {-1})}});
  EXPECT_EQ(op::to_string(model.graph.type(model.graph.outputs()[0])), "f32[batch, seq*4]");
  for (const graph::NodeId id : model.graph.nodes()) EXPECT_NE(model.graph.node(id).op->name, "bind_symbols");
}

TEST(Importer, ReshapeWithRunTimeEntries) {
  const ImportedModel model =
      import_graph({.nodes = {onnx_node("Reshape", {"x", "shape"}, {"y"})},
                    .inputs = {onnx_value("x", kF, {"a", "b"}), onnx_value("shape", kI, {int64_t{3}})},
                    .outputs = {onnx_untyped("y")}});
  const Tensor x = Tensor(DType::F32, {4, 6});
  const auto shape = [](std::vector<int64_t> v) { return Tensor::of_ints(DType::I64, {3}, v); };
  EXPECT_EQ(run(model, {x, shape({2, 3, 4})})[0].dims(), (Dims{2, 3, 4}));
  EXPECT_EQ(run(model, {x, shape({0, -1, 2})})[0].dims(), (Dims{4, 3, 2}));
  EXPECT_EQ(run(model, {x, shape({-1, 0, 1})})[0].dims(), (Dims{4, 6, 1}));
}

TEST(Importer, SliceWithRunTimeEnds) {
  const ImportedModel model =
      import_graph({.nodes = {onnx_node("Slice", {"x", "start", "end"}, {"y"})},
                    .inputs = {onnx_value("x", kF, {"n"}), onnx_value("start", kI, {int64_t{1}}),
                               onnx_value("end", kI, {int64_t{1}})},
                    .outputs = {onnx_untyped("y")}});
  const Tensor x = Tensor::of(DType::F32, {5}, {0, 1, 2, 3, 4});
  const auto at = [](int64_t v) { return Tensor::of_ints(DType::I64, {1}, std::vector<int64_t>{v}); };
  expect_values(run(model, {x, at(1), at(3)})[0], {2}, {1, 2});
  expect_values(run(model, {x, at(-2), at(INT64_MAX)})[0], {2}, {3, 4});
  expect_values(run(model, {x, at(4), at(2)})[0], {0}, {});
  expect_values(run(model, {x, at(-100), at(-4)})[0], {1}, {0});
}

TEST(Importer, AxesAtRunTime) {
  const ImportedModel model =
      import_graph({.nodes = {onnx_node("ReduceSum", {"x", "axes"}, {"y"}, {attr_int("keepdims", 0)})},
                    .inputs = {onnx_value("x", kF, {"a", "b"}), onnx_value("axes", kI, {int64_t{1}})},
                    .outputs = {onnx_untyped("y")}});
  const Tensor x = Tensor::of(DType::F32, {2, 3}, {1, 2, 3, 4, 5, 6});
  expect_values(run(model, {x, Tensor::of_ints(DType::I64, {1}, std::vector<int64_t>{0})})[0], {3}, {5, 7, 9});
  expect_values(run(model, {x, Tensor::of_ints(DType::I64, {1}, std::vector<int64_t>{-1})})[0], {2}, {6, 15});
}

TEST(Importer, DimensionNamesAndOverrides) {
  const OnnxGraph graph{.nodes = {onnx_node("Neg", {"x"}, {"y"})},
                        .inputs = {onnx_value("x", kF, {"my dim", "", "32*h"})},
                        .outputs = {onnx_untyped("y")}};
  const ImportedModel model = import_graph(graph);
  EXPECT_EQ(op::to_string(model.graph.type(model.graph.outputs()[0])), "f32[my_dim, x_d1, h*32]");
  EXPECT_EQ(model.dimension_names.at("my_dim"), "my dim");
  const ImportedModel fixed = import_graph(graph, 17, {}, {.dims = {{"my dim", 5}, {"h", 2}}});
  EXPECT_EQ(op::to_string(fixed.graph.type(fixed.graph.outputs()[0])), "f32[5, x_d1, 64]");
}

TEST(Importer, AQuestionMarkNamesNoDimension) {
  const ImportedModel model = import_graph({.nodes = {onnx_node("Neg", {"x"}, {"y"})},
                                            .inputs = {onnx_value("x", kF, {"?", "?"})},
                                            .outputs = {onnx_untyped("y")}});
  EXPECT_EQ(op::to_string(model.graph.type(model.graph.outputs()[0])), "f32[x_d0, x_d1]");
}

TEST(Importer, AutoPadWithSymbolicSize) {
  const ImportedModel model =
      import_graph({.nodes = {onnx_node("MaxPool", {"x"}, {"y"},
                                        {attr_ints("kernel_shape", {3}), attr_ints("strides", {2}),
                                         attr_text("auto_pad", "SAME_UPPER")})},
                    .inputs = {onnx_value("x", kF, {int64_t{1}, int64_t{1}, "w"})},
                    .outputs = {onnx_untyped("y")}});
  expect_values(run(model, {Tensor::of(DType::F32, {1, 1, 5}, {1, 2, 3, 4, 5})})[0], {1, 1, 3}, {2, 4, 5});
  expect_values(run(model, {Tensor::of(DType::F32, {1, 1, 4}, {1, 2, 3, 4})})[0], {1, 1, 2}, {3, 4});
}

// The window that would start behind the input is dropped.
TEST(Importer, CeilMode) {
  const ImportedModel model = import_graph(
      {.nodes = {onnx_node("MaxPool", {"x"}, {"y"},
                           {attr_ints("kernel_shape", {1}), attr_ints("strides", {2}), attr_int("ceil_mode", 1)})},
       .inputs = {onnx_value("x", kF, {int64_t{1}, int64_t{1}, "w"})},
       .outputs = {onnx_untyped("y")}});
  EXPECT_EQ(run(model, {Tensor(DType::F32, {1, 1, 4})})[0].dim(2), 2);
  EXPECT_EQ(run(model, {Tensor(DType::F32, {1, 1, 5})})[0].dim(2), 3);
}

// ---- functions
// -------------------------------------------------------------------------------------------------------

TEST(Importer, FunctionsAreInlined) {
  const OnnxFunction scale{.domain = "my",
                           .name = "Scale",
                           .inputs = {"a", "unused"},
                           .outputs = {"r"},
                           .attributes = {"factor"},
                           .nodes = {onnx_node("Constant", {}, {"f"}, {attr_reference("value_float", 1, "factor")}),
                                     onnx_node("Mul", {"a", "f"}, {"r"})}};
  const OnnxFunction twice{.domain = "my",
                           .name = "Twice",
                           .inputs = {"a"},
                           .outputs = {"r"},
                           .attributes = {"by"},
                           .nodes = {onnx_node("Scale", {"a"}, {"t"}, {attr_reference("factor", 1, "by")}, "", "my"),
                                     onnx_node("Scale", {"t"}, {"r"}, {attr_reference("factor", 1, "by")}, "", "my")}};
  const ImportedModel model =
      import_graph({.nodes = {onnx_node("Twice", {"x"}, {"y"}, {attr_float("by", 3)}, "", "my")},
                    .inputs = {onnx_value("x", kF, {int64_t{2}})},
                    .outputs = {onnx_untyped("y")}},
                   17, {scale, twice});
  expect_values(run(model, {Tensor::of(DType::F32, {2}, {1, 2})})[0], {2}, {9, 18});
}

TEST(Importer, RecursiveFunctionIsRefused) {
  const OnnxFunction loop{.domain = "my",
                          .name = "F",
                          .inputs = {"a"},
                          .outputs = {"r"},
                          .nodes = {onnx_node("F", {"a"}, {"r"}, {}, "", "my")}};
  EXPECT_HAS(error_of<Unsupported>({.nodes = {onnx_node("F", {"x"}, {"y"}, {}, "", "my")},
                                    .inputs = {onnx_value("x", kF, {int64_t{1}})},
                                    .outputs = {onnx_untyped("y")}},
                                   17, {loop}),
             "deeper than");
}

// F63 calls F62 twice, and so on: 2^63 nodes from a small file.
TEST(Importer, ExplodingFunctionsAreRefused) {
  std::vector<OnnxFunction> functions;
  for (int i = 0; i < 60; ++i) {
    const std::string inner = i == 0 ? "Neg" : "F" + std::to_string(i - 1), domain = i == 0 ? "" : "my";
    functions.push_back(
        {.domain = "my",
         .name = "F" + std::to_string(i),
         .inputs = {"a"},
         .outputs = {"r"},
         .nodes = {onnx_node(inner, {"a"}, {"t"}, {}, "", domain), onnx_node(inner, {"t"}, {"r"}, {}, "", domain)}});
  }
  EXPECT_HAS(error_of<Unsupported>({.nodes = {onnx_node("F59", {"x"}, {"y"}, {}, "", "my")},
                                    .inputs = {onnx_value("x", kF, {int64_t{1}})},
                                    .outputs = {onnx_untyped("y")}},
                                   17, functions),
             "more than");
}

// ---- hostile files
// ---------------------------------------------------------------------------------------------------

std::string control_flow_model() {
  const OnnxGraph body{
      .nodes = {onnx_node("Add", {"v", "w"}, {"v2"}), onnx_node("Identity", {"c"}, {"c2"})},
      .inputs = {onnx_value("i", kI, {}), onnx_value("c", onnx_type::kBool, {}), onnx_value("v", kF, {int64_t{3}})},
      .outputs = {onnx_untyped("c2"), onnx_untyped("v2")}};
  return onnx_model({.nodes = {onnx_node("Add", {"x", "w"}, {"t"}, {}, "add"),
                               onnx_node("Loop", {"n", "", "t"}, {"u"}, {attr_graph("body", body.write())}),
                               onnx_node("Softmax", {"u"}, {"y"}, {attr_int("axis", -1)}, "soft")},
                     .inputs = {onnx_value("x", kF, {"batch", int64_t{3}})},
                     .outputs = {onnx_value("y", kF, {"batch", int64_t{3}})},
                     .initializers = {onnx_floats("w", {3}, {1, 2, 3}), onnx_ints("n", {}, {2})}});
}

// Whatever the bytes, there is a model or one of our errors.
void import_anything(const std::string& bytes) {
  try {
    import_onnx_bytes(bytes);
  } catch (const UserError&) {
  } catch (const Unsupported&) {
  }
}

TEST(Importer, CutAtEveryByte) {
  const std::string bytes = control_flow_model();
  for (size_t size = 0; size < bytes.size(); ++size) import_anything(bytes.substr(0, size));
}

TEST(Importer, EveryBitFlipped) {
  const std::string bytes = control_flow_model();
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    import_anything(flipped);
  }
}

TEST(Importer, HugeTensorClaimsAreErrors) {
  const auto with = [](const Message& tensor) {
    return OnnxGraph{
        .nodes = {onnx_node("Identity", {"w"}, {"y"})}, .outputs = {onnx_untyped("y")}, .initializers = {tensor}};
  };
  EXPECT_HAS(error_of(with(onnx_tensor("w", kF, {int64_t{1} << 40}, "abcd"))), "do not take 4 bytes");
  EXPECT_HAS(error_of(with(onnx_tensor("w", kF, {int64_t{1} << 40, int64_t{1} << 40}, "abcd"))), "tensor 'w'");
  EXPECT_HAS(error_of(with(onnx_tensor("w", kF, {-1}, ""))), "negative");
  EXPECT_HAS(error_of<Unsupported>(with(onnx_tensor("w", 77, {1}, "a"))), "77");
  EXPECT_HAS(error_of<Unsupported>(with(onnx_tensor("w", onnx_type::kString, {1}, ""))), "string");
}

}  // namespace
}  // namespace fuseloom::front::onnx
