#include "fuseloom/tensor.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "fuseloom/error.h"

namespace fuseloom {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Tensor, OwnsAlignedZeroedMemory) {
  const Tensor tensor(DType::F32, {3, 5});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data()) % 64, 0u);
  EXPECT_EQ(tensor.count(), 15);
  EXPECT_EQ(tensor.bytes(), 60);
  EXPECT_EQ(tensor.strides(), (Dims{5, 1}));
  EXPECT_TRUE(tensor.contiguous());
  for (int64_t i = 0; i < 15; ++i) EXPECT_EQ(tensor.at(i), 0);
  EXPECT_EQ(tensor.type_string(), "f32[3,5]");
}

TEST(Tensor, EmptyAndScalarAndDefault) {
  EXPECT_FALSE(Tensor().valid());
  const Tensor empty(DType::I8, {0, int64_t{1} << 40, int64_t{1} << 40});
  EXPECT_TRUE(empty.valid());
  EXPECT_EQ(empty.count(), 0);
  EXPECT_TRUE(empty.contiguous());
  EXPECT_EQ(Tensor::scalar(DType::F16, 2.5).at(0), 2.5);
  EXPECT_EQ(Tensor::scalar(DType::F16, 2.5).type_string(), "f16[]");
}

TEST(Tensor, RefusesBadShapes) {
  EXPECT_THROW(Tensor(DType::F32, {2, -1}), UserError);
  EXPECT_THROW(Tensor(DType::F32, {int64_t{1} << 32, int64_t{1} << 32}), UserError);
  EXPECT_THROW(Tensor(DType::F64, {int64_t{1} << 60}), UserError);
  EXPECT_THROW(Tensor::of(DType::F32, {2}, {1, 2, 3}), UserError);
  EXPECT_THROW(Tensor(DType::F32, {2, 3}).reshaped({7}), UserError);
  float value = 0;
  EXPECT_THROW(Tensor::borrow(DType::F32, {1}, {1, 1}, &value), UserError);
  EXPECT_THROW(Tensor::borrow(DType::F32, {1}, nullptr), UserError);
}

TEST(Tensor, StridesAreRespected) {
  std::array<float, 6> memory = {0, 1, 2, 3, 4, 5};
  const Tensor transposed = Tensor::borrow(DType::F32, {3, 2}, {1, 3}, memory.data());
  EXPECT_FALSE(transposed.contiguous());
  EXPECT_EQ(transposed.at(1), 3);
  EXPECT_EQ(transposed.at(4), 2);
  EXPECT_THROW(transposed.reshaped({6}), UserError);
  const Tensor packed = transposed.to_contiguous();
  EXPECT_TRUE(packed.contiguous());
  const std::array<float, 6> expected = {0, 3, 1, 4, 2, 5};
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(packed.at(i), expected[static_cast<size_t>(i)]);
  const Tensor reversed = Tensor::borrow(DType::F32, {6}, {-1}, memory.data() + 5).contiguous_copy();
  EXPECT_EQ(reversed.at(0), 5);
  EXPECT_EQ(reversed.at(5), 0);
  const Tensor broadcast = Tensor::borrow(DType::F32, {4, 6}, {0, 1}, memory.data());
  EXPECT_EQ(broadcast.cast(DType::I32).int_at(13), 1);
}

TEST(Tensor, SizeOneDimensionsDoNotBreakContiguity) {
  std::array<float, 6> memory = {};
  EXPECT_TRUE(Tensor::borrow(DType::F32, {1, 6}, {999, 1}, memory.data()).contiguous());
  EXPECT_TRUE(Tensor::borrow(DType::F32, {0, 6}, {1, 999}, memory.data()).contiguous());
  EXPECT_FALSE(Tensor::borrow(DType::F32, {2, 2}, {3, 1}, memory.data()).contiguous());
}

TEST(Tensor, SharingAndOwners) {
  Tensor a = Tensor::of(DType::I32, {2, 2}, {1, 2, 3, 4});
  Tensor view = a.reshaped({4});
  view.set_int(3, 9);
  EXPECT_EQ(a.int_at(3), 9);
  Tensor copy = a.contiguous_copy();
  copy.set_int(0, 7);
  EXPECT_EQ(a.int_at(0), 1);
}

