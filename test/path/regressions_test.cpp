// Small programs on which real compilers went wrong, through every path: the oracle, fused kernels, a kernel per node. The
// first line of each says what it guards. A test takes the right result from the oracle and, where it is known, states it.
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "front/onnx/importer.h"
#include "fuseloom/error.h"
#include "path/path_testing.h"
#include "support/onnx_writer.h"
#include "sym/evaluator.h"

namespace fuseloom::test {
namespace {

using sym::Expr;

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();

compile::Compiled compiled(std::string_view text, compile::Options options = {.threads = 2}) {
  options.run.poison = true;
  return compile::compile(graph::parse_graph(text, op::standard_ops()), options);
}

std::vector<double> values(const Tensor& tensor) {
  std::vector<double> out;
  for (int64_t i = 0; i < tensor.count(); ++i) out.push_back(is_int(tensor.dtype()) ? static_cast<double>(tensor.int_at(i)) : tensor.at(i));
  return out;
}

// Every path that exists without a GPU: the oracle, fused kernels, a kernel per node, CUDA's text on the host.
void expect_every_path(const graph::Graph& source, std::span<const Tensor> inputs, const PathOptions& options = {}) {
  expect_paths_agree(source, inputs, options);
  expect_cuda_host_agrees(source, inputs, options.rounding);
}
void expect_every_path(std::string_view text, std::span<const Tensor> inputs, const PathOptions& options = {}) {
  expect_every_path(graph::parse_graph(text, op::standard_ops()), inputs, options);
}

std::vector<std::pair<std::string, compile::Compiled>> every_program(std::string_view text) {
  std::vector<std::pair<std::string, compile::Compiled>> programs;
  programs.emplace_back("fused", compiled(text, {.threads = 1}));
  programs.emplace_back("a kernel per node", compiled(text, {.fuse = false, .threads = 1}));
  programs.emplace_back("CUDA on the host", compile_for_cuda_host(graph::parse_graph(text, op::standard_ops())));
  return programs;
}
// Results on the host, also where there is no input to tell so.
std::vector<Tensor> run(const compile::Compiled& program, std::span<const Tensor> inputs, std::span<const Tensor> outputs = {}) {
  return program.executable->run(inputs, outputs, {.results = run::CallOptions::Results::Host});
}

// All paths agree, and the only (or first) output has these values; NaN equals NaN, zeros have their sign.
void expect_values(std::string_view text, const std::vector<Tensor>& inputs, const std::vector<double>& expected) {
  expect_every_path(text, inputs);
  for (const auto& [path, program] : every_program(text)) {
    const std::vector<double> got = values(run(program, inputs)[0]);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      const bool same = (std::isnan(got[i]) && std::isnan(expected[i])) || (got[i] == expected[i] && std::signbit(got[i]) == std::signbit(expected[i]));
      EXPECT_TRUE(same) << "element " << i << ": " << expected[i] << " expected, got " << got[i] << ", " << path;
    }
  }
}

Tensor floats(std::initializer_list<double> list) { return Tensor::of(DType::F32, {static_cast<int64_t>(list.size())}, list); }
Tensor ints(DType dtype, const std::vector<int64_t>& list) { return Tensor::of_ints(dtype, {static_cast<int64_t>(list.size())}, list); }
Tensor full(DType dtype, Dims dims, double value) {
  Tensor tensor(dtype, std::move(dims));
  for (int64_t i = 0; i < tensor.count(); ++i) tensor.set(i, value);
  return tensor;
}

// ---- aliasing, mutation, reuse ---------------------------------------------------------------------------------------

// An input is updated in place while another result still reads its old bits.
TEST(Regressions, R1_ReinterpretedInputIsReadBeforeItIsUpdated) {
  for (const auto& [path, program] : every_program("graph main(%x: f32[n]) { %b = bitcast(%x) {to = :i32} %two = constant() {value = i32[] {2}} %y = mul(%b, %two)"
                                                   " %one = constant() {value = f32[] {1.0}} %z = add(%x, %one) return %y, %z }")) {
    Tensor x = numbers(DType::F32, {37}, 1);
    const Tensor old = x.contiguous_copy();
    const std::vector<Tensor> inputs{x}, outputs{Tensor(), Tensor::borrow(DType::F32, {37}, x.data())};
    const std::vector<Tensor> got = run(program, inputs, outputs);
    for (int64_t i = 0; i < 37; ++i) {
      EXPECT_EQ(got[0].int_at(i), static_cast<int32_t>(2U * std::bit_cast<uint32_t>(static_cast<float>(old.at(i))))) << path;
      EXPECT_EQ(x.as<float>()[i], static_cast<float>(old.at(i)) + 1) << path;
    }
  }
}

// relu may take the memory of its operand only when nobody reads the operand afterwards.
TEST(Regressions, R2_OperandReadAgainByALargerShape) {
  const char* const text = "graph main(%i: f32[10, 2], %x: f32[2, 10, 2]) { %t = exp(%i) %s = cumsum(%t) {axis = 0, exclusive = 0, reverse = 0}"
                           " %a = relu(%s) %b = add(%s, %x) return %a, %b }";
  const std::vector<Tensor> inputs{numbers(DType::F32, {10, 2}, 1), numbers(DType::F32, {2, 10, 2}, 2)};
  expect_every_path(text, inputs);
  const std::vector<Tensor> expected = graph::evaluate(graph::parse_graph(text, op::standard_ops()), inputs);
  for (const auto& [path, program] : every_program(text)) {
    Tensor given = inputs[0].contiguous_copy();
    const std::vector<Tensor> over_input{given, inputs[1]}, outputs{Tensor::borrow(DType::F32, {10, 2}, given.data()), Tensor()};
    const std::vector<Tensor> got = run(program, over_input, outputs);
    EXPECT_EQ(first_difference(expected[0], got[0]), "") << path;
    EXPECT_EQ(first_difference(expected[1], got[1]), "") << path;
  }
}

// No buffer that one branch frees serves the other.
TEST(Regressions, R3_BranchesKeepTheirBuffersApart) {
  for (const double condition : {0.0, 1.0}) {
    const std::vector<Tensor> inputs{Tensor::scalar(DType::Bool, condition), numbers(DType::F32, {7, 33}, 1)};
    expect_every_path(R"(graph main(%c: bool[], %x: f32[n, m]) {
      %r: f32[] = if(%c, %x) then(%x: f32[n, m]) outer {m, n} {
        %one = constant() {value = f32[] {1.0}}
        %a = add(%x, %one)
        %p = cumsum(%a) {axis = 0, exclusive = 0, reverse = 0}
        %r = reduce_sum(%p) {axes = [0, 1], keepdims = 0}
        return %r
      } else(%x: f32[n, m]) outer {m, n} {
        %two = constant() {value = f32[] {2.0}}
        %b = mul(%x, %two)
        %p = cumsum(%b) {axis = 1, exclusive = 0, reverse = 0}
        %r = reduce_max(%p) {axes = [0, 1], keepdims = 0}
        return %r
      }
      %three = constant() {value = f32[] {3.0}}
      %y = mul(%x, %three)
      return %r, %y })", inputs);
  }
}

