#include "graph/graph.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace fuseloom::graph {
namespace {

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
}

std::string legal_name(std::string name) {
  bool digits = true;
  for (char& c : name) {
    if (!is_name_char(c)) c = '_';
    digits = digits && c >= '0' && c <= '9';
  }
  // "_" is the absent input in the text, and digits are unnamed values.
  if (!name.empty() && (digits || name == "_")) name.insert(0, "v");
  return name;
}

std::string with_origin(const char* words, const std::string& origin) {
  return origin.empty() ? std::string(words) : fmt::format("{} (node \"{}\")", words, origin);
}

}  // namespace

Graph Graph::clone() const {
  Graph copy(*table_, name_);
  copy.order_ = nodes();
  copy.values_ = values_;
  copy.inputs_ = inputs_;
  copy.outputs_ = outputs_;
  copy.uses_ = uses_;
  copy.use_count_ = use_count_;
  copy.names_ = names_;
  copy.next_suffix_ = next_suffix_;
  copy.symbols_ = symbols_;
  copy.outer_symbols_ = outer_symbols_;
  copy.facts_ = facts_;
  copy.nodes_.reserve(nodes_.size());
  for (const std::unique_ptr<Node>& node : nodes_) {
    if (node == nullptr) {
      copy.nodes_.push_back(nullptr);
      continue;
    }
    auto twin = std::make_unique<Node>(Node{
        .op = node->op, .inputs = node->inputs, .outputs = node->outputs, .attrs = node->attrs, .subgraphs = {}, .origin = node->origin});
    for (const std::unique_ptr<Graph>& subgraph : node->subgraphs)
      twin->subgraphs.push_back(std::make_unique<Graph>(subgraph->clone()));
    copy.nodes_.push_back(std::move(twin));
  }
  return copy;
}

// ---- reading ---------------------------------------------------------------------------------------------------------

const Tensor* Graph::constant(ValueId id) const {
  const Node* node = producer(id);
  return node != nullptr && node->op->name == "constant" ? &node->attrs.tensor("value") : nullptr;
}

std::vector<std::vector<NodeId>> Graph::users() const {
  std::vector<std::vector<NodeId>> users(values_.size());
  for (const NodeId id : nodes())
    for (const ValueId input : node(id).inputs)
      if (input.valid()) users[static_cast<size_t>(input.index)].push_back(id);
  return users;
}

std::string Graph::describe(NodeId id) const {
  const Node& n = node(id);
  std::string text = n.op->name;
  if (!n.origin.empty()) return text + fmt::format(" (node \"{}\")", n.origin);
  if (!n.outputs.empty() && !value(n.outputs[0]).name.empty()) return text + fmt::format(" (%{})", value(n.outputs[0]).name);
  const std::vector<NodeId>& order = nodes();
  return text + fmt::format(" (node {} of {})", std::find(order.begin(), order.end(), id) - order.begin() + 1, order.size());
}

// ---- symbols ---------------------------------------------------------------------------------------------------------

void Graph::learn_size(const std::string& symbol) {
  symbols_.insert(symbol);
  facts_.symbols.emplace(symbol, sym::Facts::size());
}

void Graph::learn_symbols(const op::Shape& shape) {
  for (const sym::Expr& size : shape)
    for (const std::string& symbol : sym::symbols_of(size)) learn_size(symbol);
}

void Graph::learn_at_most(const std::string& symbol, int64_t high) {
  sym::Range& range = facts_.symbols.try_emplace(symbol).first->second;
  if (range.high <= high) return;
  range.high = high;
  for (const std::unique_ptr<Node>& node : nodes_) {
    if (node == nullptr) continue;
    for (const std::unique_ptr<Graph>& subgraph : node->subgraphs) {
      const std::vector<std::string>& outer = subgraph->outer_symbols_;
      if (std::find(outer.begin(), outer.end(), symbol) != outer.end()) subgraph->learn_at_most(symbol, high);
    }
  }
}

