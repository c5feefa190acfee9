#include "graph/verify.h"

#include "graph/graph_testing.h"

namespace fuseloom::graph {
namespace {

op::TensorType f32(op::Shape shape) { return {.dtype = DType::F32, .shape = std::move(shape)}; }

TEST(Verify, UseBeforeDefinition) {
  Graph graph(op::standard_ops());
  const ValueId x = graph.add_input("x", f32({4}));
  const ValueId y = graph.add("neg", {x}), z = graph.add("abs", {x});
  graph.replace_input(graph.value(y).producer, 0, z);
  graph.set_outputs({y, z});
  expect_error<InternalError>([&] { verify(graph); }, "neg: input 0 is not defined before it");
}

TEST(Verify, SymbolsThatNothingBinds) {
  Graph graph(op::standard_ops());
  const ValueId x = graph.add_input("x", f32({4}));
  graph.set_outputs({graph.add("expand", {x}, {{"shape", op::Shape{sym::Expr::symbol("k"), sym::Expr(4)}}})});
  expect_error<InternalError>([&] { verify(graph); }, "expand, attribute shape: symbol k");
  Graph compound(op::standard_ops());
  compound.set_outputs({compound.add_input("x", f32({sym::Expr::symbol("a") * sym::Expr::symbol("b")}))});
  expect_error<InternalError>([&] { verify(compound); }, "nothing binds the symbols of size a*b of input %x");
}

TEST(Verify, SymbolsBeforeTheirDefinition) {
  Graph graph = parse(R"(
    graph g(%x: f32[1], %i: i64[1]) {
      %b = bind_symbols(%i) {defines = <k>}
      %y = expand(%x) {shape = <k>}
      return %y
    })");
  verify(graph);
  // Moved in front of its symbol.
  graph.set_insertion_point(graph.nodes()[0]);
  const ValueId early = graph.add("expand", {graph.inputs()[0]}, {{"shape", op::Shape{sym::Expr::symbol("k")}}});
  graph.set_insertion_point({});
  graph.set_outputs({early});
  expect_error<InternalError>([&] { verify(graph); }, "symbol k of [k] is not bound here");
}

TEST(Verify, TypesThatInferenceDoesNotGive) {
  Graph graph(op::standard_ops());
  const ValueId x = graph.add_input("x", f32({4}));
  const ValueId y = graph.add("neg", {x});
  graph.set_outputs({y});
  graph.refine_type(y, f32({5}));
  expect_error<InternalError>([&] { verify(graph); }, "neg: output 0 has type f32[5], inference gives f32[4]");
}

TEST(Verify, SymbolDefinedTwice) {
  const Graph graph = parse(R"(
    graph g(%i: i64[1]) {
      %a = bind_symbols(%i) {defines = <k>}
      %b = bind_symbols(%i) {defines = <k>}
      return %a
    })");
  expect_error<InternalError>([&] { verify(graph); }, "symbol k is defined twice");
}

TEST(Verify, OuterSymbols) {
  const Graph graph = parse(R"(
    graph g(%c: bool[], %x: f32[n]) {
      %y: f32[n] = if(%c, %x) then(%x: f32[n]) outer {m, n} { return %x } else(%x: f32[n]) outer {n} { return %x }
      return %y
    })");
  expect_error<InternalError>([&] { verify(graph); }, "outer symbol m of a subgraph is not bound here");
}

}  // namespace
}  // namespace fuseloom::graph
