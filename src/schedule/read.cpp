#include "schedule/read.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace fuseloom::schedule {

using graph::Graph;
using graph::Node;
using op::Family;
using sym::Expr;

namespace {

int64_t normalized(int64_t axis, size_t rank) { return axis < 0 ? axis + static_cast<int64_t>(rank) : axis; }

bool contraction_dtype(DType dtype) { return dtype == DType::F32 || dtype == DType::F64 || dtype == DType::F16 || dtype == DType::BF16; }

// Kernels count words, four to an offset: 4 * offset + element must stay below 2^63.
bool is_random_number(const Node& node) {
  if (node.op->name != "random_uniform" && node.op->name != "random_normal") return false;
  const int64_t offset = node.attrs.integer("offset");
  return offset >= 0 && offset < int64_t{1} << 59;
}

}  // namespace

bool is_direct_convolution(const Graph& graph, const Node& node) {
  if (node.op->name != "conv") return false;
  const op::Shape& w = graph.type(node.inputs[1]).shape;
  const int64_t groups = node.attrs.integer("groups", 1);
  const auto out_channels = w[0].as_const();
  const auto in_channels = w[1].as_const();
  if (!out_channels || !in_channels || groups <= 0) return false;
  const bool constant_kernel = std::all_of(w.begin() + 2, w.end(), [](const Expr& size) { return size.is_const(); });
  return constant_kernel && *in_channels == 1 && *out_channels / groups <= 2 && groups > 1;
}

LoopRole loop_role(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const op::OpRecord& record = *node.op;
  if (node.outputs.size() != 1 || !node.subgraphs.empty()) return LoopRole::None;
  for (const ValueId input : node.inputs) {
    if (input.valid() && is_complex(graph.type(input).dtype)) return LoopRole::None;
  }
  const DType dtype = graph.type(node.outputs[0]).dtype;
  if (is_complex(dtype)) return LoopRole::None;
  switch (record.family) {
    case Family::Elementwise: return LoopRole::Pointwise;
    case Family::View: return record.index_map ? LoopRole::View : LoopRole::None;
    case Family::Source:
      return record.name == "iota" || is_random_number(node) ? LoopRole::Generated : LoopRole::None;
    case Family::Gather: return record.name == "gather" || record.name == "gather_elements" ? LoopRole::Gather : LoopRole::None;
    case Family::Reduction: {
      if (record.combine == op::Combine::None) return LoopRole::None;
      Expr count = 1;
      for (const int64_t axis : folded_axes(graph, node)) count = count * graph.type(node.inputs[0]).shape[static_cast<size_t>(axis)];
      const bool arg = record.combine == op::Combine::ArgMax || record.combine == op::Combine::ArgMin;
      if (!arg && count.is_const() && *count.as_const() <= kSmallReduction) return LoopRole::SmallReduction;
      return LoopRole::Reduction;
    }
    case Family::Scan: return record.combine == op::Combine::None ? LoopRole::None : LoopRole::Scan;
    case Family::Window: return record.name == "max_pool" || record.name == "average_pool" ? LoopRole::Window : LoopRole::None;
    case Family::Contraction:
      if (!contraction_dtype(dtype)) return LoopRole::None;
      return record.name == "matmul" || record.name == "conv" ? LoopRole::Contraction : LoopRole::None;
    case Family::Scatter:
    case Family::Composite:
    case Family::Extern:
    case Family::Control:
    case Family::Recurrence: return LoopRole::None;
  }
  return LoopRole::None;
}

Index broadcast_index(const op::Shape& operand, const op::Shape& result, const Index& index) {
  Index out;
  const size_t skip = result.size() - operand.size();
  for (size_t i = 0; i < operand.size(); ++i) {
    const Expr& size = operand[i];
    const Expr& at = index[skip + i];
    if (size.is_const(1)) {
      out.push_back(0);
    } else if (size == result[skip + i] || sym::prove_equal(size, result[skip + i]) == sym::Proof::Yes) {
      out.push_back(at);
    } else if (size.is_const()) {
      out.push_back(at);   // a constant other than 1 is the result's size whatever the other operand is
    } else {
      out.push_back(sym::select(sym::eq(size, 1), 0, at));
    }
  }
  return out;
}

