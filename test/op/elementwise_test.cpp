#include "op/elementwise.h"

#include <functional>

#include "op/op_testing.h"

namespace fuseloom::op {
namespace {

// R13, R14
TEST(Elementwise, IntegerDivision) {
  const Tensor a = ints(DType::I32, {INT32_MIN, 7, -7, 7, -7, 5, INT32_MIN}),
               b = ints(DType::I32, {-1, 2, 2, -2, -2, 0, 0});
  expect_ints(run("div", {a, b}), {INT32_MIN, 3, -3, -3, 3, 0, 0});
  expect_ints(run("floor_div", {a, b}), {INT32_MIN, 3, -4, -4, 3, 0, 0});
  expect_ints(run("fmod", {a, b}), {0, 1, -1, 1, -1, 0, 0});
  expect_ints(run("floor_mod", {a, b}), {0, 1, 1, -1, -1, 0, 0});
  const Tensor wide = ints(DType::I64, {INT64_MIN}), minus_one = ints(DType::I64, {-1});
  for (const char* op : {"div", "floor_div"}) expect_ints(run(op, {wide, minus_one}), {INT64_MIN});
  for (const char* op : {"fmod", "floor_mod"}) expect_ints(run(op, {wide, minus_one}), {0});
  expect_ints(run("div", {ints(DType::U64, {-1}), ints(DType::U64, {2})}), {INT64_MAX});
  expect_ints(run("floor_div", {ints(DType::U8, {255}), ints(DType::U8, {2})}), {127});
}

// A rule's calls are in the type, each: 1 + |-128| is -127 in i8.
TEST(Elementwise, RulesWrapAtEveryStep) {
  expect_ints(run("softsign", {ints(DType::I8, {-128, 127, -3})}), {1, 0, 0});
  expect_ints(run("softsign", {ints(DType::I16, {-32768})}), {1});
}

// R15
TEST(Elementwise, Shifts) {
  const Tensor a = ints(DType::I64, {1000, 1, -1, 5, 5}), by = ints(DType::I64, {64, 63, 1, -1, INT64_MAX});
  expect_ints(run("shift_left", {a, by}), {0, INT64_MIN, -2, 0, 0});
  expect_ints(run("shift_right", {ints(DType::I64, {1000, -1, -8, -5}), ints(DType::I64, {70, 100, 1, -1})}),
              {0, -1, -4, -1});
  expect_ints(run("shift_left", {ints(DType::I8, {1, 1, 3}), ints(DType::I8, {7, 8, 100})}), {-128, 0, 0});
  expect_ints(run("shift_right", {ints(DType::U8, {200, 200}), ints(DType::U8, {3, 8})}), {25, 0});
  expect_ints(run("shift_right", {ints(DType::I8, {-128, 127}), ints(DType::I8, {9, 9})}), {-1, 0});
}

// R16
TEST(Elementwise, IntegersWrap) {
  expect_ints(run("add", {ints(DType::I8, {100}), ints(DType::I8, {100})}), {-56});
  expect_ints(run("sub", {ints(DType::U16, {0}), ints(DType::U16, {1})}), {65535});
  expect_ints(run("mul", {ints(DType::I64, {INT64_MIN}), ints(DType::I64, {-1})}), {INT64_MIN});
  expect_ints(run("neg", {ints(DType::I32, {INT32_MIN, 3})}), {INT32_MIN, -3});
  expect_ints(run("abs", {ints(DType::I64, {INT64_MIN, -3})}), {INT64_MIN, 3});
  expect_ints(run("neg", {ints(DType::U8, {1})}), {255});
  expect_ints(run("bit_not", {ints(DType::U8, {1})}), {254});
}

// R21, R23
TEST(Elementwise, MaxAndMinOfNanAndZeros) {
  const Tensor a = floats({kNan, 1, -0.0, 0.0, kInf}), b = floats({1, kNan, 0.0, -0.0, 1});
  expect_values(run("max", {a, b}), {kNan, kNan, 0.0, 0.0, kInf});
  expect_values(run("min", {a, b}), {kNan, kNan, -0.0, -0.0, 1});
  expect_values(run("add", {floats({-0.0, -0.0}), floats({0.0, -0.0})}), {0.0, -0.0});
  expect_values(run("relu", {floats({-0.0, 0.0, kNan, -1})}), {0.0, 0.0, kNan, 0.0});
  expect_values(run("clamp", {floats({kNan, 5, -5}), floats({-1}), floats({1})}), {kNan, 1, -1});
  expect_values(run("clamp", {floats({0}), floats({2}), floats({1})}), {1});
  expect_values(run("sign", {floats({kNan, -0.0, -3, kInf})}), {kNan, 0.0, -1, 1});
  expect_values(run("abs", {floats({-0.0, -kInf, kNan})}), {0.0, kInf, kNan});
}

// R24
TEST(Elementwise, FloatFloorDivision) {
  const Tensor a = Tensor::of(DType::F64, {6}, {1.0, -1.0, 7.5, -7.5, 1, 0.0});
  const Tensor b = Tensor::of(DType::F64, {6}, {0.1, 0.1, -2, -2, 0, -3});
  expect_values(run("floor_div", {a, b}), {9, -10, -4, 3, kInf, -0.0});
  const Tensor mod = run("floor_mod", {a, b});
  EXPECT_NEAR(mod.at(0), 0.1, 1e-15);
  EXPECT_GE(mod.at(1), 0);
  EXPECT_LT(mod.at(1), 0.1);
  EXPECT_EQ(mod.at(2), -0.5);
  EXPECT_EQ(mod.at(3), -1.5);
  EXPECT_TRUE(std::isnan(mod.at(4)));
  EXPECT_TRUE(std::signbit(mod.at(5)));
  expect_values(run("fmod", {floats({-7.5}), floats({2})}), {-1.5});
}

// R31
TEST(Elementwise, Powers) {
  expect_values(run("pow", {floats({-2, -2, 0, kNan}), floats({3, 0.5, 0, 0})}), {-8, kNan, 1, 1});
  expect_ints(
      run("pow", {ints(DType::I32, {2, 1, -1, -1, 0, 0, 3, -2}), ints(DType::I32, {-1, -5, -3, -2, -1, 0, 4, 3})}),
      {0, 1, -1, 1, 0, 1, 81, -8});
  expect_ints(run("pow", {ints(DType::I8, {2, 3}), ints(DType::I8, {7, 5})}), {-128, -13});  // 243 wraps
  EXPECT_EQ(run("pow", {floats({2}), ints(DType::I64, {10})}).type_string(), "f32[1]");
  expect_values(run("pow", {floats({2}), ints(DType::I64, {10})}), {1024});
  expect_ints(run("pow", {ints(DType::I32, {9, 2}), floats({0.5, -1})}), {3, 0});
  expect_ints(run("pow", {ints(DType::I64, {3}), ints(DType::U8, {200})}),
              {run("pow", {ints(DType::I64, {3}), ints(DType::I64, {200})}).int_at(0)});
}

// R30
TEST(Elementwise, NarrowFloatsRoundOnce) {
  std::mt19937_64 random(5);
  const Tensor x = random_tensor(DType::BF16, {8, 7, 5, 1}, random);
  const Tensor y = run("div", {x, Tensor::scalar(DType::BF16, 7)});
  EXPECT_EQ(y.type_string(), "bf16[8,7,5,1]");
  for (int64_t i = 0; i < x.count(); ++i) EXPECT_EQ(y.at(i), bf16_to_f32(f64_to_bf16(x.at(i) / 7)));
  // A rule's constants are taken in f32: 0.1 is not rounded to bf16 first.
  const Tensor z = run("leaky_relu", {Tensor::of(DType::BF16, {1}, {-3})}, {{"alpha", 0.1}});
  EXPECT_EQ(z.at(0), bf16_to_f32(f64_to_bf16(static_cast<double>(0.1f) * -3)));
}

// R33
TEST(Elementwise, Complex) {
  Tensor a(DType::C64, {}), b(DType::C64, {});
  a.set_complex(0, 1, 2);
  b.set_complex(0, 3, -4);
  const Tensor sum = run("add", {a, b});
  EXPECT_EQ(sum.type_string(), "c64[]");
  EXPECT_EQ(sum.at(0), 4);
  EXPECT_EQ(sum.imag_at(0), -2);
  const Tensor product = run("mul", {a, b});
  EXPECT_EQ(product.at(0), 11);
  EXPECT_EQ(product.imag_at(0), 2);
  const Tensor magnitude = run("abs", {b});
  EXPECT_EQ(magnitude.type_string(), "f32[]");
  EXPECT_EQ(magnitude.at(0), 5);
  EXPECT_EQ(run("imag", {b}).at(0), -4);
  EXPECT_EQ(run("real", {b}).type_string(), "f32[]");
  EXPECT_EQ(run("conj", {b}).imag_at(0), 4);
  EXPECT_EQ(run("eq", {a, a}).int_at(0), 1);
  EXPECT_EQ(run("neg", {a}).imag_at(0), -2);
  EXPECT_NEAR(run("exp", {complexes({{0, M_PI}})}).at(0), -1, 1e-6);
  const Tensor quotient = run("div", {product, b});
  EXPECT_NEAR(quotient.at(0), 1, 1e-6);
  EXPECT_NEAR(quotient.imag_at(0), 2, 1e-6);
}

TEST(Elementwise, ComparisonsWithNan) {
  const Tensor a = floats({kNan, 1, 2}), b = floats({kNan, 2, 2});
  expect_ints(run("eq", {a, b}), {0, 0, 1});
  expect_ints(run("ne", {a, b}), {1, 1, 0});
  expect_ints(run("lt", {a, b}), {0, 1, 0});
  expect_ints(run("le", {a, b}), {0, 1, 1});
  expect_ints(run("gt", {a, b}), {0, 0, 0});
  expect_ints(run("ge", {a, b}), {0, 0, 1});
  EXPECT_EQ(run("lt", {a, b}).dtype(), DType::Bool);
  expect_ints(run("lt", {ints(DType::U64, {-1}), ints(DType::U64, {1})}), {0});
}

TEST(Elementwise, Bools) {
  const Tensor a = ints(DType::Bool, {0, 0, 1, 1}), b = ints(DType::Bool, {0, 1, 0, 1});
  expect_ints(run("and", {a, b}), {0, 0, 0, 1});
  expect_ints(run("or", {a, b}), {0, 1, 1, 1});
  expect_ints(run("xor", {a, b}), {0, 1, 1, 0});
  expect_ints(run("add", {a, b}), {0, 1, 1, 1});
  expect_ints(run("mul", {a, b}), {0, 0, 0, 1});
  expect_ints(run("max", {a, b}), {0, 1, 1, 1});
  expect_ints(run("not", {a}), {1, 1, 0, 0});
  expect_ints(run("bit_not", {a}), {1, 1, 0, 0});
  expect_ints(run("select", {a, ints(DType::I32, {1, 2, 3, 4}), ints(DType::I32, {-1, -2, -3, -4})}), {-1, -2, 3, 4});
}

TEST(Elementwise, RoundingAndSpecialTests) {
  const Tensor x = floats({0.5, 1.5, 2.5, -0.5, -1.7});
  expect_values(run("round", {x}), {0, 2, 2, -0.0, -2});
  expect_values(run("floor", {x}), {0, 1, 2, -1, -2});
  expect_values(run("ceil", {x}), {1, 2, 3, -0.0, -1});
  expect_values(run("trunc", {x}), {0, 1, 2, -0.0, -1});
  expect_ints(run("floor", {ints(DType::I64, {INT64_MAX})}), {INT64_MAX});
  const Tensor special = floats({kNan, kInf, -kInf, 0});
  expect_ints(run("is_nan", {special}), {1, 0, 0, 0});
  expect_ints(run("is_inf", {special}), {0, 1, 1, 0});
  expect_ints(run("is_inf", {special}, {{"positive", int64_t{0}}}), {0, 0, 1, 0});
  expect_ints(run("is_inf", {special}, {{"negative", int64_t{0}}}), {0, 1, 0, 0});
}

// R25, R32
TEST(Elementwise, Casts) {
  const Tensor x = floats({kNan, kInf, 3e9, -1.5});
  expect_ints(run("cast", {x}, {{"to", DType::I32}}), {0, INT32_MAX, INT32_MAX, -1});
  expect_ints(run("cast", {floats({300, -1})}, {{"to", DType::U8}}), {255, 0});
  expect_ints(run("cast", {ints(DType::I32, {300, -1})}, {{"to", DType::U8}}), {44, 255});
  expect_ints(run("cast", {floats({kNan, 0, -0.0, 0.1})}, {{"to", DType::Bool}}), {1, 0, 0, 1});
  const Tensor half = run("cast", {floats({70000, 1e-8, 2049})}, {{"to", DType::F16}});
  expect_values(run("cast", {half}, {{"to", DType::F32}}), {kInf, 0, 2048});
  EXPECT_EQ(run("cast", {floats({2})}, {{"to", DType::C128}}).type_string(), "c128[1]");
}

TEST(Elementwise, Bitcasts) {
  expect_ints(run("bitcast", {floats({1, -0.0})}, {{"to", DType::I32}}), {0x3f800000, INT32_MIN});
  EXPECT_EQ(run("bitcast", {ints(DType::U16, {0x3c00})}, {{"to", DType::F16}}).at(0), 1);
  expect_user_error(
      [] {
        run("bitcast", {floats({1})}, {{"to", DType::I64}});
      },
      "bitcast: f32 has 32 bits, i64 has 64");
}

TEST(Elementwise, Broadcasting) {
  const Tensor column = Tensor::of(DType::I32, {2, 1}, {10, 20}), row = Tensor::of(DType::I32, {3}, {1, 2, 3});
  const Tensor sum = run("add", {column, row});
  EXPECT_EQ(sum.type_string(), "i32[2,3]");
  expect_ints(sum, {11, 12, 13, 21, 22, 23});
  EXPECT_EQ(run("add", {Tensor(DType::F32, {1, 0}), Tensor(DType::F32, {0, 1})}).type_string(), "f32[0,0]");  // R42
  EXPECT_EQ(run("mul", {Tensor::scalar(DType::F32, 3), Tensor::scalar(DType::F32, 2)}).at(0), 6);
}

// Every primitive on every dtype that it takes gives the same on strided, broadcast and contiguous inputs that span
// several chunks, and infers the dtype that the reference writes.
TEST(Elementwise, LayoutsAgree) {
  constexpr uint64_t kSeed = 11;
  std::mt19937_64 random(kSeed);
  for (const Primitive& primitive : primitives()) {
    for (int d = 0; d < kDTypeCount; ++d) {
      const DType dtype = static_cast<DType>(d);
      if (primitive.functions[static_cast<size_t>(domain_of(dtype))] == nullptr) continue;
      std::vector<Tensor> packed, strided;
      for (int i = 0; i < primitive.arity; ++i) {
        const DType own = primitive.name == "select" && i == 0 ? DType::Bool : dtype;
        const Dims dims = i == 1 ? Dims{1, 37} : Dims{21, 37};
        packed.push_back(random_tensor(own, dims, random));
        strided.push_back(spread(packed.back()));
      }
      const Tensor a = run(primitive.name, packed), b = run(primitive.name, strided);
      ASSERT_EQ(a.type_string(), b.type_string());
      EXPECT_EQ(std::memcmp(a.data(), b.data(), static_cast<size_t>(a.bytes())), 0)
          << primitive.name << " " << dtype_name(dtype);
    }
  }
}

TEST(Elementwise, FunctionsMatchTheirDefinitions) {
  using Function = double (*)(double);
  const std::vector<std::pair<const char*, Function>> rows = {{"sqrt", std::sqrt},
                                                              {"exp", std::exp},
                                                              {"expm1", std::expm1},
                                                              {"log", std::log},
                                                              {"log1p", std::log1p},
                                                              {"sin", std::sin},
                                                              {"cos", std::cos},
                                                              {"tan", std::tan},
                                                              {"asin", std::asin},
                                                              {"acos", std::acos},
                                                              {"atan", std::atan},
                                                              {"sinh", std::sinh},
                                                              {"cosh", std::cosh},
                                                              {"tanh", std::tanh},
                                                              {"asinh", std::asinh},
                                                              {"acosh", std::acosh},
                                                              {"atanh", std::atanh},
                                                              {"erf", std::erf},
                                                              {"rsqrt", [](double x) { return 1 / std::sqrt(x); }},
                                                              {"reciprocal", [](double x) { return 1 / x; }}};
  const Tensor x = floats({-kInf, -2, -0.5, -0.0, 0.0, 0.25, 1, 3, kInf, kNan});
  for (const auto& [name, function] : rows) {
    std::vector<double> expected;
    for (int64_t i = 0; i < x.count(); ++i) expected.push_back(static_cast<float>(function(x.at(i))));
    SCOPED_TRACE(name);
    expect_values(run(name, {x}), expected);
  }
  expect_values(run("atan2", {floats({1, -0.0}), floats({-1, -1})}),
                {static_cast<float>(std::atan2(1, -1)), static_cast<float>(std::atan2(-0.0, -1))});
}

}  // namespace
}  // namespace fuseloom::op
