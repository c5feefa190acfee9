#include "op/op_testing.h"

namespace fuseloom::op {
namespace {

Attrs axis(int64_t value) { return {{"axis", value}}; }
Attrs scatter(int64_t axis, const char* reduction) { return {{"axis", axis}, {"reduction", reduction}}; }

Tensor matrix() { return Tensor::of(DType::F32, {2, 3}, {1, 2, 3, 4, 5, 6}); }

TEST(Gather, Slices) {
  const Tensor rows = run("gather", {matrix(), ints(DType::I64, {1, -2, 1})}, axis(0));
  EXPECT_EQ(rows.type_string(), "f32[3,3]");
  expect_values(rows, {4, 5, 6, 1, 2, 3, 4, 5, 6});
  expect_values(run("gather", {spread(matrix()), ints(DType::I32, {-1})}, axis(1)), {3, 6});
  EXPECT_EQ(run("gather", {matrix(), Tensor(DType::I64, {})}, axis(-1)).type_string(), "f32[2]");
  EXPECT_EQ(run("gather", {matrix(), Tensor(DType::I64, {0, 5})}, axis(0)).type_string(), "f32[0,5,3]");
}

// R17
TEST(Gather, AnIndexOutsideIsNamed) {
  expect_user_error(
      [] {
        run("gather", {matrix(), ints(DType::I64, {0, 3})}, axis(1));
      },
      "gather: index 3 (number 1 of the indices) is outside -3..2 of axis 1, which has 3 elements");
  expect_user_error([] { run("gather", {matrix(), ints(DType::I64, {-3})}, axis(0)); }, "index -3");
  expect_user_error([] { run("gather", {Tensor(DType::F32, {0}), ints(DType::I64, {0})}, axis(0)); }, "outside");
  expect_user_error(
      [] {
        run("gather_elements", {matrix(), Tensor::of(DType::I64, {1, 1}, {2})}, axis(0));
      },
      "index 2");
  expect_user_error(
      [] {
        run("gather_nd", {matrix(), Tensor::of(DType::I64, {1, 2}, {0, 7})}, {{"batch_dims", int64_t{0}}});
      },
      "of axis 1");
  expect_user_error(
      [] {
        run("scatter_nd", {matrix(), Tensor::of(DType::I64, {1, 1}, {2}), Tensor(DType::F32, {1, 3})},
            {{"reduction", "none"}});
      },
      "scatter_nd: index 2");
}

TEST(Gather, Errors) {
  expect_user_error([] { infer("gather", {{DType::F32, {2}}, {DType::F32, {2}}}, axis(0)); }, "indices are i32 or i64");
  expect_user_error([] { infer("gather", {{DType::F32, {}}, {DType::I64, {2}}}, axis(0)); }, "has no axis");
  expect_user_error(
      [] {
        infer("gather_elements", {{DType::F32, {2, 3}}, {DType::I64, {2}}}, axis(0));
      },
      "must have the rank");
  expect_user_error(
      [] {
        infer("gather_elements", {{DType::F32, {2, 3}}, {DType::I64, {2, 4}}}, axis(0));
      },
      "dimension 1 of the indices");
  expect_user_error(
      [] {
        infer("gather_nd", {{DType::F32, {2}}, {DType::I64, {2, 2}}}, {{"batch_dims", int64_t{0}}});
      },
      "do not fit");
  expect_user_error(
      [] {
        infer("scatter_elements", {{DType::F32, {2}}, {DType::I64, {2}}, {DType::F32, {3}}}, scatter(0, "add"));
      },
      "the updates must have the shape [2], found f32[3]");
  expect_user_error(
      [] {
        infer("scatter_elements", {{DType::F32, {2}}, {DType::I64, {2}}, {DType::F16, {2}}}, scatter(0, "add"));
      },
      "must have the element type");
  expect_user_error(
      [] {
        infer("scatter_elements", {{DType::F32, {2}}, {DType::I64, {2}}, {DType::F32, {2}}}, scatter(0, "sum"));
      },
      "found \"sum\"");
}

TEST(Gather, Elements) {
  const Tensor index = Tensor::of(DType::I64, {2, 2}, {0, -1, 1, 0});
  expect_values(run("gather_elements", {matrix(), index}, axis(1)), {1, 3, 5, 4});
  expect_values(run("gather_elements", {spread(matrix()), spread(index)}, axis(0)), {1, 5, 4, 2});
}

TEST(Gather, Tuples) {
  const Attrs no_batch = {{"batch_dims", int64_t{0}}}, batch = {{"batch_dims", int64_t{1}}};
  expect_values(run("gather_nd", {matrix(), Tensor::of(DType::I64, {2, 2}, {0, 0, 1, -1})}, no_batch), {1, 6});
  expect_values(run("gather_nd", {matrix(), Tensor::of(DType::I64, {2, 1}, {1, 0})}, no_batch), {4, 5, 6, 1, 2, 3});
  expect_values(run("gather_nd", {matrix(), Tensor::of(DType::I64, {2, 1}, {2, 0})}, batch), {3, 4});
  const Tensor cube = Tensor::of(DType::F32, {2, 2, 2}, {0, 1, 2, 3, 4, 5, 6, 7});
  const Tensor blocks = run("gather_nd", {cube, Tensor::of(DType::I64, {2, 1, 1}, {1, 0})}, batch);
  EXPECT_EQ(blocks.type_string(), "f32[2,1,2]");
  expect_values(blocks, {2, 3, 4, 5});
}

TEST(Scatter, InIndexOrder) {
  const Tensor x = floats({1, 2, 3}), index = ints(DType::I64, {1, 1, -1}), updates = floats({10, 20, 30});
  expect_values(run("scatter_elements", {x, index, updates}, scatter(0, "none")), {1, 20, 30});
  expect_values(run("scatter_elements", {x, index, updates}, scatter(0, "add")), {1, 32, 33});
  expect_values(run("scatter_elements", {x, index, updates}, scatter(0, "mul")), {1, 400, 90});
  expect_values(run("scatter_elements", {x, index, updates}, scatter(0, "max")), {1, 20, 30});
  expect_values(run("scatter_elements", {x, index, updates}, scatter(0, "min")), {1, 2, 3});
  expect_values(x, {1, 2, 3});
  expect_values(run("scatter_elements", {x, index, floats({kNan, 20, 30})}, scatter(0, "max")), {1, kNan, 30});
  expect_ints(run("scatter_elements", {ints(DType::I8, {100}), ints(DType::I64, {0}), ints(DType::I8, {100})},
                  scatter(0, "add")),
              {-56});
  const Tensor columns = run(
      "scatter_elements", {matrix(), Tensor::of(DType::I64, {1, 2}, {1, 0}), Tensor::of(DType::F32, {1, 2}, {-1, -2})},
      scatter(0, "none"));
  expect_values(columns, {1, -2, 3, -1, 5, 6});
}

TEST(Scatter, Tuples) {
  const Tensor rows =
      run("scatter_nd", {matrix(), Tensor::of(DType::I64, {1, 1}, {-1}), Tensor::of(DType::F32, {1, 3}, {7, 8, 9})},
          {{"reduction", "none"}});
  expect_values(rows, {1, 2, 3, 7, 8, 9});
  const Tensor points =
      run("scatter_nd", {spread(matrix()), Tensor::of(DType::I64, {2, 2}, {0, 1, 0, 1}), spread(floats({5, 5}))},
          {{"reduction", "add"}});
  expect_values(points, {1, 12, 3, 4, 5, 6});
}

TEST(OneHot, MatchesItsDecomposition) {
  const Tensor values = floats({-1, 5});
  for (const int64_t new_axis : {0, 1, 2, -1}) {
    const Attrs attrs = {{"depth", Shape{4}}, {"axis", new_axis}};
    for (const DType dtype : {DType::I64, DType::I32, DType::F32, DType::U8}) {
      const Tensor index = run("cast", {Tensor::of(DType::F32, {2, 3}, {0, 3, 4, 1, -1, -5})}, {{"to", dtype}});
      const Tensor hot = run("one_hot", {index, values}, attrs);
      expect_close(run_decomposition("one_hot", {index, values}, attrs)[0], hot, 0);
    }
  }
  expect_values(run("one_hot", {ints(DType::I64, {1, -1, 7}), values}, {{"depth", Shape{2}}, {"axis", int64_t{-1}}}),
                {-1, 5, -1, 5, -1, -1});
  EXPECT_EQ(
      run("one_hot", {Tensor(DType::I64, {3}), values}, {{"depth", Shape{0}}, {"axis", int64_t{0}}}).type_string(),
      "f32[0,3]");
  expect_user_error(
      [] {
        infer("one_hot", {{DType::I64, {3}}, {DType::F32, {3}}}, {{"depth", Shape{2}}, {"axis", int64_t{0}}});
      },
      "the pair (off, on)");
}

TEST(Trilu, MatchesItsDecomposition) {
  std::mt19937_64 random(8);
  const Tensor x = random_tensor(DType::F32, {2, 3, 5}, random);
  for (const int64_t upper : {0, 1}) {
    for (const int64_t k : {-9, -1, 0, 1, 2, 9}) {
      const std::vector<Tensor> inputs = {x, Tensor::of_ints(DType::I64, {}, std::vector<int64_t>{k})};
      const Attrs attrs = {{"upper", upper}};
      expect_close(run_decomposition("trilu", inputs, attrs)[0], run("trilu", inputs, attrs), 0);
    }
  }
  const Tensor square = Tensor::of(DType::I32, {2, 2}, {1, 2, 3, 4});
  expect_ints(run("trilu", {square}, {{"upper", int64_t{1}}}), {1, 2, 0, 4});
  expect_ints(run("trilu", {square}, {{"upper", int64_t{0}}}), {1, 0, 3, 4});
  expect_ints(
      run("trilu", {square, Tensor::of_ints(DType::I64, {}, std::vector<int64_t>{INT64_MAX})}, {{"upper", int64_t{1}}}),
      {0, 0, 0, 0});
  expect_user_error(
      [] {
        infer("trilu", {{DType::F32, {3}}}, {{"upper", int64_t{1}}});
      },
      "a matrix has two dimensions");
}

}  // namespace
}  // namespace fuseloom::op
