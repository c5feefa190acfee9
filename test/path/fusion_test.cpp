// Programs on which fusion or memory reuse once went wrong, each the smallest of its kind.
#include <gtest/gtest.h>

#include "path/path_testing.h"

namespace fuseloom::test {
namespace {

// The memory of %b may become that of %c, and %a is read at the same place: everything is read before anything is stored.
TEST(InPlace, AllOperandsAreReadBeforeTheFirstStore) {
  const std::vector<Tensor> inputs{numbers(DType::F32, {5, 3, 16}, 1)};
  expect_paths_agree(R"(graph main(%x: f32[n, m, 16]) {
    %a: f32[n, m, 16] = tanh(%x)
    %b: f32[n, m, 16] = cumsum(%a) {axis = 0, exclusive = 1, reverse = 0}
    %c: f32[n, m, 16] = tanh(%b)
    %s: f32[n, m, 16] = silu(%a)
    %d: f32[n, m, 16] = mul(%s, %c)
    %e: f32[n, 16] = reduce_min(%c) {axes = [1], keepdims = 0}
    return %d, %e })", inputs);
}

// %y is part of the group's index arithmetic, but no element of it is ever read.
TEST(InPlace, AValueThatIsNotReadIsNoCandidate) {
  const std::vector<Tensor> inputs{numbers(DType::I32, {1}, 1), numbers(DType::I32, {}, 2)};
  expect_paths_agree(R"(graph main(%x: i32[1], %y: i32[]) {
    %a: i32[1] = neg(%x)
    %z: i32[1] = reshape(%y) {shape = <1>}
    %b: i32[2] = concat(%a, %z) {axis = 0}
    %c: i32[1] = slice(%b) {starts = <0>, sizes = <1>, steps = [2]}
    %d: i32[1] = sign(%c)
    return %d })", inputs);
}

// The inner reduction runs once for every step of the outer one, which is folded in place.
TEST(SmallReductions, OverAReduction) {
  for (const int64_t m : {1, 5, 40}) {
    const std::vector<Tensor> inputs{numbers(DType::F32, {3, 4, m}, 1)};
    expect_paths_agree(R"(graph main(%x: f32[n, 4, m]) {
      %a: f32[n, 4] = reduce_max(%x) {axes = [2], keepdims = 0}
      %b: f32[n] = reduce_sum(%a) {axes = [1], keepdims = 0}
      return %b })", inputs);
    expect_paths_agree(R"(graph main(%x: f32[m, 4, n]) {
      %a: f32[4, n] = reduce_max(%x) {axes = [0], keepdims = 0}
      %t: f32[4, n] = tanh(%a)
      %b: f32[n] = reduce_sum(%t) {axes = [0], keepdims = 0}
      return %b })", inputs);
  }
}

// tanh(x) is worth keeping for the second and third loop over a row, but it is read inside a reduction folded in place.
TEST(SmallReductions, InsideANormalization) {
  for (const int64_t m : {1, 5, 40}) {
    const std::vector<Tensor> inputs{numbers(DType::F32, {3, m, 4}, 1)};
    expect_paths_agree(R"(graph main(%x: f32[n, m, 4]) {
      %t: f32[n, m, 4] = tanh(%x)
      %s: f32[n, m] = reduce_sum(%t) {axes = [2], keepdims = 0}
      %y: f32[n, m] = softmax(%s) {axis = 1}
      return %y })", inputs);
  }
}

TEST(SmallReductions, InsideAnOuterReduction) {
  for (const int64_t n : {1, 5, 60}) {
    const std::vector<Tensor> inputs{numbers(DType::F64, {n, 3, 8}, 1)};
    expect_paths_agree(R"(graph main(%x: f64[n, m, 8]) {
      %c: f64[1, 1, 8] = reduce_sum(%x) {axes = [0, 1], keepdims = 1}
      %t: f64[1, 1, 8] = tanh(%c)
      %y: f64[n, m, 8] = sub(%x, %t)
      %z: f64[n, m, 8] = rms_norm(%y) {axis = 2, epsilon = 1.0}
      %r: f64[8] = reduce_max(%z) {axes = [0, 1], keepdims = 0}
      return %r })", inputs);
  }
}

