#include <gtest/gtest.h>

#include <complex>
#include <numbers>

#include "op/decomposition_testing.h"
#include "op/fourier.h"

namespace fuseloom::op {
namespace {

using Complex = std::complex<double>;

std::vector<Complex> by_definition(const std::vector<Complex>& x) {
  const int64_t n = static_cast<int64_t>(x.size());
  std::vector<Complex> y(x.size());
  for (int64_t k = 0; k < n; ++k) {
    for (int64_t j = 0; j < n; ++j) {
      y[static_cast<size_t>(k)] +=
          x[static_cast<size_t>(j)] *
          std::polar(1.0, -2 * std::numbers::pi * static_cast<double>(j * k % n) / static_cast<double>(n));
    }
  }
  return y;
}

TEST(Fourier, EveryLengthAgreesWithTheDefinition) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  for (const int64_t n :
       {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 30, 31, 36, 37, 49, 64, 74, 100, 101, 127, 128, 240, 400}) {
    std::vector<Complex> x(static_cast<size_t>(n)), y(x.size()), back(x.size());
    for (Complex& value : x) value = {normal(random), normal(random)};
    FourierTransform transform(n);
    transform.forward(x.data(), y.data());
    transform.inverse(y.data(), back.data());
    const std::vector<Complex> expected = by_definition(x);
    for (size_t k = 0; k < x.size(); ++k) {
      ASSERT_LT(std::abs(y[k] - expected[k]), 1e-12 * static_cast<double>(n + 10)) << n << " " << k;
      ASSERT_LT(std::abs(back[k] - x[k]), 1e-13 * static_cast<double>(n + 10)) << n << " " << k;
    }
  }
}

Attrs dft_attrs(int64_t axis, int64_t length, int64_t inverse, int64_t onesided) {
  return {{"axis", axis}, {"length", std::vector<int64_t>{length}}, {"inverse", inverse}, {"onesided", onesided}};
}

TEST(Dft, OnesidedRoundTripsForEvenAndOddLengths) {
  for (const int64_t n : {1, 2, 5, 6, 15, 16}) {
    const Tensor x = random_tensor(DType::F64, {2, n, 3, 1}, 2);
    const Tensor spectrum = run("dft", {x}, dft_attrs(1, n, 0, 1));
    EXPECT_EQ(spectrum.dims(), (Dims{2, n / 2 + 1, 3, 2}));
    expect_close(run("dft", {spectrum}, dft_attrs(1, n, 1, 1)), x, 1e-12);
    const Tensor full = run("dft", {x}, dft_attrs(-3, n, 0, 0));
    const Tensor back = run("dft", {full}, dft_attrs(1, n, 1, 0));
    for (int64_t i = 0; i < x.count(); ++i) {
      EXPECT_NEAR(back.at(2 * i), x.at(i), 1e-12);
      EXPECT_NEAR(back.at(2 * i + 1), 0, 1e-12);
    }
  }
}

TEST(Dft, PadsAndCuts) {
  const Tensor x = floats({3, 1}, {1, 2, 3});
  expect_close(run("dft", {x}, dft_attrs(0, 4, 0, 0)), floats({4, 2}, {6, 0, -2, -2, 2, 0, -2, 2}), 1e-6);
  expect_close(run("dft", {x}, dft_attrs(0, 2, 0, 0)), floats({2, 2}, {3, 0, -1, 0}), 1e-6);
  expect_user_error([&] { run("dft", {x}, dft_attrs(1, 2, 0, 0)); }, "complex parts");
}

TEST(Stft, FramesOverlap) {
  const Attrs attrs = {
      {"frame_length", std::vector<int64_t>{4}}, {"frame_step", std::vector<int64_t>{2}}, {"onesided", int64_t{1}}};
  const Tensor x = random_tensor(DType::F64, {2, 9, 1}, 3), window = random_tensor(DType::F64, {4}, 4);
  const Tensor y = run("stft", {x, window}, attrs);
  ASSERT_EQ(y.dims(), (Dims{2, 3, 3, 2}));
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t f = 0; f < 3; ++f) {
      std::vector<Complex> frame;
      for (int64_t i = 0; i < 4; ++i) frame.push_back(x.at(b * 9 + f * 2 + i) * window.at(i));
      const std::vector<Complex> expected = by_definition(frame);
      for (int64_t k = 0; k < 3; ++k) {
        EXPECT_NEAR(y.at(((b * 3 + f) * 3 + k) * 2), expected[static_cast<size_t>(k)].real(), 1e-12);
        EXPECT_NEAR(y.at(((b * 3 + f) * 3 + k) * 2 + 1), expected[static_cast<size_t>(k)].imag(), 1e-12);
      }
    }
  }
}

TEST(Det, PivotsAndBatches) {
  expect_values(run("det", {floats({2, 2, 2}, {0, 1, 1, 0, 3, 8, 4, 6})}), {-1, -14});
  expect_values(run("det", {floats({2, 2}, {1, 2, 2, 4})}), {0});
  EXPECT_EQ(run("det", {Tensor(DType::F32, {3, 0, 0})}).at(2), 1);
}

}  // namespace
}  // namespace fuseloom::op
