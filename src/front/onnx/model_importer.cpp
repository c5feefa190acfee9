#include "front/onnx/model_importer.h"

#include <algorithm>
#include <deque>
#include <queue>

#include "base/check.h"
#include "base/lexer.h"

namespace fuseloom::front::onnx {

namespace {

// Functions inside of functions, and the nodes that inlining all of them gives: a few hundred bytes of file could ask
// for 2^100 nodes.
constexpr int kMaxFunctionDepth = 64;
constexpr int64_t kMaxNodes = int64_t{1} << 18;

std::string describe(const NodeProto& node) {
  const std::string name = node.name.empty() && !node.outputs.empty() ? fmt::format("giving \"{}\"", node.outputs[0])
                                                                      : fmt::format("\"{}\"", node.name);
  return fmt::format("{} {}", node.op_type, name);
}

template <class F>
void for_each_subgraph(const NodeProto& node, F&& visit) {
  for (const AttributeProto& attribute : node.attributes)
    if (attribute.graph != nullptr) visit(*attribute.graph);
}

bool is_symbol_char(char c, bool first) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         (!first && ((c >= '0' && c <= '9') || c == '.'));
}

void collect_free_names(const GraphProto& proto, std::vector<std::string_view>& out, std::set<std::string_view>& seen) {
  std::set<std::string_view> defined;
  for (const ValueInfoProto& input : proto.inputs) defined.insert(input.name);
  for (const TensorProto& tensor : proto.initializers) defined.insert(tensor.name);
  for (const SparseTensorProto& tensor : proto.sparse_initializers) defined.insert(tensor.values.name);
  for (const NodeProto& node : proto.nodes) defined.insert(node.outputs.begin(), node.outputs.end());
  const auto use = [&](std::string_view name) {
    if (!name.empty() && !defined.contains(name) && seen.insert(name).second) out.push_back(name);
  };
  for (const NodeProto& node : proto.nodes) {
    for (const std::string_view input : node.inputs) use(input);
    for_each_subgraph(node, [&](const GraphProto& subgraph) {
      std::vector<std::string_view> inner;
      std::set<std::string_view> inner_seen;
      collect_free_names(subgraph, inner, inner_seen);
      for (const std::string_view name : inner) use(name);
    });
  }
  for (const ValueInfoProto& output : proto.outputs) use(output.name);
}

}  // namespace

std::string_view canonical_domain(std::string_view domain) { return domain == "ai.onnx" ? std::string_view() : domain; }

ModelImporter::ModelImporter(const ModelProto& proto, TensorSource source, const ImportOptions& options)
    : proto_(proto),
      source_(std::move(source)),
      options_(options),
      table_(options.table != nullptr ? options.table : &op::standard_ops()) {
  for (const OperatorSetProto& opset : proto.opsets)
    opsets_[std::string(canonical_domain(opset.domain))] = opset.version;
  opsets_.emplace("", 1);  // IR versions 1 and 2 do not say
  for (const FunctionProto& function : proto.functions) {
    const bool is_new =
        functions_.emplace(std::tuple(canonical_domain(function.domain), function.name, function.overload), &function)
            .second;
    FL_REQUIRE(is_new, "{}: the function '{}' of domain '{}' is defined twice", name(), function.name, function.domain);
    Opsets& opsets = function_opsets_[&function];
    for (const OperatorSetProto& opset : function.opsets)
      opsets[std::string(canonical_domain(opset.domain))] = opset.version;
    for (const auto& [domain, version] : opsets_) opsets.emplace(domain, version);
  }
}

// ---- checks
// ----------------------------------------------------------------------------------------------------------

void ModelImporter::check_opsets() const {
  const auto check = [&](const Opsets& opsets) {
    for (const auto& [domain, version] : opsets)
      FL_REQUIRE(version >= 1, "{}: the opset version {} of domain '{}' is not a version", name(), version, domain);
    const int64_t version = opsets.at("");
    FL_SUPPORTED(
        version <= kMaxOpset,
        "{}: the model uses ONNX opset {}, and fuseloom knows up to {}; convert it with onnx.version_converter", name(),
        version, kMaxOpset);
  };
  check(opsets_);
  for (const auto& [function, opsets] : function_opsets_) check(opsets);
}

