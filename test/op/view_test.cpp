#include "op/op_testing.h"
#include "sym/evaluator.h"

namespace fuseloom::op {
namespace {

using sym::Expr;

Shape symbolic(const char* prefix, size_t rank) {
  Shape shape;
  for (size_t i = 0; i < rank; ++i) shape.push_back(Expr::symbol(prefix + std::to_string(i)));
  return shape;
}

// Reads every output element through the index map, with the sizes given as constants or, where `symbolic_sizes`, as
// symbols n<input>_<dim> that are only bound when the map is evaluated. The result must be the reference's.
void check_index_map(const char* op, const std::vector<Tensor>& inputs, const Attrs& attrs, bool symbolic_sizes) {
  const OpRecord& record = standard_ops().at(op);
  const Tensor expected = run(op, inputs, attrs);
  std::map<std::string, int64_t> values;
  std::vector<TensorType> types;
  for (size_t i = 0; i < inputs.size(); ++i) {
    TensorType type{.dtype = inputs[i].dtype(), .shape = shape_of(inputs[i].dims())};
    if (symbolic_sizes) {
      type.shape = symbolic(("n" + std::to_string(i) + "_").c_str(), type.shape.size());
      for (size_t d = 0; d < type.shape.size(); ++d) values[type.shape[d].name()] = inputs[i].dims()[d];
    }
    types.push_back(std::move(type));
  }
  const TensorType output = infer_types(record, types, std::vector<char>(types.size(), 1), attrs)[0];
  const Shape index = symbolic("i", output.shape.size());
  const std::vector<IndexPiece> pieces = record.index_map({.inputs = types, .output = output, .attrs = attrs}, index);
  for (int64_t k = 0; k < expected.count(); ++k) {
    int64_t rest = k;
    for (size_t d = index.size(); d-- > 0;) {
      values[index[d].name()] = rest % expected.dims()[d];
      rest /= expected.dims()[d];
    }
    double found = 0;
    for (const IndexPiece& piece : pieces) {
      bool holds = true;
      for (const Expr& guard : piece.guards) holds = holds && sym::evaluate(guard, values) != 0;
      if (!holds) continue;
      const Tensor& input = inputs[piece.input];
      ASSERT_EQ(piece.indices.size(), input.dims().size());
      int64_t linear = 0;
      for (size_t d = 0; d < piece.indices.size(); ++d) {
        const int64_t place = sym::evaluate(piece.indices[d], values);
        ASSERT_GE(place, 0) << op << to_string(attrs) << " " << sym::to_string(piece.indices[d]);
        ASSERT_LT(place, input.dims()[d]) << op << to_string(attrs) << " " << sym::to_string(piece.indices[d]);
        linear = linear * input.dims()[d] + place;
      }
      found = input.at(linear);
      break;
    }
    ASSERT_EQ(found, expected.at(k)) << op << to_string(attrs) << " of " << inputs[0].type_string() << " at " << k;
  }
}

void check(const char* op, const std::vector<Tensor>& inputs, const Attrs& attrs) {
  std::vector<Tensor> strided;
  for (const Tensor& input : inputs) strided.push_back(spread(input));
  const Tensor packed_result = run(op, inputs, attrs);
  expect_close(run(op, strided, attrs), packed_result, 0);
  check_index_map(op, inputs, attrs, false);
  check_index_map(op, inputs, attrs, true);
}

class ViewMaps : public testing::Test {
 protected:
  static constexpr uint64_t kSeed = 20240;
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  Dims dims(int64_t max_rank, int64_t max_size) {
    Dims result;
    for (int64_t rank = below(max_rank + 1); rank > 0; --rank) result.push_back(1 + below(max_size));
    return result;
  }
  Tensor tensor(const Dims& dims) {
    Tensor result(DType::F64, dims);
    for (int64_t i = 0; i < result.count(); ++i) result.set(i, static_cast<double>(i + 1));
    return result;
  }
  std::mt19937_64 random_{kSeed};
};

// Splits a count into random factors.
TEST_F(ViewMaps, Reshape) {
  const auto factors = [&](int64_t count) {
    Dims result;
    for (int64_t p = 2; p <= count; ++p) {
      while (count % p == 0) {
        if (!result.empty() && below(2) == 0) {
          result.back() *= p;
        } else {
          result.push_back(p);
        }
        count /= p;
        if (below(4) == 0) result.push_back(1);
      }
    }
    for (size_t i = result.size(); i > 1; --i)
      std::swap(result[i - 1], result[static_cast<size_t>(below(static_cast<int64_t>(i)))]);
    return result;
  };
  for (int round = 0; round < 60; ++round) {
    const int64_t counts[] = {1, 12, 36, 60, 64};
    const int64_t count = counts[below(5)];
    SCOPED_TRACE(round);
    check("reshape", {tensor(factors(count))}, {{"shape", shape_of(factors(count))}});
  }
}

TEST_F(ViewMaps, TransposeExpandSliceTile) {
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE(round);
    const Dims d = dims(4, 4);
    const Tensor x = tensor(d);
    std::vector<int64_t> perm(d.size()), steps, starts, sizes, repeats, expanded;
    for (size_t i = 0; i < d.size(); ++i) perm[i] = static_cast<int64_t>(i);
    for (size_t i = d.size(); i > 1; --i)
      std::swap(perm[i - 1], perm[static_cast<size_t>(below(static_cast<int64_t>(i)))]);
    check("transpose", {x}, {{"perm", perm}});
    for (const int64_t size : d) {
      const int64_t step = below(2) == 0 ? 1 + below(2) : -1 - below(2);
      const int64_t start = below(size);
      const int64_t room = step > 0 ? (size - 1 - start) / step + 1 : start / -step + 1;
      steps.push_back(step);
      starts.push_back(start);
      sizes.push_back(below(room + 1));
      repeats.push_back(below(4));
      expanded.push_back(size == 1 ? below(4) : size);
    }
    check("slice", {x}, {{"starts", starts}, {"sizes", sizes}, {"steps", steps}});
    check("tile", {x}, {{"repeats", repeats}});
    expanded.insert(expanded.begin(), 2);
    check("expand", {x}, {{"shape", expanded}});
  }
}

TEST_F(ViewMaps, Concat) {
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE(round);
    Dims d = dims(2, 4);
    d.push_back(2);
    const int64_t axis = below(static_cast<int64_t>(d.size()));
    std::vector<Tensor> pieces;
    for (int64_t i = 1 + below(4); i > 0; --i) {
      d[static_cast<size_t>(axis)] = below(4);  // R44: also empty pieces
      pieces.push_back(tensor(d));
    }
    check("concat", pieces, {{"axis", below(2) == 0 ? axis : axis - static_cast<int64_t>(d.size())}});
  }
}

