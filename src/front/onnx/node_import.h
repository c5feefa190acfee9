// What the import function of one operator sees: the ONNX node, its inputs as values of the graph, and the tools to
// build with. One function per operator; a table per file (ops_*.cpp) maps (domain, op_type) to it.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "front/onnx/proto.h"
#include "front/onnx/tensor_proto.h"
#include "graph/graph.h"
#include "graph/size_contents.h"

namespace fuseloom::front::onnx {

using graph::Graph;
using graph::ValueId;
using op::Attrs;
using op::Shape;
using sym::Expr;

// What a name of an ONNX graph stands for while it is imported.
struct Item {
  enum class Kind : uint8_t { Tensor, Sequence, Absent };  // Absent: an empty optional
  Kind kind = Kind::Absent;
  ValueId value;                                // Tensor
  ElementType narrow = ElementType::Undefined;  // Tensor: the element type when it is carried in a wider one
  std::vector<Item> items;                      // Sequence
  static Item tensor(ValueId value, ElementType narrow = ElementType::Undefined) {
    Item item;
    item.kind = Kind::Tensor;
    item.value = value;
    item.narrow = narrow;
    return item;
  }
  static Item sequence(std::vector<Item> items) {
    Item item;
    item.kind = Kind::Sequence;
    item.items = std::move(items);
    return item;
  }
};

class ModelImporter;
class NodeImport;
using ImportFn = std::function<void(NodeImport&)>;

// (domain, op_type) → import function. The default domain is "".
struct ImportTable {
  std::map<std::pair<std::string, std::string>, ImportFn, std::less<>> functions;
  void add(std::string op_type, ImportFn fn) {
    functions.emplace(std::pair(std::string(), std::move(op_type)), std::move(fn));
  }
  void add(std::string domain, std::string op_type, ImportFn fn) {
    functions.emplace(std::pair(std::move(domain), std::move(op_type)), std::move(fn));
  }
};
void add_math_imports(ImportTable& table);
void add_shape_imports(ImportTable& table);
void add_index_imports(ImportTable& table);
void add_reduce_imports(ImportTable& table);
void add_nn_imports(ImportTable& table);
void add_einsum_import(ImportTable& table);
void add_resample_imports(ImportTable& table);
void add_attention_imports(ImportTable& table);
void add_signal_imports(ImportTable& table);
void add_quant_imports(ImportTable& table);
void add_control_imports(ImportTable& table);
void add_microsoft_imports(ImportTable& table);
void add_training_imports(ImportTable& table);
const ImportTable& import_table();

using Opsets = std::map<std::string, int64_t, std::less<>>;                // domain → version
using AttributeFrame = std::map<std::string_view, const AttributeProto*>;  // a function's attributes, at one call

// The names of one ONNX graph or function body. A name that is not found is looked up in `parent`, which belongs to the
// same graph::Graph: a body that becomes a Graph of its own gets what it uses of the outside as items of its own scope.
struct NameScope {
  const NameScope* parent = nullptr;
  const Opsets* opsets = nullptr;
  const AttributeFrame* frame = nullptr;    // set inside of a function
  graph::SizeContents* contents = nullptr;  // of the graph::Graph
  std::map<std::string, Item, std::less<>> items;
};

class NodeImport {
 public:
  NodeImport(ModelImporter& model, Graph& graph, NameScope& scope, const NodeProto& proto, int64_t version)
      : model_(model), graph_(graph), scope_(scope), proto_(proto), version_(version) {}

  int64_t version() const { return version_; }  // of the operator's domain
  const NodeProto& proto() const { return proto_; }
  Graph& graph() { return graph_; }
  ModelImporter& model() { return model_; }
  std::string origin() const;                            // of the graph's nodes: the ONNX node's name
  std::string describe() const;                          // Conv "stem/conv1"
  [[noreturn]] void fail(std::string_view words) const;  // UserError
  [[noreturn]] void unsupported(std::string_view words) const;

  // ---- inputs. A missing input, one with the empty name and an optional without a value are absent.
  size_t input_count() const { return proto_.inputs.size(); }
  bool has(size_t i) const;
  ValueId in(size_t i) const;  // a tensor; UserError when absent
  ValueId in_or_none(size_t i) const { return has(i) ? in(i) : ValueId{}; }
  const Item& item(size_t i) const;
  std::vector<ValueId> all_inputs() const;

  // ---- attributes
  const AttributeProto* find(std::string_view name) const;
  bool has_attr(std::string_view name) const { return find(name) != nullptr; }
  int64_t integer(std::string_view name) const;  // UserError when missing
  int64_t integer(std::string_view name, int64_t fallback) const;
  double real(std::string_view name, double fallback) const;
  std::string text(std::string_view name, std::string_view fallback) const;
  std::vector<int64_t> integers(std::string_view name, std::vector<int64_t> fallback = {}) const;
  std::vector<double> reals(std::string_view name, std::vector<double> fallback = {}) const;
  std::vector<std::string> texts(std::string_view name) const;
  Tensor tensor(std::string_view name) const;  // UserError when missing
  const GraphProto& subgraph(std::string_view name) const;