namespace {

// Whether two sizes are equal for every size of a symbol, by looking at 0 and at the rest apart: n + min(n, 1) - 1 is n, but
// for n = 0. Both must be simplified.
bool equal_by_cases(const sym::Expr& a, const sym::Expr& b, const sym::Facts& facts) {
  if (sym::prove_equal(a, b, facts) == sym::Proof::Yes) return true;
  std::set<std::string> symbols = sym::symbols_of(a);
  sym::collect_symbols(b, symbols);
  for (const std::string& symbol : symbols) {
    const auto known = facts.symbols.find(symbol);
    if (known == facts.symbols.end() || known->second.low != 0 || known->second.high == 0) continue;
    sym::Facts positive = facts;
    positive.symbols[symbol].low = 1;
    const sym::Substitution zero{{symbol, sym::Expr(0)}};
    if (sym::prove_equal(sym::simplify(a, positive), sym::simplify(b, positive), positive) == sym::Proof::Yes &&
        sym::prove_equal(sym::substitute(a, zero), sym::substitute(b, zero), facts) == sym::Proof::Yes)
      return true;
  }
  return false;
}

// c when the size is min(n, c) for c >= 2: such a size is 1 only where n is.
std::optional<int64_t> capped_at(const sym::Expr& size, const sym::Expr& symbol) {
  if (size.kind() != sym::Kind::Min) return std::nullopt;
  int64_t cap = sym::Range::kMax;
  bool found = false;
  for (const sym::Expr& arg : size.args()) {
    if (arg == symbol) {
      found = true;
    } else if (arg.is_const() && *arg.as_const() >= 2) {
      cap = std::min(cap, *arg.as_const());
    } else {
      return std::nullopt;
    }
  }
  return found ? std::optional(cap) : std::nullopt;
}

}  // namespace

sym::Expr Graph::broadcast(const sym::Expr& a, const sym::Expr& b) {
  const sym::Expr x = sym::simplify(a, facts_), y = sym::simplify(b, facts_);
  if (x == y || x.is_const() || y.is_const()) return op::broadcast_size(x, y);
  for (const auto& [size, symbol] : {std::pair(x, y), std::pair(y, x)}) {
    if (!symbol.is_symbol()) continue;
    // The range of an outer symbol is not this graph's to narrow: the branch may never run.
    if (std::find(outer_symbols_.begin(), outer_symbols_.end(), symbol.name()) != outer_symbols_.end()) continue;
    if (const std::optional<int64_t> cap = capped_at(size, symbol)) {
      learn_at_most(symbol.name(), *cap);
      return symbol;
    }
  }
  if (equal_by_cases(x, y, facts_)) return x.is_symbol() || !(y.is_symbol() || y < x) ? x : y;
  return sym::simplify(op::broadcast_size(x, y), facts_);
}

op::Shape Graph::broadcast(const op::Shape& a, const op::Shape& b) {
  const op::Shape &longer = a.size() >= b.size() ? a : b, &shorter = a.size() >= b.size() ? b : a;
  op::Shape result = longer;
  const size_t lead = longer.size() - shorter.size();
  for (size_t i = 0; i < shorter.size(); ++i) result[lead + i] = broadcast(longer[lead + i], shorter[i]);
  return result;
}

void Graph::set_outer_symbols(std::vector<std::string> symbols) {
  outer_symbols_ = std::move(symbols);
  for (const std::string& symbol : outer_symbols_) learn_size(symbol);
}

std::string Graph::fresh_symbol(std::string_view prefix) {
  int64_t& next = next_suffix_["<" + std::string(prefix)];
  while (true) {
    std::string name = fmt::format("{}{}", prefix, next++);
    if (facts_.symbols.contains(name)) continue;
    if (symbols_.insert(name).second) return name;
  }
}

void Graph::substitute_symbols(const sym::Substitution& by) {
  if (by.empty()) return;
  const auto in_shape = [&](const op::Shape& shape) {
    op::Shape result;
    for (const sym::Expr& size : shape) {
      const sym::Expr replaced = sym::substitute(size, by);
      result.push_back(replaced.same_node(size) ? size : sym::simplify(replaced, facts_));
    }
    return result;
  };
  for (Value& value : values_)
    if (std::any_of(value.type.shape.begin(), value.type.shape.end(), [](const sym::Expr& e) { return !e.is_const(); }))
      value.type.shape = in_shape(value.type.shape);
  for (const std::unique_ptr<Node>& node : nodes_) {
    if (node == nullptr) continue;
    op::Attrs attrs = node->attrs;
    bool changed = false;
    for (const auto& [name, attr] : node->attrs.all()) {
      const op::Shape* shape = std::get_if<op::Shape>(&attr);
      if (shape == nullptr || name == "defines") continue;
      op::Shape replaced = in_shape(*shape);
      if (replaced == *shape) continue;
      attrs.set(name, std::move(replaced));
      changed = true;
    }
    if (changed) node->attrs = std::move(attrs);
    for (const std::unique_ptr<Graph>& subgraph : node->subgraphs) subgraph->replace_outer_symbols(by, facts_);
  }
  for (const auto& [symbol, unused] : by) facts_.symbols.erase(symbol);
  for (sym::Expr& expr : facts_.nonzero) expr = sym::substitute(expr, by);
  std::erase_if(facts_.nonzero, [](const sym::Expr& expr) { return expr.is_const(); });
}

