// Which groups a library of matrix products can do as they are.
#pragma once
#include <optional>

#include "program/program.h"
#include "schedule/group.h"

namespace fuseloom::schedule {

// What a library must be told; buffers by the value that lies in them.
struct LibraryProduct {
  program::MatrixProduct product;      // without buffers and workspace
  ValueId left, right, result, bias;   // bias: invalid when there is none
};

// The product that a Contraction group is, when it is nothing else: operands that the group reads from memory along strides
// (through views, of which a batch, rows, columns and the depth each are one loop), then a bias for each column, then relu or
// gelu_tanh, and one result. A convolution with a kernel of one element is a product too. Nothing: kernels must do it.
std::optional<LibraryProduct> library_product(const graph::Graph& graph, const Group& group);

// Memory for the library to work in: what NVIDIA recommends for Hopper.
inline constexpr int64_t kProductWorkspaceBytes = int64_t{32} << 20;

}  // namespace fuseloom::schedule
