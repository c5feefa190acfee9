// A set of axes whose entries may be known at run time only: what is in it, and the shapes that follow, as expressions.
#pragma once
#include <vector>

#include "front/onnx/node_import.h"

namespace fuseloom::front::onnx {

class AxisSet {
 public:
  // Entries may count from the end. Checks the known ones: UserError when out of range or given twice.
  AxisSet(const NodeImport& n, std::vector<Expr> entries, int64_t rank);

  bool is_static() const { return static_; }
  // The entries, normalised and in their order. Only when is_static().
  std::vector<int64_t> values() const;
  // 1 when the axis is in the set, else 0.
  Expr contains(int64_t axis) const { return contains_[static_cast<size_t>(axis)]; }
  // Of values given for each entry, the one for this axis; `otherwise` when the axis is not in the set.
  Expr choose(int64_t axis, const std::vector<Expr>& values, const Expr& otherwise) const;
  // The sizes of a shape of this rank whose axis is not in the set, in order.
  Shape without(const NodeImport& n, const Shape& shape) const;
  // The shape of this rank that has 1 at the axes of the set and the sizes of `rest` elsewhere, in order.
  Shape with_ones(const NodeImport& n, const Shape& rest) const;

 private:
  Expr is_entry(size_t entry, int64_t axis) const;

  std::vector<Expr> entries_;
  int64_t rank_;
  bool static_ = true;
  std::vector<Expr> contains_;  // by axis
};

}  // namespace fuseloom::front::onnx
