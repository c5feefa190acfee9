#include <gtest/gtest.h>

#include "op/decomposition_testing.h"

namespace fuseloom::op {
namespace {

const Attrs kDefines = {{"defines", Shape{sym::Expr::symbol("u")}}};

Attrs defining(std::string name, AttrValue value) {
  Attrs attrs = kDefines;
  attrs.set(std::move(name), std::move(value));
  return attrs;
}

Attrs top_k_attrs(int64_t k, int64_t axis, int64_t largest) {
  return {{"k", std::vector<int64_t>{k}}, {"axis", axis}, {"largest", largest}, {"sorted", int64_t{1}}};
}

TEST(TopK, TiesNanAndAxes) {
  const Tensor x = floats({2, 4}, {1, 3, 3, 0, 5, kNan, 5, 7});
  std::vector<Tensor> result = run_all("top_k", {x}, top_k_attrs(3, 1, 1), 2);
  expect_values(result[0], {3, 3, 1, kNan, 7, 5});
  expect_ints(result[1], {1, 2, 0, 1, 3, 0});
  result = run_all("top_k", {x}, top_k_attrs(2, -1, 0), 2);
  expect_values(result[0], {0, 1, 5, 5});
  expect_ints(result[1], {3, 0, 0, 2});
  result = run_all("top_k", {x}, top_k_attrs(1, 0, 1), 2);
  expect_values(result[0], {5, kNan, 5, 7});
  EXPECT_EQ(run_all("top_k", {x}, top_k_attrs(0, 1, 1), 2)[0].dims(), (Dims{2, 0}));
  expect_ints(run_all("top_k", {ints(DType::U64, {1, -1, 2})}, top_k_attrs(2, 0, 1), 2)[1], {1, 2});  // -1 is 2^64 - 1
  expect_user_error([&] { run_all("top_k", {x}, top_k_attrs(5, 1, 1), 2); }, "k is 5");
}

TEST(Sort, IsStableAndTakesScalars) {
  const Attrs down = {{"axis", int64_t{0}}, {"descending", int64_t{1}}},
              up = {{"axis", int64_t{0}}, {"descending", int64_t{0}}};
  const Tensor x = floats({-0.0, 2, 0.0, kNan, 1});
  expect_ints(run_all("sort", {x}, up, 2)[1], {0, 2, 4, 1, 3});
  expect_ints(run_all("sort", {x}, down, 2)[1], {3, 1, 4, 0, 2});
  EXPECT_EQ(run_all("sort", {Tensor::scalar(DType::I32, 3)}, up, 2)[0].int_at(0), 3);
  expect_ints(run_all("sort", {ints(DType::Bool, {1, 0, 1, 0})}, up, 2)[1], {1, 3, 0, 2});
}

TEST(NonZero, Coordinates) {
  const Tensor found = run("non_zero", {floats({2, 3}, {0, 1, kNan, -2, -0.0, 0})}, kDefines);
  EXPECT_EQ(found.dims(), (Dims{2, 3}));
  expect_ints(found, {0, 0, 1, 1, 2, 0});
  EXPECT_EQ(run("non_zero", {Tensor(DType::Bool, {0, 4})}, kDefines).dims(), (Dims{2, 0}));
  EXPECT_EQ(run("non_zero", {Tensor::scalar(DType::F32, 5)}, kDefines).dims(), (Dims{0, 1}));
}

TEST(Compress, ShortConditions) {
  const Tensor x = floats({3, 2}, {1, 2, 3, 4, 5, 6});
  expect_values(run("compress", {x, ints(DType::Bool, {0, 1, 1})}, defining("axis", int64_t{0})), {3, 4, 5, 6});
  expect_values(run("compress", {x, ints(DType::Bool, {0, 1})}, defining("axis", int64_t{1})), {2, 4, 6});
  expect_values(run("compress", {x, ints(DType::Bool, {0, 1, 0, 0, 1})}, kDefines), {2, 5});
  EXPECT_EQ(run("compress", {x, ints(DType::Bool, {0})}, defining("axis", int64_t{0})).dims(), (Dims{0, 2}));
  expect_user_error(
      [&] {
        run("compress", {x, ints(DType::Bool, {0, 0, 1})}, defining("axis", int64_t{1}));
      },
      "index 2");
}

TEST(Unique, SortedAndInOrderOfAppearance) {
  const Tensor x = floats({2, 1, 1, 3, 4, 3});  // ONNX test_unique_sorted_without_axis
  std::vector<Tensor> result = run_all("unique", {x}, kDefines, 4);
  expect_values(result[0], {1, 2, 3, 4});
  expect_ints(result[1], {1, 0, 3, 4});
  expect_ints(result[2], {1, 0, 0, 2, 3, 2});
  expect_ints(result[3], {2, 1, 2, 1});
  result = run_all("unique", {x}, defining("sorted", int64_t{0}), 4);
  expect_values(result[0], {2, 1, 3, 4});
  expect_ints(result[1], {0, 1, 3, 4});
  expect_ints(result[2], {0, 1, 1, 2, 3, 2});
  expect_ints(result[3], {1, 2, 2, 1});
  // ONNX test_unique_sorted_with_axis_3d: slices along axis 1 of [2, 4, 2].
  const Tensor slices = floats({2, 4, 2}, {1, 1, 0, 1, 2, 1, 0, 1, 1, 1, 0, 1, 2, 1, 0, 1});
  result = run_all("unique", {slices}, defining("axis", int64_t{1}), 4);
  EXPECT_EQ(result[0].dims(), (Dims{2, 3, 2}));
  expect_values(result[0], {0, 1, 1, 1, 2, 1, 0, 1, 1, 1, 2, 1});
  expect_ints(result[1], {1, 0, 2});
  expect_ints(result[2], {1, 0, 2, 0});
  EXPECT_EQ(run_all("unique", {Tensor(DType::F32, {0})}, kDefines, 4)[2].dims(), (Dims{0}));
}

TEST(Nms, OnnxVectors) {
  // ONNX test_nonmaxsuppression_suppress_by_IOU and its relatives.
  const Tensor boxes =
      floats({1, 6, 4}, {0, 0, 1, 1, 0, 0.1, 1, 1.1, 0, -0.1, 1, 0.9, 0, 10, 1, 11, 0, 10.1, 1, 11.1, 0, 100, 1, 101});
  const Tensor scores = floats({1, 1, 6}, {0.9, 0.75, 0.6, 0.95, 0.5, 0.3});
  const auto max = [](int64_t n) { return ints(DType::I64, {n}); };
  expect_ints(run("nms", {boxes, scores, max(3), floats({0.5}), floats({0})}, kDefines), {0, 0, 3, 0, 0, 0, 0, 0, 5});
  expect_ints(run("nms", {boxes, scores, max(3), floats({0.5}), floats({0.4})}, kDefines), {0, 0, 3, 0, 0, 0});
  expect_ints(run("nms", {boxes, scores, max(2), floats({0.5})}, kDefines), {0, 0, 3, 0, 0, 0});
  EXPECT_EQ(run("nms", {boxes, scores}, kDefines).dims(), (Dims{0, 3}));
  const Tensor centers = floats({1, 3, 4}, {0.5, 0.5, 1, 1, 0.5, 0.6, 1, 1, 0.5, 10.5, 1, 1});
  expect_ints(
      run("nms", {centers, floats({1, 1, 3}, {0.9, 0.95, 0.1}), max(9), floats({0.5})}, defining("center", int64_t{1})),
      {0, 0, 1, 0, 0, 2});
}

TEST(ReverseSequence, BothAxisOrders) {
  // ONNX test_reversesequence_time and _batch.
  const Tensor x = floats({4, 4}, {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15});
  const Attrs time = {{"batch_axis", int64_t{1}}, {"time_axis", int64_t{0}}},
              batch = {{"batch_axis", int64_t{0}}, {"time_axis", int64_t{1}}};
  expect_values(run("reverse_sequence", {x, ints(DType::I64, {4, 3, 2, 1})}, time),
                {3, 6, 9, 12, 2, 5, 8, 13, 1, 4, 10, 14, 0, 7, 11, 15});
  for (const DType dtype : {DType::F16, DType::I8, DType::C64}) {
    std::mt19937_64 random(7);
    const Tensor y = random_tensor(dtype, {3, 2, 4, 2}, random);
    for (const auto& [b, t] : {std::pair<int64_t, int64_t>{0, 2}, {2, 0}, {1, -2}, {0, 1}}) {
      const Tensor lengths = ints(DType::I32, b == 0   ? std::initializer_list<int64_t>{1, 0, 2}
                                              : b == 1 ? std::initializer_list<int64_t>{4, 3}
                                                       : std::initializer_list<int64_t>{3, 2, 1, 0});
      expect_decomposition("reverse_sequence", {y, lengths}, {{"batch_axis", b}, {"time_axis", t}});
    }
  }
  expect_decomposition("reverse_sequence", {x, ints(DType::I64, {1, 2, 3, 4})}, batch);
  expect_user_error([&] { run("reverse_sequence", {x, ints(DType::I64, {1, 2, 3, 5})}, batch); }, "length 5");
}

}  // namespace
}  // namespace fuseloom::op
