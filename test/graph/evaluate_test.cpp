#include "graph/evaluate.h"

#include <cmath>
#include <limits>

#include "graph/graph_testing.h"

namespace fuseloom::graph {
namespace {

const double kInf = std::numeric_limits<double>::infinity();

std::vector<Tensor> run(std::string_view text, const std::vector<Tensor>& inputs) {
  const Graph graph = parse(text);
  verify(graph);
  return evaluate(graph, inputs);
}

// ---- symbols

TEST(BindSymbols, SolvesCompoundSizes) {
  const Graph graph = parse("graph g(%x: f32[2*n + 1, m], %y: f32[n*m]) { return %x }");
  verify(graph);
  const SymbolValues values = bind_symbols(graph, std::vector<Tensor>{Tensor(DType::F32, {7, 4}), Tensor(DType::F32, {12})});
  EXPECT_EQ(values.at("n"), 3);
  EXPECT_EQ(values.at("m"), 4);
}

TEST(BindSymbols, ChecksEverything) {
  const auto fails = [](std::string_view text, const std::vector<Tensor>& inputs, std::string_view words) {
    const Graph graph = parse(text);
    expect_error<UserError>([&] { bind_symbols(graph, inputs); }, words);
  };
  const Tensor x34(DType::F32, {3, 4});
  fails("graph g(%x: f32[n, n]) { return %x }", {x34}, "input 'x', dimension 1 (n): expected 3, got 4");
  fails("graph g(%x: f32[3, 5]) { return %x }", {x34}, "input 'x', dimension 1: expected 5, got 4");
  fails("graph g(%x: f32[2*n, m]) { return %x }", {x34}, "dimension 0 (n*2): expected 2, got 3");
  fails("graph g(%x: i32[n, m]) { return %x }", {x34}, "expected i32[n, m], got f32[3,4]");
  fails("graph g(%x: f32[n]) { return %x }", {x34}, "expected rank 1");
  fails("graph g(%x: f32[n, m]) { return %x }", {}, "takes 1 inputs, 0 are given");
  fails("graph g(%x: f32[n, m]) symbols {n in 4 .. 9} { return %x }", {x34}, "n = 3, but it must be in 4 .. 9");
  fails("graph g(%x: f32[n, m]) symbols {m in 0 .. inf multiple 8} { return %x }", {x34}, "must be a multiple of 8");
}

TEST(BindSymbols, SizesFromData) {
  const std::string_view text = R"(
    graph g(%x: f32[n], %s: i64[2]) {
      %d = bind_symbols(%s) {defines = <a, b>}
      %y = reshape(%x) {shape = <a, b>}
      return %y, %d
    })";
  const std::vector<Tensor> results = run(text, {floats({6}, {1, 2, 3, 4, 5, 6}), ints({2}, {2, 3})});
  expect_equal(results[0], floats({2, 3}, {1, 2, 3, 4, 5, 6}));
  expect_error<UserError>([&] { run(text, {floats({6}, {1, 2, 3, 4, 5, 6}), ints({2}, {2, 4})}); }, "reshape");
}

// ---- ownership (R4, R5, R6)

TEST(Evaluate, SameValueTwiceAndAnInputAsOutput) {
  Tensor x = floats({2}, {1, 2});
  const std::vector<Tensor> results = run("graph g(%x: f32[n], %y: f32[n]) { %z = add(%x, %y) return %z, %z, %x }", {x, x});
  x.set(0, 100);
  expect_equal(results[0], floats({2}, {2, 4}));
  expect_equal(results[1], floats({2}, {2, 4}));
  expect_equal(results[2], floats({2}, {1, 2}));
  EXPECT_NE(results[0].data(), results[1].data());
  EXPECT_NE(results[2].data(), x.data());
}

TEST(Evaluate, ConstantsAreNotGivenAway) {
  const Graph graph = parse("graph g() { %c = constant() {value = f32[2] {1.0, 2.0}} return %c }");
  evaluate(graph, {})[0].set(0, 7);
  expect_equal(evaluate(graph, {})[0], floats({2}, {1, 2}));
}

TEST(Evaluate, BorrowedAndStridedInputs) {
  float data[] = {1, 2, 3, 4, 5, 6};
  const Tensor columns = Tensor::borrow(DType::F32, {3, 2}, {1, 3}, data);
  const std::vector<Tensor> results = run("graph g(%x: f32[n, m]) { %y = reshape(%x) {shape = <n*m>} return %x, %y }", {columns});
  data[0] = 50;
  expect_equal(results[0], floats({3, 2}, {1, 4, 2, 5, 3, 6}));
  expect_equal(results[1], floats({6}, {1, 4, 2, 5, 3, 6}));
}

TEST(Evaluate, AfterNodeSeesEveryNode) {
  const Graph graph = parse("graph g(%x: f32[n]) { %y = neg(%x) %v, %mean = layer_norm(%y) {axis = 0, epsilon = 1.0} return %v }");
  std::vector<size_t> outputs;
  evaluate(graph, std::vector<Tensor>{floats({2}, {1, 2})},
           {.after_node = [&](const Graph&, NodeId, std::span<const Tensor> values) { outputs.push_back(values.size()); }});
  EXPECT_EQ(outputs, (std::vector<size_t>{1, 2}));
}

// ---- control

constexpr std::string_view kBranches = R"(
  graph g(%c: bool[], %x: f32[n]) {
    %r: f32[] = if(%c, %x) then(%x: f32[n]) outer {n} {
      %one = constant() {value = f32[] {1.0}}
      %a = add(%x, %one)
      %s = reduce_sum(%a) {axes = [0], keepdims = 0}
      return %s
    } else(%x: f32[n]) outer {n} {
      %b = add(%x, %x)
      %s = reduce_max(%b) {axes = [0], keepdims = 0}
      return %s
    }
    %three = constant() {value = f32[] {3.0}}
    %y = mul(%x, %three)
    return %r, %y
  })";

