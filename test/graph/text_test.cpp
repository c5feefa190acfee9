#include "graph/text.h"

#include "graph/graph_testing.h"

namespace fuseloom::graph {
namespace {

void expect_round_trip(const std::string& text) {
  const Graph graph = parse(text);
  verify(graph);
  EXPECT_EQ(to_string(graph), text);
}

TEST(GraphText, RoundTrip) {
  expect_round_trip(R"(graph main(%x: f32[n, 3], %w: f32[3, 4]) symbols {n in 0 .. 1024 multiple 8} nonzero {n - 1} {
  %y: f32[n, 4] = matmul(%x, %w)
  %0: f32[n, 4] = pad(%y, _) {high = <0, 0>, low = <0, 0>, mode = "constant"} from "Pad \"1\""
  %c: f32[2] = constant() {value = f32[2] {1.0, 2.0}}
  return %0, %c, %x, %0
}
)");
  expect_round_trip(R"(graph "two words"() {
  return
}
)");
}

TEST(GraphText, ControlRoundTrip) {
  expect_round_trip(R"(graph main(%c: bool[], %x: f32[n, 3], %i: i64[1]) {
  %s: i64[1] = bind_symbols(%i) {defines = <k>}
  %z: f32[n, 3] = if(%c, %x) then(%x: f32[n, 3]) outer {n, k} {
    %t: f32[n, 3] = neg(%x)
    return %t
  } else(%x: f32[n, 3]) outer {n} {
    return %x
  } from "If_1"
  %a: f32[u0, 3], %b: f32[u1, n, 3] = while(_, %c, %x) {carried = 1, defines = <u0, u1>, scans = 1} body(%iteration: i64[], %cond: bool[], %x: f32[m, 3]) outer {n} {
    %y: f32[n, 3] = slice(%x) {sizes = <n, 3>, starts = <0, 0>, steps = [1, 1]}
    return %cond, %x, %y
  }
  return %z, %a, %b
}
)");
}

TEST(GraphText, RandomGraphsRoundTrip) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const test::RandomGraph random = test::random_graph({.seed = seed, .control = seed % 2 == 1});
    verify(random.graph);
    const std::string text = to_string(random.graph);
    const op::ConstantPool pool = constant_pool(random.graph);
    const Graph again = parse_graph(text, op::standard_ops(), "<text>", pool);
    verify(again);
    EXPECT_EQ(to_string(again), text);
  }
}

TEST(GraphText, TypesMayBeLeftOutAndMaySayMore) {
  const Graph graph = parse("graph g(%x: f32[n], %y: f32[m]) { %z: f32[n] = add(%x, %y) %w = neg(%z) return %w }");
  EXPECT_EQ(op::to_string(graph.type(graph.outputs()[0])), "f32[n]");
}

TEST(GraphText, ErrorsSayWhere) {
  const auto fails = [](std::string_view text, std::string_view words) { expect_error<UserError>([&] { parse(text); }, words); };
  fails("graph g(%x: f32[2]) {\n  %y = neg(%z)\n return %y }", "<text>:2:12: %z is not defined");
  fails("graph g(%x: f32[2]) {\n  %y: f32[3] = neg(%x)\n return %y }", "<text>:2:3: neg gives f32[2], but %y is declared as f32[3]");
  fails("graph g(%x: f32[2]) {\n  %x = neg(%x)\n return %x }", "%x is defined twice");
  fails("graph g(%x: f32[2]) {\n  %y = nog(%x)\n return %y }", "<text>:2:3: ");
  fails("graph g(%x: f32[2]) { return %x", "expected ','");
  fails("graph g(%x: f32[2]) { return %x } more", "expected the end");
  fails("graph g(%c: bool[]) { %y: f32[1] = if(%c) then() { return } else() { return } return %y }", "then returns 0 values");
}

}  // namespace
}  // namespace fuseloom::graph
