// If, Loop and Scan; sequences and optionals, which exist while importing only.
#include <algorithm>

#include "base/check.h"
#include "front/onnx/model_importer.h"
#include "front/onnx/node_import.h"

namespace fuseloom::front::onnx {
namespace {

// ---- results of subgraphs
// --------------------------------------------------------------------------------------------

// The types of a control node's results and the symbols it defines. A size is kept when it is the same expression on
// every path and made of symbols that the outer graph knows; else it becomes a symbol of the node.
class ResultTypes {
 public:
  explicit ResultTypes(NodeImport& n) : n_(n), visible_(ModelImporter::visible_symbols(n.graph())) {}

  Expr size(const Expr& a, const Expr& b) { return a == b && visible(a) ? a : fresh(); }
  void add(DType dtype, const Shape& a, const Shape& b) {
    op::TensorType type{.dtype = dtype, .shape = {}};
    for (size_t i = 0; i < a.size(); ++i) type.shape.push_back(size(a[i], b[i]));
    types_.push_back(std::move(type));
  }
  // A stack of elements; without `count`, of a number that only the run knows.
  void add_stack(const op::TensorType& element, const std::optional<Expr>& count) {
    op::TensorType type{.dtype = element.dtype, .shape = {count.has_value() ? size(*count, *count) : fresh()}};
    for (const Expr& e : element.shape) type.shape.push_back(size(e, e));
    types_.push_back(std::move(type));
  }
  std::vector<op::TensorType> types() const { return types_; }
  void finish(Attrs& attrs) const {
    if (!defines_.empty()) attrs.set("defines", defines_);
  }

 private:
  Expr fresh() {
    const Expr symbol = Expr::symbol(n_.graph().fresh_symbol("c"));
    defines_.push_back(symbol);
    return symbol;
  }
  bool visible(const Expr& e) const {
    for (const std::string& symbol : sym::symbols_of(e))
      if (!visible_.contains(symbol)) return false;
    return true;
  }