// After no trip the result is the initial value, in memory of its own.
TEST(Regressions, R4_LoopWithoutTripsDoesNotReturnTheCallersMemory) {
  const char* const text = R"(graph main(%count: i64[], %x: f32[n]) {
    %last: f32[n] = while(%count, _, %x) {carried = 1, defines = <>, scans = 0} body(%i: i64[], %c: bool[], %v: f32[n]) outer {n} {
      %w = neg(%v)
      return %c, %w
    }
    return %last })";
  for (const auto& [path, program] : every_program(text)) {
    Tensor x = numbers(DType::F32, {9}, 1);
    const Tensor old = x.contiguous_copy();
    const std::vector<Tensor> inputs{Tensor::of_ints(DType::I64, {}, std::vector<int64_t>{0}), x};
    const std::vector<Tensor> got = run(program, inputs);
    for (int64_t i = 0; i < 9; ++i) x.set(i, 100);
    EXPECT_EQ(first_difference(old, got[0]), "") << path;
  }
}

// One value returned twice, one tensor given twice, an output that is an input.
TEST(Regressions, R5_SameTensorInSeveralPlaces) {
  const Tensor x = numbers(DType::F32, {3, 5}, 1);
  const std::vector<Tensor> inputs{x, x};
  expect_every_path("graph main(%x: f32[n, m], %y: f32[n, m]) { %a = add(%x, %y) return %a, %a, %x }", inputs);
  expect_every_path("graph main(%x: f32[n, m], %y: f32[n, m]) { return %x, %x, %y }", inputs);
}

// Slices and expansions of inputs leave as views: nothing is launched.
TEST(Regressions, R6_ViewsOfInputsLaunchNothing) {
  const char* const text = "graph main(%x: f32[n, m], %y: f32[1, m]) { %s = slice(%x) {starts = <floor_div(n, 2), 0>, sizes = <n - floor_div(n, 2), m>, steps = [1, 1]}"
                           " %e = expand(%y) {shape = <n, m>} return %s, %e }";
  const std::vector<Tensor> inputs{numbers(DType::F32, {5, 3}, 1), numbers(DType::F32, {1, 3}, 2)};
  expect_every_path(text, inputs);
  EXPECT_EQ(compiled(text).report.kernels, 0U);
}

// Pieces of a concatenation fill it to its end.
TEST(Regressions, R7_ConcatOfViewsHasNoGarbageTail) {
  for (const int64_t n : {0, 1, 7, 65}) {
    const std::vector<Tensor> inputs{numbers(DType::F32, {n}, 1), numbers(DType::F32, {2, n}, 2)};
    expect_every_path(R"(graph main(%a: f32[n], %b: f32[2, n]) {
      %one = constant() {value = f32[] {1.0}}
      %a1 = add(%a, %one)
      %row = slice(%b) {starts = <1, 0>, sizes = <1, n>, steps = [1, 1]}
      %v = reshape(%row) {shape = <n>}
      %c = concat(%a, %a1, %v) {axis = 0}
      %p = cumsum(%c) {axis = 0, exclusive = 0, reverse = 0}
      %tail = slice(%c) {starts = <2*n>, sizes = <n>, steps = [1]}
      %t = exp(%tail)
      return %p, %t })", inputs);
  }
}

// A scatter does not write into what an older reader still needs.
TEST(Regressions, R8_ScatterLeavesTheOldValueAlone) {
  const std::vector<Tensor> inputs{numbers(DType::F32, {6, 4}, 1), Tensor::of(DType::I64, {2, 4}, {0, 1, 2, 3, 5, 5, 5, 5}), numbers(DType::F32, {2, 4}, 3)};
  expect_every_path(R"(graph main(%i: f32[n, 4], %at: i64[2, 4], %u: f32[2, 4]) {
    %x = exp(%i)
    %s = scatter_elements(%x, %at, %u) {axis = 0, reduction = "add"}
    %d = div(%s, %x)
    return %d, %s })", inputs);
}

// Two buffers that begin equal and are then written differently are two.
TEST(Regressions, R9_EqualBuffersThatAreWrittenStayTwo) {
  const std::vector<Tensor> inputs{Tensor::of(DType::I64, {3}, {0, 2, 4}), numbers(DType::F32, {3}, 1), numbers(DType::F32, {3}, 2)};
  expect_every_path(R"(graph main(%at: i64[3], %u: f32[3], %v: f32[3]) {
    %zero = constant() {value = f32[] {0.0}}
    %e = expand(%zero) {shape = <5>}
    %f = expand(%zero) {shape = <5>}
    %a = scatter_elements(%e, %at, %u) {axis = 0, reduction = "none"}
    %b = scatter_elements(%f, %at, %v) {axis = 0, reduction = "none"}
    return %a, %b })", inputs);
}

// A result written over the input that it reads at other places.
TEST(Regressions, R10_TransposePlusItselfIsNotDoneInPlace) {
  const char* const text = "graph main(%x: f32[n, n]) { %t = transpose(%x) {perm = [1, 0]} %z = add(%t, %x) return %z }";
  for (const int64_t n : {2, 37, 64, 100}) {
    for (const auto& [path, program] : every_program(text)) {
      Tensor x = numbers(DType::F32, {n, n}, 1);
      const std::vector<Tensor> inputs{x};
      const std::vector<Tensor> expected = graph::evaluate(graph::parse_graph(text, op::standard_ops()), inputs);
      EXPECT_EQ(first_difference(expected[0], run(program, inputs)[0]), "") << path << ", " << n;
      const std::vector<Tensor> outputs{Tensor::borrow(DType::F32, {n, n}, x.data())};
      (void)run(program, inputs, outputs);
      EXPECT_EQ(first_difference(expected[0], x), "") << path << ", in place, " << n;
    }
  }
}

// A result that lies otherwise than its type says is refused, and both are named.
TEST(Regressions, R11_ResultOfAnotherShapeIsRefused) {
  const compile::Compiled program = compiled("graph main(%x: f32[2, 4]) { %y = exp(%x) return %y }");
  Tensor memory(DType::F32, {32});
  const std::vector<Tensor> inputs{numbers(DType::F32, {2, 4}, 1)}, outputs{Tensor::borrow(DType::F32, {4, 2}, {1, 5}, memory.data())};
  try {
    (void)program.executable->run(inputs, outputs);
    FAIL() << "the result was taken";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("[2, 4]"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("f32[4,2]"), std::string::npos) << error.what();
  }
}

// ---- integers and indices --------------------------------------------------------------------------------------------

// Products of 64-bit integers are 64 bits wide.
TEST(Regressions, R12_IotaTimesABillion) {
  const char* const text = "graph main(%x: f32[n]) { %i = iota() {axis = 0, dtype = :i64, shape = <n>} %b = constant() {value = i64[] {1000000000}} %y = mul(%i, %b) return %y }";
  expect_values(text, {floats({0, 0, 0, 0})}, {0, 1e9, 2e9, 3e9});
}

