#include "op/attrs.h"

#include "base/lexer.h"
#include "op/op_testing.h"

namespace fuseloom::op {
namespace {

Attrs parse(std::string_view text, const ConstantPool& pool = {}) {
  base::Lexer lexer(text);
  Attrs attrs = parse_attrs(lexer, pool);
  EXPECT_TRUE(lexer.at_end());
  return attrs;
}

Attrs every_kind() {
  return {{"axis", int64_t{-1}},
          {"eps", 1.0e-5},
          {"whole", 2.0},
          {"mode", "ed\"ge\n"},
          {"to", DType::F16},
          {"perm", std::vector<int64_t>{0, -2, 1}},
          {"none", std::vector<int64_t>{}},
          {"alpha", std::vector<double>{0.5, 1.0, kInf, -kInf}},
          {"no_reals", std::vector<double>{}},
          {"shape", Shape{sym::Expr::symbol("s0") * 2 + 1, 4}},
          {"no_sizes", Shape{}},
          {"value", Tensor::of(DType::F32, {2, 2}, {1, 0.1, kNan, -kInf})},
          {"least", INT64_MIN}};
}

TEST(Attrs, TextRoundTrips) {
  const std::string text = to_string(every_kind());
  EXPECT_NE(text.find("to = :f16"), std::string::npos) << text;
  EXPECT_NE(text.find("value = f32[2, 2] {1.0, 0.1, nan, -inf}"), std::string::npos) << text;
  const Attrs again = parse(text);
  EXPECT_EQ(to_string(again), text);
  EXPECT_TRUE(equal(again, every_kind()));
  EXPECT_EQ(hash(again), hash(every_kind()));
  EXPECT_EQ(to_string(Attrs{}), "");
}

TEST(Attrs, TensorLiteralsOfEveryTypeRoundTrip) {
  constexpr uint64_t kSeed = 3;
  std::mt19937_64 random(kSeed);
  for (int i = 0; i < kDTypeCount; ++i) {
    const Attrs attrs = {{"value", random_tensor(static_cast<DType>(i), {3, 2}, random)},
                         {"empty", Tensor(static_cast<DType>(i), {0, 2})},
                         {"scalar", random_tensor(static_cast<DType>(i), {}, random)}};
    EXPECT_TRUE(equal(parse(to_string(attrs)), attrs)) << to_string(attrs) << " seed " << kSeed;
  }
  const Attrs extremes = {{"a", ints(DType::I64, {INT64_MIN, INT64_MAX})}, {"b", ints(DType::U64, {-1, 5})}};
  EXPECT_TRUE(equal(parse(to_string(extremes)), extremes)) << to_string(extremes);
}

TEST(Attrs, LargeTensorsTravelInThePool) {
  const Tensor large = Tensor(DType::F32, {65});
  const Attrs attrs = {{"value", large}};
  const std::string text = to_string(attrs);
  EXPECT_EQ(text, "{value = f32[65] @" + tensor_hash(large) + "}");
  EXPECT_TRUE(equal(parse(text, {{tensor_hash(large), large}}), attrs));
  expect_user_error([&] { parse(text); }, "not in the pool");
  expect_user_error([&] { parse(text, {{tensor_hash(large), Tensor(DType::F64, {65})}}); }, "is f64[65] in the pool");
  EXPECT_NE(tensor_hash(large), tensor_hash(Tensor(DType::I32, {65})));
  EXPECT_NE(tensor_hash(large), tensor_hash(Tensor(DType::F32, {5, 13})));
  EXPECT_EQ(tensor_hash(spread(large)), tensor_hash(large));
}

TEST(Attrs, BadTextIsAnError) {
  for (const char* text : {"{a = }", "{a 1}", "{a = 1, a = 2}", "{a = :f17}", "{a = <s0}", "{a = f32[2] {1.0}}",
                           "{a = f32[n] {1.0}}", "{a = [1, }", "{a = frog}", "{a = 1"}) {
    EXPECT_THROW(parse(text), UserError) << text;
  }
}

TEST(Attrs, TypedAccess) {
  const Attrs attrs = every_kind();
  EXPECT_EQ(attrs.real("axis"), -1);
  EXPECT_EQ(attrs.integer("missing", 7), 7);
  EXPECT_EQ(attrs.text("missing", "x"), "x");
  EXPECT_EQ(attrs.shape("perm")[1], sym::Expr(-2));
  EXPECT_THROW(attrs.integer("missing"), InternalError);
  EXPECT_THROW(attrs.integer("eps"), InternalError);
}

TEST(Attrs, SizesBecomeConcrete) {
  const Attrs attrs = {{"shape", Shape{sym::Expr::symbol("n") * 2, 3}}, {"defines", Shape{sym::Expr::symbol("u0")}}};
  const Attrs values = concrete(attrs, {{"n", 5}});
  EXPECT_EQ(values.integers("shape"), (std::vector<int64_t>{10, 3}));
  EXPECT_EQ(values.shape("defines")[0], sym::Expr::symbol("u0"));
  expect_user_error([&] { concrete(attrs, {}); }, "n");
  EXPECT_EQ(substitute(attrs, {{"n", 4}}).shape("shape")[0], sym::Expr(8));
}

}  // namespace
}  // namespace fuseloom::op