TEST(Evaluate, IfR3) {
  const Tensor x = floats({3}, {1, 5, 2});
  for (const bool condition : {true, false}) {
    const std::vector<Tensor> results = run(kBranches, {truth(condition), x});
    expect_equal(results[0], floats({}, {condition ? 11.0 : 10.0}));
    expect_equal(results[1], floats({3}, {3, 15, 6}));
  }
}

TEST(Evaluate, IfWithBranchesOfOtherSizes) {
  const std::string_view text = R"(
    graph g(%c: bool[], %x: f32[n]) {
      %r: f32[u] = if(%c, %x) {defines = <u>} then(%x: f32[n]) outer {n} {
        %y = concat(%x, %x) {axis = 0}
        return %y
      } else(%x: f32[m]) {
        return %x
      }
      %y = reshape(%r) {shape = <u, 1>}
      return %y
    })";
  EXPECT_EQ(run(text, {truth(true), floats({2}, {1, 2})})[0].dims(), (Dims{4, 1}));
  EXPECT_EQ(run(text, {truth(false), floats({2}, {1, 2})})[0].dims(), (Dims{2, 1}));
}

TEST(Evaluate, IfWhoseBranchBreaksTheType) {
  const std::string_view text = R"(
    graph g(%c: bool[], %x: f32[n]) {
      %r: f32[n] = if(%c, %x) then(%x: f32[n]) outer {n} {
        %y = concat(%x, %x) {axis = 0}
        return %y
      } else(%x: f32[n]) outer {n} { return %x }
      return %r
    })";
  expect_error<UserError>([&] { run(text, {truth(true), floats({2}, {1, 2})}); }, "n = 2, not 4");
}

// sum = 0, 1, 3, 6, ...; scan of the sums; stops when the sum passes the limit.
constexpr std::string_view kLoop = R"(
  graph g(%trips: i64[], %c: bool[], %s: f32[], %limit: f32[]) {
    %last: f32[], %all: f32[t] = while(%trips, %c, %s, %limit) {carried = 1, scans = 1, defines = <t>} body(
        %i: i64[], %c: bool[], %s: f32[], %limit: f32[]) {
      %f = cast(%i) {to = :f32}
      %next = add(%s, %f)
      %more = lt(%next, %limit)
      return %more, %next, %next
    }
    return %last, %all
  })";

TEST(Evaluate, WhileCarriesAndScans) {
  const Tensor zero = floats({}, {0});
  const auto loop = [&](int64_t trips, bool condition, double limit) {
    return run(kLoop, {Tensor::of_ints(DType::I64, {}, std::span(&trips, 1)), truth(condition), zero, floats({}, {limit})});
  };
  std::vector<Tensor> results = loop(4, true, 100);
  expect_equal(results[0], floats({}, {6}));
  expect_equal(results[1], floats({4}, {0, 1, 3, 6}));
  results = loop(100, true, 3);
  expect_equal(results[0], floats({}, {3}));
  expect_equal(results[1], floats({3}, {0, 1, 3}));
  // No trips, by the count or by the condition (R4).
  for (const auto& [trips, condition] : std::vector<std::pair<int64_t, bool>>{{0, true}, {5, false}}) {
    results = loop(trips, condition, 3);
    expect_equal(results[0], floats({}, {0}));
    EXPECT_EQ(results[1].dims(), (Dims{0}));
  }
}

