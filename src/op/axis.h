// Axes of a tensor, as attributes name them.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace fuseloom::op {

// An axis counted from the front. Negative axes count from the end; a 0-d tensor is treated as having one axis.
// Throws UserError naming the op, the axis and what is allowed.
int64_t normal_axis(std::string_view op, int64_t axis, int64_t rank);

// Distinct normal axes in increasing order.
std::vector<int64_t> normal_axes(std::string_view op, const std::vector<int64_t>& axes, int64_t rank);

}  // namespace fuseloom::op