TEST_F(ViewMaps, Pad) {
  for (const char* mode : {"constant", "edge", "reflect", "wrap"}) {
    for (int round = 0; round < 25; ++round) {
      SCOPED_TRACE(mode + std::to_string(round));
      const Dims d = dims(3, 5);
      std::vector<int64_t> low, high;
      for (const int64_t size : d) {
        low.push_back(below(9) - 2);
        high.push_back(std::max<int64_t>(below(9) - 2, -size - low.back()));
      }
      std::vector<Tensor> inputs = {tensor(d)};
      if (below(2) == 0) inputs.push_back(Tensor::scalar(DType::F64, -7));
      check("pad", inputs, {{"low", low}, {"high", high}, {"mode", mode}});
    }
  }
}

TEST(View, PadValues) {
  const auto pad = [](const char* mode) {
    return run("pad", {floats({1, 2, 3})}, {{"low", Shape{2}}, {"high", Shape{4}}, {"mode", mode}});
  };
  expect_values(pad("constant"), {0, 0, 1, 2, 3, 0, 0, 0, 0});
  expect_values(pad("edge"), {1, 1, 1, 2, 3, 3, 3, 3, 3});
  expect_values(pad("reflect"), {3, 2, 1, 2, 3, 2, 1, 2, 3});
  expect_values(pad("wrap"), {2, 3, 1, 2, 3, 1, 2, 3, 1});
  // R44: to and from empty.
  expect_values(run("pad", {Tensor(DType::F32, {0})}, {{"low", Shape{1}}, {"high", Shape{1}}, {"mode", "constant"}}),
                {0, 0});
  EXPECT_EQ(run("pad", {floats({1, 2})}, {{"low", Shape{-1}}, {"high", Shape{-1}}, {"mode", "edge"}}).count(), 0);
  expect_user_error(
      [] {
        run("pad", {Tensor(DType::F32, {0})}, {{"low", Shape{1}}, {"high", Shape{0}}, {"mode", "edge"}});
      },
      "is empty and has no element to repeat");
}