// The lowest integer over -1 wraps; the process lives.
TEST(Regressions, R13_LowestIntegerOverMinusOne) {
  const std::vector<Tensor> inputs{ints(DType::I32, {INT32_MIN, INT32_MIN, 7, -7}), ints(DType::I32, {-1, 1, -2, 2})};
  expect_values("graph main(%x: i32[n], %y: i32[n]) { %d = floor_div(%x, %y) return %d }", inputs, {INT32_MIN, INT32_MIN, -4, -4});
  expect_values("graph main(%x: i32[n], %y: i32[n]) { %d = fmod(%x, %y) return %d }", inputs, {0, 0, 1, -1});
}

// Division by zero has the documented value, and is no signal.
TEST(Regressions, R14_IntegerDivisionByZero) {
  for (const char* op : {"div", "floor_div", "floor_mod", "fmod"}) {
    for (const DType dtype : {DType::I8, DType::U16, DType::I32, DType::U32, DType::I64, DType::U64}) {
      const std::vector<Tensor> inputs{ints(dtype, std::vector<int64_t>(19, 5)), ints(dtype, std::vector<int64_t>(19, 0))};
      const std::string t(dtype_name(dtype));
      expect_every_path(fmt::format("graph main(%x: {0}[n], %y: {0}[n]) {{ %d = {1}(%x, %y) return %d }}", t, op), inputs, {.fuse = {true}, .threads = {1}});
    }
  }
}

// Shifts by the width or more.
TEST(Regressions, R15_ShiftsBeyondTheWidth) {
  const std::vector<Tensor> inputs{ints(DType::I64, {1000, 1000, -1}), ints(DType::I64, {64, 70, 100})};
  expect_values("graph main(%x: i64[n], %y: i64[n]) { %d = shift_left(%x, %y) return %d }", inputs, {0, 0, 0});
  expect_values("graph main(%x: i64[n], %y: i64[n]) { %d = shift_right(%x, %y) return %d }", inputs, {0, 0, -1});
}

// Narrow integers wrap; the lanes beyond the tail of a reduction do not take part.
TEST(Regressions, R16_NarrowIntegersInVectors) {
  expect_values("graph main(%x: i8[n]) { %y = add(%x, %x) return %y }", {ints(DType::I8, {100, -100, 3})}, {-56, 56, 6});
  std::vector<int64_t> list;
  for (int64_t i = 0; i < 33; ++i) list.push_back(100 - (i * 7) % 31);
  expect_values("graph main(%x: i8[n]) { %y = reduce_min(%x) {axes = [0], keepdims = 0} return %y }", {ints(DType::I8, list)}, {70});
  const int64_t first = std::find(list.begin(), list.end(), 70) - list.begin();
  expect_values("graph main(%x: i8[n]) { %y = argmin(%x) {axis = 0, keepdims = 0, select_last = 0} return %y }", {ints(DType::I8, list)}, {static_cast<double>(first)});
}

// Negative indices count from the end; one outside is an error that names it.
TEST(Regressions, R17_GatherAtTheEdges) {
  const char* const text = "graph main(%x: f32[n, 3], %i: i64[k]) { %y = gather(%x, %i) {axis = 0} %z = exp(%y) return %z }";
  const Tensor x = numbers(DType::F32, {5, 3}, 1);
  const std::vector<Tensor> inside{x, ints(DType::I64, {-1, 4, -5, 0})};
  expect_every_path(text, inside);
  const char* const constant = "graph main(%x: f32[n, 3]) { %i = constant() {value = i64[1] {5}} %y = gather(%x, %i) {axis = 0} return %y }";
  const std::vector<Tensor> outside{x, ints(DType::I64, {0, 5})}, data{x};
  for (const auto& [source, inputs] : {std::pair{text, outside}, std::pair{constant, data}}) {
    for (const auto& [path, program] : every_program(source)) {
      try {
        (void)run(program, inputs);
        FAIL() << "index 5 of 5 was taken: " << path;
      } catch (const UserError& error) {
        EXPECT_NE(std::string(error.what()).find('5'), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find("index"), std::string::npos) << error.what();
      }
    }
  }
}

// Four billion elements: sizes and addresses are 64 bits wide.
TEST(Regressions, R18_AddressesBeyond32Bits) {
  const char* const text = R"(graph main(%x: i8[1, 1], %like: i8[n]) {
    %e = expand(%x) {shape = <n*65536, 65536>}
    %f = reshape(%e) {shape = <n*4294967296>}
    %s = slice(%f) {starts = <n*4294967296 - 2>, sizes = <2>, steps = [1]}
    %y = neg(%s)
    return %y })";
  const std::vector<Tensor> inputs{Tensor::of(DType::I8, {1, 1}, {3}), Tensor(DType::I8, {1})};
  EXPECT_EQ(values(compiled(text).executable->run(inputs)[0]), (std::vector<double>{-3, -3}));
  const compile::Compiled whole = compiled("graph main(%x: i8[n, m]) { %y = neg(%x) %z = reshape(%y) {shape = <n*m>} return %z }");
  const std::vector<Dims> dims{{65536, 65536}};
  EXPECT_EQ(whole.executable->output_dims(dims), (std::vector<Dims>{{4294967296}}));
}

// Index arithmetic floors.
TEST(Regressions, R19_FloorSemanticsInIndices) {
  const char* const text = R"(graph main(%x: f32[n], %t: f32[4]) {
    %i = iota() {axis = 0, dtype = :i64, shape = <n>}
    %five = constant() {value = i64[] {5}}
    %three = constant() {value = i64[] {3}}
    %four = constant() {value = i64[] {4}}
    %two = constant() {value = i64[] {2}}
    %j = sub(%i, %five)
    %a = add(%j, %three)
    %m = floor_mod(%a, %four)
    %b = sub(%j, %three)
    %d = floor_div(%b, %two)
    %g = gather(%t, %m) {axis = 0}
    return %m, %d, %g })";
  expect_values(text, {numbers(DType::F32, {11}, 1), floats({10, 20, 30, 40})}, {2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0});
  const std::vector<Tensor> inputs{numbers(DType::F32, {4}, 1)};
  expect_every_path("graph main(%x: f32[n]) { %y = pad(%x) {low = <3>, high = <3>, mode = \"wrap\"} %z = neg(%y) return %z }", inputs);
}

// Sums count further than 32 bits.
TEST(Regressions, R20_SumOfFourBillionElements) {
  const char* const text = "graph main(%x: i8[1]) { %e = expand(%x) {shape = <4294967301>} %w = cast(%e) {to = :i64} %s = reduce_sum(%w) {axes = [0], keepdims = 0} return %s }";
  const std::vector<Tensor> inputs{ints(DType::I8, {1})};
  EXPECT_EQ(compiled(text).executable->run(inputs)[0].int_at(0), 4294967301);
}

// ---- floats ----------------------------------------------------------------------------------------------------------

