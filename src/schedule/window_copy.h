// The input of a convolution or a pool, copied so that every kernel position reads whole vectors and nothing outside.
//
// A block of the result is rows x columns (the last two spatial axes; one spatial axis is one row). Its input lies in the
// worker's scratch as planes
//     [channel of the group][kernel position of the outer spatial axes][row phase][column phase][row][column]
// padded with zeros (a maximum: with what never wins). A phase holds every stride-th row (column), so that the element under result position (r, c) and kernel
// position k is  plane(k) + (r + row shift(k)) * pitch + c + column shift(k):  one element further for the next column, one
// pitch further for the next row, whatever strides, dilations and pads are. With r * pitch + c as one index n, a
// convolution is a matrix product whose right operand needs no gathering; between two rows lie `shift` positions whose
// results are dropped.
#pragma once
#include "schedule/loop_builder.h"

namespace fuseloom::schedule {

class WindowCopy {
 public:
  // `row_limit`, `column_limit`: the most rows and columns a block can have (expressions over sizes alone).
  WindowCopy(const graph::Graph& graph, const graph::Node& window, sym::Expr row_limit, sym::Expr column_limit);

  // How far the kernel reaches to the right of a block's columns (below its rows), in columns (rows) of a phase.
  static sym::Expr reach(const graph::Graph& graph, const graph::Node& window, size_t axis);
  sym::Expr pitch() const { return column_limit_ + column_reach_; }
  sym::Expr elements() const;

  // Writes the copy in the innermost open body. `result` is the position in the convolution's result of the block's first
  // row and column; its channel is any of the group.
  void fill(LoopBuilder& build, kernel::BufferId buffer, const Index& result, const sym::Expr& rows, const sym::Expr& columns,
            int32_t lanes) const;
  // Where kernel position (channel unless it is a pool, spatial...) lies for the block's first row and column.
  sym::Expr position(std::span<const sym::Expr> folded) const;

 private:
  bool has_rows() const { return spatial_ >= 2; }
  size_t row() const { return spatial_ - 2; }
  size_t column() const { return spatial_ - 1; }
  sym::Expr phases(size_t axis) const;
  // (shift, phase) of a kernel position along an axis.
  std::pair<sym::Expr, sym::Expr> split(size_t axis, const sym::Expr& kernel_position) const;

  const graph::Graph& graph_;
  const graph::Node& node_;
  const op::Shape& x_;
  size_t spatial_ = 1;
  bool pool_ = false;
  std::vector<sym::Expr> kernel_;              // channels of a group (1 for a pool), then the kernel's sizes
  std::vector<int64_t> strides_, dilations_;
  op::Shape pads_;
  sym::Expr row_limit_, column_limit_, row_reach_ = 0, column_reach_ = 0;
};

}  // namespace fuseloom::schedule