  NodeImport& n_;
  std::set<std::string> visible_;
  std::vector<op::TensorType> types_;
  Shape defines_;
};

// The tensors of an item, in order.
void flatten_item(const Item& item, std::vector<Item>& out) {
  if (item.kind == Item::Kind::Tensor) out.push_back(item);
  for (const Item& element : item.items) flatten_item(element, out);
}

bool same_structure(const Item& a, const Item& b) {
  return a.kind == b.kind && a.items.size() == b.items.size() &&
         std::equal(a.items.begin(), a.items.end(), b.items.begin(), same_structure);
}

// The same structure with the values replaced, in order, by a node's results.
Item rebuilt(const Item& item, std::span<const ValueId> results, size_t& next) {
  Item copy = item;
  if (item.kind == Item::Kind::Tensor) copy.value = results[next++];
  for (Item& element : copy.items) element = rebuilt(element, results, next);
  return copy;
}

std::vector<ValueId> values_of(std::span<const Item> items) {
  std::vector<ValueId> values;
  for (const Item& item : items) values.push_back(item.value);
  return values;
}

std::optional<bool> known_condition(const NodeImport& n, ValueId condition) {
  if (const std::optional<Tensor> value = n.constant_value(condition); value.has_value() && value->count() == 1)
    return value->at(0) != 0;
  if (const auto values = n.constant_integers(condition); values.has_value() && values->size() == 1)
    return (*values)[0] != 0;
  return std::nullopt;
}

// ---- If
// --------------------------------------------------------------------------------------------------------------

// Exporters write squeeze(x, d) as If(size == 1, Squeeze, Identity): the rank would depend on a size. A graph has fixed
// ranks, so the branch of the equality is taken, and the run checks that it holds.
bool import_pinned_branch(NodeImport& n, const GraphProto& then_branch, const GraphProto& else_branch) {
  const auto contents = n.contents(n.in(0));
  if (!contents.has_value() || contents->size() != 1) return false;
  const Expr condition = n.simplify((*contents)[0]);
  const bool equal = condition.kind() == sym::Kind::Eq, differs = condition.kind() == sym::Kind::Ne;
  if (!equal && !differs) return false;
  const Expr holds = equal ? condition : sym::eq(condition, 0);
  const std::string message =
      fmt::format("{}: the model was imported for sizes where {}", n.describe(), sym::to_string(holds));
  const auto check = [&](const auto& self, Item& item) -> void {
    if (item.kind == Item::Kind::Tensor)
      item.value = n.add("require", {item.value}, {{"conditions", Shape{holds}}, {"message", message}});
    for (Item& element : item.items) self(self, element);
  };
  // What the branch reads is checked before it is read; a branch that reads nothing has its results checked.
  const GraphProto& branch = equal ? then_branch : else_branch;
  NameScope scope;
  for (const std::string_view name : ModelImporter::free_names(branch)) {
    const Item* const outer = ModelImporter::find(n.scope(), name);
    if (outer == nullptr) continue;  // reported when it is read
    Item item = *outer;
    const bool constant = item.kind == Item::Kind::Tensor && n.graph().constant(item.value) != nullptr;
    if (!constant) check(check, item);
    scope.items.emplace(std::string(name), std::move(item));
  }
  const bool reads = !scope.items.empty();
  std::vector<Item> results = n.inline_subgraph(branch, scope);
  for (size_t i = 0; i < n.output_count() && i < results.size(); ++i) {
    if (!reads) check(check, results[i]);
    n.out(i, results[i]);
  }
  return true;
}

void import_if(NodeImport& n) {
  const ValueId condition = n.in(0);
  const GraphProto& then_branch = n.subgraph("then_branch");
  const GraphProto& else_branch = n.subgraph("else_branch");
  if (const std::optional<bool> known = known_condition(n, condition); known.has_value()) {
    NameScope scope;
    const std::vector<Item> results = n.inline_subgraph(*known ? then_branch : else_branch, scope);
    if (results.size() < n.output_count())
      n.fail(fmt::format("the branch gives {} of {} outputs", results.size(), n.output_count()));
    for (size_t i = 0; i < n.output_count(); ++i) n.out(i, results[i]);
    return;
  }

  std::vector<std::string_view> names = ModelImporter::free_names(then_branch);
  for (const std::string_view name : ModelImporter::free_names(else_branch))
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  std::vector<std::unique_ptr<Graph>> graphs;
  std::vector<ValueId> captures;
  std::vector<Item> results[2];
  for (int branch = 0; branch < 2; ++branch) {
    const GraphProto& proto = branch == 0 ? then_branch : else_branch;
    ModelImporter::Subgraph sub = n.model().begin_subgraph(n.graph(), n.scope(), branch == 0 ? "then" : "else");
    captures = n.model().capture(n.graph(), n.scope(), names, sub, n.describe());
    results[branch] = n.model().import_body(proto, *sub.graph, sub.scope);
    if (results[branch].size() != n.output_count())
      n.fail(fmt::format("a branch gives {} outputs, and the node has {}", results[branch].size(), n.output_count()));
    graphs.push_back(std::move(sub.graph));
  }

  std::vector<Item> flat[2];
  ResultTypes types(n);
  for (size_t i = 0; i < n.output_count(); ++i) {
    if (!same_structure(results[0][i], results[1][i]))
      n.unsupported(
          fmt::format("output {} is a tensor, a sequence or an optional of another structure in each branch", i));
    for (int branch = 0; branch < 2; ++branch) flatten_item(results[branch][i], flat[branch]);
  }
  for (size_t i = 0; i < flat[0].size(); ++i) {
    const op::TensorType& a = graphs[0]->type(flat[0][i].value);
    const op::TensorType& b = graphs[1]->type(flat[1][i].value);
    if (a.dtype != b.dtype) n.fail(fmt::format("the branches give {} and {}", op::to_string(a), op::to_string(b)));
    if (a.rank() != b.rank() && import_pinned_branch(n, then_branch, else_branch)) return;
    if (a.rank() != b.rank())
      n.unsupported(
          fmt::format("the branches give tensors of different rank, {} and {}", op::to_string(a), op::to_string(b)));
    types.add(a.dtype, a.shape, b.shape);
  }
  for (int branch = 0; branch < 2; ++branch) {
    graphs[static_cast<size_t>(branch)]->set_outputs(values_of(flat[branch]));
    ModelImporter::finish_subgraph(*graphs[static_cast<size_t>(branch)]);
  }
  std::vector<ValueId> inputs = {n.reshape(condition, {})};
  inputs.insert(inputs.end(), captures.begin(), captures.end());
  Attrs attrs;
  types.finish(attrs);
  const graph::NodeId node = n.graph().add_control_node("if", std::move(inputs), std::move(attrs), std::move(graphs),
                                                        types.types(), n.origin());
  size_t next = 0;
  for (size_t i = 0; i < n.output_count(); ++i) n.out(i, rebuilt(results[0][i], n.graph().node(node).outputs, next));
}

// ---- Loop and Scan
// ---------------------------------------------------------------------------------------------------

struct LoopSpec {
  const GraphProto* body = nullptr;
  ValueId trip, condition;              // invalid: absent
  std::vector<Item> carried;            // initial values
  std::vector<std::string_view> names;  // captured
  std::optional<Expr> exact_trips;      // when the condition cannot end the loop
  // Defines the body's inputs (in its scope) from the iteration, the condition and the carried values.
  std::function<void(ModelImporter::Subgraph&, ValueId iteration, ValueId condition, std::span<const ValueId> carried)>
      enter;
  // The condition (a bool scalar), the carried values and the scan elements, from what the body gives.
  std::function<void(ModelImporter::Subgraph&, const std::vector<Item>&, ValueId condition_in, ValueId& condition,
                     std::vector<Item>& carried, std::vector<Item>& scans, bool& endless)>
      leave;
};

// 1. The body is imported with the initial values' types. Where a carried size comes out as another expression, it
//    becomes a symbol that the body binds, and the body is imported again; each round frees at least one size.
// 2. What a carried size is after the loop is known only where no size was freed.
std::vector<Item> import_while(NodeImport& n, const LoopSpec& spec) {
  std::vector<op::TensorType> types;
  std::vector<std::vector<char>> free;  // by carried value and dimension
  for (const Item& item : spec.carried) {
    types.push_back(n.type(item.value));
    free.emplace_back(types.back().shape.size(), 0);
  }
  while (true) {
    ModelImporter::Subgraph sub = n.model().begin_subgraph(n.graph(), n.scope(), "body");
    const ValueId iteration = sub.graph->add_input("iteration", {.dtype = DType::I64, .shape = {}});
    const ValueId condition_in = sub.graph->add_input("condition", {.dtype = DType::Bool, .shape = {}});
    std::vector<ValueId> carried_in;
    for (const op::TensorType& type : types) carried_in.push_back(sub.graph->add_input("", type));
    const std::vector<ValueId> captures = n.model().capture(n.graph(), n.scope(), spec.names, sub, n.describe());
    spec.enter(sub, iteration, condition_in, carried_in);
    const std::vector<Item> results = n.model().import_body(*spec.body, *sub.graph, sub.scope);
    ValueId condition;
    std::vector<Item> carried, scans;
    bool endless = false;
    spec.leave(sub, results, condition_in, condition, carried, scans, endless);

    bool freed = false;
    for (size_t i = 0; i < carried.size(); ++i) {
      const op::TensorType& given = sub.graph->type(carried[i].value);
      if (given.dtype != types[i].dtype)
        n.fail(fmt::format("carried value {} is {} and becomes {}", i, op::to_string(types[i]), op::to_string(given)));
      if (given.rank() != types[i].rank())
        n.unsupported(fmt::format("carried value {} changes its rank, from {} to {}", i, op::to_string(types[i]),
                                  op::to_string(given)));
      for (size_t d = 0; d < given.shape.size(); ++d) {
        if (free[i][d] != 0 || given.shape[d] == types[i].shape[d] ||
            sym::prove_equal(given.shape[d], types[i].shape[d], sub.graph->facts()) == sym::Proof::Yes)
          continue;
        types[i].shape[d] = Expr::symbol(n.graph().fresh_symbol("loop"));
        free[i][d] = 1;
        freed = true;
      }
    }
    if (freed) continue;

    ResultTypes result_types(n);
    for (size_t i = 0; i < carried.size(); ++i) {
      const op::TensorType& before = n.type(spec.carried[i].value);
      result_types.add(before.dtype, before.shape, types[i].shape);
    }
    for (const Item& item : scans) {
      const op::TensorType& element = sub.graph->type(item.value);
      result_types.add_stack(element, endless ? spec.exact_trips : std::nullopt);
    }
    std::vector<ValueId> outputs = {condition};
    for (const Item& item : carried) outputs.push_back(item.value);
    for (const Item& item : scans) outputs.push_back(item.value);
    sub.graph->set_outputs(std::move(outputs));
    ModelImporter::finish_subgraph(*sub.graph);
    std::vector<ValueId> inputs = {spec.trip, spec.condition};
    for (const Item& item : spec.carried) inputs.push_back(item.value);
    inputs.insert(inputs.end(), captures.begin(), captures.end());
    Attrs attrs{{"carried", static_cast<int64_t>(carried.size())}, {"scans", static_cast<int64_t>(scans.size())}};
    result_types.finish(attrs);
    std::vector<std::unique_ptr<Graph>> graphs;
    graphs.push_back(std::move(sub.graph));
    const graph::NodeId node = n.graph().add_control_node("while", std::move(inputs), std::move(attrs),
                                                          std::move(graphs), result_types.types(), n.origin());
    std::vector<Item> items = carried;
    items.insert(items.end(), scans.begin(), scans.end());
    for (size_t i = 0; i < items.size(); ++i) items[i].value = n.graph().node(node).outputs[i];
    return items;
  }
}

void check_carried(NodeImport& n, const Item& item, size_t i) {
  if (item.kind != Item::Kind::Tensor)
    n.unsupported(fmt::format("carried value {} is a sequence or an optional; its length would be data", i));
}

// A loop that carries sequences or optionals exists at import only: its trips must be known, and are imported one by
// one.
void import_unrolled_loop(NodeImport& n, const GraphProto& body) {
  constexpr int64_t kMaxTrips = 1024;
  const size_t carried = n.input_count() - 2, scans = body.outputs.size() - 1 - carried;
  const auto trips = n.has(0) ? n.constant_integers(n.in(0)) : std::nullopt;
  if (!trips.has_value() || trips->size() != 1 || (*trips)[0] > kMaxTrips)
    n.unsupported(fmt::format(
        "a loop that carries a sequence or an optional needs a trip count that is known at import and at most {}",
        kMaxTrips));
  const auto known = [&](ValueId condition) {
    const std::optional<bool> value = known_condition(n, condition);
    if (!value.has_value())
      n.unsupported("a loop that carries a sequence or an optional needs a condition that is known at import");
    return *value;
  };
  std::vector<Item> state;
  for (size_t i = 0; i < carried; ++i) state.push_back(n.item(i + 2));
  std::vector<std::vector<ValueId>> stacks(scans);
  bool go_on = !n.has(1) || known(n.in(1));
  for (int64_t trip = 0; go_on && trip < (*trips)[0]; ++trip) {
    NameScope scope;
    scope.items.insert_or_assign(std::string(body.inputs[0].name),
                                 Item::tensor(n.constant(Tensor::of_ints(DType::I64, {}, std::vector<int64_t>{trip}))));
    scope.items.insert_or_assign(std::string(body.inputs[1].name), Item::tensor(n.scalar(DType::Bool, 1)));
    for (size_t i = 0; i < carried; ++i) scope.items.insert_or_assign(std::string(body.inputs[i + 2].name), state[i]);
    const std::vector<Item> results = n.inline_subgraph(body, scope);
    for (size_t i = 0; i < carried; ++i) state[i] = results[1 + i];
    for (size_t i = 0; i < scans; ++i) {
      check_carried(n, results[1 + carried + i], carried + i);
      stacks[i].push_back(n.unsqueeze(results[1 + carried + i].value, {0}));
    }
    check_carried(n, results[0], 0);
    go_on = known(results[0].value);
  }
  for (size_t i = 0; i < carried; ++i) n.out(i, state[i]);
  for (size_t i = 0; i < scans; ++i) {
    if (stacks[i].empty()) n.unsupported("a stack of elements of no trips, whose sizes are not known");
    n.out(carried + i, n.concat(stacks[i], 0));
  }
}

void import_loop(NodeImport& n) {
  LoopSpec spec;
  spec.body = &n.subgraph("body");
  spec.names = ModelImporter::free_names(*spec.body);
  if (n.input_count() < 2 || spec.body->inputs.size() != n.input_count())
    n.fail(fmt::format("has {} inputs, and its body takes {}", n.input_count(), spec.body->inputs.size()));
  const size_t carried = n.input_count() - 2;
  if (spec.body->outputs.size() < 1 + carried)
    n.fail(fmt::format("the body gives {} outputs for {} carried values", spec.body->outputs.size(), carried));
  const size_t scans = spec.body->outputs.size() - 1 - carried;
  for (size_t i = 0; i < carried; ++i) {
    spec.carried.push_back(n.item(i + 2));
    if (spec.carried.back().kind != Item::Kind::Tensor) {
      import_unrolled_loop(n, *spec.body);
      return;
    }
  }
  if (n.has(0)) {
    spec.trip = n.reshape(n.cast(n.in(0), DType::I64), {});
    if (const auto trips = n.contents(spec.trip); trips.has_value())
      spec.exact_trips = n.simplify(sym::max((*trips)[0], 0));
  }
  if (n.has(1)) {
    const std::optional<bool> known = known_condition(n, n.in(1));
    if (known != true) spec.condition = n.reshape(n.in(1), {});
    if (known != true) spec.exact_trips.reset();
  }
  spec.enter = [&](ModelImporter::Subgraph& sub, ValueId iteration, ValueId condition,
                   std::span<const ValueId> values) {
    const auto& inputs = spec.body->inputs;
    sub.scope.items.insert_or_assign(std::string(inputs[0].name), Item::tensor(iteration));
    sub.scope.items.insert_or_assign(std::string(inputs[1].name), Item::tensor(condition));
    for (size_t i = 0; i < values.size(); ++i)
      sub.scope.items.insert_or_assign(std::string(inputs[i + 2].name),
                                       Item::tensor(values[i], spec.carried[i].narrow));
  };
  spec.leave = [&](ModelImporter::Subgraph& sub, const std::vector<Item>& results, ValueId condition_in,
                   ValueId& condition, std::vector<Item>& out_carried, std::vector<Item>& out_scans, bool& endless) {
    for (size_t i = 0; i < results.size(); ++i) check_carried(n, results[i], i);
    condition = results[0].value;
    const Tensor* const constant = sub.graph->constant(condition);
    endless = condition == condition_in || (constant != nullptr && constant->count() == 1 && constant->at(0) != 0);
    if (sub.graph->type(condition).rank() != 0)
      condition = sub.graph->add("reshape", {condition}, {{"shape", Shape{}}}, n.origin());
    for (size_t i = 0; i < carried; ++i) out_carried.push_back(results[1 + i]);
    for (size_t i = 0; i < scans; ++i) out_scans.push_back(results[1 + carried + i]);
  };
  const std::vector<Item> results = import_while(n, spec);
  for (size_t i = 0; i < results.size(); ++i) n.out(i, results[i]);
}

std::vector<int64_t> scan_list(const NodeImport& n, std::string_view name, size_t count) {
  std::vector<int64_t> list = n.integers(name, std::vector<int64_t>(count, 0));
  if (list.size() != count) n.fail(fmt::format("{} has {} entries instead of {}", name, list.size(), count));
  return list;
}

// A loop over slices: the scan inputs are captured whole, and the body reads the iteration's slice.
void import_scan(NodeImport& n) {
  if (n.version() < 9) n.unsupported("Scan of opset 8, with batches and sequence lengths");
  LoopSpec spec;
  spec.body = &n.subgraph("body");
  const auto scan_inputs = static_cast<size_t>(n.integer("num_scan_inputs"));
  if (scan_inputs < 1 || scan_inputs > n.input_count() || spec.body->inputs.size() != n.input_count())
    n.fail(fmt::format("has {} inputs, {} of them scanned, and its body takes {}", n.input_count(), scan_inputs,
                       spec.body->inputs.size()));
  const size_t carried = n.input_count() - scan_inputs;
  if (spec.body->outputs.size() < carried)
    n.fail(fmt::format("the body gives {} outputs for {} states", spec.body->outputs.size(), carried));
  const size_t scans = spec.body->outputs.size() - carried;
  const std::vector<int64_t> in_axes = scan_list(n, "scan_input_axes", scan_inputs),
                             in_reverse = scan_list(n, "scan_input_directions", scan_inputs),
                             out_axes = scan_list(n, "scan_output_axes", scans),
                             out_reverse = scan_list(n, "scan_output_directions", scans);
  for (size_t i = 0; i < carried; ++i) {
    spec.carried.push_back(n.item(i));
    check_carried(n, spec.carried.back(), i);
  }
  const ValueId first = n.in(carried);
  const Expr trips = n.size(first, n.axis(in_axes[0], n.rank(first)));
  spec.trip = n.sym_scalar(trips);
  spec.exact_trips = trips;
  spec.names = ModelImporter::free_names(*spec.body);
  for (size_t i = 0; i < scan_inputs; ++i) {
    const std::string_view name = n.proto().inputs[carried + i];
    if (std::find(spec.names.begin(), spec.names.end(), name) == spec.names.end()) spec.names.push_back(name);
  }
  spec.enter = [&](ModelImporter::Subgraph& sub, ValueId iteration, ValueId, std::span<const ValueId> values) {
    Graph& body = *sub.graph;
    std::vector<Item> slices;
    for (size_t i = 0; i < scan_inputs; ++i) {
      const Item whole = *ModelImporter::find(sub.scope, n.proto().inputs[carried + i]);
      const int64_t axis = n.axis(in_axes[i], body.type(whole.value).rank());
      ValueId index = iteration;
      if (in_reverse[i] != 0) {
        const ValueId last = body.add(
            "sym_value", {}, {{"values", Shape{trips - 1}}, {"dtype", DType::I64}, {"scalar", int64_t{1}}}, n.origin());
        index = body.add("sub", {last, iteration}, {}, n.origin());
      }
      slices.push_back(
          Item::tensor(body.add("gather", {whole.value, index}, {{"axis", axis}}, n.origin()), whole.narrow));
    }
    for (size_t i = 0; i < values.size(); ++i)
      sub.scope.items.insert_or_assign(std::string(spec.body->inputs[i].name),
                                       Item::tensor(values[i], spec.carried[i].narrow));
    for (size_t i = 0; i < scan_inputs; ++i)
      sub.scope.items.insert_or_assign(std::string(spec.body->inputs[carried + i].name), slices[i]);
  };
  spec.leave = [&](ModelImporter::Subgraph& sub, const std::vector<Item>& results, ValueId, ValueId& condition,
                   std::vector<Item>& out_carried, std::vector<Item>& out_scans, bool& endless) {
    condition = sub.graph->add_constant(Tensor::scalar(DType::Bool, 1));
    endless = true;
    for (size_t i = 0; i < results.size(); ++i) {
      check_carried(n, results[i], i);
      (i < carried ? out_carried : out_scans).push_back(results[i]);
    }
  };
  const std::vector<Item> results = import_while(n, spec);
  for (size_t i = 0; i < results.size(); ++i) {
    Item item = results[i];
    if (i >= carried) {
      const int64_t rank = n.rank(item.value), axis = n.axis(out_axes[i - carried], rank);
      if (out_reverse[i - carried] != 0) {
        const Expr count = n.size(item.value, 0);
        item.value = n.slice(item.value, 0, n.simplify(sym::max(count - 1, 0)), count, -1);
      }
      std::vector<int64_t> perm;  // dimension 0 goes to `axis`
      for (int64_t d = 1; d < rank; ++d) perm.push_back(d);
      perm.insert(perm.begin() + axis, 0);
      item.value = n.transpose(item.value, std::move(perm));
    }
    n.out(i, item);
  }
}

// ---- sequences
// -------------------------------------------------------------------------------------------------------

const Item& sequence(NodeImport& n, size_t i) {
  const Item& item = n.item(i);
  if (item.kind != Item::Kind::Sequence) n.fail(fmt::format("input {} is not a sequence", i));
  return item;
}

size_t position(NodeImport& n, size_t input, size_t count) {
  const int64_t given = n.require_integers(n.in(input), "the position in a sequence").at(0);
  const auto size = static_cast<int64_t>(count);
  if (given < -size || given >= size) n.fail(fmt::format("position {} is out of range for {} elements", given, count));
  return static_cast<size_t>(given < 0 ? given + size : given);
}

void import_sequence_construct(NodeImport& n) {
  std::vector<Item> items;
  for (size_t i = 0; i < n.input_count(); ++i) items.push_back(n.item(i));
  n.out(0, Item::sequence(std::move(items)));
}

void import_sequence_insert(NodeImport& n) {
  std::vector<Item> items = sequence(n, 0).items;
  size_t at = items.size();
  if (n.has(2)) {  // from -size (the front) to size (the back)
    const int64_t given = n.require_integers(n.in(2), "the position in a sequence").at(0),
                  size = static_cast<int64_t>(items.size());
    if (given < -size || given > size) n.fail(fmt::format("position {} is out of range for {} elements", given, size));
    at = static_cast<size_t>(given < 0 ? given + size : given);
  }
  items.insert(items.begin() + static_cast<std::ptrdiff_t>(at), n.item(1));
  n.out(0, Item::sequence(std::move(items)));
}

void import_sequence_erase(NodeImport& n) {
  std::vector<Item> items = sequence(n, 0).items;
  if (items.empty()) n.fail("erases from an empty sequence");
  const size_t at = n.has(1) ? position(n, 1, items.size()) : items.size() - 1;
  items.erase(items.begin() + static_cast<std::ptrdiff_t>(at));
  n.out(0, Item::sequence(std::move(items)));
}

void import_sequence_at(NodeImport& n) {
  const std::vector<Item>& items = sequence(n, 0).items;
  const Item chosen = items[position(n, 1, items.size())];
  n.out(0, chosen);
}

void import_sequence_length(NodeImport& n) {
  n.out(n.constant(
      Tensor::of_ints(DType::I64, {}, std::vector<int64_t>{static_cast<int64_t>(sequence(n, 0).items.size())})));
}

void import_split_to_sequence(NodeImport& n) {
  const ValueId x = n.in(0);
  const int64_t axis = n.axis(n.integer("axis", 0), n.rank(x));
  const std::optional<int64_t> size = n.size(x, axis).as_const();
  std::vector<Expr> parts;
  bool keepdims = true;
  if (!n.has(1) || n.rank(n.in(1)) == 0) {  // equal parts, the last one smaller
    if (!size.has_value())
      n.unsupported("splits a dimension of run-time size into a sequence, whose length would be data");
    const int64_t part = n.has(1) ? n.require_integers(n.in(1), "the size of the parts").at(0) : 1;
    if (part < 1) n.fail(fmt::format("the size of the parts is {}", part));
    for (int64_t at = 0; at < *size; at += part) parts.emplace_back(std::min(part, *size - at));
    keepdims = n.has(1) || n.integer("keepdims", 1) != 0;
  } else {
    parts = n.read_sizes(n.in(1));
  }
  std::vector<Item> items;
  Expr start = 0;
  for (const Expr& part : parts) {
    ValueId piece = n.slice(x, axis, start, part);
    if (!keepdims) piece = n.squeeze(piece, {axis});
    items.push_back(Item::tensor(piece));
    start = n.simplify(start + part);
  }
  n.out(0, Item::sequence(std::move(items)));
}

void import_concat_from_sequence(NodeImport& n) {
  std::vector<ValueId> parts = values_of(sequence(n, 0).items);
  if (parts.empty()) n.fail("concatenates an empty sequence");
  const bool new_axis = n.integer("new_axis", 0) != 0;
  const int64_t axis = n.axis(n.integer("axis"), n.rank(parts[0]) + (new_axis ? 1 : 0));
  if (new_axis)
    for (ValueId& part : parts) part = n.unsqueeze(part, {axis});
  n.out(n.concat(std::move(parts), axis));
}

// The body, once for each element; the other inputs are sequences of the same length, or tensors that every element
// sees.
void import_sequence_map(NodeImport& n) {
  const GraphProto& body = n.subgraph("body");
  const size_t length = sequence(n, 0).items.size();
  if (body.inputs.size() != n.input_count())
    n.fail(fmt::format("has {} inputs, and its body takes {}", n.input_count(), body.inputs.size()));
  std::vector<std::vector<Item>> results(body.outputs.size());
  for (size_t k = 0; k < length; ++k) {
    NameScope scope;
    for (size_t i = 0; i < n.input_count(); ++i) {
      const Item& input = n.item(i);
      if (input.kind == Item::Kind::Sequence && input.items.size() != length)
        n.fail(fmt::format("the sequences have {} and {} elements", length, input.items.size()));
      scope.items.emplace(std::string(body.inputs[i].name),
                          input.kind == Item::Kind::Sequence ? input.items[k] : input);
    }
    const std::vector<Item> outputs = n.inline_subgraph(body, scope);
    for (size_t i = 0; i < outputs.size(); ++i) results[i].push_back(outputs[i]);
  }
  for (size_t i = 0; i < results.size(); ++i) n.out(i, Item::sequence(std::move(results[i])));
}

// ---- optionals: a value, or nothing
// ----------------------------------------------------------------------------------

void import_optional(NodeImport& n) {
  n.out(0, n.input_count() > 0 && !n.proto().inputs[0].empty() ? n.item(0) : Item{});
}

void import_optional_has_element(NodeImport& n) {
  const bool has = n.input_count() > 0 && !n.proto().inputs[0].empty() && n.item(0).kind != Item::Kind::Absent;
  n.out(n.scalar(DType::Bool, has ? 1 : 0));
}

void import_optional_get_element(NodeImport& n) {
  if (n.item(0).kind == Item::Kind::Absent) n.fail("reads an optional without a value");
  n.out(0, n.item(0));
}

}  // namespace

void add_control_imports(ImportTable& t) {
  t.add("If", import_if);
  t.add("Loop", import_loop);
  t.add("Scan", import_scan);
  t.add("SequenceConstruct", import_sequence_construct);
  t.add("SequenceEmpty", [](NodeImport& n) { n.out(0, Item::sequence({})); });
  t.add("SequenceInsert", import_sequence_insert);
  t.add("SequenceErase", import_sequence_erase);
  t.add("SequenceAt", import_sequence_at);
  t.add("SequenceLength", import_sequence_length);
  t.add("SequenceMap", import_sequence_map);
  t.add("SplitToSequence", import_split_to_sequence);
  t.add("ConcatFromSequence", import_concat_from_sequence);
  t.add("Optional", import_optional);
  t.add("OptionalHasElement", import_optional_has_element);
  t.add("OptionalGetElement", import_optional_get_element);
}

}  // namespace fuseloom::front::onnx
