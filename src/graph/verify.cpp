#include "graph/verify.h"

#include <set>
#include <unordered_map>

#include "base/check.h"

namespace fuseloom::graph {
namespace {

class Verifier {
 public:
  explicit Verifier(const Graph& graph) : graph_(graph), defined_(static_cast<size_t>(graph.value_count()), 0) {}

  void run() {
    check_inputs();
    for (const NodeId id : graph_.nodes()) check_node(id);
    for (size_t i = 0; i < graph_.outputs().size(); ++i) {
      const ValueId output = graph_.outputs()[i];
      FL_CHECK(is_defined(output), "graph {}: output {} is not defined", graph_.name(), i);
      ++uses_[output.index];
    }
    for (int32_t i = 0; i < graph_.value_count(); ++i) {
      const auto found = uses_.find(i);
      const int64_t expected = found == uses_.end() ? 0 : found->second;
      FL_CHECK(graph_.use_count(ValueId{i}) == expected, "graph {}: value {} has {} uses, but {} are counted", graph_.name(), i, expected,
               graph_.use_count(ValueId{i}));
    }
  }

 private:
  bool is_defined(ValueId id) const {
    return id.valid() && id.index < graph_.value_count() && defined_[static_cast<size_t>(id.index)] != 0;
  }

  void define(ValueId id, const std::string& where) {
    FL_CHECK(id.valid() && id.index < graph_.value_count(), "{}: a value that does not exist", where);
    FL_CHECK(!is_defined(id), "{}: value {} is defined twice", where, id.index);
    defined_[static_cast<size_t>(id.index)] = 1;
    const std::string& name = graph_.value(id).name;
    FL_CHECK(name.empty() || names_.insert(name).second, "{}: the name %{} is used twice", where, name);
  }

  // Bare symbols bind, then compound sizes with one missing symbol, until nothing moves (evaluate.h does the same).
  void check_inputs() {
    bound_.insert(graph_.outer_symbols().begin(), graph_.outer_symbols().end());
    std::vector<std::pair<size_t, sym::Expr>> compound;
    for (size_t i = 0; i < graph_.inputs().size(); ++i) {
      const ValueId input = graph_.inputs()[i];
      define(input, fmt::format("graph {}, input {}", graph_.name(), i));
      const Value& value = graph_.value(input);
      FL_CHECK(!value.producer.valid() && value.output_index == static_cast<int32_t>(i), "graph {}: input {} has a wrong producer or index",
               graph_.name(), i);
      for (const sym::Expr& size : value.type.shape) {
        if (size.is_symbol()) {
          bound_.insert(size.name());
        } else if (!size.is_const()) {
          compound.emplace_back(i, size);
        }
      }
    }
    for (bool moved = true; moved;) {
      moved = false;
      std::erase_if(compound, [&](const auto& entry) {
        std::vector<std::string> missing;
        for (const std::string& symbol : sym::symbols_of(entry.second))
          if (!bound_.contains(symbol)) missing.push_back(symbol);
        if (missing.size() == 1 && sym::solve_for(entry.second, missing[0], sym::Expr::symbol("target"), graph_.facts()).has_value()) {
          bound_.insert(missing[0]);
          missing.clear();
          moved = true;
        }
        return missing.empty();
      });
    }
    FL_CHECK(compound.empty(), "graph {}: nothing binds the symbols of size {} of input %{}", graph_.name(),
             sym::to_string(compound[0].second), graph_.value(graph_.inputs()[compound[0].first]).name);
  }

  void check_bound(const op::Shape& shape, const std::string& where) const {
    for (const sym::Expr& size : shape) {
      if (size.is_const()) continue;
      for (const std::string& symbol : sym::symbols_of(size))
        FL_CHECK(bound_.contains(symbol), "{}: symbol {} of {} is not bound here", where, symbol, op::to_string(shape));
    }
  }