// What a loop gave has sizes known only then; its reshape leaves in the same memory with its own shape.
TEST(Results, ReshapeOfWhatALoopGave) {
  const std::vector<Tensor> inputs{numbers(DType::F32, {3, 2}, 1)};
  expect_paths_agree(R"(graph main(%x: f32[n, m]) {
    %count: i64[] = constant() {value = i64[] {2}}
    %last: f32[n, m], %all: f32[trips, n, m] = while(%count, _, %x) {carried = 1, defines = <trips>, scans = 1} body(%i: i64[], %c: bool[], %v: f32[n, m]) outer {m, n} {
      %w: f32[n, m] = neg(%v)
      return %c, %w, %w
    }
    %flat: f32[trips*n*m] = reshape(%all) {shape = <trips*n*m>}
    %wide: f32[1, n, m] = reshape(%last) {shape = <1, n, m>}
    return %flat, %wide })", inputs);
}

TEST(ArgReductions, TruthValues) {
  const std::vector<Tensor> inputs{numbers(DType::Bool, {5, 37}, 1)};
  for (const char* op : {"argmax", "argmin"}) {
    for (const char* flags : {"axis = 0, keepdims = 0, select_last = 0", "axis = 1, keepdims = 0, select_last = 1"}) {
      const char* const shape = flags[7] == '0' ? "b" : "a";
      expect_paths_agree(fmt::format("graph main(%x: bool[a, b]) {{ %y: i64[{}] = {}(%x) {{{}}} return %y }}", shape, op, flags), inputs);
    }
  }
}

// Random numbers are computed where they are used, with the bits of the reference.
TEST(RandomNumbers, AreFusedBitForBit) {
  for (const char* dtype : {"f32", "f64", "f16"}) {
    for (const char* node : {"random_uniform() {dtype = :%, high = 3.0, low = -1.0, offset = 5, seed = 77, shape = <n, m>}",
                             "random_normal() {dtype = :%, mean = 0.5, offset = 3, scale = 2.0, seed = -9, shape = <n, m>}"}) {
      std::string call = node;
      call.replace(call.find('%'), 1, dtype);
      const std::string text = fmt::format("graph main(%x: {}[n, m]) {{ %r = {} %t = transpose(%r) {{perm = [1, 0]}} %y = add(%r, %x) return %r, %t, %y }}", dtype, call);
      const graph::Graph source = graph::parse_graph(text, op::standard_ops());
      for (const Dims& dims : std::vector<Dims>{{3, 7}, {5, 129}, {1, 1}, {0, 4}}) {
        const std::vector<Tensor> inputs{Tensor(source.type(source.inputs()[0]).dtype, dims)};
        const std::vector<Tensor> expected = graph::evaluate(source, inputs);
        for (const bool fuse : {true, false}) {
          const compile::Compiled compiled = compile::compile(source.clone(), {.fuse = fuse, .threads = 1});
          const std::vector<Tensor> got = compiled.executable->run(inputs);
          for (size_t o = 0; o < got.size(); ++o) {
            for (int64_t i = 0; i < got[o].count(); ++i) ASSERT_EQ(got[o].at(i), expected[o].at(i)) << call << " output " << o << " element " << i;
          }
          for (const program::Line& line : compiled.executable->program().lines) EXPECT_FALSE(std::holds_alternative<program::Call>(line.what));
        }
      }
    }
  }
}

// What reads one tensor at the same positions is one loop: results are stored together.
TEST(Siblings, AreJoined) {
  const char* const text = R"(graph main(%x: f32[n, m], %w: f32[m]) {
    %a = exp(%x)
    %b = mul(%x, %w)
    %c = reduce_sum(%x) {axes = [1], keepdims = 0}
    %d = reduce_max(%x) {axes = [1], keepdims = 0}
    %e = reduce_min(%x) {axes = [0], keepdims = 0}
    %f = reduce_sum_square(%x) {axes = [0], keepdims = 0}
    %g = argmax(%x) {axis = 1, keepdims = 0, select_last = 0}
    return %a, %b, %c, %d, %e, %f, %g })";
  for (const Dims& dims : std::vector<Dims>{{3, 7}, {65, 129}, {1, 1}}) {
    const std::vector<Tensor> inputs{numbers(DType::F32, dims, 1), numbers(DType::F32, {dims[1]}, 2)};
    expect_paths_agree(text, inputs);
  }
  EXPECT_EQ(compile::compile(graph::parse_graph(text, op::standard_ops()), {.threads = 1, .dry_run = true}).report.kernels, 4U);
}

// The second of two readers waits for a sort of what the first gives: they cannot be one.
TEST(Siblings, ThatWaitStayApart) {
  const std::vector<Tensor> inputs{numbers(DType::F32, {4, 33}, 1)};
  expect_paths_agree(R"(graph main(%x: f32[n, m]) {
    %a = exp(%x)
    %v, %i = sort(%a) {axis = 1, descending = 0}
    %b = add(%x, %v)
    %c = neg(%x)
    return %b, %c })", inputs);
}

}  // namespace
}  // namespace fuseloom::test
