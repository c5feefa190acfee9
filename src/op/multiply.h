// The reference matrix product that matmul, the convolutions and deform_conv share: c[m, n] = a[m, k] · b[k, n], where
// b is given by a function that fills panels of eight columns. Each element sums its products in the order of k, so
// that a result does not depend on the blocking.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "op/arithmetic.h"

namespace fuseloom::op {

inline constexpr int64_t kPanelWidth = 8;

namespace multiply_detail {

using Quad = double __attribute__((vector_size(32), aligned(8), may_alias));

// c0 = a0 · panel, c1 = a1 · panel. Eight columns are two vectors of four doubles; with two rows the accumulators fill
// half of the SSE registers.
inline void two_rows(int64_t k, const double* a0, const double* a1, const double* panel, double* c0, double* c1) {
  Quad s00 = {}, s01 = {}, s10 = {}, s11 = {};
  for (int64_t i = 0; i < k; ++i, panel += kPanelWidth) {
    const Quad b0 = *reinterpret_cast<const Quad*>(panel);
    const Quad b1 = *reinterpret_cast<const Quad*>(panel + 4);
    const double x0 = a0[i], x1 = a1[i];
    const Quad v0 = {x0, x0, x0, x0}, v1 = {x1, x1, x1, x1};
    s00 += v0 * b0;
    s01 += v0 * b1;
    s10 += v1 * b0;
    s11 += v1 * b1;
  }
  *reinterpret_cast<Quad*>(c0) = s00;
  *reinterpret_cast<Quad*>(c0 + 4) = s01;
  *reinterpret_cast<Quad*>(c1) = s10;
  *reinterpret_cast<Quad*>(c1 + 4) = s11;
}

template <class T>
void two_rows(int64_t k, const T* a0, const T* a1, const T* panel, T* c0, T* c1) {
  T s0[kPanelWidth] = {}, s1[kPanelWidth] = {};
  for (int64_t i = 0; i < k; ++i, panel += kPanelWidth) {
    for (int64_t j = 0; j < kPanelWidth; ++j) {
      s0[j] = combine_add(s0[j], combine_mul(a0[i], panel[j]));
      s1[j] = combine_add(s1[j], combine_mul(a1[i], panel[j]));
    }
  }
  std::copy_n(s0, kPanelWidth, c0);
  std::copy_n(s1, kPanelWidth, c1);
}

}  // namespace multiply_detail

// fill(first_column, width, panel): panel[i * kPanelWidth + j] = b[i, first_column + j] for j < width; the rest of the
// panel is zero on entry and may be left so. Adds initial[row] when given.
template <class T, class Fill>
void multiply(int64_t m, int64_t n, int64_t k, const T* a, Fill&& fill, const T* initial, T* c) {
  std::vector<T> panel(static_cast<size_t>(k * kPanelWidth));
  T rows[2][kPanelWidth];
  for (int64_t column = 0; column < n; column += kPanelWidth) {
    const int64_t width = std::min(kPanelWidth, n - column);
    if (width < kPanelWidth) std::fill(panel.begin(), panel.end(), T());
    fill(column, width, panel.data());
    for (int64_t row = 0; row < m; row += 2) {
      const int64_t second = std::min(row + 1, m - 1);  // an odd last row is computed twice
      multiply_detail::two_rows(k, a + row * k, a + second * k, panel.data(), rows[0], rows[1]);
      for (int64_t r = row; r <= second; ++r) {
        for (int64_t j = 0; j < width; ++j) {
          c[r * n + column + j] = initial == nullptr ? rows[r - row][j] : initial[r] + rows[r - row][j];
        }
      }
    }
  }
}

}  // namespace fuseloom::op