// NaN wins everywhere.
TEST(Regressions, R21_NanPropagates) {
  expect_values("graph main(%x: f32[n]) { %y = argmax(%x) {axis = 0, keepdims = 0, select_last = 0} return %y }", {floats({kNan, 4.6})}, {0});
  expect_values("graph main(%x: f32[n]) { %y = argmin(%x) {axis = 0, keepdims = 0, select_last = 0} return %y }", {floats({3, kNan, 1})}, {1});
  for (const char* op : {"max", "min"})
    expect_values(fmt::format("graph main(%x: f32[n], %y: f32[n]) {{ %z = {}(%x, %y) return %z }}", op), {floats({kNan, 1, kNan}), floats({1, kNan, kNan})}, {kNan, kNan, kNan});
  for (const char* op : {"reduce_max", "reduce_min", "reduce_sum"}) {
    std::vector<double> list(37, 1.0);
    list[35] = kNan;
    expect_values(fmt::format("graph main(%x: f32[n]) {{ %z = {}(%x) {{axes = [0], keepdims = 0}} return %z }}", op), {Tensor::of(DType::F32, {37}, list)}, {kNan});
  }
  expect_values("graph main(%x: f32[n], %l: f32[], %h: f32[]) { %z = clamp(%x, %l, %h) return %z }", {floats({kNan, 5}), Tensor::scalar(DType::F32, 0), Tensor::scalar(DType::F32, 1)}, {kNan, 1});
}

// The first of equals, whatever the schedule.
TEST(Regressions, R22_ArgmaxTakesTheFirst) {
  expect_values("graph main(%x: f32[n]) { %y = argmax(%x) {axis = 0, keepdims = 0, select_last = 0} return %y }", {floats({2, 7, 7})}, {1});
  for (const int64_t n : {3, 16, 17, 64, 129}) {
    for (const char* axis : {"0", "1"}) {
      Tensor x = full(DType::F32, {n, n}, 2);
      for (int64_t i = 0; i < n * n; ++i) x.set(i, static_cast<double>((i * 7 + i / n * 3) % 5));
      const std::vector<Tensor> inputs{x};
      expect_every_path(fmt::format("graph main(%x: f32[a, b]) {{ %y = argmax(%x) {{axis = {}, keepdims = 0, select_last = 0}} return %y }}", axis), inputs, {.threads = {2}});
    }
  }
}

// Signs of zeros, in the body of a vector loop, its tail and a scalar.
TEST(Regressions, R23_SignsOfZeros) {
  for (const int64_t n : {1, 37}) {
    const Tensor minus = full(DType::F32, {n}, -0.0), plus = full(DType::F32, {n}, 0.0);
    const std::vector<double> negative(static_cast<size_t>(n), -0.0), positive(static_cast<size_t>(n), 0.0);
    const char* const binary = "graph main(%x: f32[n], %y: f32[n]) {{ %z = {}(%x, %y) return %z }}";
    for (const bool swap : {false, true}) {
      const std::vector<Tensor> inputs = swap ? std::vector<Tensor>{plus, minus} : std::vector<Tensor>{minus, plus};
      expect_values(fmt::format(fmt::runtime(binary), "min"), inputs, negative);
      expect_values(fmt::format(fmt::runtime(binary), "max"), inputs, positive);
      expect_values(fmt::format(fmt::runtime(binary), "add"), inputs, positive);
    }
    expect_values("graph main(%x: f32[n]) { %z = relu(%x) return %z }", {minus}, positive);
    expect_values("graph main(%x: f32[n]) { %z = abs(%x) return %z }", {minus}, positive);
  }
}

// Quotients are floored exactly, remainders have the divisor's sign.
TEST(Regressions, R24_FloorOfQuotients) {
  expect_values("graph main(%x: f64[n], %y: f64[n]) { %z = floor_div(%x, %y) return %z }", {Tensor::of(DType::F64, {2}, {1.0, -1.0}), Tensor::of(DType::F64, {2}, {0.1, 0.1})}, {9, -10});
  const std::vector<Tensor> inputs{Tensor::of(DType::F64, {2}, {-1.0, 1.0}), Tensor::of(DType::F64, {2}, {0.1, -0.1})};
  expect_every_path("graph main(%x: f64[n], %y: f64[n]) { %z = floor_mod(%x, %y) return %z }", inputs);
}

// A narrowing cast and back is kept.
TEST(Regressions, R25_NarrowingCastsAreNotRemoved) {
  const char* const text = "graph main(%x: f32[n]) { %h = cast(%x) {to = :f16} %y = cast(%h) {to = :f32} return %y }";
  expect_values(text, {floats({70000, 1e-8, 2049, -70000})}, {kInf, 0, 2048, -kInf});
}

// Variance far from zero, of values whose squares overflow, and of one value.
TEST(Regressions, R26_VarianceIsStable) {
  const char* const variance = "graph main(%x: f32[n]) { %v = reduce_variance(%x) {axes = [0], keepdims = 0, correction = 0.0} return %v }";
  for (const auto& [base, step] : std::vector<std::pair<double, double>>{{1e5, 1}, {1e8, 8}, {-1e8, 8}}) {
    Tensor noisy(DType::F32, {4096});
    for (int64_t i = 0; i < 4096; ++i) noisy.set(i, base + step * static_cast<double>(i % 7));
    const std::vector<Tensor> inputs{noisy};
    const double expected = graph::evaluate(graph::parse_graph(variance, op::standard_ops()), inputs)[0].at(0);
    for (const auto& [path, program] : every_program(variance)) EXPECT_NEAR(run(program, inputs)[0].at(0), expected, 1e-3 * expected) << path << " of " << base;
  }
  Tensor large(DType::F64, {4096});
  for (int64_t i = 0; i < 4096; ++i) large.set(i, 1e30 * (1 + static_cast<double>(i % 5) * 1e-6));
  const std::vector<Tensor> inputs{large};
  for (const auto& [path, program] : every_program("graph main(%x: f64[n]) { %v = reduce_variance(%x) {axes = [0], keepdims = 0, correction = 0.0} %s = sqrt(%v) return %s }"))
    EXPECT_NEAR(run(program, inputs)[0].at(0), std::sqrt(2.0) * 1e24, 1e22) << path;
  expect_values("graph main(%x: f32[n]) { %v = reduce_variance(%x) {axes = [0], keepdims = 0, correction = 1.0} return %v }", {floats({3})}, {kNan});
}

// Softmax of rows of infinities and of nothing.
TEST(Regressions, R27_SoftmaxOfInfinities) {
  const Tensor x = Tensor::of(DType::F32, {3, 3}, {-kInf, -kInf, -kInf, 1, kInf, 2, 0, -kInf, 0});
  expect_values("graph main(%x: f32[n, m]) { %y = softmax(%x) {axis = 1} return %y }", {x}, {kNan, kNan, kNan, 0, kNan, 0, 0.5, 0, 0.5});
  expect_values("graph main(%x: f32[n, m]) { %y = softmax(%x) {axis = 1} return %y }", {Tensor(DType::F32, {3, 0})}, {});
  // Over the outer axis of constant size, and over the inner one of a long row.
  const std::vector<Tensor> inputs{full(DType::F32, {4, 40}, -kInf)};
  expect_every_path("graph main(%x: f32[4, m]) { %y = softmax(%x) {axis = 0} return %y }", inputs);
  expect_every_path("graph main(%x: f32[4, m]) { %y = softmax(%x) {axis = 1} return %y }", inputs);
}

