// The discrete Fourier transform of any length, in f64: mixed radix for lengths with small prime factors, Bluestein's
// chirp transform for the others; O(n log n) for every n.
#pragma once
#include <complex>
#include <cstdint>
#include <memory>
#include <vector>

namespace fuseloom::op {

class FourierTransform {
 public:
  explicit FourierTransform(int64_t n);
  int64_t size() const { return n_; }
  // to[k] = sum over j of from[j] * exp(-2 pi i j k / n). The two must not overlap.
  void forward(const std::complex<double>* from, std::complex<double>* to);
  // to[j] = 1/n * sum over k of from[k] * exp(2 pi i j k / n).
  void inverse(const std::complex<double>* from, std::complex<double>* to);

 private:
  void mixed_radix(int64_t n, int64_t stride, const std::complex<double>* from, std::complex<double>* to,
                   size_t factor);
  void chirp(const std::complex<double>* from, std::complex<double>* to);

  int64_t n_ = 0;
  std::vector<int64_t> factors_;                  // their product is n; empty for the chirp transform
  std::vector<std::complex<double>> roots_;       // exp(-2 pi i k / n)
  std::vector<std::complex<double>> conjugated_;  // scratch of inverse()
  // Bluestein: a convolution with a chirp, of a length that is a power of two.
  std::unique_ptr<FourierTransform> convolution_;
  std::vector<std::complex<double>> chirp_, chirp_spectrum_, padded_, spectrum_;
};

}  // namespace fuseloom::op