std::vector<int64_t> folded_axes(const Graph& graph, const Node& node) {
  const size_t rank = graph.type(node.inputs[0]).shape.size();
  std::vector<int64_t> axes;
  if (node.attrs.has("axes")) {
    axes = node.attrs.integers("axes");
  } else {
    axes = {node.attrs.integer("axis", 0)};
  }
  for (int64_t& axis : axes) axis = normalized(axis, rank);
  std::sort(axes.begin(), axes.end());
  if (rank == 0) axes.clear();
  return axes;
}

Index unfold_index(const Graph& graph, const Node& node, const Index& result, std::span<const Expr> folded) {
  const size_t rank = graph.type(node.inputs[0]).shape.size();
  const std::vector<int64_t> axes = folded_axes(graph, node);
  const bool keep = node.attrs.integer("keepdims", 0) != 0;
  Index index;
  size_t kept = 0, next = 0;
  for (size_t d = 0; d < rank; ++d) {
    const bool is_folded = std::find(axes.begin(), axes.end(), static_cast<int64_t>(d)) != axes.end();
    if (is_folded) {
      index.push_back(folded[next++]);
      if (keep) ++kept;
    } else {
      index.push_back(result[kept++]);
    }
  }
  return index;
}

std::vector<Expr> window_extents(const Graph& graph, const Node& node) {
  if (node.op->name == "conv") return contraction_extents(graph, node);
  std::vector<Expr> extents;
  for (const int64_t size : node.attrs.integers("kernel")) extents.push_back(size);
  return extents;
}

GuardedIndex window_read(const Graph& graph, const Node& node, const Index& result, std::span<const Expr> folded) {
  const op::Shape& x = graph.type(node.inputs[0]).shape;
  const bool convolution = node.op->name == "conv";
  const size_t spatial = x.size() - 2;
  const std::vector<int64_t> ones(spatial, 1);
  const std::vector<int64_t> strides = node.attrs.integers("strides", ones);
  const std::vector<int64_t> dilations = node.attrs.integers("dilations", ones);
  const op::Shape low = node.attrs.has("pads_low") ? node.attrs.shape("pads_low") : op::Shape(spatial, 0);
  const op::Shape high = node.attrs.has("pads_high") ? node.attrs.shape("pads_high") : op::Shape(spatial, 0);
  GuardedIndex read;
  read.index.push_back(result[0]);
  if (convolution) {
    const op::Shape& w = graph.type(node.inputs[1]).shape;
    const int64_t groups = node.attrs.integer("groups", 1);
    // The group of an output channel decides which input channels it sees.
    const Expr group = groups == 1 ? Expr(0) : sym::floor_div(result[1], sym::floor_div(w[0], groups));
    read.index.push_back(group * w[1] + folded[0]);
  } else {
    read.index.push_back(result[1]);
  }
  const size_t first = convolution ? 1 : 0;
  for (size_t d = 0; d < spatial; ++d) {
    const Expr& at = result[2 + d];
    const Expr position = at * strides[d] + folded[first + d] * dilations[d] - low[d];
    read.index.push_back(position);
    // Without padding every position is inside: the result's size is computed so. A pool's last window may reach out on the
    // high side (ceil_mode), so a pool is always guarded there.
    if (!low[d].is_const(0)) read.guards.push_back(sym::le(0, position));
    if (!convolution || !high[d].is_const(0) || !low[d].is_const(0)) read.guards.push_back(sym::lt(position, x[2 + d]));
  }
  return read;
}

