#include "schedule/library_product.h"

#include <algorithm>
#include <set>

#include "schedule/axis_plan.h"
#include "schedule/read.h"

namespace fuseloom::schedule {

using graph::Graph;
using graph::Node;
using program::MatrixProduct;
using sym::Expr;

namespace {

// A stored value, and where in it an element lies.
struct Place {
  ValueId value;
  Expr address;
};

class ProductFinder {
 public:
  ProductFinder(const Graph& graph, const Group& group) : graph_(graph), group_(group), node_(graph.node(group.contraction)) {}

  std::optional<LibraryProduct> find() {
    if (group_.outputs.size() != 1) return std::nullopt;
    found_.result = group_.outputs[0];
    const DType dtype = graph_.type(node_.outputs[0]).dtype;
    if (dtype != DType::F32 && dtype != DType::F16 && dtype != DType::BF16) return std::nullopt;
    const auto position = group_.uses.find(node_.outputs[0]);
    if (position == group_.uses.end() || position->second.size() != 1 || !position->second[0].guards.empty()) return std::nullopt;
    at_ = position->second[0].index;
    if (!read_operands() || !read_epilogue() || !all_nodes_seen()) return std::nullopt;
    if (!lay_out()) return std::nullopt;
    return found_;
  }

 private:
  bool in_group(NodeId id) const { return std::find(group_.nodes.begin(), group_.nodes.end(), id) != group_.nodes.end(); }

  // Through the group's views to what lies in memory.
  std::optional<Place> place_of(ValueId value, Index index) {
    while (true) {
      const NodeId producer = graph_.value(value).producer;
      if (!producer.valid() || !in_group(producer)) return Place{value, linear_index(graph_.type(value).shape, index)};
      const Node& view = graph_.node(producer);
      if (loop_role(graph_, producer) != LoopRole::View) return std::nullopt;
      std::vector<op::TensorType> inputs;
      for (const ValueId input : view.inputs) inputs.push_back(graph_.type(input));
      std::vector<op::IndexPiece> pieces = view.op->index_map({.inputs = inputs, .output = graph_.type(value), .attrs = view.attrs}, index);
      if (pieces.size() != 1 || !pieces[0].guards.empty()) return std::nullopt;
      seen_.insert(producer);
      value = view.inputs[pieces[0].input];
      index = std::move(pieces[0].indices);
      if (index.size() != graph_.type(value).shape.size()) return std::nullopt;
    }
  }

  bool read_operands() {
    seen_.insert(group_.contraction);
    const std::vector<Axis>& local = group_.local_axes.at(group_.contraction);
    std::optional<Place> left, right;
    if (local[0].extent.is_const(1)) return false;
    depth_ = local[0];
    const Expr k = Expr::symbol(depth_.name);
    if (node_.op->name == "matmul") {
      left = place_of(node_.inputs[0], matmul_lhs_read(graph_, node_, at_, k));
      right = place_of(node_.inputs[1], matmul_rhs_read(graph_, node_, at_, k));
    } else {
      // w[o, c] times x[n, c, positions].
      if (node_.attrs.integer("groups", 1) != 1 || (node_.inputs.size() > 2 && node_.inputs[2].valid())) return false;
      Index folded{k};
      for (size_t i = 1; i < local.size(); ++i) {
        if (!local[i].extent.is_const(1)) return false;
        folded.push_back(0);
      }
      GuardedIndex at = window_read(graph_, node_, at_, folded);
      if (!at.guards.empty()) return false;
      left = place_of(node_.inputs[1], weight_read(graph_, node_, at_, folded));
      right = place_of(node_.inputs[0], std::move(at.index));
    }
    if (!left || !right) return false;
    left_ = *left;
    right_ = *right;
    return true;
  }

  // From the product to the result: a bias, an activation, in this order.
  bool read_epilogue() {
    const DType dtype = graph_.type(node_.outputs[0]).dtype;
    ValueId value = node_.outputs[0];
    while (true) {
      NodeId next;
      for (const NodeId id : group_.nodes) {
        const std::vector<ValueId>& inputs = graph_.node(id).inputs;
        const auto uses = std::count(inputs.begin(), inputs.end(), value);
        if (uses == 0) continue;
        if (uses > 1 || next.valid()) return false;
        next = id;
      }
      if (!next.valid()) break;
      const Node& node = graph_.node(next);
      if (value == found_.result || graph_.type(node.outputs[0]).dtype != dtype || !(graph_.type(node.outputs[0]).shape == graph_.type(value).shape)) return false;
      const bool plain = found_.product.activation == program::Activation::None;
      if (node.op->name == "add" && plain && !bias_) {
        const ValueId other = node.inputs[node.inputs[0] == value ? 1 : 0];
        if (graph_.type(other).dtype != dtype) return false;
        bias_ = place_of(other, broadcast_index(graph_.type(other).shape, graph_.type(value).shape, at_));
        if (!bias_) return false;
      } else if (node.op->name == "relu" && plain) {
        found_.product.activation = program::Activation::Relu;
      } else if (node.op->name == "gelu_tanh" && plain) {
        found_.product.activation = program::Activation::GeluTanh;
      } else {
        return false;
      }
      seen_.insert(next);
      value = node.outputs[0];
    }
    return value == found_.result;
  }

  bool all_nodes_seen() const {
    return std::all_of(group_.nodes.begin(), group_.nodes.end(), [&](NodeId id) { return seen_.count(id) != 0 || graph_.node(id).op->name == "constant"; });
  }

