// What kernels of recurrent layers ask the op `recurrent_steps`.
#pragma once
#include <vector>

#include "op/op.h"

namespace fuseloom::op {

// Its recurrent weights lie in panels [directions, ceil(columns / kRecurrentPanel), hidden, kRecurrentPanel], padded
// with zeros: column c of the transposed matrix is lane c mod kRecurrentPanel of panel c / kRecurrentPanel.
inline constexpr int64_t kRecurrentPanel = 64;

// The activations of one direction as scalar rules over x0, numbers and limits (`clip`) written in. Empty when the two
// directions do not have the same.
std::vector<ScalarNode> recurrent_activations(const Attrs& attrs);

}  // namespace fuseloom::op
