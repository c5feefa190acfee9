// Sliding windows of convolutions and pools: kernel, strides, dilations, padding and output sizes as ONNX's attributes
// give them, with auto_pad and ceil_mode resolved to expressions over the input's sizes.
#pragma once
#include <vector>

#include "front/onnx/node_import.h"

namespace fuseloom::front::onnx {

struct Windows {
  std::vector<int64_t> strides, dilations;
  Shape low, high;  // padding before and after
  Shape sizes;      // of the output
};

// The spatial sizes of weights [o, c, k...], checked against kernel_shape where it is given.
std::vector<Expr> kernel_of_weights(const NodeImport& n, ValueId w);
// For x [n, c, d...].
Windows read_windows(const NodeImport& n, ValueId x, const std::vector<Expr>& kernel);

}  // namespace fuseloom::front::onnx
