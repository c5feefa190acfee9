#include "front/onnx/windows.h"

#include "base/check.h"

namespace fuseloom::front::onnx {

std::vector<Expr> kernel_of_weights(const NodeImport& n, ValueId w) {
  if (n.rank(w) < 3) n.fail(fmt::format("the weights have rank {}; expected [o, c, k...]", n.rank(w)));
  std::vector<Expr> kernel = n.shape(w);
  kernel.erase(kernel.begin(), kernel.begin() + 2);
  const std::vector<int64_t> given = n.integers("kernel_shape");
  for (size_t d = 0; d < given.size(); ++d)
    if (d >= kernel.size() || (kernel[d].is_const() && !kernel[d].is_const(given[d])))
      n.fail(fmt::format("kernel_shape is [{}], and the weights are {}", fmt::join(given, ", "),
                         op::to_string(n.type(w))));
  return kernel;
}

Windows read_windows(const NodeImport& n, ValueId x, const std::vector<Expr>& kernel) {
  const auto rank = static_cast<size_t>(std::max<int64_t>(n.rank(x) - 2, 0));
  Windows windows{.strides = n.integers("strides", std::vector<int64_t>(rank, 1)),
                  .dilations = n.integers("dilations", std::vector<int64_t>(rank, 1)),
                  .low = {},
                  .high = {},
                  .sizes = {}};
  const std::vector<int64_t> pads = n.integers("pads", std::vector<int64_t>(2 * rank, 0));
  const std::string auto_pad = n.text("auto_pad", "NOTSET");
  const bool ceil = n.integer("ceil_mode", 0) != 0;
  if (n.rank(x) < 3 || kernel.size() != rank || windows.strides.size() != rank || windows.dilations.size() != rank ||
      pads.size() != 2 * rank)
    n.fail(fmt::format("x is {}, and kernel, strides, dilations and pads have {}, {}, {} and {} entries",
                       op::to_string(n.type(x)), kernel.size(), windows.strides.size(), windows.dilations.size(),
                       pads.size()));
  for (size_t d = 0; d < rank; ++d) {
    const int64_t stride = windows.strides[d];
    if (stride < 1 || windows.dilations[d] < 1) n.fail("strides and dilations must be positive");
    const Expr in = n.shape(x)[d + 2], extent = (kernel[d] - 1) * windows.dilations[d] + 1;
    if (auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER") {
      // As many windows as strides fit; the padding is what they need beyond the input, the odd element after (UPPER)
      // or before it.
      const Expr size = n.simplify(sym::ceil_div(in, stride));
      const Expr total = n.simplify(sym::max((size - 1) * stride + extent - in, 0));
      const Expr half = n.simplify(sym::floor_div(total, 2)), rest = n.simplify(total - half);
      windows.low.push_back(auto_pad == "SAME_UPPER" ? half : rest);
      windows.high.push_back(auto_pad == "SAME_UPPER" ? rest : half);
      windows.sizes.push_back(size);
      continue;
    }
    if (auto_pad != "NOTSET" && auto_pad != "VALID" && !auto_pad.empty())
      n.fail(fmt::format("auto_pad '{}' is not known", auto_pad));
    const Expr low = auto_pad == "VALID" ? 0 : pads[d], high = auto_pad == "VALID" ? 0 : pads[d + rank];
    const Expr span = in + low + high - extent;
    Expr size = (ceil ? sym::ceil_div(span, stride) : sym::floor_div(span, stride)) + 1;
    // Rounded up, the last window may start behind the input and its padding before: it is dropped.
    if (ceil) size = sym::select(sym::le(in + low, (size - 1) * stride), size - 1, size);
    windows.low.push_back(low);
    windows.high.push_back(high);
    windows.sizes.push_back(n.simplify(size));
  }
  return windows;
}

}  // namespace fuseloom::front::onnx