// One error that lists every operator that is not known.
void ModelImporter::check_operators() const {
  std::map<std::string, std::vector<std::string>> unknown;  // operator → nodes
  const auto check_nodes = [&](const auto& self, std::span<const NodeProto> nodes) -> void {
    for (const NodeProto& node : nodes) {
      const std::pair key(std::string(canonical_domain(node.domain)), std::string(node.op_type));
      if (!import_table().functions.contains(key) && function_of(node) == nullptr)
        unknown[key.first.empty() ? key.second : key.first + "." + key.second].push_back(
            node.name.empty() ? (node.outputs.empty() ? std::string("?") : std::string(node.outputs[0]))
                              : std::string(node.name));
      for_each_subgraph(node, [&](const GraphProto& graph) { self(self, graph.nodes); });
    }
  };
  check_nodes(check_nodes, proto_.graph.nodes);
  for (const FunctionProto& function : proto_.functions) check_nodes(check_nodes, function.nodes);
  if (unknown.empty()) return;
  std::string text;
  for (const auto& [op, nodes] : unknown) {
    constexpr size_t kShown = 3;
    std::string list;
    for (size_t i = 0; i < std::min(nodes.size(), kShown); ++i) list += (i == 0 ? "" : ", ") + nodes[i];
    if (nodes.size() > kShown) list += fmt::format(" and {} more", nodes.size() - kShown);
    text += fmt::format("{}{} (node {})", text.empty() ? "" : "; ", op, list);
  }
  throw Unsupported(fmt::format("{}: operators that fuseloom does not have: {}", name(), text));
}

const FunctionProto* ModelImporter::function_of(const NodeProto& node) const {
  const auto it = functions_.find(std::tuple(canonical_domain(node.domain), node.op_type, node.overload));
  return it == functions_.end() ? nullptr : it->second;
}

// ---- graph inputs
// ----------------------------------------------------------------------------------------------------

Expr ModelImporter::dimension(const DimensionProto& dim, const std::string& fresh_name) {
  std::string name = fresh_name;
  if (dim.kind == DimensionProto::Kind::Value && dim.value >= 0) return Expr(dim.value);
  // Some exporters write "?" for every size that they do not know; it is no name.
  if (dim.kind == DimensionProto::Kind::Parameter && !dim.parameter.empty() && dim.parameter != "?") name = std::string(dim.parameter);
  if (const auto fixed = options_.dims.find(name); fixed != options_.dims.end()) {
    FL_REQUIRE(fixed->second >= 0, "the dimension '{}' cannot be {}", name, fixed->second);
    return Expr(fixed->second);
  }
  const bool plain = std::all_of(name.begin() + 1, name.end(), [](char c) { return is_symbol_char(c, false); }) &&
                     is_symbol_char(name[0], true);
  if (!plain) {
    // Exporters write sizes such as 32*h or past + seq. They are kept as expressions when the inputs determine them.
    try {
      const Expr expr = sym::parse_expr(name);
      sym::Substitution fixed;
      for (const auto& [key, value] : options_.dims) fixed.emplace(key, Expr(value));
      const Expr known = sym::substitute(expr, fixed);
      std::vector<std::string> unbound;
      for (const std::string& symbol : sym::symbols_of(known))
        if (!bare_symbols_.contains(symbol)) unbound.push_back(symbol);
      if (unbound.empty() ||
          (unbound.size() == 1 && sym::solve_for(known, unbound[0], Expr::symbol("target")).has_value()))
        return known;
    } catch (const UserError&) {  // not an expression: a name with odd characters
    }
  }
  if (const auto known = symbol_of_name_.find(name); known != symbol_of_name_.end()) return Expr::symbol(known->second);
  std::string symbol;
  for (const char c : name) symbol += is_symbol_char(c, false) ? c : '_';
  if (!is_symbol_char(symbol[0], true)) symbol.insert(0, "d_");
  while (name_of_symbol_.contains(symbol)) symbol += "_";
  symbol_of_name_.emplace(name, symbol);
  name_of_symbol_.emplace(symbol, name);
  return Expr::symbol(symbol);
}