// R32: casts of the values where C++ itself has no answer.
TEST(Tensor, CastsAreDocumented) {
  const Tensor x = Tensor::of(DType::F64, {8}, {kNan, kInf, -kInf, 3e9, -1.5, 300, -1, 0.5});
  const auto expect = [&](DType to, std::array<int64_t, 8> values) {
    const Tensor y = x.cast(to);
    for (int64_t i = 0; i < 8; ++i)
      EXPECT_EQ(y.int_at(i), values[static_cast<size_t>(i)]) << dtype_name(to) << " " << i;
  };
  expect(DType::I32, {0, INT32_MAX, INT32_MIN, INT32_MAX, -1, 300, -1, 0});
  expect(DType::U8, {0, 255, 0, 255, 0, 255, 0, 0});
  expect(DType::I8, {0, 127, -128, 127, -1, 127, -1, 0});
  expect(DType::I64, {0, INT64_MAX, INT64_MIN, 3000000000, -1, 300, -1, 0});
  expect(DType::Bool, {1, 1, 1, 1, 1, 1, 1, 1});
  const Tensor unsigned64 = x.cast(DType::U64);
  EXPECT_EQ(static_cast<uint64_t>(unsigned64.int_at(1)), UINT64_MAX);
  EXPECT_EQ(unsigned64.int_at(2), 0);

  const Tensor wide = Tensor::of_ints(DType::I64, {4}, std::array<int64_t, 4>{300, -1, INT64_MIN, 0});
  EXPECT_EQ(wide.cast(DType::I8).int_at(0), 44);
  EXPECT_EQ(wide.cast(DType::U8).int_at(1), 255);
  EXPECT_EQ(wide.cast(DType::I32).int_at(2), 0);
  EXPECT_EQ(wide.cast(DType::Bool).int_at(2), 1);
  EXPECT_EQ(wide.cast(DType::Bool).int_at(3), 0);
  EXPECT_EQ(wide.cast(DType::U64).cast(DType::F64).at(1), 0x1p64);
  EXPECT_EQ(Tensor::of(DType::Bool, {1}, {5}).cast(DType::F32).at(0), 1);
}

// R25
TEST(Tensor, NarrowFloatsRound) {
  const Tensor x = Tensor::of(DType::F32, {3}, {70000, 1e-8, 2049});
  const Tensor y = x.cast(DType::F16).cast(DType::F32);
  EXPECT_EQ(y.at(0), kInf);
  EXPECT_EQ(y.at(1), 0);
  EXPECT_EQ(y.at(2), 2048);
}

TEST(Tensor, IntegersRoundOnceToFloats) {
  // 2^60 + 2^52 is a tie of bf16 (8 significant bits: unit 2^53); the last 1 breaks it, though f64 cannot hold it.
  const int64_t above = (int64_t{1} << 60) + (int64_t{1} << 52) + 1;
  const Tensor x = Tensor::of_ints(DType::I64, {3}, std::array<int64_t, 3>{above, above - 1, -above});
  EXPECT_EQ(x.cast(DType::BF16).at(0), 0x1p60 + 0x1p53);
  EXPECT_EQ(x.cast(DType::BF16).at(1), 0x1p60);
  EXPECT_EQ(x.cast(DType::BF16).at(2), -0x1p60 - 0x1p53);
  EXPECT_EQ(x.cast(DType::F16).at(0), kInf);
}

TEST(Tensor, Complex) {
  Tensor x(DType::C64, {2});
  x.set_complex(0, 1.5, -2);
  x.set(1, 3);
  EXPECT_EQ(x.at(0), 1.5);
  EXPECT_EQ(x.imag_at(0), -2);
  EXPECT_EQ(x.imag_at(1), 0);
  EXPECT_EQ(x.cast(DType::C128).imag_at(0), -2);
  EXPECT_EQ(x.cast(DType::F32).at(0), 1.5);
  Tensor imaginary(DType::C64, {1});
  imaginary.set_complex(0, 0, 1);
  EXPECT_EQ(imaginary.cast(DType::Bool).int_at(0), 1);
}

}  // namespace
}  // namespace fuseloom
