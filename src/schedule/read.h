// Where a node reads its operands: the index arithmetic shared by grouping (which asks "where?") and lowering (which loads
// from there).
#pragma once
#include <span>
#include <vector>

#include "schedule/group.h"

namespace fuseloom::schedule {

// The kinds of node a loop nest can hold.
enum class LoopRole : uint8_t {
  None,              // not fusible: runs as a whole
  Pointwise,         // elementwise ops
  View,              // index maps
  Generated,         // iota, random numbers: from the index alone
  Gather,            // reads at an index that is itself a value
  Reduction,         // folds axes in loops of the group
  SmallReduction,    // folds a few elements in place
  Window,            // pools: folds kernel axes in place
  Contraction,
  Scan,
};
LoopRole loop_role(const graph::Graph& graph, NodeId id);
// A convolution whose output channels share nothing, so that a matrix product has nothing to gain.
bool is_direct_convolution(const graph::Graph& graph, const graph::Node& node);
// A reduction over at most this many elements, known as a constant, is computed in place.
inline constexpr int64_t kSmallReduction = 16;

// The position of a broadcasting op's operand at `index` of its result.
Index broadcast_index(const op::Shape& operand, const op::Shape& result, const Index& index);

// Normalized, sorted reduction (or scan) axes of a node.
std::vector<int64_t> folded_axes(const graph::Graph& graph, const graph::Node& node);
// Position of the operand, from the position of the result and the folded axes' indices.
Index unfold_index(const graph::Graph& graph, const graph::Node& node, const Index& result, std::span<const sym::Expr> folded);

// Extents of the axes that a window folds: a pool's kernel; a direct convolution's channels in the group, then its kernel.
std::vector<sym::Expr> window_extents(const graph::Graph& graph, const graph::Node& node);
struct GuardedIndex {
  Index index;
  std::vector<sym::Expr> guards;
};
// Pools and convolutions: position in x, from the position of the result and the folded axes' indices
// (for convolutions: channel in the group, then the kernel position).
GuardedIndex window_read(const graph::Graph& graph, const graph::Node& node, const Index& result, std::span<const sym::Expr> folded);
// How many positions of an average pool's window count at the position of the result.
sym::Expr window_count(const graph::Graph& graph, const graph::Node& node, const Index& result);
// Convolutions: position in w.
Index weight_read(const graph::Graph& graph, const graph::Node& node, const Index& result, std::span<const sym::Expr> folded);

// Contractions. k axes: matmul one; convolution: channel in the group, kernel position.
std::vector<sym::Expr> contraction_extents(const graph::Graph& graph, const graph::Node& node);
Index matmul_lhs_read(const graph::Graph& graph, const graph::Node& node, const Index& result, const sym::Expr& k);
Index matmul_rhs_read(const graph::Graph& graph, const graph::Node& node, const Index& result, const sym::Expr& k);

// Row-major position in a shape.
sym::Expr linear_index(const op::Shape& shape, const Index& index);

}  // namespace fuseloom::schedule
