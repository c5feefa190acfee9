#include "graph/pass/pass.h"

#include <algorithm>
#include <chrono>

#include "graph/graph_testing.h"

namespace fuseloom::graph {
namespace {

std::vector<Tensor> outputs_of(const Graph& graph, uint64_t seed) {
  const SymbolValues symbols = test::random_symbols(graph, seed);
  return evaluate(graph, test::random_inputs(graph, symbols, seed));
}

void expect_same_results(const Graph& before, const Graph& after, double tolerance, uint64_t seed) {
  for (uint64_t round = 0; round < 2; ++round) {
    const SymbolValues symbols = test::random_symbols(before, seed + round);
    const std::vector<Tensor> inputs = test::random_inputs(before, symbols, seed + round);
    const std::vector<Tensor> expected = evaluate(before, inputs), found = evaluate(after, inputs);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i)
      ASSERT_EQ(test::difference(found[i], expected[i], tolerance), "") << "output " << i << "\n" << to_string(before) << to_string(after);
  }
}

const NamedPass& pass(std::string_view name) {
  return *std::find_if(all_passes().begin(), all_passes().end(), [&](const NamedPass& p) { return p.name == name; });
}

// Every pass but those that say otherwise keeps every bit of every result.
TEST(Passes, KeepTheResultsOfRandomGraphs) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const test::RandomGraph random = test::random_graph({.seed = seed, .control = seed % 2 == 1});
    verify(random.graph);
    Graph all = random.graph.clone();
    for (const std::string_view name :
         {"remove_dead_nodes", "merge_common_subexpressions", "fold_constants", "propagate_sizes", "inline_branches", "canonicalize"}) {
      SCOPED_TRACE(name);
      Graph graph = random.graph.clone();
      run_passes(graph, std::span(&pass(name), 1));
      run_passes(all, std::span(&pass(name), 1));
      verify(graph);
      if (to_string(graph) != to_string(random.graph)) expect_same_results(random.graph, graph, 0, seed);
    }
    expect_same_results(random.graph, all, 0, seed);
  }
}

// The parts of a composite op round one by one.
TEST(Passes, DecomposedRandomGraphsAreClose) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const test::RandomGraph random = test::random_graph({.seed = seed, .floats = {DType::F32, DType::F64}});
    Graph graph = random.graph.clone();
    run_passes(graph, std::span(&pass("decompose"), 1));
    for (const NodeId id : graph.nodes()) EXPECT_EQ(graph.node(id).op->decompose, nullptr) << graph.node(id).op->name;
    expect_same_results(random.graph, graph, 1e-4, seed);
  }
}

TEST(Passes, DecomposeKeepsWhatItIsTold) {
  Graph graph = parse("graph g(%x: f32[n]) { %y = softmax(%x) {axis = 0} %z = reduce_mean(%y) {axes = [0], keepdims = 0} return %z }");
  const std::vector<std::string> keep = {"softmax"};
  EXPECT_TRUE(decompose(graph, keep));
  EXPECT_TRUE(std::any_of(graph.nodes().begin(), graph.nodes().end(), [&](NodeId id) { return graph.node(id).op->name == "softmax"; }));
  EXPECT_FALSE(decompose(graph, keep));
}

TEST(Passes, RecoveredPatternsAreClose) {
  const std::string_view text = R"(
    graph g(%x: f32[n, 8], %scale: f32[8], %bias: f32[8]) {
      %eps = constant() {value = f32[] {0.00001}}
      %two = constant() {value = f32[] {2.0}}
      %mean = reduce_mean(%x) {axes = [-1], keepdims = 1}
      %d = sub(%x, %mean)
      %sq = pow(%d, %two)
      %var = reduce_mean(%sq) {axes = [-1], keepdims = 1}
      %v = add(%var, %eps)
      %std = sqrt(%v)
      %norm = div(%d, %std)
      %scaled = mul(%norm, %scale)
      %y = add(%scaled, %bias)
      %half = constant() {value = f32[] {0.5}}
      %one = constant() {value = f32[] {1.0}}
      %r = constant() {value = f32[] {0.7071067811865476}}
      %a = mul(%y, %r)
      %a1 = erf(%a)
      %a2 = add(%a1, %one)
      %a3 = mul(%half, %y)
      %z = mul(%a3, %a2)
      return %z
    })";
  const Graph before = parse(text);
  Graph after = before.clone();
  EXPECT_TRUE(recover_patterns(after));
  remove_dead_nodes(after);
  verify(after);
  EXPECT_EQ(after.nodes().size(), 2u) << to_string(after);
  expect_same_results(before, after, 1e-5, 1);
}

