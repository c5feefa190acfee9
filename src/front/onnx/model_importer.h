// The state of one import: the file's tensors and functions, and the walk over its graphs.
#pragma once
#include <memory>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "front/onnx/importer.h"
#include "front/onnx/node_import.h"
#include "front/onnx/tensor_proto.h"

namespace fuseloom::front::onnx {

class ModelImporter {
 public:
  ModelImporter(const ModelProto& proto, TensorSource source, const ImportOptions& options);
  ImportedModel import();

  const std::string& name() const { return source_.name(); }
  const op::OpTable& table() const { return *table_; }
  TensorSource& tensors() { return source_; }

  // Imports a graph's nodes into `graph`; names that it does not define are looked up through `scope`, whose items hold
  // its inputs. The items of its outputs.
  std::vector<Item> import_body(const GraphProto& proto, Graph& graph, NameScope& scope);

  // The names that a graph uses and does not define, in the order of their first use.
  static std::vector<std::string_view> free_names(const GraphProto& proto);

  // nullptr when no such name is visible.
  static const Item* find(const NameScope& scope, std::string_view name);

  // A graph of its own inside of `outer` (a branch or a loop body): it sees the outer symbols, and `captured` values.
  // `add_captures` is called once the fixed inputs are added.
  struct Subgraph {
    std::unique_ptr<Graph> graph;
    std::unique_ptr<graph::SizeContents> contents;
    NameScope scope;
  };
  Subgraph begin_subgraph(const Graph& outer, const NameScope& outer_scope, const std::string& name) const;
  // Makes the outer items visible inside: constants and tensors of known contents are copied, every other value becomes
  // an input of the subgraph. `captures` are the outer values to pass, in order.
  std::vector<ValueId> capture(const Graph& outer, const NameScope& outer_scope,
                               std::span<const std::string_view> names, Subgraph& inner, const std::string& node);
  // The symbols that a size in this graph may use.
  static std::set<std::string> visible_symbols(const Graph& graph);
  // Drops the outer symbols that the subgraph does not use.
  static void finish_subgraph(Graph& graph);

 private:
  struct Block {  // the nodes of a graph or of a function
    std::span<const NodeProto> nodes;
    std::string where;  // for messages
  };
  void check_opsets() const;
  void check_operators() const;
  void add_graph_inputs(ImportedModel& model, NameScope& scope);
  void import_block(const Block& block, Graph& graph, NameScope& scope);
  void import_node(const NodeProto& node, Graph& graph, NameScope& scope);
  void import_function(const FunctionProto& function, const NodeProto& call, Graph& graph, NameScope& scope);
  const FunctionProto* function_of(const NodeProto& node) const;
  std::vector<size_t> execution_order(const Block& block, const NameScope& scope) const;
  Item load_initializer(const TensorProto& tensor, Graph& graph);
  op::Shape input_shape(const onnx::TypeProto& type, const std::string& name, bool shares_names);
  Expr dimension(const DimensionProto& dim, const std::string& fresh_name);

  const ModelProto& proto_;
  TensorSource source_;
  const ImportOptions& options_;
  const op::OpTable* table_;
  Opsets opsets_;
  std::map<const FunctionProto*, Opsets> function_opsets_;
  std::map<std::tuple<std::string_view, std::string_view, std::string_view>, const FunctionProto*>
      functions_;                                      // domain, name, overload
  std::map<std::string, std::string> symbol_of_name_;  // dimension name in the file → symbol
  std::map<std::string, std::string> name_of_symbol_;
  std::set<std::string> bare_symbols_;  // that some input dimension binds by itself
  int64_t node_count_ = 0;
  int function_depth_ = 0;
};

// The domain's canonical name: "ai.onnx" is "".
std::string_view canonical_domain(std::string_view domain);

}  // namespace fuseloom::front::onnx
