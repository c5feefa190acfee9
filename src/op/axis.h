// Axes of a tensor, as attributes name them.
#pragma once
#include <cstdint>

#include "op/op.h"

namespace fuseloom::op {

// An axis counted from the front. Negative axes count from the end; a 0-d tensor is treated as having one axis.
// Throws UserError naming the op, the axis and what is allowed.
int64_t normal_axis(const OpRecord& record, int64_t axis, int64_t rank);

// Distinct normal axes in increasing order.
std::vector<int64_t> normal_axes(const OpRecord& record, const std::vector<int64_t>& axes, int64_t rank);

}  // namespace fuseloom::op
