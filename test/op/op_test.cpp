#include "op/op.h"

#include "op/op_testing.h"

namespace fuseloom::op {
namespace {

TEST(ScalarRule, ParsesIntoATree) {
  const ScalarNode node = parse_scalar_rule("select(gt(x0, 0), x1, mul(alpha, -1.5))");
  ASSERT_EQ(node.kind, ScalarNode::Kind::Call);
  EXPECT_EQ(node.name, "select");
  ASSERT_EQ(node.args.size(), 3u);
  EXPECT_EQ(node.args[0].args[0].kind, ScalarNode::Kind::Input);
  EXPECT_EQ(node.args[1].input, 1);
  EXPECT_EQ(node.args[2].args[0].kind, ScalarNode::Kind::Attribute);
  EXPECT_EQ(node.args[2].args[1].constant, -1.5);
  EXPECT_EQ(parse_scalar_rule("-inf").constant, -kInf);
  for (const char* text : {"", "add(x0", "add(x0,)", "x0 x1", "add()", "%y"})
    EXPECT_THROW(parse_scalar_rule(text), UserError) << text;
}

// A1: an op is added by its record alone.
TEST(OpTable, AnOpIsAddedByItsRule) {
  OpTable table = make_standard_ops();
  table.add({.name = "scaled_relu", .attrs = {{"scale", AttrSpec::Kind::Real}}, .rule = "mul(scale, relu(x0))"});
  const OpRecord& record = table.at("scaled_relu");
  // The call of relu is inlined: only primitives are left.
  EXPECT_EQ(record.scalar->args[1].name, "max");
  const std::vector<Tensor> inputs = {floats({-1, 2, kNan})};
  expect_values(run_reference(record, inputs, {{"scale", 3.0}})[0], {0, 6, kNan});
}

TEST(OpTable, RefusesWrongRecords) {
  OpTable table = make_standard_ops();
  EXPECT_THROW(table.add({.name = "add"}), InternalError);
  EXPECT_THROW(table.add({.name = "a", .rule = "frobnicate(x0)"}), InternalError);
  EXPECT_THROW(table.add({.name = "b", .rule = "add(x0, x1)"}), InternalError);
  EXPECT_THROW(table.add({.name = "c", .rule = "add(x0, alpha)"}), InternalError);
  EXPECT_THROW(table.add({.name = "d", .rule = "add(x0)"}), InternalError);
  EXPECT_THROW(table.add({.name = "e", .rule = "add(x0"}), UserError);
}

TEST(OpTable, UnknownOpsNameCloseOnes) {
  expect_user_error([] { standard_ops().at("sigmoide"); }, "there is no op 'sigmoide'; close names: sigmoid");
  EXPECT_EQ(standard_ops().find("sigmoide"), nullptr);
}

TEST(OpTable, EveryRecordIsComplete) {
  for (const OpRecord* record : standard_ops().all()) {
    EXPECT_FALSE(record->summary.empty()) << record->name;
    if (record->family == Family::Control) continue;
    EXPECT_TRUE(record->infer) << record->name;
    EXPECT_TRUE(record->reference) << record->name;
    EXPECT_EQ(record->family == Family::View, static_cast<bool>(record->index_map)) << record->name;
    EXPECT_EQ(record->family == Family::Composite, static_cast<bool>(record->decompose)) << record->name;
    EXPECT_EQ(record->family == Family::Reduction || record->family == Family::Scan, record->combine != Combine::None)
        << record->name;
  }
}

TEST(InferTypes, ChecksTheSchema) {
  const TensorType x{DType::F32, {2, 3}};
  expect_user_error([&] { infer("add", {x}); }, "add: takes 2 inputs, found 1");
  expect_user_error(
      [&] {
        infer("relu", {x}, {{"alpha", 1.0}});
      },
      "relu: there is no attribute 'alpha'; the op has none");
  expect_user_error([&] { infer("elu", {x}); }, "elu: the attribute 'alpha' (a number) is missing");
  expect_user_error(
      [&] {
        infer("elu", {x}, {{"alpha", "1"}});
      },
      "elu: the attribute 'alpha' must be a number, found \"1\"");
  expect_user_error([&] { infer("relu", {x}, {}, 2); }, "relu: gives 1 outputs, 2 are asked for");
  expect_user_error(
      [&] {
        infer_types(standard_ops().at("add"), std::vector<TensorType>{x, x}, std::vector<char>{1, 0}, {});
      },
      "add: input 1 is required, but absent");
  EXPECT_EQ(infer("elu", {x}, {{"alpha", int64_t{1}}})[0], x);
}

TEST(InferTypes, ElementwiseErrorsNameTheTypes) {
  expect_user_error(
      [] {
        infer("add", {{DType::F32, {2, 3}}, {DType::F32, {2, 4}}});
      },
      "add: shapes [2, 3] and [2, 4] do not broadcast");
  expect_user_error([] { infer("add", {{DType::F32, {2}}, {DType::I32, {2}}}); }, "found f32 and i32");
  expect_user_error([] { infer("exp", {{DType::I32, {2}}}); }, "exp: takes no i32");
  expect_user_error([] { infer("gelu", {{DType::I32, {2}}}); }, "gelu: its rule's");
  expect_user_error([] { infer("lt", {{DType::C64, {2}}, {DType::C64, {2}}}); }, "takes no c64");
  expect_user_error(
      [] {
        infer("select", {{DType::I8, {2}}, {DType::F32, {2}}, {DType::F32, {2}}});
      },
      "the condition must be bool, found i8");
  expect_user_error([] { infer("sub", {{DType::Bool, {}}, {DType::Bool, {}}}); }, "sub: takes no bool");
}

}  // namespace
}  // namespace fuseloom::op