TEST(PassRunner, NamesSkipsStopsAndCalls) {
  Graph graph = parse("graph g(%x: f32[n]) { %y = neg(%x) %z = neg(%y) return %z }");
  std::vector<std::string> seen;
  const std::vector<PassReport> reports =
      run_passes(graph, all_passes(), {.skip = {"fold_constants"}, .stop_after = "canonicalize", .before = [&](const std::string& name, const Graph&) {
                                         seen.push_back(name);
                                       }});
  EXPECT_EQ(seen, (std::vector<std::string>{"remove_dead_nodes", "merge_common_subexpressions", "propagate_sizes", "inline_branches", "canonicalize"}));
  EXPECT_FALSE(reports[0].changed);
  EXPECT_TRUE(reports.back().changed);
}

TEST(PassRunner, VerifiesAndNamesTheBrokenPass) {
  Graph graph = parse("graph g(%x: f32[n]) { %y = neg(%x) %z = abs(%y) return %z }");
  const NamedPass broken{"break_it", [](Graph& g) {
                           g.replace_input(g.nodes()[0], 0, g.node(g.nodes()[1]).outputs[0]);
                           return true;
                         }};
  expect_error<InternalError>([&] { run_passes(graph, std::span(&broken, 1)); }, "after the pass break_it: ");
}

// R53: a long chain of steps that every pass has something to do with.
Graph chain(int64_t steps) {
  Graph graph(op::standard_ops());
  const op::TensorType type{.dtype = DType::F32, .shape = {sym::Expr::symbol("n"), sym::Expr(4)}};
  ValueId x = graph.add_input("x", type);
  const ValueId y = graph.add_input("y", type);
  for (int64_t i = 0; i < steps; i += 10) {
    const ValueId one = graph.add_constant(Tensor::scalar(DType::F32, 1));
    x = graph.add("mul", {graph.add("add", {x, y}), one});
    x = graph.add("softmax", {x}, {{"axis", int64_t{1}}});
    const ValueId t = graph.add("transpose", {x}, {{"perm", std::vector<int64_t>{1, 0}}});
    x = graph.add("mul", {graph.add("transpose", {t}, {{"perm", std::vector<int64_t>{1, 0}}}), y});
    const ValueId sizes = graph.add("sym_value", {}, {{"values", op::Shape{sym::Expr::symbol("n"), sym::Expr(4)}}, {"dtype", DType::I64}});
    const sym::Expr u = sym::Expr::symbol(graph.fresh_symbol("u")), v = sym::Expr::symbol(graph.fresh_symbol("u"));
    graph.add("bind_symbols", {sizes}, {{"defines", op::Shape{u, v}}});
    x = graph.add("reshape", {x}, {{"shape", op::Shape{u, v}}});
  }
  graph.set_outputs({x});
  return graph;
}

TEST(Passes, TenThousandNodesNearLinear) {
  const auto seconds = [](int64_t steps) {
    Graph graph = chain(steps);
    const auto start = std::chrono::steady_clock::now();
    for (const PassReport& report : run_passes(graph, all_passes()))
      RecordProperty(report.name, std::to_string(report.seconds));
    remove_dead_nodes(graph);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const double small = std::max(seconds(2500), 0.01), large = seconds(10000);
  // Four times the nodes; a quadratic pass would take sixteen times as long. The margin is for a busy machine.
  EXPECT_LT(large / small, 10) << small << " s for 2500 nodes, " << large << " s for 10000";
}

TEST(RandomGraph, IsAFunctionOfItsSeed) {
  EXPECT_EQ(to_string(test::random_graph({.seed = 5}).graph), to_string(test::random_graph({.seed = 5}).graph));
  EXPECT_NE(to_string(test::random_graph({.seed = 5}).graph), to_string(test::random_graph({.seed = 6}).graph));
  EXPECT_FALSE(outputs_of(test::random_graph({.seed = 5}).graph, 5).empty());
}

}  // namespace
}  // namespace fuseloom::graph