op::Shape ModelImporter::input_shape(const onnx::TypeProto& type, const std::string& name, bool shares_names) {
  op::Shape shape;
  size_t rank = type.shape.size();
  if (!type.has_shape) {
    const auto given = options_.ranks.find(name);
    FL_SUPPORTED(given != options_.ranks.end(),
                 "{}: the rank of input '{}' is not given, and fuseloom needs it; run onnx.shape_inference or set it "
                 "in the exporter",
                 this->name(), name);
    rank = static_cast<size_t>(given->second);
  }
  for (size_t i = 0; i < rank; ++i) {
    DimensionProto dim = i < type.shape.size() ? type.shape[i] : DimensionProto{};
    if (dim.kind == DimensionProto::Kind::Parameter && !shares_names) dim = {};
    shape.push_back(dimension(dim, fmt::format("{}_d{}", name.empty() ? "input" : name, i)));
  }
  return shape;
}

void ModelImporter::add_graph_inputs(ImportedModel& model, NameScope& scope) {
  std::set<std::string_view> initialized;
  for (const TensorProto& tensor : proto_.graph.initializers) initialized.insert(tensor.name);
  for (const SparseTensorProto& tensor : proto_.graph.sparse_initializers) initialized.insert(tensor.values.name);
  // Names that stand alone in some dimension: a compound size over them can be checked, so it stays an expression.
  for (const ValueInfoProto& input : proto_.graph.inputs)
    for (const DimensionProto& dim : input.type.shape)
      if (dim.kind == DimensionProto::Kind::Parameter && !initialized.contains(input.name) &&
          !options_.dims.contains(std::string(dim.parameter)))
        bare_symbols_.insert(std::string(dim.parameter));

  for (const ValueInfoProto& input : proto_.graph.inputs) {
    const std::string name(input.name);
    FL_REQUIRE(!name.empty(), "{}: a graph input has no name", this->name());
    FL_REQUIRE(!scope.items.contains(name), "{}: the name '{}' is given to two graph inputs", this->name(), name);
    if (initialized.contains(name)) continue;  // IR version 3 and before list initializers as inputs too
    const std::string where = fmt::format("{}: input '{}'", this->name(), name);
    const size_t first = model.graph.inputs().size();
    // The elements of a sequence share one type, in which a name stands for as many sizes as there are elements.
    const auto add_tensor = [&](const onnx::TypeProto& type, const std::string& value_name, bool element = false) {
      const DType dtype = carrier_dtype(type.element, where);
      const ValueId value =
          model.graph.add_input(value_name, {.dtype = dtype, .shape = input_shape(type, value_name, !element)});
      return Item::tensor(value, is_narrow(type.element) ? type.element : ElementType::Undefined);
    };
    const onnx::TypeProto* type = &input.type;
    if (type->kind == onnx::TypeProto::Kind::Optional) {
      FL_REQUIRE(type->inner != nullptr, "{}: has an optional type of nothing", where);
      const auto& present = options_.present_optionals;
      type = type->inner.get();
      if (std::find(present.begin(), present.end(), name) == present.end()) {
        scope.items.emplace(name, Item{});
        model.inputs.push_back({.name = name, .element = type->element, .first = first, .count = 0});
        continue;
      }
    }
    switch (type->kind) {
      case onnx::TypeProto::Kind::Tensor:
        scope.items.emplace(name, add_tensor(*type, name));
        model.inputs.push_back({.name = name, .element = type->element, .first = first});
        break;
      case onnx::TypeProto::Kind::Sequence: {
        FL_REQUIRE(type->inner != nullptr && type->inner->kind == onnx::TypeProto::Kind::Tensor,
                   "{}: is a sequence of something else than tensors", where);
        const auto length = options_.sequence_lengths.find(name);
        FL_SUPPORTED(length != options_.sequence_lengths.end(),
                     "{}: is a sequence; sequences have a fixed length (ImportOptions::sequence_lengths)", where);
        std::vector<Item> items;
        for (int64_t i = 0; i < length->second; ++i)
          items.push_back(add_tensor(*type->inner, fmt::format("{}_{}", name, i), true));
        model.inputs.push_back(
            {.name = name, .element = type->inner->element, .sequence = true, .first = first, .count = items.size()});
        scope.items.emplace(name, Item::sequence(std::move(items)));
        break;
      }
      case onnx::TypeProto::Kind::None:
        throw UserError(fmt::format("{}: has no type", where));
      case onnx::TypeProto::Kind::Optional:
      case onnx::TypeProto::Kind::Map:
      case onnx::TypeProto::Kind::SparseTensor:
      case onnx::TypeProto::Kind::Opaque:
        throw Unsupported(fmt::format("{}: only tensors, sequences and optionals of tensors are taken", where));
    }
  }
}

