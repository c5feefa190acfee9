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
// Control. `if(c, captures...)` has the subgraphs `then` and `else`; both take the captures and give the outputs.
// `while(trip?, cond?, carried..., captures...) {carried = n, scans = m}` has one subgraph `body`:
//   inputs   iteration: i64[], cond: bool[], carried..., captures...
//   outputs  cond: bool[], carried..., scan elements...
//   results  the last carried values (the initial ones after zero trips), then each scan's elements stacked on a new first
//            dimension, of size 0 after zero trips
// and runs while iteration < trip (absent: no bound) and cond (absent: true).
// The result types belong to the node: same dtype and rank as what the subgraphs give. A size that is not the same
// expression on every path is a fresh symbol of the node's `defines`, which lists them in the order of the outputs and,
// in each, of its dimensions. So carried values may change their sizes from trip to trip: the body binds its own symbols
// from its inputs. docs/ir-graph.md has the rules in full.
//
// Nodes and values are owned by the graph and referred to by id. An id is never reused. A pass replaces, never patches:
// it adds nodes, redirects uses, and lets remove_dead_nodes clean up.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/id.h"
#include "op/op.h"

namespace fuseloom::graph {

using NodeId = base::Id<struct NodeTag>;
using ValueId = base::Id<struct ValueTag>;

class Graph;

struct Value {
  op::TensorType type;
  std::string name;          // unique in its graph; [A-Za-z_0-9.]+, not all digits; "" prints as a running number
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
  // Execution order. The reference is valid until the next change: a pass that rewrites copies it first.
  const std::vector<NodeId>& nodes() const {
    if (!pending_.empty()) merge_pending();
    return order_;
  }
  const Node& node(NodeId id) const { return *nodes_[static_cast<size_t>(id.index)]; }
  const Value& value(ValueId id) const { return values_[static_cast<size_t>(id.index)]; }
  const op::TensorType& type(ValueId id) const { return value(id).type; }
  const Node* producer(ValueId id) const { return value(id).producer.valid() ? &node(value(id).producer) : nullptr; }
  bool is_op(ValueId id, std::string_view op) const { return producer(id) != nullptr && producer(id)->op->name == op; }
  // The tensor of a `constant` node, else nullptr.
  const Tensor* constant(ValueId id) const;
  // For each value index: the nodes that read it, in order (a node once per use). Outputs are not nodes; see outputs().
  std::vector<std::vector<NodeId>> users() const;
  // How often a value is read by nodes or returned. Constant time.
  int64_t use_count(ValueId id) const { return use_count_[static_cast<size_t>(id.index)]; }
  // Whether the node is still there (not removed).
  bool has_node(NodeId id) const { return nodes_[static_cast<size_t>(id.index)] != nullptr; }
  // For messages: `matmul (node "MatMul_3")`.
  std::string describe(NodeId id) const;
  int32_t value_count() const { return static_cast<int32_t>(values_.size()); }
  int32_t node_capacity() const { return static_cast<int32_t>(nodes_.size()); }   // bound on NodeId::index
  // What is known of the symbols: inputs' sizes are >= 0, declared ranges, defined symbols.
  const sym::Facts& facts() const { return facts_; }
  sym::Facts& facts() { return facts_; }
  const std::vector<std::string>& outer_symbols() const { return outer_symbols_; }
  void set_outer_symbols(std::vector<std::string> symbols);          // they become sizes in facts() unless known better

  // ---- building
  ValueId add_input(std::string name, op::TensorType type);          // its bare symbols become sizes in facts()
  // Appends a node (or inserts it before `set_insertion_point`). Output types are inferred from the record, or given for
  // ops whose record has no infer (if, while). Throws UserError from the schema check or inference, with `origin`.
  NodeId add_node(std::string_view op, std::vector<ValueId> inputs, op::Attrs attrs = {}, int64_t output_count = 1,
                  std::string origin = "");
  NodeId add_control_node(std::string_view op, std::vector<ValueId> inputs, op::Attrs attrs,
                          std::vector<std::unique_ptr<Graph>> subgraphs, std::vector<op::TensorType> output_types,
                          std::string origin = "");
  // The shape that two shapes broadcast to, with all that facts() knows (op::broadcast_shapes knows none). It also learns:
  // sizes min(n, 128) and n go together only for n <= 128, so that n gets this range, which every run checks.
  op::Shape broadcast(const op::Shape& a, const op::Shape& b);
  // Shorthand: the first output.
  ValueId add(std::string_view op, std::vector<ValueId> inputs, op::Attrs attrs = {}, std::string origin = "");
  ValueId add_constant(Tensor value, std::string name = "");
  void set_outputs(std::vector<ValueId> outputs);
  // Other characters become '_', a name of digits gets the prefix "v", a taken name gets a suffix.
  void set_value_name(ValueId id, std::string name);

