#include "front/npy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "fuseloom/error.h"

namespace fuseloom::front {
namespace {

std::string npy(std::string_view descr, std::string_view order, std::string_view shape, std::string data) {
  std::string header = "{'descr': '" + std::string(descr) + "', 'fortran_order': " + std::string(order) + ", 'shape': " + std::string(shape) + ", }";
  std::string out("\x93NUMPY\x01\x00", 8);
  out += static_cast<char>(header.size());
  out += '\0';
  return out + header + data;
}

TEST(Npy, EveryTypeAndRankSurvives) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const DType dtype = static_cast<DType>(i);
    for (const Dims& dims : {Dims{}, Dims{3}, Dims{0}, Dims{2, 3}, Dims{1, 2, 2}}) {
      Tensor tensor(dtype, dims);
      for (int64_t k = 0; k < tensor.count(); ++k) tensor.set(k, static_cast<double>(k % 2));
      const std::string bytes = to_npy(tensor);
      const Tensor read = parse_npy(bytes, "test");
      EXPECT_EQ(read.dtype(), dtype);
      EXPECT_EQ(read.dims(), dims);
      EXPECT_EQ((bytes.size() - static_cast<size_t>(tensor.bytes())) % 64, 0u);
      if (tensor.bytes() > 0) {
        EXPECT_EQ(std::memcmp(read.data(), tensor.data(), static_cast<size_t>(tensor.bytes())), 0);
      }
    }
  }
}

TEST(Npy, ReadsColumnMajorAndBigEndian) {
  const Tensor columns = parse_npy(npy("|u1", "True", "(2, 3)", std::string("\0\3\1\4\2\5", 6)), "test");
  ASSERT_EQ(columns.dims(), (Dims{2, 3}));
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(columns.int_at(i), i);
  const Tensor big = parse_npy(npy(">i4", "False", "(1,)", std::string("\0\0\1\2", 4)), "test");
  EXPECT_EQ(big.int_at(0), 258);
}

TEST(Npy, WritesStridedTensorsRowMajor) {
  const Tensor base = Tensor::of(DType::I32, {2, 3}, {0, 1, 2, 3, 4, 5});
  const Tensor turned = Tensor::share(DType::I32, {3, 2}, {1, 3}, const_cast<void*>(base.data()), base.owner());
  const Tensor read = parse_npy(to_npy(turned), "test");
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(read.int_at(i), turned.int_at(i));
}

TEST(Npy, RefusesWhatIsNotATensor) {
  EXPECT_THROW(parse_npy("", "test"), UserError);
  EXPECT_THROW(parse_npy("PK\3\4 a zip file", "test"), UserError);
  EXPECT_THROW(parse_npy(npy("<U5", "False", "(1,)", "x"), "test"), UserError);
  EXPECT_THROW(parse_npy(npy("<f4", "False", "(2,)", "1234"), "test"), UserError);          // too short
  EXPECT_THROW(parse_npy(npy("<f4", "False", "(-1,)", "1234"), "test"), UserError);
  EXPECT_THROW(parse_npy(npy("<f4", "False", "(9223372036854775807, 2)", "1234"), "test"), UserError);
  const std::string good = to_npy(Tensor::of(DType::F32, {2}, {1, 2}));
  for (size_t cut = 0; cut < good.size(); ++cut) EXPECT_THROW(parse_npy(good.substr(0, cut), "test"), UserError) << cut;
  EXPECT_THROW(read_npy("/nowhere/x.npy"), UserError);
}

}  // namespace
}  // namespace fuseloom::front