void Graph::replace_outer_symbols(const sym::Substitution& by, const sym::Facts& outer_facts) {
  sym::Substitution inner;
  std::set<std::string> outer;
  for (const std::string& symbol : outer_symbols_) {
    const auto found = by.find(symbol);
    if (found == by.end() || found->second == sym::Expr::symbol(symbol)) {
      outer.insert(symbol);
    } else {
      inner.insert(*found);
      sym::collect_symbols(found->second, outer);
    }
  }
  if (inner.empty()) return;
  // A symbol that comes in must not meet one that this graph binds itself under the same name.
  std::vector<std::string> clashes;
  for (const std::string& symbol : outer)
    if (symbols_.contains(symbol) && std::find(outer_symbols_.begin(), outer_symbols_.end(), symbol) == outer_symbols_.end())
      clashes.push_back(symbol);
  symbols_.insert(outer.begin(), outer.end());
  for (const std::string& symbol : clashes) rename_symbol(symbol);
  for (const std::string& symbol : outer) {
    const auto fact = outer_facts.symbols.find(symbol);
    if (fact != outer_facts.symbols.end()) facts_.symbols.insert(*fact);
  }
  substitute_symbols(inner);
  outer_symbols_.assign(outer.begin(), outer.end());
}

void Graph::rename_symbol(const std::string& symbol) {
  const std::string fresh = fresh_symbol(symbol + "_");
  const auto fact = facts_.symbols.find(symbol);
  if (fact != facts_.symbols.end()) facts_.symbols.emplace(fresh, fact->second);
  const sym::Expr replacement = sym::Expr::symbol(fresh);
  for (const std::unique_ptr<Node>& node : nodes_) {
    if (node == nullptr || !node->attrs.has("defines")) continue;
    op::Shape defines = node->attrs.shape("defines");
    for (sym::Expr& defined : defines)
      if (defined.is_symbol() && defined.name() == symbol) defined = replacement;
    node->attrs.set("defines", std::move(defines));
  }
  substitute_symbols({{symbol, replacement}});
}

// ---- building --------------------------------------------------------------------------------------------------------

std::string Graph::unique_name(std::string name) {
  name = legal_name(std::move(name));
  if (name.empty() || names_.insert(name).second) return name;
  int64_t& next = next_suffix_[name];
  while (true) {
    std::string candidate = fmt::format("{}.{}", name, ++next);
    if (names_.insert(candidate).second) return candidate;
  }
}

void Graph::set_value_name(ValueId id, std::string name) {
  Value& value = values_[static_cast<size_t>(id.index)];
  if (value.name == name) return;
  if (!value.name.empty()) names_.erase(value.name);
  value.name = unique_name(std::move(name));
}

ValueId Graph::new_value(op::TensorType type, NodeId producer, int32_t output_index) {
  const ValueId id{static_cast<int32_t>(values_.size())};
  values_.push_back(Value{.type = std::move(type), .name = "", .producer = producer, .output_index = output_index});
  uses_.emplace_back();
  use_count_.push_back(0);
  return id;
}

ValueId Graph::add_input(std::string name, op::TensorType type) {
  learn_symbols(type.shape);
  const ValueId id = new_value(std::move(type), NodeId{}, static_cast<int32_t>(inputs_.size()));
  set_value_name(id, std::move(name));
  inputs_.push_back(id);
  return id;
}

void Graph::check_input(ValueId id, std::string_view op) const {
  FL_CHECK(id.index < value_count(), "{}: input value {} does not exist", op, id.index);
  const Value& value = this->value(id);
  FL_CHECK(!value.producer.valid() || has_node(value.producer), "{}: the node of input value {} was removed", op, id.index);
}

