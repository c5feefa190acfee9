#include "op/axis.h"

#include <algorithm>

#include "base/check.h"
#include "op/attrs.h"

namespace fuseloom::op {

int64_t normal_axis(std::string_view op, int64_t axis, int64_t rank) {
  const int64_t count = std::max<int64_t>(rank, 1);
  FL_REQUIRE(axis >= -count && axis < count, "{}: axis {} is outside {}..{} of a tensor of rank {}", op, axis, -count,
             count - 1, rank);
  return axis < 0 ? axis + count : axis;
}

std::vector<int64_t> normal_axes(std::string_view op, const std::vector<int64_t>& axes, int64_t rank) {
  std::vector<int64_t> normal;
  for (const int64_t axis : axes) normal.push_back(normal_axis(op, axis, rank));
  std::sort(normal.begin(), normal.end());
  FL_REQUIRE(std::adjacent_find(normal.begin(), normal.end()) == normal.end(), "{}: an axis is named twice in {}", op,
             to_string(AttrValue(axes)));
  return normal;
}

}  // namespace fuseloom::op
