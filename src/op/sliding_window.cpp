#include "op/sliding_window.h"

#include <algorithm>

namespace fuseloom::op {

sym::Expr window_output_size(const sym::Expr& in, const sym::Expr& low, const sym::Expr& high, const sym::Expr& kernel,
                             int64_t stride, int64_t dilation) {
  return sym::floor_div(in + low + high - (kernel - 1) * dilation - 1, stride) + 1;
}

WindowAxis WindowAxis::forward(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t dilation, int64_t low) {
  WindowAxis axis(in, out, kernel);
  for (int64_t o = 0; o < out; ++o) {
    for (int64_t k = 0; k < kernel; ++k) {
      const int64_t i = o * stride - low + k * dilation;
      if (i >= 0 && i < in) axis.table_[static_cast<size_t>(o * kernel + k)] = i;
    }
  }
  return axis;
}

WindowAxis WindowAxis::transposed(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t dilation,
                                  int64_t low) {
  WindowAxis axis(in, out, kernel);
  for (int64_t o = 0; o < out; ++o) {
    for (int64_t k = 0; k < kernel; ++k) {
      const int64_t scaled = o + low - k * dilation;
      if (scaled >= 0 && scaled % stride == 0 && scaled / stride < in) {
        axis.table_[static_cast<size_t>(o * kernel + k)] = scaled / stride;
      }
    }
  }
  return axis;
}

Window::Window(std::vector<WindowAxis> axes) : axes_(std::move(axes)) {
  for (const WindowAxis& axis : axes_) {
    in_count_ *= axis.in();
    out_count_ *= axis.out();
    kernel_count_ *= axis.kernel();
  }
}

void Window::offsets(int64_t out_position, std::span<int64_t> result) const {
  // Built from the last dimension outwards: `result` holds the offsets of the kernel positions of the dimensions done
  // so far; each further dimension repeats them once per kernel step, from the back so that nothing is overwritten.
  if (result.empty()) return;
  result[0] = 0;
  int64_t done = 1, plane = 1;
  for (size_t d = axes_.size(); d-- > 0;) {
    const WindowAxis& axis = axes_[d];
    const int64_t o = out_position % axis.out();
    out_position /= axis.out();
    for (int64_t k = axis.kernel() - 1; k >= 0; --k) {
      const int64_t i = axis.at(o, k);
      for (int64_t j = 0; j < done; ++j) {
        const int64_t inner = result[static_cast<size_t>(j)];
        result[static_cast<size_t>(k * done + j)] = i < 0 || inner < 0 ? -1 : i * plane + inner;
      }
    }
    done *= axis.kernel();
    plane *= axis.in();
  }
}

}  // namespace fuseloom::op