TEST(View, ReshapeOfProvablyEqualRunsNeedsNoDivision) {
  const Expr a = Expr::symbol("a"), b = Expr::symbol("b"), c = Expr::symbol("c");
  const auto indices = [](const Shape& from, const Shape& to) {
    const TensorType input{DType::F32, from}, output{DType::F32, to};
    const Attrs attrs = {{"shape", to}};
    const Shape index = symbolic("i", to.size());
    const std::vector<TensorType> inputs = {input};
    return to_string(
        standard_ops().at("reshape").index_map({.inputs = inputs, .output = output, .attrs = attrs}, index)[0].indices);
  };
  EXPECT_EQ(indices({a, 1, b}, {1, a, b, 1}), "[i1, 0, i2]");
  EXPECT_EQ(indices({a, 6, b}, {a, 2, 3, b}),
            to_string(Shape{Expr::symbol("i0"), Expr::symbol("i1") * 3 + Expr::symbol("i2"), Expr::symbol("i3")}));
  EXPECT_EQ(indices({a, b, c}, {a * b, c}), to_string(Shape{sym::floor_div(Expr::symbol("i0"), b),
                                                            sym::mod(Expr::symbol("i0"), b), Expr::symbol("i1")}));
  // The middle is not provably equal, both ends are.
  const Expr d = Expr::symbol("d"), e = Expr::symbol("e");
  const std::string middle = indices({a, b, c, e}, {a, d, e});
  EXPECT_EQ(middle.substr(0, 4), "[i0,");
  EXPECT_EQ(middle.substr(middle.size() - 4), " i2]");
}

TEST(View, Errors) {
  const TensorType x{DType::F32, {2, 3}};
  expect_user_error(
      [&] {
        infer("reshape", {x}, {{"shape", Shape{4, 2}}});
      },
      "reshape: f32[2, 3] has 6 elements, the shape [4, 2] has 8");
  expect_user_error([&] { infer("reshape", {x}, {{"shape", Shape{-1, 6}}}); }, "negative size");
  expect_user_error(
      [&] {
        infer("transpose", {x}, {{"perm", std::vector<int64_t>{0, 0}}});
      },
      "is no permutation of 0..1");
  expect_user_error(
      [&] {
        infer("expand", {x}, {{"shape", Shape{4, 3}}});
      },
      "expand: f32[2, 3] does not expand to [4, 3]");
  expect_user_error([&] { infer("expand", {x}, {{"shape", Shape{3}}}); }, "does not expand");
  const std::vector<int64_t> ones = {1, 1};
  expect_user_error(
      [&] {
        infer("slice", {x}, {{"starts", Shape{0, 1}}, {"sizes", Shape{2, 3}}, {"steps", ones}});
      },
      "dimension 1 of f32[2, 3]: 3 elements from 1 by 1 are not all inside");
  expect_user_error(
      [&] {
        infer("slice", {x}, {{"starts", Shape{0}}, {"sizes", Shape{2, 3}}, {"steps", ones}});
      },
      "'starts' has 1 entries");
  expect_user_error([&] { infer("concat", {x, {DType::F32, {2, 4, 1}}}, {{"axis", int64_t{1}}}); }, "the ranks differ");
  expect_user_error([&] { infer("concat", {x, {DType::F32, {3, 4}}}, {{"axis", int64_t{1}}}); }, "dimension 0 differs");
  expect_user_error(
      [&] {
        infer("concat", {x, {DType::F16, {2, 3}}}, {{"axis", int64_t{1}}});
      },
      "the element types differ");
  expect_user_error([&] { infer("concat", {x}, {{"axis", int64_t{2}}}); }, "concat: axis 2 is outside -2..1");
  expect_user_error(
      [&] {
        infer("pad", {x}, {{"low", Shape{0, 0}}, {"high", Shape{0, 0}}, {"mode", "mirror"}});
      },
      "found \"mirror\"");
  expect_user_error(
      [&] {
        infer("pad", {x}, {{"low", Shape{-2, 0}}, {"high", Shape{-1, 0}}, {"mode", "edge"}});
      },
      "cropped by more than it has");
  expect_user_error([&] { infer("tile", {x}, {{"repeats", Shape{1, -1}}}); }, "repeated -1 times");
}

TEST(View, SymbolicTypes) {
  const Expr n = Expr::symbol("n"), m = Expr::symbol("m");
  const TensorType x{DType::F32, {n, 3}};
  EXPECT_EQ(infer("concat", {x, {DType::F32, {m, 3}}}, {{"axis", int64_t{0}}})[0].shape[0], n + m);
  EXPECT_EQ(infer("pad", {x}, {{"low", Shape{1, 0}}, {"high", Shape{m, 0}}, {"mode", "constant"}})[0].shape[0],
            n + m + 1);
  EXPECT_EQ(infer("tile", {x}, {{"repeats", Shape{2, m}}})[0].shape, (Shape{n * 2, m * 3}));
  EXPECT_EQ(infer("reshape", {x}, {{"shape", Shape{n * 3}}})[0].shape, (Shape{n * 3}));
}

}  // namespace
}  // namespace fuseloom::op
