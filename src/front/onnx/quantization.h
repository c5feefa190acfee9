// The arithmetic of quantized tensors, shared by the ONNX and the com.microsoft operators.
#pragma once
#include "front/onnx/node_import.h"

namespace fuseloom::front::onnx {

// A scale or zero point next to x: one value; a vector along `axis`; or, with a block size, a tensor with one value for
// each block along `axis`.
ValueId quantization_parameter(NodeImport& n, ValueId parameter, ValueId x, int64_t axis, int64_t block_size);

// round(x / scale) + zero, saturated to the element type. `zero` may be absent. Parameters must broadcast with x.
ValueId quantize(NodeImport& n, ValueId x, ValueId scale, ValueId zero, ElementType to, bool saturate = true);
// (x - zero) * scale, in f32.
ValueId dequantize(NodeImport& n, ValueId x, ValueId scale, ValueId zero);

// The element type of a tensor input, the narrow one where it is carried in a wider one.
ElementType element_of_input(const NodeImport& n, size_t i);

}  // namespace fuseloom::front::onnx