// Reductions over nothing.
TEST(Regressions, R28_ReductionsOverNothing) {
  const std::vector<Tensor> inputs{Tensor(DType::F32, {2, 0})};
  const std::vector<std::pair<const char*, double>> rows = {{"reduce_mean", kNan}, {"reduce_sum", 0}, {"reduce_prod", 1}, {"reduce_max", -kInf}, {"reduce_min", kInf}};
  for (const auto& [op, value] : rows)
    expect_values(fmt::format("graph main(%x: f32[n, m]) {{ %y = {}(%x) {{axes = [1], keepdims = 0}} return %y }}", op), inputs, {value, value});
  expect_values("graph main(%x: i32[n, m]) { %y = reduce_max(%x) {axes = [1], keepdims = 0} return %y }", {Tensor(DType::I32, {1, 0})}, {INT32_MIN});
}

// A narrow sum is rounded once, at its end.
TEST(Regressions, R29_HalfPrecisionSumsRoundOnce) {
  const char* const text = "graph main(%x: f16[n]) { %y = reduce_sum(%x) {axes = [0], keepdims = 0} return %y }";
  expect_values(text, {full(DType::F16, {100000}, 1)}, {kInf});
  expect_values(text, {full(DType::F16, {60000}, 1)}, {60000});
  expect_values("graph main(%x: f16[n]) { %y = reduce_mean(%x) {axes = [0], keepdims = 0} return %y }", {full(DType::F16, {100000}, 1)}, {1});
}

// A scalar operand is used at compute precision and the result rounded once.
TEST(Regressions, R30_Bf16DividedByAScalar) {
  const std::vector<Tensor> inputs{numbers(DType::BF16, {8, 7, 5, 1}, 1)};
  const char* const text = "graph main(%x: bf16[8, 7, 5, 1]) { %c = constant() {value = bf16[] {7.0}} %y = div(%x, %c) return %y }";
  expect_every_path(text, inputs);
  for (const auto& [path, program] : every_program(text)) {
    const Tensor got = run(program, inputs)[0];
    for (int64_t i = 0; i < got.count(); ++i) EXPECT_EQ(got.at(i), Tensor::scalar(DType::BF16, inputs[0].at(i) / 7).at(0)) << path;
  }
}

// Powers at their corners.
TEST(Regressions, R31_Powers) {
  expect_values("graph main(%x: f32[n], %y: f32[n]) { %z = pow(%x, %y) return %z }", {floats({-2, -2, 0, 2}), floats({3, 0.5, 0, -1})}, {-8, kNan, 1, 0.5});
  expect_values("graph main(%x: i32[n], %y: i32[n]) { %z = pow(%x, %y) return %z }", {ints(DType::I32, {2, 1, -1, 0, 3}), ints(DType::I32, {-1, -1, -3, -1, 4})}, {0, 1, -1, 0, 81});
}

// Casts at their limits.
TEST(Regressions, R32_CastsAtTheirLimits) {
  const Tensor x = floats({kNan, kInf, -kInf, 3e9, -1.5, -3e9});
  expect_values("graph main(%x: f32[n]) { %y = cast(%x) {to = :i32} return %y }", {x}, {0, INT32_MAX, INT32_MIN, INT32_MAX, -1, INT32_MIN});
  expect_values("graph main(%x: i32[n]) { %y = cast(%x) {to = :u8} return %y }", {ints(DType::I32, {300, -1, 255})}, {44, 255, 255});
  expect_values("graph main(%x: f32[n]) { %y = cast(%x) {to = :u8} return %y }", {floats({-1, 300, 2.9, kNan})}, {0, 255, 2, 0});
}

// Complex numbers, scalars among them.
TEST(Regressions, R33_ComplexNumbers) {
  Tensor a(DType::C64, {}), b(DType::C64, {});
  a.set_complex(0, 3, 4);
  b.set_complex(0, -1, 2);
  const std::vector<Tensor> inputs{a, b};
  expect_every_path("graph main(%x: c64[], %y: c64[]) { %s = add(%x, %y) %p = mul(%x, %y) %m = abs(%x) return %s, %p, %m }", inputs);
  expect_values("graph main(%x: c64[], %y: c64[]) { %m = abs(%x) return %m }", inputs, {5});
}

// Reductions one after the other, and one that is smaller than a vector.
TEST(Regressions, R34_ReductionsInARow) {
  const std::vector<Tensor> inputs{full(DType::F32, {1024}, 1), full(DType::F32, {50}, 1), full(DType::F32, {4, 5}, 1)};
  expect_every_path(R"(graph main(%x: f32[n], %y: f32[m], %z: f32[4, 5]) {
    %a = reduce_sum(%x) {axes = [0], keepdims = 0}
    %b = reduce_sum(%y) {axes = [0], keepdims = 0}
    %c = reduce_sum(%z) {axes = [0, 1], keepdims = 0}
    %s = add(%a, %b)
    %t = add(%s, %c)
    return %t })", inputs);
}

// Elementary functions over random bit patterns (test/emit/math_test.cpp has all special values and the bounds).
TEST(Regressions, R35_ElementaryFunctionsOnRandomBits) {
  Tensor x(DType::F32, {4099});
  uint32_t bits = 1;
  for (int64_t i = 0; i < x.count(); ++i) {
    bits = bits * 1664525U + 1013904223U;
    x.as<float>()[i] = std::bit_cast<float>(bits);
  }
  const std::vector<Tensor> inputs{x};
  const char* const text = "graph main(%x: f32[n]) { %a = exp(%x) %b = log(%x) %c = tanh(%x) %d = erf(%x) %e = sin(%x) return %a, %b, %c, %d, %e }";
  const std::vector<Tensor> expected = graph::evaluate(graph::parse_graph(text, op::standard_ops()), inputs);
  for (const auto& [path, program] : every_program(text)) {
    const std::vector<Tensor> got = run(program, inputs);
    for (size_t o = 0; o < got.size(); ++o) {
      for (int64_t i = 0; i < x.count(); ++i) {
        const double e = expected[o].at(i), g = got[o].at(i);
        if (std::isnan(e) && std::isnan(g)) continue;
        EXPECT_TRUE(e == g || std::abs(e - g) <= 4e-7 * std::abs(e) + 1e-44) << path << ", output " << o << " of " << x.at(i) << ": " << e << " expected, got " << g;
      }
    }
  }
}

// ---- shapes and layouts ----------------------------------------------------------------------------------------------

// A reshape of a transpose is a copy.
TEST(Regressions, R36_ReshapeOfATranspose) {
  for (const Dims& dims : std::vector<Dims>{{3, 5, 2}, {1, 7, 1}, {0, 2, 3}}) {
    const std::vector<Tensor> inputs{numbers(DType::F32, dims, 1)};
    expect_every_path("graph main(%x: f32[a, b, c]) { %t = transpose(%x) {perm = [2, 0, 1]} %y = reshape(%t) {shape = <c*a, b>} return %y }", inputs, {.threads = {1}});
    expect_every_path("graph main(%x: f32[a, b, c]) { %t = transpose(%x) {perm = [1, 2, 0]} %y = reshape(%t) {shape = <a*b*c>} %z = exp(%y) return %z }", inputs, {.threads = {1}});
  }
}