TEST(Evaluate, WhileWithZeroTripsOwnsItsResult) {
  Tensor x = floats({2}, {1, 2});
  const std::vector<Tensor> results = run(R"(
    graph g(%t: i64[], %x: f32[n]) {
      %y: f32[n] = while(%t, _, %x) {carried = 1, scans = 0} body(%i: i64[], %c: bool[], %x: f32[n]) outer {n} {
        %z = neg(%x)
        return %c, %z
      }
      return %y
    })", {ints({}, {0}), x});
  x.set(0, 9);
  expect_equal(results[0], floats({2}, {1, 2}));
}

TEST(Evaluate, WhileMayGrowWhatItCarries) {
  const std::string_view text = R"(
    graph g(%t: i64[], %x: f32[n]) {
      %y: f32[u], %all: f32[v, w] = while(%t, _, %x) {carried = 1, scans = 1, defines = <u, v, w>} body(%i: i64[], %c: bool[], %x: f32[m]) {
        %z = concat(%x, %x) {axis = 0}
        %two = slice(%z) {starts = <0>, sizes = <2>, steps = [1]}
        return %c, %z, %two
      }
      return %y, %all
    })";
  std::vector<Tensor> results = run(text, {ints({}, {3}), floats({1}, {7})});
  EXPECT_EQ(results[0].dims(), (Dims{8}));
  expect_equal(results[1], floats({3, 2}, {7, 7, 7, 7, 7, 7}));
  results = run(text, {ints({}, {0}), floats({1}, {7})});
  EXPECT_EQ(results[0].dims(), (Dims{1}));
  EXPECT_EQ(results[1].dims(), (Dims{0, 0}));
}

// ---- rows of REGRESSIONS

TEST(Evaluate, IotaTimesABillionR12) {
  const std::vector<Tensor> results = run(
      "graph g() { %i = iota() {shape = <4>, axis = 0, dtype = :i64} %c = constant() {value = i64[] {1000000000}} %y = mul(%i, %c) return %y }", {});
  expect_equal(results[0], ints({4}, {0, 1e9, 2e9, 3e9}));
}

TEST(Evaluate, SoftmaxOfInfinitiesR27) {
  const std::vector<Tensor> results =
      run("graph g(%x: f32[n, m]) { %y = softmax(%x) {axis = 1} return %y }", {floats({2, 2}, {-kInf, -kInf, kInf, 1})});
  EXPECT_TRUE(std::isnan(results[0].at(0)) && std::isnan(results[0].at(1)) && std::isnan(results[0].at(2)));
  EXPECT_EQ(results[0].at(3), 0);
  EXPECT_EQ(run("graph g(%x: f32[n, m]) { %y = softmax(%x) {axis = 1} return %y }", {Tensor(DType::F32, {2, 0})})[0].dims(), (Dims{2, 0}));
}

TEST(Evaluate, RankZeroR43) {
  const std::vector<Tensor> results = run(R"(
    graph g(%x: f32[]) {
      %c = cumsum(%x) {axis = 0, exclusive = 0, reverse = 0}
      %m = reduce_mean(%x) {axes = [], keepdims = 0}
      %a = argmax(%x) {axis = 0, keepdims = 0, select_last = 0}
      return %c, %m, %a
    })", {floats({}, {3})});
  expect_equal(results[0], floats({}, {3}));
  expect_equal(results[1], floats({}, {3}));
  expect_equal(results[2], ints({}, {0}));
}

TEST(Evaluate, EmptyPiecesR44) {
  const std::vector<Tensor> results = run(R"(
    graph g(%x: f32[n], %e: f32[0]) {
      %c = concat(%e, %x, %e) {axis = 0}
      %p = pad(%e) {low = <1>, high = <1>, mode = "constant"}
      %q = pad(%x) {low = <-n>, high = <0>, mode = "constant"}
      return %c, %p, %q
    })", {floats({2}, {1, 2}), Tensor(DType::F32, {0})});
  expect_equal(results[0], floats({2}, {1, 2}));
  expect_equal(results[1], floats({2}, {0, 0}));
  EXPECT_EQ(results[2].dims(), (Dims{0}));
}