NodeId Graph::insert_node(std::unique_ptr<Node> node, std::vector<op::TensorType> output_types) {
  const NodeId id{static_cast<int32_t>(nodes_.size())};
  if (node->attrs.has("defines")) {
    for (const sym::Expr& defined : node->attrs.shape("defines")) {
      FL_REQUIRE(defined.is_symbol(), "{}: `defines` lists {}, which is not a symbol", node->op->name, sym::to_string(defined));
      // The elements of a tensor can be any integer; every other defined symbol is a size.
      if (node->op->name == "bind_symbols") {
        symbols_.insert(defined.name());
      } else {
        learn_size(defined.name());
      }
    }
  }
  for (size_t i = 0; i < output_types.size(); ++i) {
    for (sym::Expr& size : output_types[i].shape) size = sym::simplify(size, facts_);
    node->outputs.push_back(new_value(std::move(output_types[i]), id, static_cast<int32_t>(i)));
  }
  for (const ValueId input : node->inputs)
    if (input.valid()) add_use(input, id);
  nodes_.push_back(std::move(node));
  if (insertion_point_.valid()) {
    pending_.emplace_back(insertion_point_, id);
  } else {
    order_.push_back(id);
  }
  return id;
}

NodeId Graph::add_node(std::string_view op, std::vector<ValueId> inputs, op::Attrs attrs, int64_t output_count,
                       std::string origin) {
  const op::OpRecord& record = table_->at(op);
  std::vector<op::TensorType> types;
  std::vector<char> present;
  for (const ValueId input : inputs) {
    if (input.valid()) check_input(input, op);
    types.push_back(input.valid() ? type(input) : op::TensorType{});
    present.push_back(input.valid() ? 1 : 0);
  }
  std::vector<op::TensorType> output_types;
  try {
    FL_REQUIRE(record.family != op::Family::Control, "{} needs subgraphs", op);
    output_types = op::infer_types(record, types, present, attrs, output_count);
  } catch (const UserError& error) {
    throw UserError(with_origin(error.what(), origin));
  } catch (const Unsupported& error) {
    throw Unsupported(with_origin(error.what(), origin));
  }
  if (record.family == op::Family::Elementwise && inputs.size() > 1 &&
      std::any_of(output_types[0].shape.begin(), output_types[0].shape.end(), [](const sym::Expr& e) { return e.kind() == sym::Kind::Select; })) {
    op::Shape shape = types[0].shape;
    for (size_t i = 1; i < types.size(); ++i) shape = broadcast(shape, types[i].shape);
    output_types[0].shape = std::move(shape);
  }
  FL_CHECK(static_cast<int64_t>(output_types.size()) == output_count, "{}: inference gives {} types for {} outputs", op,
           output_types.size(), output_count);
  auto node = std::make_unique<Node>(Node{
      .op = &record, .inputs = std::move(inputs), .outputs = {}, .attrs = std::move(attrs), .subgraphs = {}, .origin = std::move(origin)});
  return insert_node(std::move(node), std::move(output_types));
}

NodeId Graph::add_control_node(std::string_view op, std::vector<ValueId> inputs, op::Attrs attrs,
                               std::vector<std::unique_ptr<Graph>> subgraphs, std::vector<op::TensorType> output_types,
                               std::string origin) {
  const op::OpRecord& record = table_->at(op);
  for (const ValueId input : inputs)
    if (input.valid()) check_input(input, op);
  for (const std::unique_ptr<Graph>& subgraph : subgraphs) {
    FL_CHECK(subgraph != nullptr, "{}: a subgraph is missing", op);
    // What is known outside is known inside.
    for (const std::string& symbol : subgraph->outer_symbols_) {
      const auto fact = facts_.symbols.find(symbol);
      const auto inner = subgraph->facts_.symbols.find(symbol);
      if (fact != facts_.symbols.end() && inner != subgraph->facts_.symbols.end()) inner->second = fact->second;
      if (fact == facts_.symbols.end()) subgraph->facts_.symbols.erase(symbol);
    }
  }
  auto node = std::make_unique<Node>(Node{.op = &record,
                                          .inputs = std::move(inputs),
                                          .outputs = {},
                                          .attrs = std::move(attrs),
                                          .subgraphs = std::move(subgraphs),
                                          .origin = std::move(origin)});
  const std::string problem = control_problem(*this, *node, output_types);
  FL_REQUIRE(problem.empty(), "{}", with_origin(problem.c_str(), node->origin));
  return insert_node(std::move(node), std::move(output_types));
}

ValueId Graph::add(std::string_view op, std::vector<ValueId> inputs, op::Attrs attrs, std::string origin) {
  return node(add_node(op, std::move(inputs), std::move(attrs), 1, std::move(origin))).outputs[0];
}

