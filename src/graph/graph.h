// The graph IR: what is computed.
//
// Semantics. A Graph is a pure function from its inputs to its outputs. Its nodes are in execution order: every input of
// a node is a graph input or the output of an earlier node. A value is an immutable tensor with an element type and a
// symbolic shape. Sizes are expressions over symbols; a symbol is bound by
//   - the shape of a graph input: the first input dimension that is the bare symbol binds it, others are checked;
//   - a node with the attribute `defines` (bind_symbols, non_zero, ...), from the node's position on;
//   - the enclosing graph (`outer_symbols`), when this graph is a subgraph.
// A symbol is a size and so >= 0, unless it is defined by bind_symbols (any integer).
// Subgraphs (of `if` and `while`) capture nothing: whatever they use of the outside is passed as an input of the node.
// The same value may be returned twice, and an input may be returned.
//
// Nodes and values are owned by the graph and referred to by id. An id is never reused. A pass replaces, never patches:
// it adds nodes, redirects uses, and lets remove_dead_nodes clean up.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/id.h"
#include "op/op.h"

namespace fuseloom::graph {

using NodeId = base::Id<struct NodeTag>;
using ValueId = base::Id<struct ValueTag>;

class Graph;

struct Value {
  op::TensorType type;
  std::string name;          // unique in its graph; [A-Za-z_0-9.]+ ; "" prints as the id
  NodeId producer;           // invalid for a graph input
  int32_t output_index = 0;  // which output of the producer, or which graph input
};

struct Node {
  const op::OpRecord* op = nullptr;
  std::vector<ValueId> inputs;                      // an absent optional input is an invalid id
  std::vector<ValueId> outputs;
  op::Attrs attrs;
  std::vector<std::unique_ptr<Graph>> subgraphs;    // if: then, else; while: body
  std::string origin;                               // where it came from: the ONNX node's name; for messages and profiles
};

class Graph {
 public:
  explicit Graph(const op::OpTable& table, std::string name = "main") : table_(&table), name_(std::move(name)) {}
  Graph(Graph&&) = default;
  Graph& operator=(Graph&&) = default;
  Graph clone() const;                              // deep; ids are preserved

  const op::OpTable& table() const { return *table_; }
  const std::string& name() const { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }

  // ---- reading
  const std::vector<ValueId>& inputs() const { return inputs_; }
  const std::vector<ValueId>& outputs() const { return outputs_; }
  const std::vector<NodeId>& nodes() const { return order_; }        // execution order
  const Node& node(NodeId id) const { return *nodes_[static_cast<size_t>(id.index)]; }
  const Value& value(ValueId id) const { return values_[static_cast<size_t>(id.index)]; }
  const op::TensorType& type(ValueId id) const { return value(id).type; }
  const Node* producer(ValueId id) const { return value(id).producer.valid() ? &node(value(id).producer) : nullptr; }
  bool is_op(ValueId id, std::string_view op) const { return producer(id) != nullptr && producer(id)->op->name == op; }
  // The tensor of a `constant` node, else nullptr.
  const Tensor* constant(ValueId id) const;
  // For each value index: the nodes that read it, in order (a node once per use). Outputs are not nodes; see outputs().
  std::vector<std::vector<NodeId>> users() const;
  int32_t value_count() const { return static_cast<int32_t>(values_.size()); }
  int32_t node_capacity() const { return static_cast<int32_t>(nodes_.size()); }   // bound on NodeId::index
  // What is known of the symbols: inputs' sizes are >= 0, declared ranges, defined symbols.
  const sym::Facts& facts() const { return facts_; }
  sym::Facts& facts() { return facts_; }
  const std::vector<std::string>& outer_symbols() const { return outer_symbols_; }
  void set_outer_symbols(std::vector<std::string> symbols) { outer_symbols_ = std::move(symbols); }

  // ---- building
  ValueId add_input(std::string name, op::TensorType type);          // its bare symbols become sizes in facts()
  // Appends a node (or inserts it before `set_insertion_point`). Output types are inferred from the record, or given for
  // ops whose record has no infer (if, while). Throws UserError from the schema check or inference, with `origin`.
  NodeId add_node(std::string_view op, std::vector<ValueId> inputs, op::Attrs attrs = {}, int64_t output_count = 1,
                  std::string origin = "");
  NodeId add_control_node(std::string_view op, std::vector<ValueId> inputs, op::Attrs attrs,
                          std::vector<std::unique_ptr<Graph>> subgraphs, std::vector<op::TensorType> output_types,
                          std::string origin = "");
  // Shorthand: the first output.
  ValueId add(std::string_view op, std::vector<ValueId> inputs, op::Attrs attrs = {}, std::string origin = "");
  ValueId add_constant(Tensor value, std::string name = "");
  void set_outputs(std::vector<ValueId> outputs) { outputs_ = std::move(outputs); }
  void set_value_name(ValueId id, std::string name);                 // made unique with a suffix when taken

  // ---- rewriting
  // New nodes go directly before this node until cleared (invalid id: at the end).
  void set_insertion_point(NodeId before) { insertion_point_ = before; }
  // Every use of `old_value` (node inputs and graph outputs) becomes `new_value`. Names move along when new is unnamed.
  void replace_uses(ValueId old_value, ValueId new_value);
  void replace_input(NodeId node, size_t index, ValueId value);
  void remove_node(NodeId id);                                       // its outputs must be unused
  // Replaces the type of a value by one with the same dtype and rank (sizes proven or asserted equal).
  void refine_type(ValueId id, op::TensorType type);
  // Symbol names that are free in this graph: fresh_symbol("u") gives u0, u1, ...
  std::string fresh_symbol(std::string_view prefix);

 private:
  friend class Parser;
  const op::OpTable* table_;
  std::string name_;
  std::vector<std::unique_ptr<Node>> nodes_;       // by id; null when removed
  std::vector<Value> values_;                      // by id
  std::vector<NodeId> order_;
  std::vector<ValueId> inputs_, outputs_;
  std::vector<std::string> outer_symbols_;
  sym::Facts facts_;
  NodeId insertion_point_;
};

// Applies ops on a graph for decompositions (op::Val::id is a ValueId index).
class GraphOpBuilder final : public op::OpBuilder {
 public:
  GraphOpBuilder(Graph& graph, std::string origin) : graph_(graph), origin_(std::move(origin)) {}
  std::vector<op::Val> apply_many(std::string_view op, std::vector<op::Val> inputs, op::Attrs attrs, int64_t outputs) override;
  op::TensorType type(op::Val value) const override;
 private:
  Graph& graph_;
  std::string origin_;
};

}  // namespace fuseloom::graph