// ---- the walk
// --------------------------------------------------------------------------------------------------------

ImportedModel ModelImporter::import() {
  check_opsets();
  check_operators();
  ImportedModel model{.graph = Graph(*table_, "main"),
                      .inputs = {},
                      .outputs = {},
                      .dimension_names = {},
                      .metadata = {},
                      .producer = {},
                      .opset = 0};
  model.opset = opsets_.at("");
  model.producer =
      fmt::format("{}{}{}", proto_.producer_name, proto_.producer_version.empty() ? "" : " ", proto_.producer_version);
  for (const StringPair& pair : proto_.metadata) model.metadata.emplace(std::string(pair.key), std::string(pair.value));

  graph::SizeContents contents(model.graph);
  NameScope scope;
  scope.opsets = &opsets_;
  scope.contents = &contents;
  add_graph_inputs(model, scope);
  const std::vector<Item> results = import_body(proto_.graph, model.graph, scope);

  std::vector<ValueId> outputs;
  for (size_t i = 0; i < results.size(); ++i) {
    const ValueInfoProto& info = proto_.graph.outputs[i];
    ImportedValue value{.name = std::string(info.name), .first = outputs.size(), .count = 0};
    const auto add = [&](const Item& item) {
      FL_SUPPORTED(item.kind == Item::Kind::Tensor, "{}: output '{}' is a sequence of sequences", name(), info.name);
      value.element =
          item.narrow != ElementType::Undefined ? item.narrow : element_type_of(model.graph.type(item.value).dtype);
      outputs.push_back(item.value);
      ++value.count;
    };
    switch (results[i].kind) {
      case Item::Kind::Tensor: {
        add(results[i]);
        const bool checked =
            info.type.kind == onnx::TypeProto::Kind::Tensor && info.type.element != ElementType::Undefined;
        FL_REQUIRE(!checked || info.type.element == value.element,
                   "{}: output '{}' is declared as {} and computed as {}", name(), info.name,
                   element_type_name(info.type.element), element_type_name(value.element));
        break;
      }
      case Item::Kind::Sequence:
        value.sequence = true;
        for (const Item& item : results[i].items) add(item);
        break;
      case Item::Kind::Absent:
        break;
    }
    model.outputs.push_back(std::move(value));
  }
  model.graph.set_outputs(std::move(outputs));
  for (const auto& [symbol, file_name] : name_of_symbol_)
    if (symbol != file_name) model.dimension_names.emplace(symbol, file_name);
  return model;
}

const Item* ModelImporter::find(const NameScope& scope, std::string_view name) {
  for (const NameScope* s = &scope; s != nullptr; s = s->parent)
    if (const auto it = s->items.find(name); it != s->items.end()) return &it->second;
  return nullptr;
}

Item ModelImporter::load_initializer(const TensorProto& tensor, Graph& graph) {
  const ValueId value = graph.add_constant(source_.load(tensor), std::string(tensor.name));
  return Item::tensor(value, is_narrow(tensor.type) ? tensor.type : ElementType::Undefined);
}

std::vector<Item> ModelImporter::import_body(const GraphProto& proto, Graph& graph, NameScope& scope) {
  const auto define = [&](std::string_view name, Item item) {
    FL_REQUIRE(scope.items.emplace(std::string(name), std::move(item)).second, "{}: the name '{}' is defined twice",
               this->name(), name);
  };
  for (const TensorProto& tensor : proto.initializers) define(tensor.name, load_initializer(tensor, graph));
  for (const SparseTensorProto& tensor : proto.sparse_initializers)
    define(tensor.values.name, Item::tensor(graph.add_constant(source_.load(tensor), std::string(tensor.values.name))));
  import_block({.nodes = proto.nodes, .where = fmt::format("graph '{}'", proto.name)}, graph, scope);
  std::vector<Item> outputs;
  for (const ValueInfoProto& output : proto.outputs) {
    const Item* const item = find(scope, output.name);
    FL_REQUIRE(item != nullptr, "{}: nothing computes the output '{}'", name(), output.name);
    outputs.push_back(*item);
  }
  return outputs;
}