ValueId Graph::add_constant(Tensor value, std::string name) {
  const ValueId id = add("constant", {}, {{"value", std::move(value)}});
  if (!name.empty()) set_value_name(id, std::move(name));
  return id;
}

void Graph::set_outputs(std::vector<ValueId> outputs) {
  for (const ValueId output : outputs_) drop_use(output);
  outputs_ = std::move(outputs);
  for (const ValueId output : outputs_) {
    FL_CHECK(output.valid() && output.index < value_count(), "output value {} does not exist", output.index);
    ++use_count_[static_cast<size_t>(output.index)];
  }
}

// ---- rewriting -------------------------------------------------------------------------------------------------------

void Graph::add_use(ValueId value, NodeId user) {
  uses_[static_cast<size_t>(value.index)].push_back(user);
  ++use_count_[static_cast<size_t>(value.index)];
}

void Graph::drop_use(ValueId value) { --use_count_[static_cast<size_t>(value.index)]; }

void Graph::set_insertion_point(NodeId before) {
  FL_CHECK(!before.valid() || has_node(before), "the insertion point was removed");
  insertion_point_ = before;
  if (!before.valid() && !pending_.empty()) merge_pending();
}

void Graph::merge_pending() const {
  std::unordered_map<int32_t, std::vector<NodeId>> before;
  for (const auto& [anchor, node] : pending_) before[anchor.index].push_back(node);
  pending_.clear();
  std::vector<NodeId> merged;
  merged.reserve(nodes_.size());
  // An inserted node can itself be an insertion point: a stack of what is still to be placed.
  std::vector<std::pair<NodeId, bool>> stack;
  for (const NodeId id : order_) {
    stack.emplace_back(id, false);
    while (!stack.empty()) {
      const auto [top, expanded] = stack.back();
      stack.pop_back();
      const auto found = expanded ? before.end() : before.find(top.index);
      if (found == before.end()) {
        merged.push_back(top);
        continue;
      }
      stack.emplace_back(top, true);
      for (auto it = found->second.rbegin(); it != found->second.rend(); ++it) stack.emplace_back(*it, false);
    }
  }
  order_ = std::move(merged);
}

void Graph::replace_uses(ValueId old_value, ValueId new_value) {
  if (old_value == new_value) return;
  const Value& from = value(old_value);
  const Value& to = value(new_value);
  FL_CHECK(from.type.dtype == to.type.dtype && from.type.rank() == to.type.rank(), "a use of {} cannot become {}",
           op::to_string(from.type), op::to_string(to.type));
  const std::vector<NodeId> users = std::exchange(uses_[static_cast<size_t>(old_value.index)], {});
  for (const NodeId user : users) {
    if (!has_node(user)) continue;
    for (ValueId& input : mutable_node(user).inputs) {
      if (input != old_value) continue;
      input = new_value;
      drop_use(old_value);
      add_use(new_value, user);
    }
  }
  if (use_count(old_value) > 0) {
    for (ValueId& output : outputs_) {
      if (output != old_value) continue;
      output = new_value;
      drop_use(old_value);
      ++use_count_[static_cast<size_t>(new_value.index)];
    }
  }
  if (to.name.empty() && !from.name.empty() && from.producer.valid())
    std::swap(values_[static_cast<size_t>(new_value.index)].name, values_[static_cast<size_t>(old_value.index)].name);
}

void Graph::replace_input(NodeId id, size_t index, ValueId value) {
  Node& node = mutable_node(id);
  FL_CHECK(index < node.inputs.size(), "{} has no input {}", describe(id), index);
  if (value.valid()) check_input(value, node.op->name);
  if (node.inputs[index].valid()) drop_use(node.inputs[index]);
  node.inputs[index] = value;
  if (value.valid()) add_use(value, id);
}

void Graph::remove_node(NodeId id) { remove_nodes(std::span(&id, 1)); }

void Graph::remove_nodes(std::span<const NodeId> ids) {
  if (ids.empty()) return;
  nodes();
  for (const NodeId id : ids) {
    FL_CHECK(has_node(id), "node {} was removed before", id.index);
    for (const ValueId input : node(id).inputs)
      if (input.valid()) drop_use(input);
  }
  for (const NodeId id : ids) {
    for (const ValueId output : node(id).outputs) {
      FL_CHECK(use_count(output) == 0, "{} is removed while its output {} is used", describe(id), value(output).output_index);
      Value& dead = values_[static_cast<size_t>(output.index)];
      if (!dead.name.empty()) names_.erase(dead.name);
      dead.name.clear();
      uses_[static_cast<size_t>(output.index)] = {};
    }
    nodes_[static_cast<size_t>(id.index)].reset();
  }
  std::erase_if(order_, [&](NodeId id) { return !has_node(id); });
}

