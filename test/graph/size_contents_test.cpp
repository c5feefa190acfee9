#include "graph/size_contents.h"

#include "graph/graph_testing.h"

namespace fuseloom::graph {
namespace {

// The contents of the graph's output as text, "?" when unknown.
std::string contents(std::string_view body) {
  const Graph graph = parse("graph g(%x: f32[n, c, 3], %d: i64[2], %z: i64[0]) symbols {c in 1 .. 64} {\n  %s = sym_value() {values = <n, c, 3>, dtype = :i64}\n" +
                            std::string(body) + "\n}");
  verify(graph);
  const std::optional<std::vector<sym::Expr>> known = known_contents(graph, graph.outputs()[0]);
  return known.has_value() ? op::to_string(op::Shape(known->begin(), known->end())) : "?";
}

TEST(SizeContents, Sources) {
  EXPECT_EQ(contents("return %s"), "[n, c, 3]");
  EXPECT_EQ(contents("return %d"), "?");
  EXPECT_EQ(contents("%b = bind_symbols(%d) {defines = <u, v>} return %b"), "[u, v]");
  EXPECT_EQ(contents("%i = iota() {shape = <2, 3>, axis = 1, dtype = :i32} return %i"), "[0, 1, 2, 0, 1, 2]");
  EXPECT_EQ(contents("%i = constant() {value = u8[2] {1, 255}} return %i"), "[1, 255]");
}

TEST(SizeContents, MovesElements) {
  EXPECT_EQ(contents("%y = slice(%s) {starts = <2>, sizes = <3>, steps = [-1]} return %y"), "[3, c, n]");
  EXPECT_EQ(contents("%y = concat(%s, %s) {axis = 0} %t = reshape(%y) {shape = <2, 3>} %u = transpose(%t) {perm = [1, 0]} return %u"),
            "[n, n, c, c, 3, 3]");
  EXPECT_EQ(contents("%i = constant() {value = i64[2] {-1, 0}} %y = gather(%s, %i) {axis = 0} return %y"), "[3, n]");
  EXPECT_EQ(contents("%i = constant() {value = i64[1] {5}} %y = gather(%s, %i) {axis = 0} return %y"), "?");
  EXPECT_EQ(contents("%y = pad(%s) {low = <1>, high = <1>, mode = \"constant\"} return %y"), "[0, n, c, 3, 0]");
  EXPECT_EQ(contents("%y = pad(%s) {low = <0>, high = <2>, mode = \"edge\"} return %y"), "[n, c, 3, 3, 3]");
  EXPECT_EQ(contents("%i = constant() {value = i64[1, 1] {1}} %u = constant() {value = i64[1] {7}} "
                     "%y = scatter_nd(%s, %i, %u) {reduction = \"none\"} return %y"),
            "[n, 7, 3]");
  EXPECT_EQ(contents("%y = expand(%s) {shape = <2, 3>} return %y"), "[n, c, 3, n, c, 3]");
}

TEST(SizeContents, Integers) {
  EXPECT_EQ(contents("%two = constant() {value = i64[] {2}} %y = mul(%s, %two) return %y"), "[n*2, c*2, 6]");
  EXPECT_EQ(contents("%two = constant() {value = i64[] {2}} %y = div(%s, %two) return %y"), "[floor_div(n, 2), floor_div(c, 2), 1]");
  EXPECT_EQ(contents("%m = constant() {value = i64[] {-7}} %two = constant() {value = i64[] {2}} %y = div(%m, %two) return %y"), "[-3]");
  EXPECT_EQ(contents("%m = constant() {value = i64[] {-7}} %two = constant() {value = i64[] {2}} %y = fmod(%m, %two) return %y"), "[-1]");
  EXPECT_EQ(contents("%m = constant() {value = i64[] {-7}} %two = constant() {value = i64[] {2}} %y = floor_mod(%m, %two) return %y"), "[1]");
  EXPECT_EQ(contents("%y = reduce_prod(%s) {axes = [-1], keepdims = 0} return %y"), "[c*n*3]");
  EXPECT_EQ(contents("%y = reduce_max(%s) {axes = [0], keepdims = 1} return %y"), "[max(c, n, 3)]");
  EXPECT_EQ(contents("%y = reduce_prod(%z) {axes = [0], keepdims = 0} return %y"), "?");
  EXPECT_EQ(contents("%e = slice(%s) {starts = <0>, sizes = <0>, steps = [1]} %y = reduce_prod(%e) {axes = [0], keepdims = 0} return %y"), "[1]");
  EXPECT_EQ(contents("%low = constant() {value = i64[] {4}} %high = constant() {value = i64[] {9}} %y = clamp(%s, %low, %high) return %y"),
            "[min(max(n, 4), 9), min(max(c, 4), 9), 4]");
}

// Reshape's -1 and expand's 1 are told apart by comparisons with sizes.
TEST(SizeContents, Decisions) {
  EXPECT_EQ(contents("%m = constant() {value = i64[] {-1}} %q = eq(%s, %m) %y = select(%q, %m, %s) return %y"), "[n, c, 3]");
  EXPECT_EQ(contents("%m = constant() {value = i64[] {0}} %q = gt(%s, %m) return %q"), "[lt(0, n), 1, 1]");
  EXPECT_EQ(contents("%m = constant() {value = i64[] {3}} %q = eq(%s, %m) %r = not(%q) %t = cast(%r) {to = :i64} return %t"), "[ne(n, 3), ne(c, 3), 0]");
}

TEST(SizeContents, FloatsBetweenCasts) {
  const auto scaled = [](const std::string& factor, const std::string& round) {
    return contents("%f = cast(%s) {to = :f32} %k = constant() {value = f32[] {" + factor + "}} %g = mul(%f, %k) %h = " + round +
                    "(%g) %y = cast(%h) {to = :i64} return %y");
  };
  EXPECT_EQ(scaled("2.0", "floor"), "[n*2, c*2, 6]");
  EXPECT_EQ(scaled("0.5", "floor"), "[floor_div(n, 2), floor_div(c, 2), 1]");
  EXPECT_EQ(scaled("0.5", "ceil"), "[floor_div(n + 1, 2), floor_div(c + 1, 2), 2]");
  EXPECT_EQ(scaled("1.5", "trunc"), "[n + floor_div(n, 2), c + floor_div(c, 2), 4]");
  EXPECT_EQ(scaled("0.7", "floor"), "?");   // n * 0.7f rounds
  EXPECT_EQ(contents("%f = cast(%s) {to = :f32} %k = constant() {value = f32[] {3.0}} %g = div(%f, %k) %h = floor(%g) %y = cast(%h) {to = :i64} return %y"),
            "[floor_div(n, 3), floor_div(c, 3), 1]");
  EXPECT_EQ(contents("%f = cast(%s) {to = :f32} return %f"), "?");   // no integers
}

TEST(SizeContents, Ratios) {
  const Graph graph = parse(R"(
    graph g(%x: f32[n]) {
      %s = sym_value() {values = <n>, dtype = :f32}
      %k = constant() {value = f32[1] {0.75}}
      %y = mul(%s, %k)
      %t = sym_value() {values = <n>, dtype = :i8}
      return %y, %t
    })");
  SizeContents analysis(graph);
  EXPECT_EQ((*analysis.ratios_of(graph.outputs()[0]))[0], (Ratio{sym::parse_expr("3*n"), 4}));
  EXPECT_FALSE(analysis.ratios_of(graph.outputs()[1]).has_value());   // n may wrap
}

TEST(SizeContents, DeepChains) {
  Graph graph(op::standard_ops());
  ValueId x = graph.add("sym_value", {}, {{"values", op::Shape{sym::Expr(3)}}, {"dtype", DType::I64}});
  const ValueId one = graph.add_constant(Tensor::of_ints(DType::I64, {}, std::vector<int64_t>{1}));
  for (int i = 0; i < 20000; ++i) x = graph.add("add", {x, one});
  graph.set_outputs({x});
  const std::optional<std::vector<sym::Expr>> known = known_contents(graph, x);
  ASSERT_TRUE(known.has_value());
  EXPECT_TRUE((*known)[0].is_const(20003));
}

TEST(SizeContents, GrowsWithTheGraph) {
  Graph graph(op::standard_ops());
  SizeContents analysis(graph);
  const ValueId a = graph.add("sym_value", {}, {{"values", op::Shape{sym::Expr::symbol("n")}}, {"dtype", DType::I64}});
  EXPECT_TRUE(analysis.of(a).has_value());
  const ValueId b = graph.add("add", {a, a});
  EXPECT_EQ(sym::to_string((*analysis.of(b))[0]), "n*2");
}

}  // namespace
}  // namespace fuseloom::graph