  // ---- types
  // By value: a reference into the graph would not survive the next node.
  op::TensorType type(ValueId v) const { return graph_.type(v); }
  DType dtype(ValueId v) const { return graph_.type(v).dtype; }
  int64_t rank(ValueId v) const { return graph_.type(v).rank(); }
  Shape shape(ValueId v) const { return graph_.type(v).shape; }
  Expr size(ValueId v, int64_t axis) const { return graph_.type(v).shape[static_cast<size_t>(axis)]; }
  // Counts from the end when negative; UserError when out of range.
  int64_t axis(int64_t axis, int64_t rank) const;
  std::vector<int64_t> axes(std::vector<int64_t> axes, int64_t rank) const;
  Expr simplify(const Expr& e) const { return sym::simplify(e, graph_.facts()); }

  // ---- building
  ValueId add(std::string_view op, std::vector<ValueId> inputs, Attrs attrs = {});
  std::vector<ValueId> add_many(std::string_view op, std::vector<ValueId> inputs, Attrs attrs, int64_t outputs);
  ValueId constant(Tensor t);
  ValueId scalar(DType dtype, double value);
  ValueId like(ValueId v, double value) { return scalar(dtype(v), value); }
  ValueId ints(const std::vector<int64_t>& values);  // i64[n]
  ValueId cast(ValueId v, DType to);                 // itself when it has the type
  ValueId reshape(ValueId v, Shape shape);           // itself when it has the shape
  ValueId transpose(ValueId v, std::vector<int64_t> perm);
  ValueId unsqueeze(ValueId v, std::vector<int64_t> axes);  // axes of the result, not negative
  ValueId squeeze(ValueId v, const std::vector<int64_t>& axes);
  ValueId expand(ValueId v, Shape shape);
  ValueId full(DType dtype, double value, Shape shape);
  ValueId slice(ValueId v, int64_t axis, Expr start, Expr size, int64_t step = 1);
  ValueId concat(std::vector<ValueId> parts, int64_t axis);
  ValueId reduce(std::string_view op, ValueId v, std::vector<int64_t> axes, bool keepdims);
  ValueId sym_values(const std::vector<Expr>& values, DType dtype = DType::I64);  // [n]
  ValueId sym_scalar(const Expr& value, DType dtype = DType::I64);                // 0-d
  ValueId pad(ValueId v, Shape low, Shape high, std::string mode = "constant", ValueId fill = {});
  // Flattens to [product of the first `axis` sizes, product of the rest].
  ValueId flatten(ValueId v, int64_t axis);

  // ---- contents of small integer tensors
  // Row-major elements as expressions, when they are known.
  std::optional<std::vector<Expr>> contents(ValueId v) const;
  std::optional<std::vector<int64_t>> constant_integers(ValueId v) const;
  // The elements of a tensor, known or (bind_symbols) read at run time. Its size must be known.
  std::vector<Expr> read_sizes(ValueId v);
  Expr read_size(ValueId v) { return read_sizes(v).at(0); }
  // For what fuseloom needs to know at import. `what` names it in the error.
  std::vector<int64_t> require_integers(ValueId v, std::string_view what) const;
  Tensor require_constant(ValueId v, std::string_view what) const;
  // The value of a small tensor that depends on constants alone, whatever its type.
  std::optional<Tensor> constant_value(ValueId v) const;
  // `axes` from the attribute, or from input i where the operator has them there (since opset `input_since`). Each
  // entry is an expression: a number nearly always, a symbol where a graph computes its axes at run time.
  std::optional<std::vector<Expr>> axes_from(size_t i, int64_t input_since);

  // ---- outputs
  size_t output_count() const { return proto_.outputs.size(); }
  bool wants(size_t i) const { return i < proto_.outputs.size() && !proto_.outputs[i].empty(); }
  void out(size_t i, ValueId v, ElementType narrow = ElementType::Undefined) { out(i, Item::tensor(v, narrow)); }
  void out(size_t i, Item item);
  void out(ValueId v) { out(0, v); }

  NameScope& scope() { return scope_; }
  // Imports a subgraph in place. `scope` holds the items of its inputs; other names are those of this node's graph.
  std::vector<Item> inline_subgraph(const GraphProto& proto, NameScope& scope);

 private:
  ModelImporter& model_;
  Graph& graph_;
  NameScope& scope_;
  const NodeProto& proto_;
  int64_t version_;
};

}  // namespace fuseloom::front::onnx