// One element expanded by the caller, with strides 0.
TEST(Regressions, R37_ExpandedInput) {
  float one = 0.75F;
  const std::vector<Tensor> inputs{Tensor::borrow(DType::F32, {3, 3}, {0, 0}, &one)};
  expect_every_path("graph main(%x: f32[3, 3]) { %y = sin(%x) return %y }", inputs);
}

// Misaligned and strided inputs of odd extents.
TEST(Regressions, R38_MisalignedInputs) {
  Tensor storage = numbers(DType::F32, {2 * 6 * 4097 + 16}, 1);
  for (const int64_t width : {8, 127, 129, 4097}) {
    for (const int64_t offset : {1, 2, 3}) {
      const std::vector<Tensor> inputs{Tensor::borrow(DType::F32, {6, width}, storage.as<float>() + offset)};
      expect_every_path("graph main(%x: f32[n, m]) { %y = exp(%x) %s = reduce_sum(%y) {axes = [1], keepdims = 0} return %y, %s }", inputs, {.fuse = {true}, .threads = {1}});
    }
    const std::vector<Tensor> inputs{Tensor::borrow(DType::F32, {6, width}, {2 * width, 2}, storage.as<float>())};
    expect_every_path("graph main(%x: f32[n, m]) { %y = exp(%x) %s = reduce_sum(%y) {axes = [1], keepdims = 0} return %y, %s }", inputs, {.fuse = {true}, .threads = {1}});
  }
}

// A slice whose rows are misaligned.
TEST(Regressions, R39_SliceOfOddRows) {
  const std::vector<Tensor> inputs{numbers(DType::F32, {9, 4097}, 1), numbers(DType::F32, {8, 4096}, 2)};
  expect_every_path("graph main(%x: f32[n + 1, m + 1], %y: f32[n, m]) { %s = slice(%x) {starts = <1, 0>, sizes = <n, m>, steps = [1, 1]} %z = add(%s, %y) return %z }", inputs);
}

// Permute, expand and reshape in a row.
TEST(Regressions, R40_PermuteExpandReshape) {
  const std::vector<Tensor> inputs{numbers(DType::F32, {1, 32, 96}, 1)};
  expect_every_path(R"(graph main(%x: f32[1, 32, m]) {
    %p = transpose(%x) {perm = [2, 0, 1]}
    %e = expand(%p) {shape = <m, 3, 32>}
    %r = reshape(%e) {shape = <m, 96>}
    %y = exp(%r)
    return %y })", inputs);
}

// Softmax over either axis of a column-major input.
TEST(Regressions, R41_SoftmaxOfStridedInput) {
  Tensor storage = numbers(DType::F32, {131072}, 1);
  const std::vector<Tensor> inputs{Tensor::borrow(DType::F32, {1, 1024, 128}, {131072, 1, 1024}, storage.data())};
  for (const char* axis : {"1", "2"})
    expect_every_path(fmt::format("graph main(%x: f32[1, n, m]) {{ %y = softmax(%x) {{axis = {}}} return %y }}", axis), inputs, {.threads = {1}});
}

// Sizes of zero in reductions and broadcasts.
TEST(Regressions, R42_EmptyReductionsAndBroadcasts) {
  const std::vector<Tensor> four{Tensor(DType::F32, {3, 4, 0, 5})}, two{Tensor(DType::F32, {5, 0})};
  expect_every_path("graph main(%x: f32[a, b, c, d]) { %y = reduce_sum(%x) {axes = [1], keepdims = 0} return %y }", four);
  expect_values("graph main(%x: f32[a, b]) { %y = reduce_sum(%x) {axes = [0, 1], keepdims = 0} return %y }", two, {0});
  const std::vector<Tensor> pair{Tensor(DType::F32, {1, 0}), Tensor(DType::F32, {0, 1})};
  expect_every_path("graph main(%x: f32[1, a], %y: f32[b, 1]) { %z = add(%x, %y) %e = exp(%z) return %e }", pair);
}

// Tensors of rank 0.
TEST(Regressions, R43_ScalarsEverywhere) {
  const std::vector<Tensor> inputs{Tensor::scalar(DType::F32, 3)};
  expect_every_path(R"(graph main(%x: f32[]) {
    %m = reduce_mean(%x) {axes = [], keepdims = 0}
    %h = reduce_max(%x) {axes = [], keepdims = 0}
    %r = reshape(%x) {shape = <1>}
    %f = slice(%r) {starts = <0>, sizes = <1>, steps = [-1]}
    %g = reshape(%f) {shape = <>}
    return %m, %h, %g })", inputs);
  for (const char* node : {"cumsum(%x) {axis = 0, exclusive = 0, reverse = 0}", "argmax(%x) {axis = 0, keepdims = 0, select_last = 0}"})
    expect_every_path(fmt::format("graph main(%x: f32[]) {{ %y = {} return %y }}", node), inputs);
  expect_every_path("graph main(%x: f32[]) { %y, %i = sort(%x) {axis = 0, descending = 0} return %y, %i }", inputs);
}

// Empty pieces.
TEST(Regressions, R44_EmptyPieces) {
  for (const int64_t n : {0, 1, 4}) {
    const std::vector<Tensor> inputs{numbers(DType::F32, {n, 3}, 1), Tensor(DType::F32, {0, 3}), numbers(DType::F32, {2, 3}, 2)};
    expect_every_path(R"(graph main(%x: f32[n, 3], %y: f32[m, 3], %z: f32[2, 3]) {
      %c = concat(%y, %x, %y, %z) {axis = 0}
      %e = exp(%c)
      %p = pad(%x) {low = <1, 0>, high = <0, 2>, mode = "constant"}
      %g = neg(%p)
      %a = slice(%x) {starts = <n, 0>, sizes = <0, 3>, steps = [1, 1]}
      %b = exp(%a)
      return %e, %g, %b })", inputs);
    expect_every_path("graph main(%x: f32[n, 3], %y: f32[m, 3], %z: f32[2, 3]) { %s = slice(%x) {starts = <0, 1>, sizes = <n, 0>, steps = [1, 1]} %p = pad(%s) {low = <0, 0>, high = <0, 1>, mode = \"constant\"} return %p }", inputs, {.threads = {1}});
  }
}

// Programs without inputs, and without elements.
TEST(Regressions, R45_NoInputsNoElements) {
  expect_values("graph main() { %c = constant() {value = f32[2] {1.0, 2.0}} %i = iota() {axis = 0, dtype = :f32, shape = <2>} %y = add(%c, %i) return %y, %c }", {}, {1, 3});
  const std::vector<Tensor> empty{Tensor(DType::F32, {0, 5})};
  expect_every_path("graph main(%x: f32[n, m]) { %y = exp(%x) %z = softmax(%y) {axis = 1} return %z }", empty);
}