TEST(Evaluate, NoInputsAndNoElementsR45) {
  EXPECT_TRUE(run("graph g() { return }", {}).empty());
  EXPECT_EQ(run("graph g() { %i = iota() {shape = <0, 3>, axis = 0, dtype = :f32} %j = neg(%i) return %j }", {})[0].dims(), (Dims{0, 3}));
}

TEST(Evaluate, ViewsByRunTimeBoundsR6) {
  const std::vector<Tensor> results = run(R"(
    graph g(%x: f32[n], %k: i64[1]) {
      %b = bind_symbols(%k) {defines = <k>}
      %s = slice(%x) {starts = <k>, sizes = <n - k>, steps = [1]}
      %e = expand(%x) {shape = <2, n>}
      return %s, %e
    })", {floats({3}, {1, 2, 3}), ints({1}, {1})});
  expect_equal(results[0], floats({2}, {2, 3}));
  expect_equal(results[1], floats({2, 3}, {1, 2, 3, 1, 2, 3}));
}

TEST(Evaluate, TheOldValueOutlivesTheScatterR8) {
  const std::vector<Tensor> results = run(R"(
    graph g(%x: f32[n], %i: i64[m], %u: f32[m]) {
      %y = scatter_elements(%x, %i, %u) {axis = 0, reduction = "add"}
      %z = div(%y, %x)
      return %y, %z
    })", {floats({2}, {2, 4}), ints({3}, {1, 1, -1}), floats({3}, {1, 2, 1})});
  expect_equal(results[0], floats({2}, {2, 8}));
  expect_equal(results[1], floats({2}, {1, 2}));
}

TEST(Evaluate, EmptyReductionsAndBroadcastsR42) {
  const std::vector<Tensor> results = run(R"(
    graph g(%x: f32[a, b, c, d], %y: f32[e, f], %u: f32[1, 0], %v: f32[0, 1]) {
      %s = reduce_sum(%x) {axes = [1], keepdims = 0}
      %t = reduce_sum(%y) {axes = [0, 1], keepdims = 0}
      %w = add(%u, %v)
      return %s, %t, %w
    })", {Tensor(DType::F32, {3, 4, 0, 5}), Tensor(DType::F32, {5, 0}), Tensor(DType::F32, {1, 0}), Tensor(DType::F32, {0, 1})});
  EXPECT_EQ(results[0].dims(), (Dims{3, 0, 5}));
  expect_equal(results[1], floats({}, {0}));
  EXPECT_EQ(results[2].dims(), (Dims{0, 0}));
}

TEST(Evaluate, ReduceBroadcastPadR48) {
  const std::vector<Tensor> results = run(R"(
    graph g(%x: f32[n, m]) {
      %s = reduce_sum(%x) {axes = [1], keepdims = 1}
      %e = expand(%s) {shape = <n, m>}
      %p = pad(%e) {low = <0, 1>, high = <0, 0>, mode = "constant"}
      return %p
    })", {floats({2, 2}, {1, 2, 3, 4})});
  expect_equal(results[0], floats({2, 3}, {0, 3, 3, 0, 7, 7}));
}

TEST(Evaluate, NineDimensionsR51) {
  const std::vector<Tensor> results = run(R"(
    graph g(%x: f32[2, 1, 1, 1, 1, 1, 1, 1, n]) {
      %t = transpose(%x) {perm = [8, 7, 6, 5, 4, 3, 2, 1, 0]}
      %y = add(%t, %x)
      return %y
    })", {floats({2, 1, 1, 1, 1, 1, 1, 1, 2}, {1, 2, 3, 4})});
  expect_equal(results[0], floats({2, 1, 1, 1, 1, 1, 1, 1, 2}, {2, 5, 5, 8}));
}

TEST(Evaluate, SizesOfSymbolsR50) {
  const Graph graph = parse("graph g(%x: f32[s*(a*b + b)], %a: f32[a, b], %s: f32[s]) nonzero {a*b + b} { %y = reshape(%x) {shape = <s, a*b + b>} return %y }");
  verify(graph);
  EXPECT_EQ(op::to_string(graph.type(graph.outputs()[0])), "f32[s, a*b + b]");
  const std::vector<Tensor> results =
      evaluate(graph, std::vector<Tensor>{Tensor(DType::F32, {18}), Tensor(DType::F32, {2, 3}), Tensor(DType::F32, {2})});
  EXPECT_EQ(results[0].dims(), (Dims{2, 9}));
}

}  // namespace
}  // namespace fuseloom::graph
