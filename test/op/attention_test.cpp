#include <gtest/gtest.h>

#include "fuseloom/error.h"
#include "op/decomposition_testing.h"

namespace fuseloom::op {
namespace {

TEST(Attention, ByHand) {
  // Two keys that the query sees equally: the mean of the values.
  const Tensor q = floats({1, 1, 1, 2}, {1, 0}), k = floats({1, 1, 2, 2}, {2, 5, 2, -7}),
               v = floats({1, 1, 2, 1}, {10, 20});
  EXPECT_NEAR(run_all("attention", {q, k, v})[0].at(0), 15, 1e-5);
  const Tensor mask = Tensor::of(DType::Bool, {2}, {0, 1});
  EXPECT_EQ(run_all("attention", {q, k, v, mask})[0].at(0), 20);
  EXPECT_EQ(run_all("attention", {q, k, v}, {{"causal", int64_t{1}}})[0].at(0), 10);
  EXPECT_NEAR(run_all("attention", {q, k, v}, {{"causal", int64_t{1}}, {"past", std::vector<int64_t>{1}}})[0].at(0), 15,
              1e-5);
  const std::vector<Tensor> shown = run_all("attention", {q, k, v}, {{"scale", 0.5}, {"scores", int64_t{0}}}, 2);
  EXPECT_EQ(values_of(shown[1]), (std::vector<double>{1, 1}));
}

TEST(Attention, DecompositionsAgree) {
  for (const DType dtype : {DType::F16, DType::BF16, DType::F32, DType::F64}) {
    for (const int64_t key_heads : {1, 2, 4}) {
      const Tensor q = random_tensor(dtype, {2, 4, 3, 8}, 1), k = random_tensor(dtype, {2, key_heads, 5, 8}, 2);
      const Tensor v = random_tensor(dtype, {2, key_heads, 5, 6}, 3), bias = random_tensor(dtype, {2, 1, 3, 5}, 4);
      Tensor keep(DType::Bool, {3, 5});
      for (int64_t i = 0; i < 15; ++i) keep.set_int(i, i % 3 != 1);
      expect_decomposition("attention", {q, k, v});
      expect_decomposition("attention", {q, k, v, bias}, {{"softcap", 2.0}, {"scale", 0.7}});
      for (int64_t stage = 0; stage < 4; ++stage) {
        expect_decomposition(
            "attention", {q, k, v, keep},
            {{"causal", int64_t{1}}, {"past", std::vector<int64_t>{2}}, {"softcap", 3.0}, {"scores", stage}}, 2);
      }
    }
  }
  const Tensor q = random_tensor(DType::F32, {1, 2, 0, 4}, 5), k = random_tensor(DType::F32, {1, 2, 3, 4}, 6);
  expect_decomposition("attention", {q, k, k});
  EXPECT_THROW(run_all("attention", {random_tensor(DType::F32, {1, 3, 2, 4}, 5), k, k}), UserError);
}

TEST(RotaryEmbedding, DecompositionsAgree) {
  for (const DType dtype : {DType::F16, DType::F32, DType::F64}) {
    const Tensor x = random_tensor(dtype, {2, 3, 4, 8}, 7);
    for (const int64_t interleaved : {0, 1}) {
      for (const int64_t rotary : {0, 4}) {
        const int64_t half = rotary == 0 ? 4 : rotary / 2;
        const Attrs attrs = {{"interleaved", interleaved}, {"rotary_dim", rotary}};
        expect_decomposition("rotary_embedding",
                             {x, random_tensor(dtype, {2, 4, half}, 8), random_tensor(dtype, {2, 4, half}, 9)}, attrs);
        expect_decomposition("rotary_embedding",
                             {x, random_tensor(dtype, {1, 4, half}, 8), random_tensor(dtype, {1, 4, half}, 9)}, attrs);
        const Tensor positions = ints({2, 4}, {0, 1, 2, 3, 9, 8, 7, 0});
        expect_decomposition("rotary_embedding",
                             {x, random_tensor(dtype, {10, half}, 8), random_tensor(dtype, {10, half}, 9), positions},
                             attrs);
      }
    }
  }
}

TEST(RotaryEmbedding, TurnsByAngles) {
  const Tensor x = floats({1, 1, 1, 4}, {1, 2, 3, 4});
  const Tensor zero = floats({1, 1, 2}, {0, 1}), one = floats({1, 1, 2}, {1, 0});  // 90 degrees, 0 degrees
  EXPECT_EQ(values_of(run_all("rotary_embedding", {x, zero, one})[0]), (std::vector<double>{-3, 2, 1, 4}));
  EXPECT_EQ(values_of(run_all("rotary_embedding", {x, zero, one}, {{"interleaved", int64_t{1}}})[0]),
            (std::vector<double>{-2, 1, 3, 4}));
}

}  // namespace
}  // namespace fuseloom::op