  // ---- rewriting
  // New nodes go directly before this node until cleared (invalid id: at the end).
  void set_insertion_point(NodeId before);
  // Every use of `old_value` (node inputs and graph outputs) becomes `new_value`. Names move along when new is unnamed.
  void replace_uses(ValueId old_value, ValueId new_value);
  void replace_input(NodeId node, size_t index, ValueId value);
  void remove_node(NodeId id);                                       // its outputs must be unused; linear
  void remove_nodes(std::span<const NodeId> ids);                    // together unused; linear in all
  void set_attrs(NodeId id, op::Attrs attrs);                        // the types must stay right (verify checks)
  Graph& subgraph(NodeId id, size_t index);                          // for passes that go into subgraphs
  // Replaces the type of a value by one with the same dtype and rank (sizes proven or asserted equal).
  void refine_type(ValueId id, op::TensorType type);
  // Replaces symbols in every type, attribute and fact; a replaced symbol loses its facts. The caller removes or
  // replaces whatever bound them. In subgraphs only outer symbols are replaced.
  void substitute_symbols(const sym::Substitution& by);
  // The same for the outer symbols of a subgraph that moves under other symbols.
  void replace_outer_symbols(const sym::Substitution& by, const sym::Facts& outer_facts);
  // Symbol names that are free in this graph: fresh_symbol("u") gives u0, u1, ...
  std::string fresh_symbol(std::string_view prefix);

 private:
  Node& mutable_node(NodeId id) { return *nodes_[static_cast<size_t>(id.index)]; }
  ValueId new_value(op::TensorType type, NodeId producer, int32_t output_index);
  NodeId insert_node(std::unique_ptr<Node> node, std::vector<op::TensorType> output_types);
  std::string unique_name(std::string name);
  void learn_symbols(const op::Shape& shape);
  void learn_size(const std::string& symbol);
  void learn_at_most(const std::string& symbol, int64_t high);
  sym::Expr broadcast(const sym::Expr& a, const sym::Expr& b);
  void check_input(ValueId id, std::string_view op) const;
  void add_use(ValueId value, NodeId user);
  void drop_use(ValueId value);
  void merge_pending() const;
  void rename_symbol(const std::string& symbol);                     // of a symbol bound in this graph
  const op::OpTable* table_;
  std::string name_;
  std::vector<std::unique_ptr<Node>> nodes_;       // by id; null when removed
  std::vector<Value> values_;                      // by id
  // Nodes inserted in the middle wait in pending_ as (before, node) until somebody asks for the order, so that a pass
  // that inserts everywhere stays linear. Empty while no insertion point is set: a graph at rest is safe to share.
  mutable std::vector<NodeId> order_;
  mutable std::vector<std::pair<NodeId, NodeId>> pending_;
  std::vector<ValueId> inputs_, outputs_;
  // Per value: every node that reads it, and possibly nodes that no longer do; how many uses there are, outputs included.
  std::vector<std::vector<NodeId>> uses_;
  std::vector<int64_t> use_count_;
  std::unordered_set<std::string> names_;
  std::unordered_map<std::string, int64_t> next_suffix_;             // per name or symbol prefix: where to go on looking
  std::unordered_set<std::string> symbols_;                          // every symbol name ever seen here
  std::vector<std::string> outer_symbols_;
  sym::Facts facts_;
  NodeId insertion_point_;
};

// Inserts before nodes while it lives. One for a whole pass: the insertions are merged into the order once, at its end.
class Inserter {
 public:
  explicit Inserter(Graph& graph) : graph_(graph) {}
  ~Inserter() { graph_.set_insertion_point({}); }
  Inserter(const Inserter&) = delete;
  Inserter& operator=(const Inserter&) = delete;
  void before(NodeId node) { graph_.set_insertion_point(node); }

 private:
  Graph& graph_;
};

// What is wrong with the signature of a control node (see the semantics above), or "".
std::string control_problem(const Graph& graph, const Node& node, std::span<const op::TensorType> output_types);

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