  void check_node(NodeId id) {
    FL_CHECK(graph_.has_node(id), "graph {}: a removed node is in the order", graph_.name());
    const Node& node = graph_.node(id);
    const std::string where = node_name(node);
    FL_CHECK(node.op != nullptr && graph_.table().find(node.op->name) == node.op, "{}: the record is not of this graph's op table", where);
    std::vector<op::TensorType> types;
    std::vector<char> present;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId input = node.inputs[i];
      FL_CHECK(!input.valid() || is_defined(input), "{}: input {} is not defined before it", where, i);
      types.push_back(input.valid() ? graph_.type(input) : op::TensorType{});
      present.push_back(input.valid() ? 1 : 0);
      if (input.valid()) ++uses_[input.index];
    }
    std::set<std::string> defines;
    if (node.attrs.has("defines")) {
      for (const sym::Expr& defined : node.attrs.shape("defines")) {
        FL_CHECK(defined.is_symbol(), "{}: `defines` lists {}, which is not a symbol", where, sym::to_string(defined));
        FL_CHECK(!bound_.contains(defined.name()) && defines.insert(defined.name()).second, "{}: symbol {} is defined twice", where,
                 defined.name());
      }
    }
    for (const auto& [name, attr] : node.attrs.all())
      if (const op::Shape* shape = std::get_if<op::Shape>(&attr); shape != nullptr && name != "defines")
        check_bound(*shape, where + ", attribute " + name);
    bound_.insert(defines.begin(), defines.end());
    std::set<std::string> introduced;
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      define(node.outputs[i], where);
      const Value& value = graph_.value(node.outputs[i]);
      FL_CHECK(value.producer == id && value.output_index == static_cast<int32_t>(i), "{}: output {} has a wrong producer or index", where, i);
      check_bound(value.type.shape, where);
      for (const sym::Expr& size : value.type.shape)
        if (size.is_symbol()) introduced.insert(size.name());
    }
    // A symbol gets its value from an element (bind_symbols) or from a size that is the bare symbol.
    if (node.op->name != "bind_symbols")
      for (const std::string& symbol : defines)
        FL_CHECK(introduced.contains(symbol), "{}: no output has the size {} that `defines` lists", where, symbol);
    check_types(node, where, types, present);
    for (const std::unique_ptr<Graph>& subgraph : node.subgraphs) {
      for (const std::string& symbol : subgraph->outer_symbols())
        FL_CHECK(bound_.contains(symbol) && !defines.contains(symbol), "{}: outer symbol {} of a subgraph is not bound here", where, symbol);
      Verifier(*subgraph).run();
    }
  }

  void check_types(const Node& node, const std::string& where, std::span<const op::TensorType> types, std::span<const char> present) {
    std::vector<op::TensorType> outputs;
    for (const ValueId output : node.outputs) outputs.push_back(graph_.type(output));
    if (node.op->family == op::Family::Control) {
      const std::string problem = control_problem(graph_, node, outputs);
      FL_CHECK(problem.empty(), "{}: {}", where, problem);
      return;
    }
    std::vector<op::TensorType> inferred;
    try {
      inferred = op::infer_types(*node.op, types, present, node.attrs, static_cast<int64_t>(outputs.size()));
    } catch (const UserError& error) {
      throw InternalError(fmt::format("{}: {}", where, error.what()));
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      bool agree = inferred[i].dtype == outputs[i].dtype && inferred[i].rank() == outputs[i].rank();
      for (size_t d = 0; agree && d < outputs[i].shape.size(); ++d)
        agree = inferred[i].shape[d] == outputs[i].shape[d] ||
                sym::prove_equal(inferred[i].shape[d], outputs[i].shape[d], graph_.facts()) != sym::Proof::No;
      FL_CHECK(agree, "{}: output {} has type {}, inference gives {}", where, i, op::to_string(outputs[i]), op::to_string(inferred[i]));
    }
  }

  std::string node_name(const Node& node) const {
    std::string text = fmt::format("graph {}, {}", graph_.name(), node.op == nullptr ? "a node without record" : node.op->name);
    if (!node.origin.empty()) return text + fmt::format(" (node \"{}\")", node.origin);
    if (!node.outputs.empty() && !graph_.value(node.outputs[0]).name.empty()) text += fmt::format(" (%{})", graph_.value(node.outputs[0]).name);
    return text;
  }

  const Graph& graph_;
  std::vector<char> defined_;
  std::set<std::string> bound_;
  std::set<std::string> names_;
  std::unordered_map<int32_t, int64_t> uses_;
};

}  // namespace

void verify(const Graph& graph) { Verifier(graph).run(); }

}  // namespace fuseloom::graph