// Symbols that were equal once differ the next time.
TEST(Regressions, R46_SymbolsThatWereEqual) {
  const char* const text = R"(graph main(%x: f32[s0], %y: f32[s1]) {
    %a = cumsum(%x) {axis = 0, exclusive = 0, reverse = 0}
    %p = reduce_sum(%a) {axes = [0], keepdims = 0}
    %b = cumsum(%y) {axis = 0, exclusive = 0, reverse = 0}
    %q = mul(%b, %p)
    %r = cumsum(%q) {axis = 0, exclusive = 0, reverse = 1}
    return %r })";
  const graph::Graph source = graph::parse_graph(text, op::standard_ops());
  std::vector<std::pair<std::string, compile::Compiled>> programs = every_program(text);
  programs.emplace_back("with hints", compiled(text, {.hint = {{"s0", 8}, {"s1", 8}}, .threads = 1}));
  for (const auto& [path, program] : programs) {
    for (const auto& [s0, s1] : std::vector<std::pair<int64_t, int64_t>>{{8, 8}, {8, 12}, {12, 8}, {8, 8}}) {
      const std::vector<Tensor> inputs{numbers(DType::F32, {s0}, 1), numbers(DType::F32, {s1}, 2)};
      EXPECT_EQ(first_difference(graph::evaluate(source, inputs)[0], run(program, inputs)[0]), "") << path;
    }
  }
}

// Compiled with 8 in mind, run with 0 and 1.
TEST(Regressions, R47_ZeroAndOneForEverySymbol) {
  const char* const text = R"(graph main(%x: f32[b, s, 16], %w: f32[16, h]) {
    %n = layer_norm(%x) {axis = 2, epsilon = 1.0e-5}
    %p = matmul(%n, %w)
    %t = matmul(%p, %p) {trans_b = 1}
    %a = softmax(%t) {axis = 2}
    %o = matmul(%a, %p)
    %g = gelu(%o)
    %m = reduce_mean(%g) {axes = [1], keepdims = 1}
    %y = sub(%g, %m)
    return %y })";
  const graph::Graph source = graph::parse_graph(text, op::standard_ops());
  std::vector<std::pair<std::string, compile::Compiled>> programs = every_program(text);
  programs.emplace_back("with hints", compiled(text, {.hint = {{"b", 8}, {"s", 8}, {"h", 8}}, .threads = 1}));
  for (const int64_t b : {0, 1, 8}) {
    for (const int64_t s : {0, 1, 8}) {
      for (const int64_t h : {0, 1, 8}) {
        const std::vector<Tensor> inputs{numbers(DType::F32, {b, s, 16}, 1), numbers(DType::F32, {16, h}, 2)};
        const std::vector<Tensor> expected = graph::evaluate(source, inputs);
        for (const auto& [path, program] : programs)
          EXPECT_EQ(first_difference(expected[0], run(program, inputs)[0], 1e-4), "") << path << ": " << b << " " << s << " " << h;
      }
    }
  }
}

// Reduce, broadcast back, pad.
TEST(Regressions, R48_BroadcastOverTheReducedAxisPadded) {
  for (const int64_t m : {1, 7, 64}) {
    const std::vector<Tensor> inputs{numbers(DType::F32, {5, m}, 1)};
    expect_every_path(R"(graph main(%x: f32[n, m]) {
      %s = reduce_sum(%x) {axes = [1], keepdims = 1}
      %e = expand(%s) {shape = <n, m>}
      %p = pad(%e) {low = <0, 0>, high = <0, 1>, mode = "constant"}
      %y = neg(%p)
      return %y })", inputs);
  }
}

// Split a dimension, reduce it, divide, multiply.
TEST(Regressions, R49_ReshapeMaxDivideMatmul) {
  const std::vector<Tensor> inputs{numbers(DType::F32, {40, 144}, 1), numbers(DType::F32, {144, 8}, 2)};
  expect_every_path(R"(graph main(%x: f32[n, 144], %w: f32[144, 8]) {
    %a = abs(%x)
    %r = reshape(%a) {shape = <n, 9, 16>}
    %m = reduce_max(%r) {axes = [2], keepdims = 1}
    %d = div(%r, %m)
    %f = reshape(%d) {shape = <n, 144>}
    %y = matmul(%f, %w)
    return %y })", inputs);
}

// A size that is a product over one of its factors.
TEST(Regressions, R50_QuotientOfAProduct) {
  const char* const text = "graph main(%x: f32[s, a*b + b], %y: f32[a], %z: f32[b]) nonzero {a*b + b} { %r = reshape(%x) {shape = <s*(a*b + b)>} %v = reshape(%r) {shape = <floor_div(s*(a*b + b), a*b + b), a*b + b>} %e = exp(%v) return %e }";
  const graph::Graph graph = graph::parse_graph(text, op::standard_ops());
  const std::vector<Tensor> inputs{numbers(DType::F32, {3, 8}, 1), numbers(DType::F32, {3}, 2), numbers(DType::F32, {2}, 3)};
  expect_every_path(graph, inputs);
  EXPECT_EQ(sym::to_string(sym::simplify(graph.type(graph.outputs()[0]).shape[0], graph.facts())), "s");
}

// Many dimensions.
TEST(Regressions, R51_NineDimensions) {
  const std::vector<Tensor> inputs{numbers(DType::F32, {2, 1, 3, 2, 1, 2, 3, 1, 2}, 1), numbers(DType::F32, {2, 2, 1, 2, 3, 1, 1, 2, 2}, 2)};
  expect_every_path(R"(graph main(%x: f32[2, 1, 3, 2, 1, 2, 3, 1, 2], %y: f32[2, 2, 1, 2, 3, 1, 1, 2, 2]) {
    %z = add(%x, %y)
    %t = transpose(%z) {perm = [8, 7, 6, 5, 4, 3, 2, 1, 0]}
    %s = reduce_sum(%t) {axes = [1, 3, 5], keepdims = 0}
    return %t, %s })", inputs);
  const std::vector<Tensor> ones{numbers(DType::F32, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 5}, 1), numbers(DType::F32, {5}, 2)};
  expect_every_path("graph main(%x: f32[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, n], %y: f32[n]) { %z = add(%x, %y) %e = exp(%z) return %e }", ones);
}

// Inputs that run backwards.
TEST(Regressions, R52_NegativeStrides) {
  Tensor storage = numbers(DType::F32, {35}, 1);
  const std::vector<Tensor> inputs{Tensor::borrow(DType::F32, {5, 7}, {-7, -1}, storage.as<float>() + 34)};
  expect_every_path("graph main(%x: f32[n, m]) { %y = exp(%x) %s = reduce_sum(%y) {axes = [1], keepdims = 0} return %y, %s, %x }", inputs);
}

// ---- programs, threads, caches ---------------------------------------------------------------------------------------