// The nodes of a file should be in topological order, and are not always. The order here is the file's wherever that is
// possible: Kahn's algorithm, the first node of the file that is ready first.
std::vector<size_t> ModelImporter::execution_order(const Block& block, const NameScope& scope) const {
  std::unordered_map<std::string_view, size_t> producer;
  for (size_t i = 0; i < block.nodes.size(); ++i)
    for (const std::string_view output : block.nodes[i].outputs) {
      if (output.empty()) continue;
      FL_REQUIRE(producer.emplace(output, i).second, "{}: {}: the name '{}' is computed twice, by {} and by {}", name(),
                 block.where, output, describe(block.nodes[producer[output]]), describe(block.nodes[i]));
      FL_REQUIRE(!scope.items.contains(output), "{}: {}: {} computes '{}', which is an input or initializer already",
                 name(), block.where, describe(block.nodes[i]), output);
    }
  std::vector<std::vector<size_t>> users(block.nodes.size());
  std::vector<size_t> waiting(block.nodes.size(), 0);
  for (size_t i = 0; i < block.nodes.size(); ++i) {
    std::vector<std::string_view> needs(block.nodes[i].inputs.begin(), block.nodes[i].inputs.end());
    for_each_subgraph(block.nodes[i], [&](const GraphProto& graph) {
      const std::vector<std::string_view> inner = free_names(graph);
      needs.insert(needs.end(), inner.begin(), inner.end());
    });
    for (const std::string_view need : needs) {
      if (need.empty()) continue;
      if (const auto it = producer.find(need); it != producer.end()) {
        users[it->second].push_back(i);
        ++waiting[i];
      } else {
        FL_REQUIRE(find(scope, need) != nullptr, "{}: {}: {} reads '{}', which nothing computes", name(), block.where,
                   describe(block.nodes[i]), need);
      }
    }
  }
  std::priority_queue<size_t, std::vector<size_t>, std::greater<>> ready;
  for (size_t i = 0; i < waiting.size(); ++i)
    if (waiting[i] == 0) ready.push(i);
  std::vector<size_t> order;
  while (!ready.empty()) {
    const size_t i = ready.top();
    ready.pop();
    order.push_back(i);
    for (const size_t user : users[i])
      if (--waiting[user] == 0) ready.push(user);
  }
  if (order.size() < block.nodes.size()) {
    // Follow unsatisfied inputs from any stuck node until one repeats: that is a cycle.
    size_t at = static_cast<size_t>(std::find_if(waiting.begin(), waiting.end(), [](size_t n) { return n > 0; }) -
                                    waiting.begin());
    std::vector<size_t> waits_for(block.nodes.size(), block.nodes.size());  // for each stuck node one that it waits for
    for (size_t i = 0; i < block.nodes.size(); ++i)
      for (const size_t user : users[i])
        if (waiting[i] > 0) waits_for[user] = i;
    std::vector<size_t> path;
    std::vector<char> visited(block.nodes.size(), 0);
    while (visited[at] == 0) {
      visited[at] = 1;
      path.push_back(at);
      at = waits_for[at];
    }
    std::string cycle;
    const auto begin = std::find(path.begin(), path.end(), at);
    for (auto it = begin; it != path.end() && it - begin < 8; ++it) cycle += describe(block.nodes[*it]) + " needs ";
    throw UserError(fmt::format("{}: {}: a cycle of {} nodes: {}{}", name(), block.where, path.end() - begin, cycle,
                                describe(block.nodes[at])));
  }
  return order;
}

void ModelImporter::import_block(const Block& block, Graph& graph, NameScope& scope) {
  for (const size_t i : execution_order(block, scope)) import_node(block.nodes[i], graph, scope);
}

void ModelImporter::import_node(const NodeProto& node, Graph& graph, NameScope& scope) {
  FL_SUPPORTED(++node_count_ <= kMaxNodes, "{}: more than {} nodes once its functions are inlined", name(), kMaxNodes);
  const std::string domain(canonical_domain(node.domain));
  const auto& table = import_table().functions;
  const auto it = table.find(std::pair(domain, std::string(node.op_type)));
  const FunctionProto* const function = it == table.end() || !domain.empty() ? function_of(node) : nullptr;
  if (function != nullptr) {
    import_function(*function, node, graph, scope);
    return;
  }
  FL_SUPPORTED(it != table.end(), "{}: {}: not an operator that fuseloom has", name(), describe(node));
  const auto opset = scope.opsets->find(domain);
  NodeImport site(*this, graph, scope, node, opset == scope.opsets->end() ? 1 : opset->second);
  try {
    it->second(site);
  } catch (const UserError& error) {
    const std::string text = error.what();
    if (text.starts_with(name())) throw;
    throw UserError(fmt::format("{}: {}: {}", name(), site.describe(), text));
  } catch (const Unsupported& error) {
    const std::string text = error.what();
    if (text.starts_with(name())) throw;
    throw Unsupported(fmt::format("{}: {}: {}", name(), site.describe(), text));
  }
}

