#include "op/fourier.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "op/arithmetic.h"

namespace fuseloom::op {
namespace {

using Complex = std::complex<double>;

constexpr int64_t kLargestRadix = 31;  // a radix costs its square; beyond this the chirp transform is cheaper

// exp(-2 pi i k / n) for 0 <= k < n, by the symmetries of the circle exact at multiples of an eighth turn.
Complex root_of_unity(int64_t k, int64_t n) {
  const int64_t octant = 8 * k / n;
  const auto angle = [&](int64_t numerator) {
    return 2 * std::numbers::pi * static_cast<double>(numerator) / static_cast<double>(8 * n);
  };
  const int64_t within = 8 * k - octant * n;  // in eighths of n, from the octant's start
  const double a = octant % 2 == 0 ? angle(within) : angle(n - within);
  const double c = std::cos(a), s = std::sin(a);
  switch (octant) {
    case 0:
      return {c, -s};
    case 1:
      return {s, -c};
    case 2:
      return {-s, -c};
    case 3:
      return {-c, -s};
    case 4:
      return {-c, s};
    case 5:
      return {-s, c};
    case 6:
      return {s, c};
    case 7:
      return {c, s};
  }
  return {1, 0};
}

// Factors of 4 first, then primes in increasing order. Empty when a prime is too large.
std::vector<int64_t> factorize(int64_t n) {
  std::vector<int64_t> factors;
  while (n % 4 == 0) {
    factors.push_back(4);
    n /= 4;
  }
  for (int64_t p = 2; n > 1 && p <= kLargestRadix; ++p) {
    while (n % p == 0) {
      factors.push_back(p);
      n /= p;
    }
  }
  if (n > 1) factors.clear();
  return factors;
}

}  // namespace

FourierTransform::FourierTransform(int64_t n) : n_(n), factors_(n > 1 ? factorize(n) : std::vector<int64_t>()) {
  for (int64_t k = 0; k < n; ++k) roots_.push_back(root_of_unity(k, n));
  if (n <= 1 || !factors_.empty()) return;
  int64_t length = 1;
  while (length < 2 * n - 1) length *= 2;
  convolution_ = std::make_unique<FourierTransform>(length);
  padded_.resize(static_cast<size_t>(length));
  spectrum_.resize(static_cast<size_t>(length));
  chirp_spectrum_.resize(static_cast<size_t>(length));
  for (int64_t j = 0, square = 0; j < n; ++j) {  // square = j² mod 2n
    chirp_.push_back(root_of_unity(square, 2 * n));
    square = (square + 2 * j + 1) % (2 * n);
  }
  for (int64_t j = 0; j < n; ++j) {
    const Complex value = std::conj(chirp_[static_cast<size_t>(j)]);
    padded_[static_cast<size_t>(j)] = value;
    if (j > 0) padded_[static_cast<size_t>(length - j)] = value;
  }
  convolution_->forward(padded_.data(), chirp_spectrum_.data());
}

void FourierTransform::forward(const Complex* from, Complex* to) {
  if (n_ == 0) return;
  if (n_ == 1) {
    to[0] = from[0];
  } else if (convolution_ != nullptr) {
    chirp(from, to);
  } else {
    mixed_radix(n_, 1, from, to, 0);
  }
}

void FourierTransform::inverse(const Complex* from, Complex* to) {
  conjugated_.resize(static_cast<size_t>(n_));
  for (int64_t k = 0; k < n_; ++k) conjugated_[static_cast<size_t>(k)] = std::conj(from[k]);
  forward(conjugated_.data(), to);
  for (int64_t j = 0; j < n_; ++j) to[j] = std::conj(to[j]) / static_cast<double>(n_);
}

// 1. Transforms the `radix` interleaved subsequences of length m = n / radix.
// 2. Turns element k of subsequence q by the root of index q * k, and transforms across q.
void FourierTransform::mixed_radix(int64_t n, int64_t stride, const Complex* from, Complex* to, size_t factor) {
  const int64_t radix = factors_[factor], m = n / radix;
  for (int64_t q = 0; q < radix; ++q) {
    if (m == 1) {
      to[q] = from[q * stride];
    } else {
      mixed_radix(m, stride * radix, from + q * stride, to + q * m, factor + 1);
    }
  }
  const auto root = [&](int64_t index) { return roots_[static_cast<size_t>(index)]; };
  if (radix == 2) {
    for (int64_t k = 0; k < m; ++k) {
      const Complex a = to[k], b = complex_mul(to[m + k], root(k * stride));
      to[k] = a + b;
      to[m + k] = a - b;
    }
  } else if (radix == 4) {
    for (int64_t k = 0; k < m; ++k) {
      const Complex a = to[k], b = complex_mul(to[m + k], root(k * stride)),
                    c = complex_mul(to[2 * m + k], root(2 * k * stride)),
                    d = complex_mul(to[3 * m + k], root(3 * k * stride));
      const Complex even = a + c, odd = a - c, sum = b + d, difference = b - d;
      const Complex turned(difference.imag(), -difference.real());  // times -i
      to[k] = even + sum;
      to[m + k] = odd + turned;
      to[2 * m + k] = even - sum;
      to[3 * m + k] = odd - turned;
    }
  } else {
    Complex terms[kLargestRadix], turns[kLargestRadix];
    for (int64_t j = 0; j < radix; ++j) turns[j] = root(j * (n_ / radix));
    for (int64_t k = 0; k < m; ++k) {
      for (int64_t q = 0; q < radix; ++q) terms[q] = complex_mul(to[q * m + k], root(q * k * stride));
      for (int64_t j = 0; j < radix; ++j) {
        Complex sum = terms[0];
        for (int64_t q = 1, index = j; q < radix; ++q) {  // index = q * j mod radix
          sum += complex_mul(terms[q], turns[index]);
          index += j;
          if (index >= radix) index -= radix;
        }
        to[j * m + k] = sum;
      }
    }
  }
}

// j k = (j² + k² - (k - j)²) / 2 turns the sum into a convolution of from[j] * chirp[j] with the conjugate chirp.
void FourierTransform::chirp(const Complex* from, Complex* to) {
  const size_t n = static_cast<size_t>(n_);
  std::fill(padded_.begin(), padded_.end(), Complex());
  for (size_t j = 0; j < n; ++j) padded_[j] = complex_mul(from[j], chirp_[j]);
  convolution_->forward(padded_.data(), spectrum_.data());
  for (size_t k = 0; k < spectrum_.size(); ++k) spectrum_[k] = complex_mul(spectrum_[k], chirp_spectrum_[k]);
  convolution_->inverse(spectrum_.data(), padded_.data());
  for (size_t k = 0; k < n; ++k) to[k] = complex_mul(padded_[k], chirp_[k]);
}

}  // namespace fuseloom::op
