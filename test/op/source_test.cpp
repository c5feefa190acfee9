#include "op/op_testing.h"
#include "op/philox.h"

namespace fuseloom::op {
namespace {

TEST(Source, Constant) {
  const Tensor value = Tensor::of(DType::F16, {2}, {1, 2});
  expect_values(run("constant", {}, {{"value", value}}), {1, 2});
  EXPECT_EQ(infer("constant", {}, {{"value", value}})[0], (TensorType{DType::F16, {2}}));
}

// R12, R45
TEST(Source, Iota) {
  const Tensor index = run("iota", {}, {{"shape", Shape{4}}, {"axis", int64_t{0}}, {"dtype", DType::I64}});
  expect_ints(run("mul", {index, Tensor::of_ints(DType::I64, {}, std::vector<int64_t>{1000000000})}),
              {0, 1000000000, 2000000000, 3000000000});
  expect_ints(run("iota", {}, {{"shape", Shape{2, 3}}, {"axis", int64_t{0}}, {"dtype", DType::I8}}),
              {0, 0, 0, 1, 1, 1});
  expect_values(run("iota", {}, {{"shape", Shape{2, 3}}, {"axis", int64_t{-1}}, {"dtype", DType::F32}}),
                {0, 1, 2, 0, 1, 2});
  EXPECT_EQ(run("iota", {}, {{"shape", Shape{0, 3}}, {"axis", int64_t{0}}, {"dtype", DType::I8}}).count(), 0);
  expect_user_error(
      [] {
        run("iota", {}, {{"shape", Shape{}}, {"axis", int64_t{0}}, {"dtype", DType::I8}});
      },
      "no axis to count along");
}

// R19
TEST(Source, IndexArithmeticFloors) {
  const Tensor steps = run("iota", {}, {{"shape", Shape{11}}, {"axis", int64_t{0}}, {"dtype", DType::I64}});
  const auto number = [](int64_t value) { return Tensor::of_ints(DType::I64, {}, std::vector<int64_t>{value}); };
  const Tensor i = run("sub", {steps, number(5)});  // -5..5
  expect_ints(run("floor_mod", {run("add", {i, number(3)}), number(4)}), {2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0});
  expect_ints(run("floor_div", {run("sub", {i, number(3)}), number(2)}), {-4, -4, -3, -3, -2, -2, -1, -1, 0, 0, 1});
}

TEST(Source, SizesAsValues) {
  const Attrs attrs = {{"values", Shape{sym::Expr::symbol("n") * 2, 7}}, {"dtype", DType::I64}};
  expect_ints(run("sym_value", {}, concrete(attrs, {{"n", 5}})), {10, 7});
  const Tensor scalar =
      run("sym_value", {}, {{"values", std::vector<int64_t>{3}}, {"dtype", DType::F32}, {"scalar", int64_t{1}}});
  EXPECT_EQ(scalar.type_string(), "f32[]");
  EXPECT_EQ(scalar.at(0), 3);
  expect_user_error(
      [&] {
        infer("sym_value", {}, {{"values", Shape{1, 2}}, {"dtype", DType::I64}, {"scalar", int64_t{1}}});
      },
      "found 2");
}

TEST(Source, BindSymbols) {
  const Attrs attrs = {{"defines", Shape{sym::Expr::symbol("u0"), sym::Expr::symbol("u1")}}};
  const Tensor bound = run("bind_symbols", {ints(DType::I32, {4, -5})}, attrs);
  EXPECT_EQ(bound.dtype(), DType::I64);
  expect_ints(bound, {4, -5});
  expect_ints(run("bind_symbols", {ints(DType::Bool, {1, 0})}, attrs), {1, 0});
  expect_user_error([&] { run("bind_symbols", {ints(DType::I32, {4})}, attrs); }, "has 1 elements for 2 symbols");
  expect_user_error([&] { run("bind_symbols", {floats({4, 1})}, attrs); }, "sizes are integers");
}

// The known answers of the Random123 distribution.
TEST(Philox, KnownAnswers) {
  const auto words = [](uint64_t seed, uint64_t counter) {
    const philox::PhiloxBlock block = philox::philox_block(seed, counter);
    return std::vector<uint32_t>{block.w0, block.w1, block.w2, block.w3};
  };
  EXPECT_EQ(words(0, 0), (std::vector<uint32_t>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
}

TEST(Philox, WordsBelongToElements) {
  const philox::PhiloxBlock block = philox::philox_block(42, 12);
  EXPECT_EQ(philox::philox_word(42, 10, 8), block.w0);
  EXPECT_EQ(philox::philox_word(42, 10, 11), block.w3);
  EXPECT_EQ(philox::philox_word(42, 12, 1), block.w1);
}

TEST(Philox, LogAndCosineAreAccurate) {
  constexpr uint64_t kSeed = 1;
  std::mt19937_64 random(kSeed);
  std::vector<uint32_t> patterns = {1, 2, 3, 0x7fffffff, 0x80000000, 0xffffffff, 0xb504f333, 0x20000000, 0x60000000};
  for (int i = 0; i < 50000; ++i) patterns.push_back(static_cast<uint32_t>(random()) >> (i % 32));
  for (const uint32_t bits : patterns) {
    if (bits == 0) continue;
    const double expected = -std::log(std::ldexp(static_cast<double>(bits), -32));
    ASSERT_NEAR(philox::philox_negative_log(bits), expected, 3e-7 * std::max(expected, 1.0)) << bits;
    const double angle = 2 * M_PI * std::ldexp(static_cast<double>(bits), -32);
    ASSERT_NEAR(philox::philox_cos_turn(bits, 0), std::cos(angle), 3e-7) << bits;
    ASSERT_NEAR(philox::philox_cos_turn(bits, 3), std::sin(angle), 3e-7) << bits;
    ASSERT_GE(philox::philox_negative_log(bits), 0) << bits;
  }
}

TEST(Philox, TextIsTheCode) {
  const std::string_view text = philox::kPhiloxSource;
  EXPECT_NE(text.find("FL_PHILOX_FUNCTION float philox_normal("), std::string_view::npos);
  EXPECT_EQ(text.find("std::"), std::string_view::npos);
}

Attrs random_attrs(const char* first, double a, const char* second, double b, DType dtype, int64_t count) {
  return {{"shape", Shape{count}},  {"dtype", dtype}, {"seed", int64_t{7}},
          {"offset", int64_t{100}}, {first, a},       {second, b}};
}

TEST(Random, UniformIsUniform) {
  const Tensor x = run("random_uniform", {}, random_attrs("low", -1, "high", 3, DType::F32, 40000));
  double mean = 0, square = 0;
  for (int64_t i = 0; i < x.count(); ++i) {
    ASSERT_GE(x.at(i), -1);
    ASSERT_LE(x.at(i), 3);
    mean += x.at(i) / 40000;
    square += x.at(i) * x.at(i) / 40000;
  }
  EXPECT_NEAR(mean, 1, 0.03);
  EXPECT_NEAR(square - mean * mean, 16.0 / 12, 0.03);
  EXPECT_EQ(x.at(5), -1 + 4 * philox::philox_uniform(7, 100, 5));
}

TEST(Random, NormalIsNormal) {
  const Tensor x = run("random_normal", {}, random_attrs("mean", 2, "scale", 3, DType::F32, 40000));
  double mean = 0, square = 0, cube = 0;
  for (int64_t i = 0; i < x.count(); ++i) {
    const double z = (x.at(i) - 2) / 3;
    mean += z / 40000;
    square += z * z / 40000;
    cube += z * z * z * z / 40000;
  }
  EXPECT_NEAR(mean, 0, 0.02);
  EXPECT_NEAR(square, 1, 0.02);
  EXPECT_NEAR(cube, 3, 0.15);
}

TEST(Random, ValuesDoNotDependOnTheShape) {
  const Tensor a = run("random_normal", {}, random_attrs("mean", 0, "scale", 1, DType::F32, 1000));
  const Tensor b = run("random_normal", {}, random_attrs("mean", 0, "scale", 1, DType::F32, 10));
  for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(a.at(i), b.at(i));
  const Tensor half = run("random_normal", {}, random_attrs("mean", 0, "scale", 1, DType::F16, 10));
  for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(half.at(i), f16_to_f32(f64_to_f16(a.at(i))));
  EXPECT_EQ(run("random_uniform", {}, random_attrs("low", 0, "high", 1, DType::F64, 8)).at(3),
            philox::philox_uniform64(7, 100, 3));
}

}  // namespace
}  // namespace fuseloom::op
