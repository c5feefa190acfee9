#include "op/axis.h"

#include <algorithm>

#include "base/check.h"

namespace fuseloom::op {

int64_t normal_axis(const OpRecord& record, int64_t axis, int64_t rank) {
  const int64_t count = std::max<int64_t>(rank, 1);
  FL_REQUIRE(axis >= -count && axis < count, "{}: axis {} is outside {}..{} of a tensor of rank {}", record.name, axis, -count,
             count - 1, rank);
  return axis < 0 ? axis + count : axis;
}

std::vector<int64_t> normal_axes(const OpRecord& record, const std::vector<int64_t>& axes, int64_t rank) {
  std::vector<int64_t> normal;
  for (const int64_t axis : axes) normal.push_back(normal_axis(record, axis, rank));
  std::sort(normal.begin(), normal.end());
  FL_REQUIRE(std::adjacent_find(normal.begin(), normal.end()) == normal.end(), "{}: an axis is named twice in {}", record.name,
             to_string(AttrValue(axes)));
  return normal;
}

}  // namespace fuseloom::op
