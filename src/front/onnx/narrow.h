// Rounding to the element types that are carried in wider ones (tensor_proto.h): the same elementwise graph for Cast,
// QuantizeLinear and whatever else gives such a type.
#pragma once
#include "front/onnx/node_import.h"

namespace fuseloom::front::onnx {

// Numbers rounded (half to even) to a float format and widened to f32. Too large a magnitude gives the largest finite
// value with `saturate`, else infinity, or NaN where the format has none.
ValueId round_to_narrow_float(NodeImport& n, ValueId x, ElementType to, bool saturate);
// Float8E8M0: powers of two. `mode` is up, down or nearest.
ValueId round_to_power_of_two(NodeImport& n, ValueId x, bool saturate, const std::string& mode);
// Integers wrapped to 4 or 2 bits.
ValueId wrap_to_narrow_integer(NodeImport& n, ValueId x, ElementType to);
// The range of an integer element type.
std::pair<double, double> integer_range(ElementType type, const std::string& where);

// Input 0 of a Cast-like node, converted to `to` and given as its output.
void cast_output(NodeImport& n, ElementType to);

}  // namespace fuseloom::front::onnx