void Graph::set_attrs(NodeId id, op::Attrs attrs) { mutable_node(id).attrs = std::move(attrs); }

Graph& Graph::subgraph(NodeId id, size_t index) { return *mutable_node(id).subgraphs.at(index); }

void Graph::refine_type(ValueId id, op::TensorType type) {
  Value& value = values_[static_cast<size_t>(id.index)];
  FL_CHECK(value.type.dtype == type.dtype && value.type.rank() == type.rank(), "{} cannot be refined to {}",
           op::to_string(value.type), op::to_string(type));
  value.type = std::move(type);
}

// ---- control ---------------------------------------------------------------------------------------------------------

namespace {

bool may_equal(const op::Shape& a, const op::Shape& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i].is_const() && b[i].is_const() && !(a[i] == b[i])) return false;
  return true;
}

bool is_scalar(const op::TensorType& type, DType dtype) { return type.dtype == dtype && type.rank() == 0; }

std::set<std::string> defined_symbols(const op::Attrs& attrs) {
  std::set<std::string> names;
  if (!attrs.has("defines")) return names;
  for (const sym::Expr& defined : attrs.shape("defines")) sym::collect_symbols(defined, names);
  return names;
}

// The symbols of `defines` in the order in which the output types use them.
bool defines_in_order(const op::Attrs& attrs, std::span<const op::TensorType> types) {
  const std::set<std::string> defined = defined_symbols(attrs);
  std::vector<std::string> found;
  for (const op::TensorType& type : types)
    for (const sym::Expr& size : type.shape)
      if (size.is_symbol() && defined.contains(size.name())) found.push_back(size.name());
  const op::Shape listed = attrs.has("defines") ? attrs.shape("defines") : op::Shape{};
  if (listed.size() != found.size()) return false;
  for (size_t i = 0; i < found.size(); ++i)
    if (!listed[i].is_symbol() || listed[i].name() != found[i]) return false;
  return true;
}

}  // namespace