Expr window_count(const Graph& graph, const Node& node, const Index& result) {
  const op::Shape& x = graph.type(node.inputs[0]).shape;
  const size_t spatial = x.size() - 2;
  const std::vector<int64_t> kernel_sizes = node.attrs.integers("kernel");
  const std::vector<int64_t> ones(spatial, 1);
  const std::vector<int64_t> strides = node.attrs.integers("strides", ones);
  const std::vector<int64_t> dilations = node.attrs.integers("dilations", ones);
  const op::Shape low = node.attrs.has("pads_low") ? node.attrs.shape("pads_low") : op::Shape(spatial, 0);
  const op::Shape high = node.attrs.has("pads_high") ? node.attrs.shape("pads_high") : op::Shape(spatial, 0);
  const bool with_padding = node.attrs.integer("count_include_pad", 0) != 0;
  Expr count = 1;
  for (size_t d = 0; d < spatial; ++d) {
    const Expr start = result[2 + d] * strides[d] - low[d];
    const Expr first = with_padding ? Expr(-low[d]) : Expr(0);
    const Expr end = with_padding ? x[2 + d] + high[d] : x[2 + d];
    const Expr from = sym::max(0, sym::ceil_div(first - start, dilations[d]));
    const Expr to = sym::min(kernel_sizes[d], sym::ceil_div(end - start, dilations[d]));
    count = count * sym::max(0, to - from);
  }
  return count;
}

Index weight_read(const Graph&, const Node&, const Index& result, std::span<const Expr> folded) {
  Index index{result[1]};
  index.insert(index.end(), folded.begin(), folded.end());
  return index;
}

std::vector<Expr> contraction_extents(const Graph& graph, const Node& node) {
  if (node.op->name == "matmul") {
    const op::Shape& a = graph.type(node.inputs[0]).shape;
    const bool transposed = node.attrs.integer("trans_a", 0) != 0 && a.size() > 1;
    return {a[a.size() - (transposed ? 2 : 1)]};
  }
  const op::Shape& w = graph.type(node.inputs[1]).shape;
  return {w.begin() + 1, w.end()};
}

namespace {

// Batch dimensions of one matmul operand at the result's position.
Index batch_index(const op::Shape& operand, const op::Shape& result, size_t result_matrix_dims, const Index& index) {
  const size_t batch = operand.size() > 2 ? operand.size() - 2 : 0;
  const op::Shape operand_batch(operand.begin(), operand.begin() + static_cast<ptrdiff_t>(batch));
  const size_t result_batch = result.size() - result_matrix_dims;
  const op::Shape result_shape(result.begin(), result.begin() + static_cast<ptrdiff_t>(result_batch));
  const Index at(index.begin(), index.begin() + static_cast<ptrdiff_t>(result_batch));
  return broadcast_index(operand_batch, result_shape, at);
}

}  // namespace

Index matmul_lhs_read(const Graph& graph, const Node& node, const Index& result, const Expr& k) {
  const op::Shape& a = graph.type(node.inputs[0]).shape;
  const op::Shape& b = graph.type(node.inputs[1]).shape;
  const size_t matrix_dims = (a.size() > 1 ? 1U : 0U) + (b.size() > 1 ? 1U : 0U);
  if (a.size() == 1) return {k};
  Index index = batch_index(a, graph.type(node.outputs[0]).shape, matrix_dims, result);
  const Expr& m = result[result.size() - matrix_dims];
  const bool transposed = node.attrs.integer("trans_a", 0) != 0;
  index.push_back(transposed ? k : m);
  index.push_back(transposed ? m : k);
  return index;
}

Index matmul_rhs_read(const Graph& graph, const Node& node, const Index& result, const Expr& k) {
  const op::Shape& a = graph.type(node.inputs[0]).shape;
  const op::Shape& b = graph.type(node.inputs[1]).shape;
  const size_t matrix_dims = (a.size() > 1 ? 1U : 0U) + (b.size() > 1 ? 1U : 0U);
  if (b.size() == 1) return {k};
  Index index = batch_index(b, graph.type(node.outputs[0]).shape, matrix_dims, result);
  const Expr& n = result.back();
  const bool transposed = node.attrs.integer("trans_b", 0) != 0;
  index.push_back(transposed ? n : k);
  index.push_back(transposed ? k : n);
  return index;
}

Expr linear_index(const op::Shape& shape, const Index& index) {
  FL_CHECK(shape.size() == index.size(), "an index of {} dimensions into a shape of {}", index.size(), shape.size());
  Expr linear = 0, stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    linear = linear + index[i] * stride;
    stride = stride * shape[i];
  }
  return linear;
}

}  // namespace fuseloom::schedule