  // ---- memory
  // What an operand does along the loops, or nothing where it does not move by strides.
  struct Moves {
    Expr offset, depth;
    std::vector<Expr> axes;
  };
  std::optional<Moves> moves_of(const AxisPlan& plan, const Expr& address) const {
    Moves moves;
    sym::Substitution zero{{depth_.name, 0}};
    Expr linear = 0;
    for (const LoopAxis& axis : plan.axes()) {
      const std::optional<Expr> stride = plan.stride(address, axis);
      if (!stride || sym::symbols_of(*stride).count(depth_.name) != 0) return std::nullopt;
      moves.axes.push_back(*stride);
      linear = linear + *stride * Expr::symbol(axis.name);
      zero[axis.name] = 0;
    }
    const LoopAxis depth{.name = depth_.name, .extent = depth_.extent, .reduced = true, .members = {depth_.name}};
    const std::optional<Expr> along = plan.stride(address, depth);
    if (!along || sym::symbols_of(*along).count(depth_.name) != 0) return std::nullopt;
    moves.depth = *along;
    linear = linear + *along * Expr::symbol(depth_.name);
    const Expr whole = plan.rewrite(address);
    moves.offset = sym::substitute(whole, zero);
    if (sym::prove_equal(moves.offset + linear, whole, plan.facts()) != sym::Proof::Yes) return std::nullopt;
    return moves;
  }

  bool lay_out() {
    const Expr result = linear_index(graph_.type(found_.result).shape, at_);
    std::vector<MemoryAccess> accesses{{left_.value, left_.address, {}, false}, {right_.value, right_.address, {}, false}, {found_.result, result, {}, true}};
    if (bias_) accesses.push_back({bias_->value, bias_->address, {}, false});
    const AxisPlan plan(graph_, group_, accesses);
    std::optional<Moves> left = moves_of(plan, left_.address), right = moves_of(plan, right_.address);
    const std::optional<Moves> out = moves_of(plan, result);
    if (!left || !right || !out) return false;
    // The columns are the loop along which the result is contiguous; the operand that moves there is the right one.
    const auto is_zero = [](const Expr& expr) { return expr.is_const(0); };
    const std::vector<LoopAxis>& axes = plan.axes();
    std::optional<size_t> column;
    for (size_t i = 0; i < axes.size(); ++i) {
      if (!axes[i].reduced && out->axes[i].is_const(1)) column = i;
    }
    if (column && is_zero(right->axes[*column])) {
      std::swap(left, right);
      std::swap(left_, right_);
    }
    if (column && (!is_zero(left->axes[*column]) || is_zero(right->axes[*column]))) return false;
    // Of the other loops, the rows are one along which the left operand alone moves, the innermost; one more is the batch.
    std::optional<size_t> row, batch;
    for (size_t i = axes.size(); i-- > 0;) {
      if (column == i) continue;
      if (axes[i].reduced || is_zero(out->axes[i])) return false;
      const bool moves_left = !is_zero(left->axes[i]), moves_right = !is_zero(right->axes[i]);
      if (!row && moves_left && !moves_right) {
        row = i;
      } else if (!batch && (moves_left || moves_right)) {
        batch = i;
      } else {
        return false;
      }
    }
    MatrixProduct& product = found_.product;
    product.depth = depth_.extent;
    if (column) product.columns = axes[*column].extent;
    if (row) product.rows = axes[*row].extent;
    if (batch) product.batch = axes[*batch].extent;
    const auto along = [](const Moves& moves, const std::optional<size_t>& axis) { return axis ? moves.axes[*axis] : Expr(0); };
    // Where there is one row or one column, any distance between them does: that of a contiguous matrix.
    product.left = {.offset = left->offset, .batch_stride = along(*left, batch), .row_stride = row ? left->axes[*row] : left->depth.is_const(1) ? product.depth : Expr(1), .column_stride = left->depth};
    product.right = {.offset = right->offset, .batch_stride = along(*right, batch), .row_stride = right->depth, .column_stride = column ? right->axes[*column] : right->depth.is_const(1) ? product.depth : Expr(1)};
    product.result = {.offset = out->offset, .batch_stride = along(*out, batch), .row_stride = row ? out->axes[*row] : product.columns, .column_stride = 1};
    const auto matrix = [&](const MatrixProduct::Operand& operand) { return operand.row_stride.is_const(1) || operand.column_stride.is_const(1); };
    if (!matrix(product.left) || !matrix(product.right)) return false;
    if (bias_) {
      const std::optional<Moves> bias = moves_of(plan, bias_->address);
      if (!bias || !column) return false;
      for (size_t i = 0; i < axes.size(); ++i) {
        if (!bias->axes[i].is_const(column == i ? 1 : 0)) return false;
      }
      product.bias_offset = bias->offset;
      found_.bias = bias_->value;
    }
    found_.left = left_.value;
    found_.right = right_.value;
    return true;
  }

  const Graph& graph_;
  const Group& group_;
  const Node& node_;
  Index at_;                           // of an element of the product and of the result, over the group's axes
  Axis depth_;
  Place left_, right_;
  std::optional<Place> bias_;
  std::set<NodeId> seen_;
  LibraryProduct found_;
};

}  // namespace

std::optional<LibraryProduct> library_product(const Graph& graph, const Group& group) {
  if (group.kind != GroupKind::Contraction) return std::nullopt;
  return ProductFinder(graph, group).find();
}

}  // namespace fuseloom::schedule