std::string control_problem(const Graph& graph, const Node& node, std::span<const op::TensorType> output_types) {
  const std::string& op = node.op->name;
  const auto outer_type = [&](size_t i) -> const op::TensorType& { return graph.type(node.inputs[i]); };
  // Subgraph types speak of their own symbols: only sizes that are constant on both sides can clash.
  const auto same = [](const op::TensorType& a, const op::TensorType& b) {
    return a.dtype == b.dtype && may_equal(a.shape, b.shape);
  };
  const auto same_kind = [](const op::TensorType& a, const op::TensorType& b) {
    return a.dtype == b.dtype && a.rank() == b.rank();
  };
  if (!defines_in_order(node.attrs, output_types))
    return fmt::format("{}: `defines` does not list the symbols that the result types introduce, in their order", op);
  if (op == "if") {
    if (node.subgraphs.size() != 2) return fmt::format("if: {} subgraphs instead of then and else", node.subgraphs.size());
    if (node.inputs.empty() || !node.inputs[0].valid() || !is_scalar(outer_type(0), DType::Bool))
      return "if: the condition must be bool[]";
    for (size_t branch = 0; branch < 2; ++branch) {
      const Graph& sub = *node.subgraphs[branch];
      const char* label = branch == 0 ? "then" : "else";
      if (sub.inputs().size() + 1 != node.inputs.size())
        return fmt::format("if: {} takes {} values, the node passes {}", label, sub.inputs().size(), node.inputs.size() - 1);
      for (size_t i = 0; i < sub.inputs().size(); ++i) {
        if (!node.inputs[i + 1].valid()) return fmt::format("if: capture {} is absent", i);
        if (!same(sub.type(sub.inputs()[i]), outer_type(i + 1)))
          return fmt::format("if: {} takes {} as input {}, the node passes {}", label, op::to_string(sub.type(sub.inputs()[i])), i,
                             op::to_string(outer_type(i + 1)));
      }
      if (sub.outputs().size() != output_types.size())
        return fmt::format("if: {} returns {} values, the node has {} results", label, sub.outputs().size(), output_types.size());
      for (size_t i = 0; i < output_types.size(); ++i) {
        const op::TensorType& given = sub.type(sub.outputs()[i]);
        if (!same(given, output_types[i]))
          return fmt::format("if: {} returns {} as output {}, the result has type {}", label, op::to_string(given), i,
                             op::to_string(output_types[i]));
      }
    }
    return "";
  }
  if (op == "while") {
    if (node.subgraphs.size() != 1) return fmt::format("while: {} subgraphs instead of one body", node.subgraphs.size());
    const int64_t carried = node.attrs.integer("carried"), scans = node.attrs.integer("scans");
    const Graph& body = *node.subgraphs[0];
    const auto inputs = static_cast<int64_t>(node.inputs.size());
    if (carried < 0 || scans < 0 || inputs < 2 + carried)
      return fmt::format("while: {} inputs for trip, cond and {} carried values", inputs, carried);
    if (node.inputs[0].valid() && !is_scalar(outer_type(0), DType::I64)) return "while: the trip count must be i64[]";
    if (node.inputs[1].valid() && !is_scalar(outer_type(1), DType::Bool)) return "while: the condition must be bool[]";
    if (body.inputs().size() != node.inputs.size())
      return fmt::format("while: the body takes {} values instead of {}", body.inputs().size(), inputs);
    if (static_cast<int64_t>(body.outputs().size()) != 1 + carried + scans)
      return fmt::format("while: the body returns {} values instead of {}", body.outputs().size(), 1 + carried + scans);
    if (static_cast<int64_t>(output_types.size()) != carried + scans)
      return fmt::format("while: {} results instead of {}", output_types.size(), carried + scans);
    if (!is_scalar(body.type(body.inputs()[0]), DType::I64)) return "while: the body's first input must be the iteration, i64[]";
    if (!is_scalar(body.type(body.inputs()[1]), DType::Bool)) return "while: the body's second input must be the condition, bool[]";
    if (!is_scalar(body.type(body.outputs()[0]), DType::Bool)) return "while: the body's first output must be the condition, bool[]";
    for (int64_t i = 2; i < inputs; ++i) {
      const auto at = static_cast<size_t>(i);
      if (!node.inputs[at].valid()) return fmt::format("while: input {} is absent", i);
      if (!same(body.type(body.inputs()[at]), outer_type(at)))
        return fmt::format("while: the body takes {} as input {}, the node passes {}", op::to_string(body.type(body.inputs()[at])), i,
                           op::to_string(outer_type(at)));
    }
    for (int64_t i = 0; i < carried; ++i) {
      const op::TensorType& given = body.type(body.outputs()[static_cast<size_t>(1 + i)]);
      const op::TensorType& taken = body.type(body.inputs()[static_cast<size_t>(2 + i)]);
      const op::TensorType& result = output_types[static_cast<size_t>(i)];
      if (!same(given, taken) || !same_kind(given, result))
        return fmt::format("while: carried value {} goes in as {}, comes out as {}, results in {}", i, op::to_string(taken),
                           op::to_string(given), op::to_string(result));
    }
    for (int64_t i = 0; i < scans; ++i) {
      const op::TensorType& element = body.type(body.outputs()[static_cast<size_t>(1 + carried + i)]);
      const op::TensorType& result = output_types[static_cast<size_t>(carried + i)];
      if (element.dtype != result.dtype || element.rank() + 1 != result.rank())
        return fmt::format("while: scan {} stacks elements {} into {}", i, op::to_string(element), op::to_string(result));
    }
    return "";
  }
  return fmt::format("{}: unknown control op", op);
}

// ---- decompositions --------------------------------------------------------------------------------------------------

std::vector<op::Val> GraphOpBuilder::apply_many(std::string_view op, std::vector<op::Val> inputs, op::Attrs attrs, int64_t outputs) {
  std::vector<ValueId> values;
  for (const op::Val input : inputs) values.push_back(ValueId{input.valid() ? input.id : -1});
  const NodeId id = graph_.add_node(op, std::move(values), std::move(attrs), outputs, origin_);
  std::vector<op::Val> results;
  for (const ValueId output : graph_.node(id).outputs) results.push_back(op::Val{output.index});
  return results;
}

op::TensorType GraphOpBuilder::type(op::Val value) const { return graph_.type(ValueId{value.id}); }

}  // namespace fuseloom::graph
