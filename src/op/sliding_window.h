// The geometry of a sliding window: which input position each (output position, kernel position) pair reads. Shared by
// the references of conv, conv_transpose and the pools.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "fuseloom/tensor.h"
#include "op/op.h"

namespace fuseloom::op {

// The window of one output: out = (in + low + high - dilation * (kernel - 1) - 1) floor_div stride + 1.
sym::Expr window_output_size(const sym::Expr& in, const sym::Expr& low, const sym::Expr& high, const sym::Expr& kernel,
                             int64_t stride, int64_t dilation);

// One spatial dimension as a table: at(o, k) is the input coordinate, or -1 outside.
class WindowAxis {
 public:
  // in = o * stride - low + k * dilation
  static WindowAxis forward(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t dilation, int64_t low);
  // The inverse relation: o = in * stride - low + k * dilation; -1 where stride does not divide.
  static WindowAxis transposed(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t dilation, int64_t low);

  int64_t out() const { return out_; }
  int64_t kernel() const { return kernel_; }
  int64_t in() const { return in_; }
  int64_t at(int64_t o, int64_t k) const { return table_[static_cast<size_t>(o * kernel_ + k)]; }

 private:
  WindowAxis(int64_t in, int64_t out, int64_t kernel)
      : in_(in), out_(out), kernel_(kernel), table_(static_cast<size_t>(out * kernel), -1) {}
  int64_t in_, out_, kernel_;
  std::vector<int64_t> table_;
};

// Several spatial dimensions flattened: for a flat output position, the flat input offset of every flat kernel position
// (-1 outside), row-major in both.
class Window {
 public:
  explicit Window(std::vector<WindowAxis> axes);
  int64_t in_count() const { return in_count_; }
  int64_t out_count() const { return out_count_; }
  int64_t kernel_count() const { return kernel_count_; }
  void offsets(int64_t out_position, std::span<int64_t> result) const;  // result.size() == kernel_count()

 private:
  std::vector<WindowAxis> axes_;
  int64_t in_count_ = 1, out_count_ = 1, kernel_count_ = 1;
};

}  // namespace fuseloom::op