void ModelImporter::import_function(const FunctionProto& function, const NodeProto& call, Graph& graph,
                                    NameScope& scope) {
  FL_SUPPORTED(function_depth_ < kMaxFunctionDepth,
               "{}: {}: functions call each other deeper than {}; does one call itself?", name(), describe(call),
               kMaxFunctionDepth);
  FL_REQUIRE(call.inputs.size() <= function.inputs.size() && call.outputs.size() <= function.outputs.size(),
             "{}: {}: has {} inputs and {} outputs, and the function takes {} and gives {}", name(), describe(call),
             call.inputs.size(), call.outputs.size(), function.inputs.size(), function.outputs.size());
  AttributeFrame frame;
  for (const AttributeProto& attribute : function.default_attributes) frame[attribute.name] = &attribute;
  for (const AttributeProto& attribute : call.attributes) {
    const AttributeProto* actual = &attribute;
    if (!attribute.reference.empty() && scope.frame != nullptr) {
      const auto outer = scope.frame->find(attribute.reference);
      if (outer == scope.frame->end()) continue;
      actual = outer->second;
    }
    frame[attribute.name] = actual;
  }
  NameScope inner;
  inner.opsets = &function_opsets_.at(&function);
  inner.frame = &frame;
  inner.contents = scope.contents;
  for (size_t i = 0; i < function.inputs.size(); ++i) {
    Item item;  // an input that is not given is absent
    if (i < call.inputs.size() && !call.inputs[i].empty()) item = *find(scope, call.inputs[i]);
    FL_REQUIRE(inner.items.emplace(std::string(function.inputs[i]), std::move(item)).second,
               "{}: function '{}' has two inputs named '{}'", name(), function.name, function.inputs[i]);
  }
  ++function_depth_;
  import_block({.nodes = function.nodes, .where = fmt::format("function '{}'", function.name)}, graph, inner);
  --function_depth_;
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    if (call.outputs[i].empty()) continue;
    const Item* const item = find(inner, function.outputs[i]);
    FL_REQUIRE(item != nullptr, "{}: function '{}': nothing computes its output '{}'", name(), function.name,
               function.outputs[i]);
    scope.items.insert_or_assign(std::string(call.outputs[i]), *item);
  }
}

// ---- subgraphs
// -------------------------------------------------------------------------------------------------------

std::vector<std::string_view> ModelImporter::free_names(const GraphProto& proto) {
  std::vector<std::string_view> names;
  std::set<std::string_view> seen;
  collect_free_names(proto, names, seen);
  return names;
}

std::set<std::string> ModelImporter::visible_symbols(const Graph& graph) {
  std::set<std::string> symbols(graph.outer_symbols().begin(), graph.outer_symbols().end());
  for (const auto& [symbol, range] : graph.facts().symbols) symbols.insert(symbol);
  // What bind_symbols defines can be any integer, and so has no fact.
  for (const graph::NodeId id : graph.nodes())
    if (const graph::Node& node = graph.node(id); node.attrs.has("defines"))
      for (const Expr& symbol : node.attrs.shape("defines")) symbols.insert(symbol.name());
  return symbols;
}

ModelImporter::Subgraph ModelImporter::begin_subgraph(const Graph& outer, const NameScope& outer_scope,
                                                      const std::string& name) const {
  Subgraph inner;
  inner.graph = std::make_unique<Graph>(outer.table(), name);
  const std::set<std::string> symbols = visible_symbols(outer);
  inner.graph->set_outer_symbols({symbols.begin(), symbols.end()});
  inner.graph->facts() = outer.facts();
  inner.scope.opsets = outer_scope.opsets;
  inner.scope.frame = outer_scope.frame;
  inner.contents = std::make_unique<graph::SizeContents>(*inner.graph);
  inner.scope.contents = inner.contents.get();
  return inner;
}

