#include "front/onnx/axis_set.h"

#include <algorithm>

namespace fuseloom::front::onnx {

AxisSet::AxisSet(const NodeImport& n, std::vector<Expr> entries, int64_t rank)
    : entries_(std::move(entries)), rank_(rank) {
  std::vector<int64_t> known;
  for (Expr& entry : entries_) {
    if (const auto value = entry.as_const(); value.has_value()) {
      known.push_back(*value);
      entry = n.axis(*value, rank);
    } else {
      static_ = false;
    }
  }
  n.axes(known, rank);
  for (int64_t axis = 0; axis < rank; ++axis) {
    Expr contained = 0;
    for (size_t i = 0; i < entries_.size(); ++i) contained = sym::max(contained, is_entry(i, axis));
    contains_.push_back(contained);
  }
}

Expr AxisSet::is_entry(size_t entry, int64_t axis) const {
  const Expr& e = entries_[entry];
  return e.is_const() ? sym::eq(e, axis) : sym::max(sym::eq(e, axis), sym::eq(e, axis - rank_));
}

std::vector<int64_t> AxisSet::values() const {
  std::vector<int64_t> values;
  for (const Expr& entry : entries_) values.push_back(*entry.as_const());
  return values;
}

Expr AxisSet::choose(int64_t axis, const std::vector<Expr>& values, const Expr& otherwise) const {
  Expr result = otherwise;
  for (size_t i = 0; i < entries_.size(); ++i) result = sym::select(is_entry(i, axis), values[i], result);
  return result;
}

// The j-th result is the one size whose axis is outside of the set and has j such axes before it.
Shape AxisSet::without(const NodeImport& n, const Shape& shape) const {
  Shape result;
  for (int64_t j = 0; j < rank_ - static_cast<int64_t>(entries_.size()); ++j) {
    Expr size = 0, before = 0;
    for (int64_t axis = 0; axis < rank_; ++axis) {
      const Expr outside = 1 - contains(axis);
      size = size + outside * sym::eq(before, j) * shape[static_cast<size_t>(axis)];
      before = before + outside;
    }
    result.push_back(n.simplify(size));
  }
  return result;
}

Shape AxisSet::with_ones(const NodeImport& n, const Shape& rest) const {
  Shape result;
  Expr next = 0;  // which size of `rest` comes next
  for (int64_t axis = 0; axis < rank_; ++axis) {
    Expr size = 1;
    for (size_t i = 0; i < rest.size(); ++i) size = sym::select(sym::eq(next, static_cast<int64_t>(i)), rest[i], size);
    result.push_back(n.simplify(sym::select(contains(axis), 1, size)));
    next = n.simplify(next + 1 - contains(axis));
  }
  return result;
}

}  // namespace fuseloom::front::onnx