// Grouping takes a number of steps that grows with the graph, not with its square.
TEST(Regressions, R53_GroupingScalesNearlyLinearly) {
  const auto chain = [](int64_t steps) {
    graph::Graph graph(op::standard_ops());
    const op::TensorType type{DType::F32, {Expr::symbol("n")}};
    graph::ValueId x = graph.add_input("x", type);
    const graph::ValueId y = graph.add_input("y", type);
    for (int64_t i = 0; i < steps; ++i) x = graph.add(i % 2 == 0 ? "add" : "mul", {x, y});
    graph.set_outputs({x});
    return schedule::group_nodes(graph).steps;
  };
  // Every layer normalizes, multiplies, and adds what came before it.
  const auto layers = [](int64_t count) {
    graph::Graph graph(op::standard_ops());
    graph::ValueId x = graph.add_input("x", {DType::F32, {Expr::symbol("n"), 64}});
    const graph::ValueId w = graph.add_input("w", {DType::F32, {64, 64}});
    for (int64_t i = 0; i < count; ++i) {
      const graph::ValueId normal = graph.add("rms_norm", {x}, {{"axis", int64_t{1}}, {"epsilon", 1e-5}});
      const graph::ValueId hidden = graph.add("gelu", {graph.add("matmul", {normal, w})});
      x = graph.add("add", {x, graph.add("matmul", {hidden, w})});
    }
    graph.set_outputs({x});
    graph::decompose(graph);
    return schedule::group_nodes(graph).steps;
  };
  EXPECT_LE(chain(2000), 2.2 * static_cast<double>(chain(1000)));
  EXPECT_LE(chain(10000), 5.5 * static_cast<double>(chain(2000)));
  EXPECT_LE(layers(60), 2.2 * static_cast<double>(layers(30)));
  EXPECT_LE(layers(240), 4.4 * static_cast<double>(layers(60)));
}

// More threads asked for than there are cores.
TEST(Regressions, R54_MoreThreadsThanCores) {
  const std::vector<Tensor> inputs{numbers(DType::F32, {300, 257}, 1)};
  expect_every_path("graph main(%x: f32[n, m]) { %y = softmax(%x) {axis = 1} return %y }", inputs, {.fuse = {true}, .threads = {1, 64}});
}

// Sixteen threads run one program with shapes of their own while another is compiled and run.
TEST(Regressions, R55_ManyThreadsOneProgram) {
  const char* const text = "graph main(%x: f32[n, m]) { %y = softmax(%x) {axis = 1} %s = reduce_sum(%y) {axes = [0], keepdims = 0} return %y, %s }";
  const compile::Compiled program = compiled(text, {.threads = 2});
  const graph::Graph source = graph::parse_graph(text, op::standard_ops());
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 16; ++t) {
    threads.emplace_back([&, t] {
      const std::vector<Tensor> inputs{numbers(DType::F32, {t + 1, 3 * t + 1}, static_cast<uint64_t>(t))};
      const std::vector<Tensor> expected = graph::evaluate(source, inputs);
      for (int i = 0; i < 50; ++i) {
        const std::vector<Tensor> got = program.executable->run(inputs);
        for (size_t o = 0; o < got.size(); ++o) wrong += first_difference(expected[o], got[o]).empty() ? 0 : 1;
      }
    });
  }
  threads.emplace_back([&] {
    const std::vector<Tensor> inputs{numbers(DType::F32, {4, 9}, 1)};
    const char* const other = "graph main(%x: f32[n, m]) { %y = tanh(%x) return %y }";
    const std::vector<Tensor> expected = graph::evaluate(graph::parse_graph(other, op::standard_ops()), inputs);
    wrong += first_difference(expected[0], compiled(other).executable->run(inputs)[0]).empty() ? 0 : 1;
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// A cache whose files were damaged, or that cannot be written, costs time and nothing else.
TEST(Regressions, R56_DamagedAndReadOnlyCaches) {
  namespace fs = std::filesystem;
  const std::string text = testing::TempDir() + "fuseloom_cache_r56";
  fs::remove_all(text);
  const char* const source = "graph main(%x: f32[n]) { %y = hard_swish(%x) %z = sin(%y) return %z }";
  const std::vector<Tensor> inputs{numbers(DType::F32, {37}, 1)};
  const std::vector<Tensor> expected = graph::evaluate(graph::parse_graph(source, op::standard_ops()), inputs);
  const auto run = [&](const std::string& dir) {
    compile::Options options{.threads = 1};
    options.cache_dir = dir;
    const compile::Compiled program = compile::compile(graph::parse_graph(source, op::standard_ops()), options);
    EXPECT_EQ(first_difference(expected[0], program.executable->run(inputs)[0]), "");
    return program.report.from_cache;
  };
  EXPECT_FALSE(run(text));
  EXPECT_TRUE(run(text));
  int damaged = 0;
  for (const bool cut : {true, false}) {
    for (const auto& entry : fs::recursive_directory_iterator(text)) {
      if (!entry.is_regular_file() || entry.file_size() < 200) continue;
      if (cut) {
        fs::resize_file(entry.path(), entry.file_size() / 2);
      } else {
        std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
        file.seekg(150);
        const int byte = file.get();
        file.seekp(150);
        file.put(static_cast<char>(byte ^ 16));
      }
      ++damaged;
    }
    EXPECT_FALSE(run(text));
    EXPECT_TRUE(run(text));
  }
  EXPECT_GE(damaged, 2);
  EXPECT_FALSE(run("/proc/no/such/folder"));
  fs::remove_all(text);
}

// Weights of more than 4 GiB in a sparse file: offsets are 64 bits wide. (What is refused
// stands in test/front/tensor_proto_test.cpp; R60, hostile files, in test/front/importer_test.cpp and proto_test.cpp.)
TEST(Regressions, R59_WeightsAbove4GiB) {
  namespace fs = std::filesystem;
  const std::string folder = testing::TempDir() + "fuseloom_r59";
  fs::remove_all(folder);
  fs::create_directories(folder);
  const int64_t rows = 4200, columns = int64_t{1} << 20, offset = 4096;
  {
    std::ofstream weights(folder + "/weights.bin", std::ios::binary);
    weights.seekp(offset + rows * columns - 2);
    weights.put(41).put(42);
    if (!weights.flush()) GTEST_SKIP() << "the file system has no sparse files of " << rows << " MiB";
  }
  const OnnxGraph model{.nodes = {onnx_node("Gather", {"w", "i"}, {"row"}), onnx_node("Neg", {"row"}, {"y"})},
                        .inputs = {onnx_value("i", onnx_type::kInt64, {int64_t{1}})},
                        .outputs = {onnx_value("y", onnx_type::kInt8, {int64_t{1}, columns})},
                        .initializers = {onnx_external("w", onnx_type::kInt8, {rows, columns},
                                                       {{"location", "weights.bin"}, {"offset", std::to_string(offset)}, {"length", std::to_string(rows * columns)}})}};
  std::ofstream(folder + "/model.onnx", std::ios::binary) << onnx_model(model);
  const front::onnx::ImportedModel imported = front::onnx::import_onnx(folder + "/model.onnx");
  const compile::Compiled program = compile::compile(imported.graph.clone(), {.threads = 2});
  for (const int64_t row : {int64_t{0}, rows - 1, int64_t{-1}}) {
    const std::vector<Tensor> inputs{ints(DType::I64, {row})};
    const std::vector<double> got = values(run(program, inputs)[0]);
    EXPECT_EQ(got[static_cast<size_t>(columns) - 2], row == 0 ? 0 : -41);
    EXPECT_EQ(got[static_cast<size_t>(columns) - 1], row == 0 ? 0 : -42);
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace fuseloom::test
