#include "graph/graph.h"

#include "graph/graph_testing.h"

namespace fuseloom::graph {
namespace {

op::TensorType f32(op::Shape shape) { return {.dtype = DType::F32, .shape = std::move(shape)}; }

TEST(Graph, NamesAreLegalAndUnique) {
  Graph graph(op::standard_ops());
  const ValueId a = graph.add_input("/layer/0:out", f32({}));
  const ValueId b = graph.add_input("12", f32({}));
  const ValueId c = graph.add_input("_layer_0_out", f32({}));
  EXPECT_EQ(graph.value(a).name, "_layer_0_out");
  EXPECT_EQ(graph.value(b).name, "v12");
  EXPECT_EQ(graph.value(c).name, "_layer_0_out.1");
  graph.set_value_name(a, "x");
  const ValueId d = graph.add_input("_layer_0_out", f32({}));
  EXPECT_EQ(graph.value(d).name, "_layer_0_out");
}

TEST(Graph, ReplaceUsesMovesUsesOutputsAndNames) {
  Graph graph(op::standard_ops());
  const ValueId x = graph.add_input("x", f32({4}));
  const ValueId y = graph.add("neg", {x});
  graph.set_value_name(y, "y");
  const ValueId z = graph.add("add", {y, y});
  graph.set_outputs({y, z, y});
  EXPECT_EQ(graph.use_count(y), 4);
  graph.set_insertion_point(graph.value(z).producer);
  const ValueId w = graph.add("abs", {x});
  graph.set_insertion_point({});
  graph.replace_uses(y, w);
  EXPECT_EQ(graph.use_count(y), 0);
  EXPECT_EQ(graph.use_count(w), 4);
  EXPECT_EQ(graph.value(w).name, "y");
  EXPECT_EQ(graph.outputs(), (std::vector<ValueId>{w, z, w}));
  EXPECT_EQ(graph.users()[static_cast<size_t>(w.index)].size(), 2u);
  // Back and forth: stale use lists must not count.
  graph.replace_uses(w, x);
  graph.replace_uses(x, w);
  EXPECT_EQ(graph.node(graph.value(w).producer).inputs[0], w);   // abs reads itself now, as asked
  EXPECT_THROW(verify(graph), InternalError);
}

TEST(Graph, InsertsBeforeNodesInAnyOrder) {
  Graph graph(op::standard_ops());
  const ValueId x = graph.add_input("x", f32({}));
  const NodeId a = graph.add_node("neg", {x}), b = graph.add_node("neg", {x});
  graph.set_insertion_point(b);
  const NodeId before_b = graph.add_node("abs", {x});
  graph.set_insertion_point(a);
  const NodeId before_a = graph.add_node("abs", {x});
  graph.set_insertion_point(before_b);
  const NodeId before_before_b = graph.add_node("abs", {x});
  graph.set_insertion_point(b);
  const NodeId last = graph.add_node("abs", {x});
  graph.set_insertion_point({});
  EXPECT_EQ(graph.nodes(), (std::vector<NodeId>{before_a, a, before_before_b, before_b, last, b}));
}

TEST(Graph, RemovedNodesFreeTheirNamesAndAreGone) {
  Graph graph(op::standard_ops());
  const ValueId x = graph.add_input("x", f32({}));
  const NodeId a = graph.add_node("neg", {x});
  graph.set_value_name(graph.node(a).outputs[0], "a");
  graph.remove_node(a);
  EXPECT_FALSE(graph.has_node(a));
  EXPECT_EQ(graph.use_count(x), 0);
  const ValueId b = graph.add("neg", {x});
  graph.set_value_name(b, "a");
  EXPECT_EQ(graph.value(b).name, "a");
  const NodeId used = graph.add_node("abs", {b});
  graph.set_outputs(graph.node(used).outputs);
  expect_error<InternalError>([&] { graph.remove_node(used); }, "is used");
}

TEST(Graph, ErrorsNameTheOrigin) {
  Graph graph(op::standard_ops());
  const ValueId x = graph.add_input("x", f32({3})), y = graph.add_input("y", f32({4}));
  expect_error<UserError>([&] { graph.add("add", {x, y}, {}, "Add_7"); }, "Add_7");
}

TEST(Graph, CloneIsDeepAndKeepsIds) {
  Graph graph = parse(R"(
    graph main(%c: bool[], %x: f32[n]) {
      %y: f32[n] = if(%c, %x) then(%x: f32[n]) outer {n} { return %x } else(%x: f32[n]) outer {n} {
        %t = neg(%x)
        return %t
      }
      return %y
    })");
  const std::string text = to_string(graph);
  Graph copy = graph.clone();
  graph.subgraph(graph.nodes()[0], 0).set_outputs({});
  EXPECT_EQ(to_string(copy), text);
  EXPECT_EQ(copy.nodes(), graph.nodes());
}

TEST(Graph, SubstitutesSymbolsEverywhere) {
  Graph graph = parse(R"(
    graph main(%x: f32[n], %i: i64[1], %c: bool[]) {
      %s = bind_symbols(%i) {defines = <u>}
      %e = expand(%c) {shape = <u>}
      %y: f32[n] = if(%c, %x) then(%x: f32[n]) outer {n, u} {
        %t = sym_value() {values = <u>, dtype = :i64}
        return %x
      } else(%x: f32[n]) outer {n} { return %x }
      return %e, %y
    })");
  graph.substitute_symbols({{"u", sym::parse_expr("n + 1")}});
  const std::string text = to_string(graph);
  EXPECT_NE(text.find("%e: bool[n + 1]"), std::string::npos) << text;
  EXPECT_NE(text.find("values = <n + 1>"), std::string::npos) << text;
  EXPECT_NE(text.find("then(%x: f32[n]) outer {n} {\n    %t"), std::string::npos) << text;
}

TEST(Graph, BroadcastLearnsRanges) {
  // A table of 128 positions: longer sequences are illegal, and every run checks that.
  const Graph graph = parse(R"(
    graph main(%x: f32[b, n, 4], %t: f32[128, 4]) {
      %p = slice(%t) {starts = <0, 0>, sizes = <min(n, 128), 4>, steps = [1, 1]}
      %y = add(%x, %p)
      return %y
    })");
  EXPECT_EQ(op::to_string(graph.type(graph.outputs()[0])), "f32[b, n, 4]");
  EXPECT_EQ(graph.facts().symbols.at("n").high, 128);
  expect_error<UserError>([&] { evaluate(graph, std::vector<Tensor>{Tensor(DType::F32, {1, 129, 4}), Tensor(DType::F32, {128, 4})}); },
                          "n = 129, but it must be in 0 .. 128");
  EXPECT_EQ(evaluate(graph, std::vector<Tensor>{Tensor(DType::F32, {1, 0, 4}), Tensor(DType::F32, {128, 4})})[0].dims(), (Dims{1, 0, 4}));
}

TEST(Graph, BroadcastLooksAtZeroApart) {
  Graph graph(op::standard_ops());
  graph.add_input("x", f32({sym::Expr::symbol("n"), sym::Expr::symbol("m")}));
  const auto broadcast = [&](const char* a, const char* b) {
    return sym::to_string(graph.broadcast(op::Shape{sym::parse_expr(a)}, op::Shape{sym::parse_expr(b)})[0]);
  };
  // What a difference of neighbours leaves of [x, x[:1]].
  EXPECT_EQ(broadcast("n + min(n, 1) - min(n + min(n, 1), 1)", "n"), "n");
  EXPECT_EQ(broadcast("n", "m"), sym::to_string(op::broadcast_size(sym::parse_expr("n"), sym::parse_expr("m"))));
  // min(n, 1) broadcasts with any n: nothing follows for n.
  EXPECT_NE(broadcast("min(n, 1)", "n"), "n");
  EXPECT_EQ(graph.facts().symbols.at("n").high, sym::Range::kMax);
}

TEST(Graph, FreshSymbolsAreFree) {
  Graph graph = parse("graph main(%x: f32[u0, u2]) { return %x }");
  EXPECT_EQ(graph.fresh_symbol("u"), "u1");
  EXPECT_EQ(graph.fresh_symbol("u"), "u3");
}

}  // namespace
}  // namespace fuseloom::graph
