#include "op/op_testing.h"

namespace fuseloom::op {
namespace {

Attrs over(std::vector<int64_t> axes, bool keepdims = false) {
  return {{"axes", std::move(axes)}, {"keepdims", int64_t{keepdims}}};
}
Attrs arg(int64_t axis, bool last = false) {
  return {{"axis", axis}, {"keepdims", int64_t{0}}, {"select_last", int64_t{last}}};
}
Attrs scan(int64_t axis, bool exclusive = false, bool reverse = false) {
  return {{"axis", axis}, {"exclusive", int64_t{exclusive}}, {"reverse", int64_t{reverse}}};
}

TEST(Reduction, Axes) {
  const Tensor x = Tensor::of(DType::F32, {2, 3}, {1, 2, 3, 4, 5, 6});
  expect_values(run("reduce_sum", {x}, over({0})), {5, 7, 9});
  expect_values(run("reduce_sum", {x}, over({1})), {6, 15});
  expect_values(run("reduce_sum", {x}, over({-1, 0})), {21});
  expect_values(run("reduce_sum", {x}, over({})), {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(run("reduce_sum", {x}, over({1}, true)).type_string(), "f32[2,1]");
  expect_values(run("reduce_prod", {x}, over({1})), {6, 120});
  expect_values(run("reduce_max", {x}, over({0})), {4, 5, 6});
  expect_values(run("reduce_min", {x}, over({0})), {1, 2, 3});
  expect_ints(run("reduce_any", {ints(DType::Bool, {0, 1})}, over({0})), {1});
  expect_ints(run("reduce_all", {ints(DType::Bool, {0, 1})}, over({0})), {0});
  expect_ints(run("reduce_sum", {ints(DType::Bool, {1, 1})}, over({0})), {1});
}

TEST(Reduction, Errors) {
  const TensorType x{DType::F32, {2, 3}};
  expect_user_error([&] { infer("reduce_sum", {x}, over({2})); }, "reduce_sum: axis 2 is outside -2..1");
  expect_user_error([&] { infer("reduce_sum", {x}, over({1, -1})); }, "an axis is named twice");
  expect_user_error([&] { infer("reduce_any", {x}, over({1})); }, "reduce_any: takes no f32");
  expect_user_error([&] { infer("reduce_max", {{DType::C64, {2}}}, over({0})); }, "takes no c64");
  expect_user_error([&] { infer("argmax", {x}, arg(5)); }, "argmax: axis 5 is outside");
  expect_user_error([&] { infer("cumsum", {{DType::Bool, {2}}}, scan(0)); }, "takes no bool");
}

// R16
TEST(Reduction, MinimumOfPositiveI8) {
  Tensor x(DType::I8, {33});
  for (int64_t i = 0; i < 33; ++i) x.set_int(i, i == 20 || i == 25 ? 3 : 100);
  expect_ints(run("reduce_min", {x}, over({0})), {3});
  expect_ints(run("argmin", {x}, arg(0)), {20});
  expect_ints(run("argmin", {x}, arg(0, true)), {25});
  expect_ints(run("reduce_sum", {ints(DType::I8, {100, 100})}, over({0})), {-56});
}

// R21, R22
TEST(Reduction, NanWinsAndTheFirstOfEquals) {
  expect_ints(run("argmax", {floats({kNan, 4.6})}, arg(0)), {0});
  expect_ints(run("argmin", {floats({3, kNan, 1})}, arg(0)), {1});
  expect_ints(run("argmax", {floats({kNan, 1, kNan})}, arg(0, true)), {2});
  expect_ints(run("argmax", {floats({2, 7, 7})}, arg(0)), {1});
  expect_ints(run("argmax", {floats({2, 7, 7})}, arg(0, true)), {2});
  expect_ints(run("argmax", {Tensor::of(DType::F32, {2, 3}, {2, 7, 7, 9, 7, 1})}, arg(0)), {1, 0, 0});
  expect_ints(run("argmax", {spread(Tensor::of(DType::F32, {2, 3}, {2, 7, 7, 9, 7, 1}))}, arg(1)), {1, 0});
  expect_values(run("reduce_max", {floats({1, kNan, 2})}, over({0})), {kNan});
  expect_values(run("reduce_min", {floats({1, kNan, 2})}, over({0})), {kNan});
  expect_values(run("reduce_max", {floats({-0.0, 0.0})}, over({0})), {0.0});
  expect_ints(run("argmax", {Tensor(DType::F32, {2, 0})}, arg(1)), {0, 0});
}

// R28, R42
TEST(Reduction, Empty) {
  const Tensor none(DType::F32, {0});
  expect_values(run("reduce_sum", {none}, over({0})), {0});
  expect_values(run("reduce_prod", {none}, over({0})), {1});
  expect_values(run("reduce_mean", {none}, over({0})), {kNan});
  expect_values(run("reduce_max", {none}, over({0})), {-kInf});
  expect_values(run("reduce_min", {none}, over({0})), {kInf});
  expect_values(run("reduce_log_sum_exp", {none}, over({0})), {-kInf});
  expect_ints(run("reduce_max", {Tensor(DType::I16, {0})}, over({0})), {INT16_MIN});
  expect_ints(run("reduce_min", {Tensor(DType::I64, {0})}, over({0})), {INT64_MAX});
  expect_ints(run("reduce_max", {Tensor(DType::U8, {0})}, over({0})), {0});
  expect_ints(run("reduce_any", {Tensor(DType::Bool, {0})}, over({0})), {0});
  expect_ints(run("reduce_all", {Tensor(DType::Bool, {0})}, over({0})), {1});
  expect_ints(run("reduce_mean", {Tensor(DType::I32, {0})}, over({0})), {0});
  EXPECT_EQ(run("reduce_sum", {Tensor(DType::F32, {3, 4, 0, 5})}, over({1})).type_string(), "f32[3,0,5]");
  const Tensor zero = run("reduce_sum", {Tensor(DType::F32, {5, 0})}, over({0, 1}));
  EXPECT_EQ(zero.type_string(), "f32[]");
  EXPECT_EQ(zero.at(0), 0);
}

// R29
TEST(Reduction, HalfSumsRoundOnceAtTheEnd) {
  const Tensor ones = run("expand", {Tensor::scalar(DType::F16, 1)}, {{"shape", Shape{100000}}});
  expect_values(run("reduce_sum", {ones}, over({0})), {kInf});
  expect_values(run("reduce_mean", {ones}, over({0})), {1});
  const Tensor some = run("expand", {Tensor::scalar(DType::F16, 1)}, {{"shape", Shape{60000}}});
  expect_values(run("reduce_sum", {some}, over({0})), {60000});
}

// R26
TEST(Reduction, VarianceIsTwoPass) {
  Tensor large(DType::F64, {4096}), noisy(DType::F32, {4096});
  std::mt19937_64 random(9);
  std::normal_distribution<double> normal;
  double sum = 0, square = 0;
  for (int64_t i = 0; i < 4096; ++i) {
    large.set(i, 1e30 * (1 + 1e-3 * normal(random)));
    noisy.set(i, 1e8 + 30 * normal(random));
    const double d = noisy.at(i) - 1e8;
    sum += d;
    square += d * d;
  }
  const Attrs attrs = {{"axes", std::vector<int64_t>{0}}, {"keepdims", int64_t{0}}, {"correction", int64_t{0}}};
  EXPECT_NEAR(std::sqrt(run("reduce_variance", {large}, attrs).at(0)) / 1e27, 1, 0.05);
  const double expected = square / 4096 - sum / 4096 * (sum / 4096);
  EXPECT_NEAR(run("reduce_variance", {noisy}, attrs).at(0), expected, 1e-6 * expected);
  // In f32 as well: the second pass corrects the rounded mean.
  EXPECT_NEAR(run_decomposition("reduce_variance", {noisy}, attrs)[0].at(0), expected, 1e-3 * expected);
  const Attrs unbiased = {{"axes", std::vector<int64_t>{0}}, {"keepdims", int64_t{0}}, {"correction", int64_t{1}}};
  expect_values(run("reduce_variance", {floats({5})}, unbiased), {kNan});
  expect_values(run_decomposition("reduce_variance", {floats({5})}, unbiased)[0], {kNan});
  expect_values(run("reduce_variance", {floats({1, 2, 3, 4})}, unbiased), {static_cast<float>(5.0 / 3)});
}

TEST(Reduction, CompositeValues) {
  const Tensor x = floats({3, -4});
  expect_values(run("reduce_l1", {x}, over({0})), {7});
  expect_values(run("reduce_l2", {x}, over({0})), {5});
  expect_values(run("reduce_sum_square", {x}, over({0})), {25});
  expect_values(run("reduce_log_sum", {floats({3, 4})}, over({0})), {static_cast<float>(std::log(7.0))});
  expect_values(run("reduce_log_sum_exp", {floats({1000, 1000})}, over({0})),
                {static_cast<float>(1000 + std::log(2.0))});
  expect_values(run("reduce_log_sum_exp", {floats({-kInf, -kInf})}, over({0})), {-kInf});
  expect_values(run("reduce_log_sum_exp", {floats({kInf, 0})}, over({0})), {kInf});
  expect_values(run("reduce_log_sum_exp", {floats({kNan, 0})}, over({0})), {kNan});
  expect_ints(run("reduce_mean", {ints(DType::I32, {-3, -4})}, over({0})), {-3});
  expect_ints(run("reduce_mean", {ints(DType::I8, {100, 100})}, over({0})), {100});
  expect_ints(run("reduce_l2", {ints(DType::I32, {3, -4})}, over({0})), {5});
}

// Every composite against its decomposition, on every float and some integer types, axes and sizes with 0 and 1.
TEST(Reduction, DecompositionsAgreeWithReferences) {
  constexpr uint64_t kSeed = 77;
  std::mt19937_64 random(kSeed);
  for (const char* op : {"reduce_mean", "reduce_variance", "reduce_l1", "reduce_l2", "reduce_sum_square",
                         "reduce_log_sum", "reduce_log_sum_exp"}) {
    for (const DType dtype : {DType::F16, DType::BF16, DType::F32, DType::F64, DType::I32, DType::U8}) {
      const bool variance = std::string_view(op) == "reduce_variance";
      if (variance && !is_float(dtype)) continue;
      for (const Dims& dims : {Dims{3, 4, 5}, Dims{2, 1, 6}, Dims{3, 0, 2}}) {
        for (const std::vector<int64_t>& axes : {std::vector<int64_t>{1}, {0, 2}, {0, 1, 2}}) {
          for (const bool keepdims : {false, true}) {
            SCOPED_TRACE(std::string(op) + " " + std::string(dtype_name(dtype)) + " axes " +
                         to_string(AttrValue(axes)));
            Tensor x = random_tensor(dtype, dims, random);
            if (std::string_view(op) == "reduce_log_sum") x = run("abs", {x});
            if (is_int(dtype))
              x = run("clamp",
                      {x, run("cast", {floats({1})}, {{"to", dtype}}), run("cast", {floats({9})}, {{"to", dtype}})});
            Attrs attrs = over(axes, keepdims);
            if (variance) attrs.set("correction", 1.0);
            const double unit =
                dtype == DType::BF16 ? 0x1p-7 : (dtype == DType::F16 ? 0x1p-10 : (dtype == DType::F32 ? 1e-5 : 1e-12));
            // Integers may truncate to either side of an integer that f64 meets within rounding.
            expect_close(run_decomposition(op, {x}, attrs)[0], run(op, {x}, attrs), is_int(dtype) ? 1 : unit);
          }
        }
      }
    }
  }
}

TEST(Reduction, LayoutsAgree) {
  std::mt19937_64 random(4);
  const Tensor x = random_tensor(DType::F64, {7, 30, 11}, random);
  for (const std::vector<int64_t>& axes : {std::vector<int64_t>{0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}, {0, 1, 2}}) {
    for (const char* op : {"reduce_sum", "reduce_max", "reduce_prod"}) {
      expect_close(run(op, {spread(x)}, over(axes)), run(op, {x}, over(axes)), 1e-13);
    }
  }
  double sum = 0;
  for (int64_t i = 0; i < 30; ++i) sum += x.at((3 * 30 + i) * 11 + 5);
  EXPECT_NEAR(run("reduce_sum", {x}, over({1})).at(3 * 11 + 5), sum, 1e-12);
}

// R43
TEST(Reduction, ScalarsHaveOneAxis) {
  const Tensor x = Tensor::scalar(DType::F32, 3);
  EXPECT_EQ(run("reduce_mean", {x}, over({})).at(0), 3);
  EXPECT_EQ(run("reduce_max", {x}, over({0})).type_string(), "f32[]");
  EXPECT_EQ(run("argmax", {x}, arg(0)).type_string(), "i64[]");
  EXPECT_EQ(run("argmax", {x}, arg(-1)).int_at(0), 0);
  EXPECT_EQ(run("cumsum", {x}, scan(0)).at(0), 3);
  EXPECT_EQ(run_decomposition("reduce_mean", {x}, over({0}))[0].at(0), 3);
}

TEST(Scan, Directions) {
  const Tensor x = floats({1, 2, 3});
  expect_values(run("cumsum", {x}, scan(0)), {1, 3, 6});
  expect_values(run("cumsum", {x}, scan(0, true)), {0, 1, 3});
  expect_values(run("cumsum", {x}, scan(0, false, true)), {6, 5, 3});
  expect_values(run("cumsum", {x}, scan(0, true, true)), {5, 3, 0});
  expect_values(run("cumprod", {x}, scan(-1)), {1, 2, 6});
  const Tensor matrix = Tensor::of(DType::I8, {2, 3}, {100, 2, 3, 100, 5, 6});
  expect_ints(run("cumsum", {matrix}, scan(0)), {100, 2, 3, -56, 7, 9});
  expect_ints(run("cumsum", {spread(matrix)}, scan(1)), {100, 102, 105, 100, 105, 111});
  EXPECT_EQ(run("cumsum", {Tensor(DType::F32, {0, 3})}, scan(0)).count(), 0);
}

}  // namespace
}  // namespace fuseloom::op