std::vector<ValueId> ModelImporter::capture(const Graph& outer, const NameScope& outer_scope,
                                            std::span<const std::string_view> names, Subgraph& inner,
                                            const std::string& node) {
  std::vector<ValueId> captures;
  std::map<ValueId, ValueId> seen;
  const auto convert = [&](const auto& self, const Item& item) -> Item {
    Item copy = item;
    for (Item& element : copy.items) element = self(self, element);
    if (item.kind != Item::Kind::Tensor) return copy;
    const auto [it, is_new] = seen.emplace(item.value, ValueId{});
    if (is_new) {
      if (const Tensor* const constant = outer.constant(item.value)) {
        it->second = inner.graph->add_constant(*constant, outer.value(item.value).name);
      } else if (const auto contents = outer_scope.contents->of(item.value);
                 contents.has_value() && !is_float(outer.type(item.value).dtype)) {
        const op::TensorType& type = outer.type(item.value);
        it->second = inner.graph->add("sym_value", {}, {{"values", op::Shape(*contents)}, {"dtype", type.dtype}}, node);
        it->second = inner.graph->add("reshape", {it->second}, {{"shape", type.shape}}, node);
      } else {
        it->second = inner.graph->add_input(outer.value(item.value).name, outer.type(item.value));
        captures.push_back(item.value);
      }
    }
    copy.value = it->second;
    return copy;
  };
  for (const std::string_view name : names) {
    const Item* const item = find(outer_scope, name);
    FL_REQUIRE(item != nullptr, "{}: {}: its subgraph reads '{}', which nothing computes", this->name(), node, name);
    inner.scope.items.emplace(std::string(name), convert(convert, *item));
  }
  return captures;
}

void ModelImporter::finish_subgraph(Graph& graph) {
  std::set<std::string> used;
  const auto use = [&](const op::Shape& shape) {
    for (const Expr& size : shape) sym::collect_symbols(size, used);
  };
  for (int32_t i = 0; i < graph.value_count(); ++i) use(graph.type(ValueId{i}).shape);
  for (const graph::NodeId id : graph.nodes()) {
    const graph::Node& node = graph.node(id);
    for (const auto& [name, value] : node.attrs.all())
      if (const auto* shape = std::get_if<op::Shape>(&value)) use(*shape);
    for (const auto& subgraph : node.subgraphs)
      used.insert(subgraph->outer_symbols().begin(), subgraph->outer_symbols().end());
  }
  std::vector<std::string> kept;
  for (const std::string& symbol : graph.outer_symbols()) {
    if (used.contains(symbol)) {
      kept.push_back(symbol);
    } else {
      graph.facts().symbols.erase(symbol);
    }
  }
  const sym::Facts facts = graph.facts();
  graph.set_outer_symbols(std::move(kept));
  graph.facts() = facts;
}

// ---- entry points
// ----------------------------------------------------------------------------------------------------

namespace {

ImportedModel import_mapped(std::string_view bytes, std::shared_ptr<void> owner, bool has_folder, std::string folder,
                            const std::string& name, const ImportOptions& options) {
  const ModelProto proto = parse_model(bytes, name);
  return ModelImporter(proto, TensorSource(name, std::move(owner), has_folder, std::move(folder)), options).import();
}

}  // namespace

ImportedModel import_onnx(const std::string& path, const ImportOptions& options) {
  const MappedFile file = map_file(path);
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  return import_mapped(file.bytes, file.owner, true, folder, path, options);
}

ImportedModel import_onnx_bytes(std::string_view bytes, const ImportOptions& options, const std::string& name) {
  return import_mapped(bytes, nullptr, false, "", name, options);
}

const ImportTable& import_table() {
  static const ImportTable table = [] {
    ImportTable t;
    add_math_imports(t);
    add_shape_imports(t);
    add_index_imports(t);
    add_reduce_imports(t);
    add_nn_imports(t);
    add_attention_imports(t);
    add_quant_imports(t);
    add_einsum_import(t);
    add_signal_imports(t);
    add_training_imports(t);
    add_resample_imports(t);
    add_microsoft_imports(t);
    add_control_imports(t);
    return t;
  }();
  return table;
}

}  // namespace fuseloom::front::onnx
